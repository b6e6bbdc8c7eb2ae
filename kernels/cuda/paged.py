"""Copies of host arrays on the device, in pages that are added and never moved.

An array is seen as rows of bytes; a page is a number of units of 16 bytes of one row. Kernels find a page's address in
a table on the device, [row, page]; the host keeps the same table. Pages are granted before the host's tables may use
them: what is not granted is no capacity, so nothing has to be taken back. They are cut from slabs, which are plain
allocations that stay for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.cuda.types import Device, DeviceArray, OutOfDeviceMemory
from kernels.touched import UNIT_BYTES

SLAB_BYTES = 64 << 20
SLAB_SHARE = 64  # at most a part in so many of the device's memory

_BYTES = np.dtype(np.uint8)


class Slabs:
    """Zeroed memory for pages."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._slab_bytes = min(SLAB_BYTES, device.memory()[1] // SLAB_SHARE)
        self._slabs: list[DeviceArray] = []
        self._at = self._left = 0

    def free_bytes(self) -> int:
        """What there is left to take, here and on the device."""
        return self._left + self._device.memory()[0]

    def take(self, size: int) -> int:
        """Address of `size` bytes, a multiple of 256. Raises OutOfDeviceMemory."""
        assert size % 256 == 0, size
        if size > self._left:
            try:
                slab = self._device.zeros(max(size, self._slab_bytes), _BYTES)
            except OutOfDeviceMemory:
                slab = self._device.zeros(size, _BYTES)
            self._slabs.append(slab)
            if slab.nbytes - size <= self._left:  # what is left of the one before is more
                return slab.address
            self._at, self._left = slab.address, slab.nbytes
        address = self._at
        self._at, self._left = self._at + size, self._left - size
        return address


