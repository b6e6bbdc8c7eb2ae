"""The int8 rounding of kernels/precision.py in the loop of training: rounded values forward, the gradient straight
through."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.precision import INT8_MAX


def round_int8(vectors: Tensor) -> Tensor:
    """[row, D] as it comes back from storage: whole multiples of the largest magnitude / 127."""
    with torch.no_grad():
        scale = (vectors.abs().amax(-1, keepdim=True) / INT8_MAX).clamp(min=1e-12)
        rounded = (vectors / scale).round() * scale
    return vectors + (rounded - vectors).detach()
