"""Compiles kernels of the CUDA backend where there is neither a GPU nor a driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from numba import cuda
from numba.cuda import dispatcher

ARCHITECTURE = (9, 0, "a")  # of an H100 and H200


@contextmanager
def no_driver(capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """numba-cuda asks the driver what the device can do as soon as a kernel calls a device function: answered here."""
    asked = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability, id=0)
    try:
        yield
    finally:
        dispatcher.get_current_device = asked


def compile_offline(kernel: Any, signature: Any) -> str:
    """The PTX of a bare `@cuda.jit` function."""
    options = {name: kernel.targetoptions[name] for name in ("fastmath",) if name in kernel.targetoptions}
    with no_driver():
        ptx, _ = cuda.compile(
            kernel.py_func, signature, device=False, abi="numba", cc=ARCHITECTURE, output="ptx", **options
        )
    return str(ptx)