class Paged:
    """Rows of one host array. `rows` and `pages` are granted from the front; a grant of either covers all of both."""

    def __init__(
        self, device: Device, slabs: Slabs, host: NDArray[Any], page_units: int, *, used_bytes: int | None = None
    ) -> None:
        """`host`: [row, item]. Of each row the first `used_bytes` may be granted (None: all)."""
        assert host.ndim == 2, host.shape
        assert host.flags.c_contiguous, host.strides
        assert page_units * UNIT_BYTES % 256 == 0, page_units
        self.device, self._slabs, self.host = device, slabs, host
        self.bytes = host.reshape(-1).view(np.uint8)
        self.row_bytes = host.shape[1] * host.itemsize
        assert len(host) == 1 or self.row_bytes % UNIT_BYTES == 0, self.row_bytes
        self.page_units, self.page_bytes = page_units, UNIT_BYTES * page_units
        self.pages_max = -(-(self.row_bytes if used_bytes is None else used_bytes) // self.page_bytes)
        self.table = device.zeros((len(host), self.pages_max), np.uint64)
        self.addresses = np.zeros((len(host), self.pages_max), np.uint64)
        self.rows = self.pages = 0
        self._unsent = len(host)  # the first row of the table that has addresses which the device lacks

    def missing_bytes(self, rows: int, pages: int) -> int:
        """What a grant of at least this many rows and pages takes."""
        rows, pages = max(rows, self.rows), max(pages, self.pages)
        return (rows * pages - self.rows * self.pages) * self.page_bytes

    def grant(self, rows: int, pages: int) -> None:
        """Zeroed pages for rows and pages up to these. Raises OutOfDeviceMemory; then nothing more is granted."""
        rows, pages = max(rows, self.rows), max(pages, self.pages)
        assert rows <= len(self.host) and pages <= self.pages_max, (rows, pages)
        wanted = np.flatnonzero(self.addresses[:rows, :pages].reshape(-1) == 0)
        row, page = wanted // max(pages, 1), wanted % max(pages, 1)
        if len(wanted):
            self._unsent = min(self._unsent, int(row.min()))
        for i in range(len(wanted)):  # those taken stay, should one fail, for the next time
            self.addresses[row[i], page[i]] = self._slabs.take(self.page_bytes)
        self.rows, self.pages = rows, pages
        if self._unsent < rows:
            first, self._unsent = self._unsent, len(self.host)
            self.device.upload(self.addresses[first:rows].reshape(-1), self.table, first * self.pages_max)

    def upload(self) -> None:
        """Sends all that is granted."""
        for row in range(self.rows):
            for page in range(self.pages):
                first = page * self.page_bytes
                part = self.bytes[row * self.row_bytes + first :][: min(self.page_bytes, self.row_bytes - first)]
                self.device.upload(part, self._page(row, page, len(part)))

    def download(self) -> NDArray[np.uint8]:
        """[row, byte] of all that is granted, for tests."""
        out = np.zeros((self.rows, self.pages * self.page_bytes), np.uint8)
        for row in range(self.rows):
            for page in range(self.pages):
                part = self.device.download(self._page(row, page, self.page_bytes))
                out[row, page * self.page_bytes : (page + 1) * self.page_bytes] = part
        return out

    def _page(self, row: int, page: int, size: int) -> DeviceArray:
        return DeviceArray(int(self.addresses[row, page]), (size,), _BYTES, self._slabs)

    @property
    def granted_bytes(self) -> int:
        return self.rows * self.pages * self.page_bytes


class Delta:
    """Units of 16 bytes on their way to the device: one upload and one launch for all arrays."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._addresses = np.empty(4096, np.uint64)
        self._data = np.empty((4096, UNIT_BYTES), np.uint8)
        self.count = 0
        self._staging: DeviceArray | None = None

    def add(self, paged: Paged, units: NDArray[np.int64]) -> None:
        """The units of the host array with these numbers, as they are now. All must be granted."""
        if not len(units):
            return
        while self.count + len(units) > len(self._addresses):
            self._addresses = np.concatenate((self._addresses, np.empty_like(self._addresses)))
            self._data = np.concatenate((self._data, np.empty_like(self._data)))
        end = self.count + len(units)
        _collect(
            paged.bytes, units, paged.addresses, paged.row_bytes // UNIT_BYTES, paged.page_units,
            self._addresses[self.count : end], self._data[self.count : end],
        )  # fmt: skip
        self.count = end

    def send(self, patch: Any, threads: int) -> int:
        """-> bytes uploaded. Raises OutOfDeviceMemory; then nothing is lost and it may be called again."""
        count = self.count
        if not count:
            return 0
        words = np.concatenate((self._addresses[:count], self._data[:count].reshape(-1).view(np.uint64)))
        if count & 1:  # so that the data begin at a multiple of 16
            words = np.concatenate((words[:count], np.zeros(1, np.uint64), words[count:]))
        if self._staging is None or self._staging.shape[0] < len(words):
            self._staging = None
            self._staging = self._device.empty(2 * len(words), np.uint64)
        self._device.upload(words, self._staging)
        self.count = 0
        data = self._staging.at(count + (count & 1), 2 * count)
        self._device.launch(patch, -(-count // threads), threads, (self._staging, data, count))
        return words.nbytes


@njit(nogil=True, cache=True)
def _collect(host: Any, units: Any, table: Any, row_units: int, page_units: int, addresses: Any, data: Any) -> None:
    """Addresses on the device and 16 bytes each of the host array's units; beyond its end zeros."""
    one_row = len(table) == 1
    for i in range(len(units)):
        unit = units[i]
        row = np.int64(0) if one_row else unit // row_units
        within = unit - row * row_units
        page = table[row, within // page_units]
        assert page != 0  # granted before it was used
        addresses[i] = page + np.uint64(within % page_units * UNIT_BYTES)
        for b in range(UNIT_BYTES):
            at = unit * UNIT_BYTES + b
            data[i, b] = host[at] if at < len(host) else np.uint8(0)


@njit(nogil=True, cache=True)
def slot_units(notes: Any, item_bytes: int, out: Any) -> int:
    """Units of a column of `item_bytes` a slot that hold the noted slots; each at least once. -> their number"""
    count, last = 0, np.int64(-1)
    for note in notes:
        if note & 1:
            continue
        slot = note >> 1
        for unit in range(slot * item_bytes // UNIT_BYTES, ((slot + 1) * item_bytes - 1) // UNIT_BYTES + 1):
            if unit != last:
                out[count] = unit
                count += 1
                last = unit
    return count


@njit(nogil=True, cache=True)
def bit_units(notes: Any, segment_slots: int, out: Any) -> int:
    """The same of a bit a slot, with the noted segments."""
    count, last = 0, np.int64(-1)
    per_segment = segment_slots // (8 * UNIT_BYTES)
    for note in notes:
        if note & 1:
            for unit in range((note >> 1) * per_segment, ((note >> 1) + 1) * per_segment):
                out[count] = unit
                count += 1
            continue
        unit = (note >> 1) // (8 * UNIT_BYTES)
        if unit != last:
            out[count] = unit
            count += 1
            last = unit
    return count


def one_row(array: NDArray[Any]) -> NDArray[Any]:
    """A flat array, or [item, width], as [1, bytes] for Paged."""
    return array.reshape(-1).view(np.uint8)[None]


def total_missing(grants: Sequence[tuple[Paged, int, int]]) -> int:
    return sum(paged.missing_bytes(rows, pages) for paged, rows, pages in grants)
