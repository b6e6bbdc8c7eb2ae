"""Copies of host arrays on the device, in pages that are added and never moved.

An array is seen as rows of bytes; a page is a number of units of 16 bytes of one row. Kernels find a page's address in
a table on the device, [row, page]; the host keeps the same table. Pages are granted before the host's tables may use
them: what is not granted is no capacity, so nothing has to be taken back. They are cut from slabs, which are plain
allocations that stay for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.ads import BITS, GROUPS_LOG2, SEGMENT_SLOTS
from kernels.compiled import IN_PLACE, INLINED
from kernels.cuda.buffers import roomy
from kernels.cuda.types import Device, DeviceArray, OutOfDeviceMemory
from kernels.touched import UNIT_BYTES

SLAB_BYTES = 64 << 20
SLAB_SHARE = 64  # at most a part in so many of the device's memory

UNITS_AT_FIRST = 4096  # of a delta
ONE_ROW = 1 << 62  # units of the row of an array that has only one

_BYTES = np.dtype(np.uint8)


class Slabs:
    """Zeroed memory for pages. A page goes where the least is left that has room for it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._slab_bytes = min(SLAB_BYTES, device.memory()[1] // SLAB_SHARE)
        self._slabs: list[DeviceArray] = []
        self._left: dict[int, list[int]] = {}  # bytes left somewhere -> where they begin

    @property
    def left(self) -> int:
        """Bytes that are taken of the device and not in use."""
        return sum(size * len(addresses) for size, addresses in self._left.items())

    def take(self, size: int, keep: int = 0) -> int:
        """Address of `size` bytes, a multiple of 256. Where nothing left has room, a new slab is taken if so many bytes
        of the device stay free beside it, else no more than the size. Raises OutOfDeviceMemory."""
        assert size % 256 == 0, size
        held = _least(self._left, size)
        if held:
            address = self._left[held].pop()
            if not self._left[held]:
                del self._left[held]
        else:
            held = max(size, self._slab_bytes)
            if self._device.memory()[0] - held < keep:
                held = size
            slab = self._device.zeros(held, _BYTES)
            self._slabs.append(slab)
            address = slab.address
        if held > size:
            self._left.setdefault(held - size, []).append(address + size)
        return address

    def missing(self, pages: Sequence[tuple[int, int]]) -> int:
        """Bytes that `take` takes of the device at least for these (size, count), in this order."""
        left, missing = {size: len(addresses) for size, addresses in self._left.items()}, 0
        for size, count in pages:
            for taken in range(count):
                held = _least(left, size)
                if not held:
                    missing += size * (count - taken)
                    break
                left[held] -= 1
                if not left[held]:
                    del left[held]
                if held > size:
                    left[held - size] = left.get(held - size, 0) + 1
        return missing


def _least(sizes: Iterable[int], size: int) -> int:
    """The least of the sizes that is not below this one, else 0."""
    return min((held for held in sizes if held >= size), default=0)


class Paged:
    """Rows of one host array. `rows` and `pages` are granted from the front; a grant of either covers all of both."""

    def __init__(
        self, device: Device, slabs: Slabs, host: NDArray[Any], page_units: int, *, used_bytes: int | None = None
    ) -> None:
        """`host`: [row, item]. Of each row the first `used_bytes` may be granted (None: all)."""
        assert host.ndim == 2, host.shape
        assert host.flags.c_contiguous, host.strides
        assert page_units * UNIT_BYTES % 256 == 0, page_units
        self.device, self.slabs = device, slabs
        self.row_bytes = host.shape[1] * host.itemsize
        self.rebind(host)
        assert len(host) == 1 or self.row_bytes % UNIT_BYTES == 0, self.row_bytes
        self.page_units, self.page_bytes = page_units, UNIT_BYTES * page_units
        self.pages_max = -(-(self.row_bytes if used_bytes is None else used_bytes) // self.page_bytes)
        self.table = device.zeros((len(host), self.pages_max), np.uint64)
        self.addresses = np.zeros((len(host), self.pages_max), np.uint64)
        self.rows = self.pages = 0
        self._unsent = len(host)  # the first row of the table that has addresses which the device lacks

    def rebind(self, host: NDArray[Any]) -> None:
        """From now on this is a copy of another array of the same shape, which is to be uploaded."""
        assert host.shape[1] * host.itemsize == self.row_bytes, (host.shape, self.row_bytes)
        self.host = host
        self.bytes = host.reshape(-1).view(np.uint8)
        whole = len(self.bytes) // UNIT_BYTES * UNIT_BYTES
        self.words = self.bytes[:whole].view(np.uint64)  # whole units
        self.tail = self.bytes[whole:]  # the last, if it is none

    def missing(self, rows: int, pages: int) -> int:
        """Pages that a grant of at least this many rows and pages takes."""
        rows, pages = max(rows, self.rows), max(pages, self.pages)
        if (rows, pages) == (self.rows, self.pages):
            return 0
        return int(np.count_nonzero(self.addresses[:rows, :pages] == 0))

    def grant(self, rows: int, pages: int, keep: int = 0) -> None:
        """Zeroed pages for rows and pages up to these; slabs leave so many bytes free, if they can. Raises
        OutOfDeviceMemory; then nothing more is granted."""
        rows, pages = max(rows, self.rows), max(pages, self.pages)
        assert rows <= len(self.host) and pages <= self.pages_max, (rows, pages)
        wanted = np.flatnonzero(self.addresses[:rows, :pages].reshape(-1) == 0)
        row, page = wanted // max(pages, 1), wanted % max(pages, 1)
        if len(wanted):
            self._unsent = min(self._unsent, int(row.min()))
        for i in range(len(wanted)):  # those taken stay, should one fail, for the next time
            others = (len(wanted) - 1 - i) * self.page_bytes
            self.addresses[row[i], page[i]] = self.slabs.take(self.page_bytes, keep + others)
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
        return DeviceArray(int(self.addresses[row, page]), (size,), _BYTES, self.slabs)

    @property
    def granted_bytes(self) -> int:
        return self.rows * self.pages * self.page_bytes


class Delta:
    """Units of 16 bytes on their way to the device, put together in one array: one upload and one launch for all."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._words = np.empty(3 * UNITS_AT_FIRST, np.uint64)  # the units, then their addresses
        self._addresses = np.empty(UNITS_AT_FIRST, np.uint64)
        self.count = 0
        self._staging: DeviceArray | None = None

    def add_units(self, paged: Paged, notes: NDArray[np.int64]) -> None:
        """The units with these numbers, ascending, as they are now. All must be granted."""
        self._make_room(len(notes))
        row_units = max(paged.row_bytes // UNIT_BYTES, 1) if len(paged.host) > 1 else ONE_ROW
        self.count = _collect_units(self._into(paged), row_units, notes, self.count)

    def add_slots(self, paged: Paged, notes: NDArray[np.int64], group: int, item_bytes: int) -> None:
        """Of a column of `item_bytes` a slot, the units that hold the slots noted with this group (kernels.ads)."""
        self._make_room(len(notes) * (item_bytes // UNIT_BYTES + 2))
        self.count = _collect_slots(self._into(paged), notes, group, item_bytes, self.count)

    def add_bits(self, paged: Paged, notes: NDArray[np.int64]) -> None:
        """The same of a bit a slot, and of whole segments."""
        per_segment = SEGMENT_SLOTS // (8 * UNIT_BYTES)
        segments = int(np.count_nonzero(notes & ((1 << GROUPS_LOG2) - 1) == 0))
        self._make_room(len(notes) + segments * per_segment)
        self.count = _collect_bits(self._into(paged), notes, per_segment, self.count)

    def _make_room(self, more: int) -> None:
        room = len(self._addresses)
        while self.count + more > room:
            room *= 2
        if room > len(self._addresses):
            words, addresses = np.empty(3 * room, np.uint64), np.empty(room, np.uint64)
            words[: 2 * self.count] = self._words[: 2 * self.count]
            addresses[: self.count] = self._addresses[: self.count]
            self._words, self._addresses = words, addresses

    def _into(self, paged: Paged) -> _Into:
        return _Into(paged.words, paged.tail, paged.addresses, paged.page_units, self._words, self._addresses)

    def send(self, patch: Any, threads: int) -> int:
        """-> bytes uploaded. Raises OutOfDeviceMemory; then nothing is lost and it may be called again."""
        count = self.count
        if not count:
            return 0
        words = self._words[: 3 * count]
        words[2 * count :] = self._addresses[:count]
        if self._staging is None or self._staging.shape[0] < len(words):
            self._staging = None
            self._staging = roomy(self._device, 2 * len(words), len(words), np.uint64)
        self._device.upload(words, self._staging)
        self.count = 0
        addresses = self._staging.at(2 * count, count)
        self._device.launch(patch, -(-count // threads), threads, (addresses, self._staging, count))
        return words.nbytes


class _Into(NamedTuple):
    """An array, and where its units are put."""

    host: NDArray[np.uint64]  # two a unit
    tail: NDArray[np.uint8]  # the bytes of the last unit, where it is not whole
    table: NDArray[np.uint64]  # [row, page] addresses
    page_units: int
    words: NDArray[np.uint64]  # [unit, 2], flat
    addresses: NDArray[np.uint64]  # [unit]


@njit(**INLINED)
def _put(to: Any, row: int, within: int, unit: int, count: int) -> None:
    """The unit, `within` so many units of its row, to place `count`; beyond the array's end zeros."""
    in_page = within // to.page_units
    page = to.table[row, in_page]
    assert page != 0  # granted before it was used
    to.addresses[count] = page + np.uint64((within - in_page * to.page_units) * UNIT_BYTES)
    if 2 * unit < len(to.host):
        to.words[2 * count] = to.host[2 * unit]
        to.words[2 * count + 1] = to.host[2 * unit + 1]
        return
    to.words[2 * count], to.words[2 * count + 1] = np.uint64(0), np.uint64(0)
    for b in range(len(to.tail)):
        to.words[2 * count + (b >> 3)] |= np.uint64(to.tail[b]) << np.uint64(8 * (b & 7))


@njit(**IN_PLACE)
def _collect_units(to: Any, row_units: int, notes: Any, count: int) -> int:
    """-> the count after them. A unit that was noted twice goes once; so in all of these."""
    last, row, first = np.int64(-1), np.int64(0), np.int64(0)
    for unit in notes:
        if unit == last:
            continue
        last = unit
        if unit >= first + row_units:
            row = unit // row_units
            first = row * row_units
        _put(to, row, unit - first, unit, count)
        count += 1
    return count


@njit(**IN_PLACE)
def _collect_slots(to: Any, notes: Any, group: int, item_bytes: int, count: int) -> int:
    after = np.int64(0)  # the first unit that was not put yet
    for note in notes:
        if note & group == 0:
            continue
        slot = note >> GROUPS_LOG2
        end = ((slot + 1) * item_bytes - 1) // UNIT_BYTES + 1
        for unit in range(max(slot * item_bytes // UNIT_BYTES, after), end):
            _put(to, 0, unit, unit, count)
            count += 1
        after = max(after, end)
    return count


@njit(**IN_PLACE)
def _collect_bits(to: Any, notes: Any, per_segment: int, count: int) -> int:
    last_slots, last_segment = np.int64(-1), np.int64(-1)
    for note in notes:
        number = note >> GROUPS_LOG2
        if note & BITS:
            unit = number // (8 * UNIT_BYTES)
            if unit != last_slots:
                _put(to, 0, unit, unit, count)
                count += 1
                last_slots = unit
        elif note == number << GROUPS_LOG2 and number != last_segment:
            for unit in range(number * per_segment, (number + 1) * per_segment):
                _put(to, 0, unit, unit, count)
                count += 1
            last_segment = number
    return count


def one_row(array: NDArray[Any]) -> NDArray[Any]:
    """A flat array, or [item, width], as [1, bytes] for Paged."""
    return array.reshape(-1).view(np.uint8)[None]


class Grant(NamedTuple):
    """Of an array, rows and pages up to these."""

    paged: Paged
    rows: int
    pages: int

    @property
    def missing(self) -> int:
        return self.paged.missing(self.rows, self.pages)


def grant_all(grants: Sequence[Grant], spare: int) -> None:
    """Grants them, if `spare` bytes of the device are enough beside what is left of slabs. Raises OutOfDeviceMemory."""
    pages: dict[Slabs, list[tuple[int, int]]] = {}
    for each in grants:
        pages.setdefault(each.paged.slabs, []).append((each.paged.page_bytes, each.missing))
    missing = sum(slabs.missing(listed) for slabs, listed in pages.items())
    if missing > spare:
        raise OutOfDeviceMemory(f"{missing:,} bytes for the index, {max(spare, 0):,} to spare")
    # a whole slab is taken only where all that is still to come would fit without: so what was found to fit does
    free = grants[0].paged.device.memory()[0]
    rest = sum(size * count for listed in pages.values() for size, count in listed)
    for each in grants:
        rest -= each.missing * each.paged.page_bytes
        each.paged.grant(each.rows, each.pages, free - spare + rest)
