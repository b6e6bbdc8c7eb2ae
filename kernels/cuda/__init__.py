"""The CUDA side of the kernels: the same steps as the CPU's, on copies of the arrays that queries read.

Nothing outside the CUDA backend imports this package, so neither numba-cuda nor CuPy is needed without a GPU.
"""

from __future__ import annotations

import numpy as np

if not hasattr(np, "row_stack"):  # NumPy 2.5 took out this old name of vstack, which numba-cuda 0.30 still asks for
    np.row_stack = np.vstack  # type: ignore[attr-defined]
