"""Working memory of a pass on the device, and the small arrays that a pass is told."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kernels.cuda.types import Device, DeviceArray, OutOfDeviceMemory

_ALIGNMENT = 256


def roomy(device: Device, wanted: int, needed: int, dtype: DTypeLike) -> DeviceArray:
    """`wanted` items, or where there is no room for them, those that are needed. Raises OutOfDeviceMemory."""
    try:
        return device.empty(wanted, dtype)
    except OutOfDeviceMemory:
        if wanted == needed:
            raise
        return device.empty(needed, dtype)


class Buffers:
    """Memory by name, kept from pass to pass and made larger where a pass needs more. Contents are undefined."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._held: dict[str, DeviceArray] = {}

    def get(self, name: str, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Raises OutOfDeviceMemory."""
        shape = (shape,) if isinstance(shape, int) else shape
        dtype = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        held = self._held.pop(name, None)
        if held is None or held.nbytes < size:
            grown = size if held is None else max(size, held.nbytes + held.nbytes // 2)
            held = None  # given back before the larger one is taken
            held = roomy(self._device, max(grown, 1), max(size, 1), np.uint8)
        self._held[name] = held
        return DeviceArray(held.address, shape, dtype, held.owner)

    @property
    def nbytes(self) -> int:
        """Bytes of the device that are held."""
        return sum(held.nbytes for held in self._held.values())

    def give_back(self) -> None:
        """Lets go of all of it."""
        self._held.clear()

    def send(self, name: str, *arrays: NDArray[Any]) -> list[DeviceArray]:
        """Host arrays, side by side in one upload."""
        starts, size = [], 0
        for array in arrays:
            starts.append(size)
            size = -(-(size + array.nbytes) // _ALIGNMENT) * _ALIGNMENT
        packed = np.zeros(max(size, _ALIGNMENT), np.uint8)
        for start, array in zip(starts, arrays, strict=True):
            packed[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        to = self.get(name, len(packed), np.uint8)
        self._device.upload(packed, to)
        return [
            DeviceArray(to.address + start, array.shape, array.dtype, to.owner)
            for start, array in zip(starts, arrays, strict=True)
        ]
