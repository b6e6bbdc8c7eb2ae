"""What int8 precision makes of a request's vectors, for the float64 reference."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.score import int16_max


def as_int16(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Rounded to int16 with a scale for each vector, and back."""
    wide = vectors.astype(np.float64)
    scale = np.abs(wide).max(axis=1, keepdims=True) / int16_max(vectors.shape[1])
    rounded: NDArray[np.float64] = np.rint(wide / np.where(scale > 0, scale, 1)) * scale
    return rounded
