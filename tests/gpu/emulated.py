"""A device of the CUDA backend that is no GPU: it runs the PTX that numba-cuda makes of the kernels in the emulator."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from kernels.cuda.types import DeviceArray, OutOfDeviceMemory

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")

from numba import cuda
from numba.cuda import types

from tests.gpu.offline import compile_offline
from tests.gpu.ptx_emulator import Arena, Kernel

_NUMBA = {np.dtype(name): getattr(types, name) for name in ("int32", "uint32", "int64", "uint64", "float32", "float64")}


@cache
def kernel_of(function: Any, signature: tuple[Any, ...]) -> Kernel:
    """The kernel as sm_90a runs it, compiled for arguments of these dtypes."""
    return Kernel(compile_offline(function, types.void(*[_NUMBA[each] for each in signature])))


class _Owner:
    """Gives its memory back when nothing refers to it any more."""

    def __init__(self, arena: Arena, address: int, size: int) -> None:
        self._finalizer = weakref.finalize(self, arena.free, address, size)


class EmulatedDevice:
    name = "emulated"
    multiprocessors = 132

    def __init__(self, capacity: int = 256 << 20) -> None:
        self.capacity = capacity
        self.arena = Arena(capacity + (64 << 20))  # room for guards
        self.launches: list[tuple[str, int]] = []  # kernel, instructions run

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        shape = (shape,) if isinstance(shape, int) else shape
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        address = self.arena.allocate(size) if self.arena.used + size <= self.capacity else 0
        if address == 0:
            raise OutOfDeviceMemory(f"{size} bytes asked for, {self.memory()[0]} free")
        return DeviceArray(address, shape, np.dtype(dtype), _Owner(self.arena, address, size))

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        array = self.empty(shape, dtype)
        self.arena.view(array.address, array.nbytes)[:] = 0
        return array

    def upload(self, host: NDArray[Any], array: DeviceArray, first: int = 0) -> None:
        assert host.dtype == array.dtype, (host.dtype, array.dtype)
        target = self.arena.view(array.address + first * array.dtype.itemsize, host.nbytes)
        assert (first + host.size) * array.dtype.itemsize <= array.nbytes
        target[:] = np.ascontiguousarray(host).reshape(-1).view(np.uint8)

    def download(self, array: DeviceArray) -> NDArray[Any]:
        held: NDArray[Any] = self.arena.view(array.address, array.nbytes).copy().view(array.dtype)
        return held.reshape(array.shape)

    def launch(
        self, kernel: Any, blocks: int, threads: int, arguments: Sequence[int | float | DeviceArray | np.generic],
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        assert blocks > 0 and 0 < threads <= 1024, (blocks, threads)
        plain = [_plain(argument) for argument in arguments]
        compiled = kernel_of(kernel, tuple(value.dtype for value in plain))
        steps = compiled.launch(self.arena, blocks, threads, plain, shared_bytes)
        self.launches.append((kernel.py_func.__name__, steps))

    def synchronise(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return self.capacity - self.arena.used, self.capacity


def _plain(argument: int | float | DeviceArray | np.generic) -> np.generic:
    if isinstance(argument, DeviceArray):
        return np.uint64(argument.address)
    if isinstance(argument, np.generic):
        return argument
    return np.int64(argument) if isinstance(argument, int) else np.float64(argument)


assert cuda is not None
