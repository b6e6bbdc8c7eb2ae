"""A GPU: memory by cudaMalloc through CuPy, kernels launched through numba-cuda, everything on the default stream.

No pools, no managed memory: what is taken is taken plainly, and what is free is what the driver says. Host arrays go
through pinned staging, so that a copy runs while the host goes on. Errors of CUDA are DeviceFault, after which a
context is of no more use; a lack of memory is OutOfDeviceMemory, after which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
from numba import cuda
from numba.cuda.core import config
from numba.cuda.cudadrv.driver import CudaAPIError
from numpy.typing import DTypeLike, NDArray

from kernels.cuda.types import DeviceArray, DeviceFault, NoDevice, OutOfDeviceMemory

STAGING_BYTES = 32 << 20
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY alike
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
_STREAM = 0  # the default one, of CuPy and numba-cuda alike
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # of every grid below 128 blocks, which a small batch or index has, each time
OLDEST = (8, 0)  # compute capability: 16-byte asynchronous copies, redux, the tensor cores' int8


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if error.status == _OUT_OF_MEMORY:
            raise OutOfDeviceMemory(str(error)) from error
        raise DeviceFault(str(error)) from error
    except CudaAPIError as error:
        if error.code == _OUT_OF_MEMORY:
            raise OutOfDeviceMemory(str(error)) from error
        raise DeviceFault(str(error)) from error


class CudaDevice:
    def __init__(self) -> None:
        """The first GPU that CUDA shows to the process. Raises NoDevice."""
        try:
            count = cupy.cuda.runtime.getDeviceCount()
            if count == 0:
                raise NoDevice("CUDA shows no GPU to this process")
            properties = cupy.cuda.runtime.getDeviceProperties(0)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise NoDevice(f"CUDA does not answer: {error}") from error
        capability = properties["major"], properties["minor"]
        self.name = properties["name"].decode()
        self.multiprocessors = int(properties["multiProcessorCount"])
        if capability < OLDEST:
            raise NoDevice(f"{self.name} is of compute capability {capability[0]}.{capability[1]}; 8.0 is needed")
        self._staging = self._pinned(STAGING_BYTES)
        self._staged = 0  # bytes of it that copies may still read

    def _pinned(self, size: int) -> NDArray[np.uint8]:
        with _faults():
            return np.frombuffer(cupy.cuda.alloc_pinned_memory(size), np.uint8, size)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        shape = (shape,) if isinstance(shape, int) else shape
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        with _faults():
            memory = cupy.cuda.Memory(max(size, 1))
        return DeviceArray(int(memory.ptr), shape, dtype, memory)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        array = self.empty(shape, dtype)
        with _faults():
            cupy.cuda.runtime.memsetAsync(array.address, 0, array.nbytes, _STREAM)
        return array

    def upload(self, host: NDArray[Any], array: DeviceArray, first: int = 0) -> None:
        assert host.dtype == array.dtype, (host.dtype, array.dtype)
        source = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
        address = array.address + first * array.dtype.itemsize
        for start in range(0, len(source), STAGING_BYTES):
            part = source[start : start + STAGING_BYTES]
            if self._staged + len(part) > STAGING_BYTES:
                self.synchronise()
            held = self._staging[self._staged : self._staged + len(part)]
            held[:] = part
            self._staged += len(part)
            with _faults():
                cupy.cuda.runtime.memcpyAsync(address + start, held.ctypes.data, len(part), _TO_DEVICE, _STREAM)

    def download(self, array: DeviceArray) -> NDArray[Any]:
        out = np.empty(array.shape, array.dtype)
        if out.nbytes:
            with _faults():
                cupy.cuda.runtime.memcpy(out.ctypes.data, array.address, out.nbytes, _TO_HOST)
        self._staged = 0  # the copy waited for all before it
        return out

    def launch(
        self, kernel: Any, blocks: int, threads: int, arguments: Sequence[int | float | DeviceArray | np.generic],
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        plain = [
            np.uint64(argument.address) if isinstance(argument, DeviceArray) else argument for argument in arguments
        ]
        with _faults():
            kernel[blocks, threads, _STREAM, shared_bytes](*plain)

    def synchronise(self) -> None:
        with _faults():
            cupy.cuda.runtime.streamSynchronize(_STREAM)
        self._staged = 0

    def memory(self) -> tuple[int, int]:
        with _faults():
            free, total = cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)


def open_device() -> CudaDevice:
    """Raises NoDevice."""
    if not cuda.is_available():
        raise NoDevice("numba-cuda finds no usable GPU or driver")
    return CudaDevice()
