"""What the parts of the CUDA backend hand to each other.

Kernels take addresses and scalars only: a device array goes to a kernel as the 64-bit address of its first byte
(uint64), never as a Numba array. So every kernel has one signature, a launch passes a few plain numbers, and an index
costs no check for negative ones. Lengths are arguments of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

TOP_K_MAX = 10_240  # ads of one answer of `top_k`; who needs more takes those given out of the mask and asks again


class OutOfDeviceMemory(RuntimeError):
    """The device has no room for what was asked of it. Nothing was taken."""


class DeviceFault(RuntimeError):
    """CUDA reported an error. What the device holds cannot be relied on from here on."""


class NoDevice(RuntimeError):
    """There is no GPU to use; the message says why."""


class DeviceArray(NamedTuple):
    """Memory on the device, C-contiguous and 256-byte aligned. `owner` keeps it allocated."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def at(self, first: int, count: int) -> DeviceArray:
        """`count` items from flat index `first`; not aligned to more than its items."""
        return DeviceArray(self.address + first * self.dtype.itemsize, (count,), self.dtype, self.owner)


class Device(Protocol):
    """A GPU, or what stands in for one in tests. Everything happens in the order of the calls (one stream)."""

    name: str
    multiprocessors: int

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Undefined contents. Raises OutOfDeviceMemory. Given back when the last reference to `owner` goes."""

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray: ...

    def upload(self, host: NDArray[Any], array: DeviceArray, first: int = 0) -> None:
        """Copies the host's items to array's flat items [first : first + host.size]; host may change afterwards."""

    def download(self, array: DeviceArray) -> NDArray[Any]:
        """The contents, once everything before it is done."""

    def launch(
        self, kernel: Any, blocks: int, threads: int, arguments: Sequence[int | float | DeviceArray | np.generic],
        shared_bytes: int = 0,
    ) -> None:  # fmt: skip
        """Launches a bare `@cuda.jit` function on a 1-D grid. A DeviceArray goes as its address (uint64), an int as
        int64, a float as float64, a NumPy scalar as what it is."""

    def synchronise(self) -> None: ...

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""


class PagedColumn(NamedTuple):
    """A column of ads, in pages of 2^slots_log2 slots each: slot s lies at
    address `table[s >> slots_log2] + (s & mask) * item_bytes`, where `table` is uint64 [pages] on the device. Every
    column of an index has the same slots_log2, at least 13, so a block of 8,192 slots lies in one page. Pages that have
    slots in use are always there; they are 256-byte aligned."""

    table: DeviceArray  # uint64 [pages]
    item_bytes: int


class DeviceColumns(NamedTuple):
    """What scoring reads of ads. Rows are as wide as on the host (kernels.precision.row_width), zero-padded."""

    slots_log2: int
    precision: Any  # kernels.precision.Precision
    dim: int
    gate_dim: int
    embedding: PagedColumn  # [row_width(dim)] storage_dtype
    embedding_scale: PagedColumn  # float32
    gate: PagedColumn  # [row_width(gate_dim)] storage_dtype
    gate_scale: PagedColumn  # float32
    bid: PagedColumn  # float64
    tie: PagedColumn  # uint64: orders exact ties, ascending


class UserVectors(NamedTuple):
    """A request's user as the request has it: contract section 4."""

    experts: NDArray[np.float32]  # [E, D]
    gates: NDArray[np.float32]  # [E, G]
    gate_bias: NDArray[np.float32]  # [E]
    temperature: float
    bias: float
    route: int


class TopKJob(NamedTuple):
    """One pathway. Jobs may share a mask, and a user (by identity): such are scored once for both."""

    mask: DeviceArray  # uint32 [slots / 32], bit s & 31 of word s >> 5: the ads that may be in the answer
    user: UserVectors | None  # None: every score is 0.5
    k: int  # 1 .. TOP_K_MAX
    by_value: bool  # rank by score * bid, else by score


class TopK(NamedTuple):
    """Best first, equal ones by the tie ascending, then by slot; fewer than k where the mask has fewer."""

    slots: NDArray[np.uint32]  # [n]
    scores: NDArray[np.float32]  # [n]
    values: NDArray[np.float64]  # [n] float64(score) * bid


# kernels/cuda/top_k.py offers
#     top_k(device: Device, columns: DeviceColumns, slots: int, jobs: Sequence[TopKJob]) -> list[TopK]
# with `slots` a multiple of 8,192: what the masks have bits for.
