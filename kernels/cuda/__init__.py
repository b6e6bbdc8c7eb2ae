"""The CUDA side of the kernels: the same steps as the CPU's, on copies of the arrays that queries read.

Nothing outside the CUDA backend imports this package, so neither numba-cuda nor CuPy is needed without a GPU.
"""
