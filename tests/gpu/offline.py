"""Compiles kernels of the CUDA backend where there is neither a GPU nor a driver."""

from __future__ import annotations

from typing import Any

from numba import cuda

from kernels.cuda.machine_code import ARCHITECTURES, H200, no_driver


def compile_offline(kernel: Any, signature: Any) -> str:
    """The PTX of a bare `@cuda.jit` function."""
    options = {name: kernel.targetoptions[name] for name in ("fastmath",) if name in kernel.targetoptions}
    with no_driver():
        ptx, _ = cuda.compile(
            kernel.py_func, signature, device=False, abi="numba", cc=ARCHITECTURES[H200], output="ptx", **options
        )
    return str(ptx)
