"""The index on the device: copies, byte for byte, of the arrays that a query's kernels read.

The host's tables stay the one writer. `grow` grants pages and raises the tables' limits; what is not granted is no
capacity, so a batch of events is refused by the same code as at the host's own capacity, event by event, and queries go
on. After each batch `sync` sends what the tables' logs say was touched. Everything happens on the engine's thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from kernels import ads as ads_
from kernels import extents as extents_
from kernels import pool as pool_
from kernels import rows as rows_
from kernels import targetings as targetings_
from kernels.cuda.ads import THREADS, patch
from kernels.cuda.buffers import Buffers
from kernels.cuda.paged import Delta, Grant, Paged, Slabs, grant_all, one_row
from kernels.cuda.types import Device, DeviceColumns, OutOfDeviceMemory, PagedColumn
from kernels.precision import Precision, row_width
from kernels.touched import LIMIT, LOG, UNIT_BYTES, taken

RESERVED_SHARE = 16  # a part in so many of the device's memory is left to queries
ROWS_AHEAD = 64  # rows granted beyond those in use: without a row a common term stays a list, only slower


VECTOR_COLUMNS = ("embedding", "embedding_scale", "gate", "gate_scale")
WIDE = ("embedding", "gate")  # in slabs of their own: another model's may be wider, and take the place of these
GROUP_OF = {  # of the others: ads_.FACTS
    **dict.fromkeys(("start_us", "end_us", "bid"), ads_.SERVING),
    **dict.fromkeys(VECTOR_COLUMNS, ads_.VECTORS),
}


class Sizes(NamedTuple):
    """Powers of two."""

    slots_log2: int = 16  # ads of a page
    targetings_log2: int = 17  # of a page of a row, and of `record`
    words_log2: int = 20  # of a page of a pool


DEFAULT_SIZES = Sizes()


class Need(NamedTuple):
    """Room beyond what is in use."""

    slots: int = 0
    targetings: int = 0
    records: int = 0  # words
    postings: int = 0
    fields: int = 0


class Mirror:
    def __init__(
        self, device: Device, ads: Any, targetings: Any, dim: int, gate_dim: int, precision: Precision,
        sizes: Sizes = DEFAULT_SIZES,
    ) -> None:  # fmt: skip
        """Copies what the tables hold. Their logs must have been made with room. Raises OutOfDeviceMemory."""
        assert sizes.slots_log2 >= 13 and sizes.targetings_log2 >= 15 and sizes.words_log2 >= 10, sizes
        assert len(ads.state) > LOG, "the tables keep no log"
        self.device, self.sizes, self._slabs = device, sizes, Slabs(device)
        self._wide_slabs = {name: Slabs(device) for name in WIDE}
        self.ads, self.targetings, self._precision = ads, targetings, precision
        a, t = ads, targetings
        self.bits = {name: self._bits(getattr(a, name)) for name in ("live", "active")}
        self.columns = {
            name: self._column(array, self._wide_slabs.get(name))
            for name, array in (
                ("targeting", a.targeting), ("start_us", a.start_us), ("end_us", a.end_us), ("bid", a.bid),
                ("tie", a.table.hash), *((name, getattr(a, name)) for name in VECTOR_COLUMNS),
                ("fields_at", a.fields_at), ("advertiser", a.advertiser), ("campaign", a.campaign),
                ("created_ms", a.created_ms),
            )
        }  # fmt: skip
        width = (t.rows.bits.shape[1] - rows_.STRIDE_PAD_WORDS) * 8
        self.rows = Paged(device, self._slabs, t.rows.bits, 1 << self.row_units_log2, used_bytes=width)
        self.record = self._flat(t.record, sizes.targetings_log2)
        self.pools = {name: self._flat(pool.words, sizes.words_log2) for name, pool in self._pools().items()}
        self.score_columns = self._score_columns(precision, dim, gate_dim)
        self.buffers = Buffers(device)  # of the passes over it
        self._delta = Delta(device)
        self._reserved = device.memory()[1] // RESERVED_SHARE
        self._grant(Need(), 0)
        for paged in self._all():
            paged.upload()
        for state in self._states():
            taken(state)

    # -- what there is

    def _score_columns(self, precision: Precision, dim: int, gate_dim: int) -> DeviceColumns:
        columns = map(self._paged_column, (*VECTOR_COLUMNS, "bid", "tie"))
        return DeviceColumns(self.sizes.slots_log2, precision, dim, gate_dim, *columns)

    def _column(self, array: Any, slabs: Slabs | None = None) -> Paged:
        return self._flat(array, self.sizes.slots_log2, slabs)

    def _flat(self, array: Any, items_log2: int, slabs: Slabs | None = None) -> Paged:
        """Pages of 2^items_log2 items (or rows) of the array."""
        page_bytes = (array.nbytes // len(array)) << items_log2
        return Paged(self.device, slabs or self._slabs, one_row(array), page_bytes // UNIT_BYTES)

    def _bits(self, array: Any) -> Paged:
        return self._flat(array, self.sizes.slots_log2 - 6)

    @property
    def row_units_log2(self) -> int:
        """Units of a page of a row: 128 targetings each."""
        return self.sizes.targetings_log2 - 7

    def _pools(self) -> dict[str, Any]:
        a, t = self.ads, self.targetings
        return {"records": t.records, "postings": t.rows.postings, "fields": a.fields}

    def _all(self) -> list[Paged]:
        return [*self.bits.values(), *self.columns.values(), self.rows, self.record, *self.pools.values()]

    def _paged_column(self, name: str) -> PagedColumn:
        paged = self.columns[name]
        return PagedColumn(paged.table, self._item_bytes(paged))

    def _item_bytes(self, paged: Paged) -> int:
        """Of a slot, in one of the columns."""
        return paged.page_bytes >> self.sizes.slots_log2

    def _states(self) -> list[Any]:
        a, t = self.ads, self.targetings
        return [a.state, t.state, t.rows.state, *(pool.state for pool in self._pools().values())]

    def memory(self) -> dict[str, int]:
        """Bytes granted, by part."""
        per_ad = {**self.bits, **self.columns}
        return {
            "rows": self.rows.granted_bytes,
            "records": self.record.granted_bytes + self.pools["records"].granted_bytes,
            "lists": self.pools["postings"].granted_bytes,
            "fields": self.pools["fields"].granted_bytes,
            "vectors": sum(per_ad[name].granted_bytes for name in VECTOR_COLUMNS),
            "ads": sum(paged.granted_bytes for name, paged in per_ad.items() if name not in VECTOR_COLUMNS),
        }

    def widened(self, dim: int, gate_dim: int) -> tuple[int, int]:
        """Bytes that vectors of these widths take beyond those in use, and bytes that there are for them."""
        pages, more, room = self.columns["bid"].pages, 0, self._spare(self._reserved)
        for name, width in zip(WIDE, (dim, gate_dim), strict=True):
            array = getattr(self.ads, name)
            wider = row_width(width, self._precision) * array.itemsize - array.nbytes // len(array)
            more += wider * (pages << self.sizes.slots_log2)
            room += self._wide_slabs[name].left if wider else 0  # given back with the rest
        return more, room

    def renewed(self, ads: Any, dim: int, gate_dim: int) -> Mirror:
        """This one, of an index whose ads have other vectors: of its columns only those are sent, and the memory of
        those that have another width is given back before any is taken. Raises OutOfDeviceMemory; then it is of no use
        any more."""
        self.sync()  # what was noted so far is of the columns in use
        self.ads = ads
        arrays = {name: one_row(getattr(ads, name)) for name in VECTOR_COLUMNS}
        for name, array in arrays.items():
            if array.nbytes == self.columns[name].host.nbytes:
                self.columns[name].rebind(array)
            else:
                del self.columns[name]
                self._wide_slabs[name] = Slabs(self.device)
        pages, missing = self.columns["bid"].pages, [name for name in VECTOR_COLUMNS if name not in self.columns]
        for name in missing:
            self.columns[name] = self._column(getattr(ads, name), self._wide_slabs[name])
        if missing:
            grant_all([Grant(self.columns[name], 1, pages) for name in missing], self.device.memory()[0])
        for name in VECTOR_COLUMNS:
            self.columns[name].upload()
        self.score_columns = self._score_columns(self._precision, dim, gate_dim)
        return self

    # -- growth

    def grow(self, records: int, postings: int, fields: int) -> bool:
        """Makes room for one more event, which may take so many words, as far as the tables' capacity goes. -> whether
        a limit was raised; False: there is room already, or no more memory, or no more capacity"""
        need = Need(1 << extents_.CLASS_MAX, 1, records, postings, fields)
        before = self._limits()
        with suppress(OutOfDeviceMemory):  # some of it may have been granted
            self._grant(need, self._reserved)
        return before != self._limits()

    def _limits(self) -> list[int]:
        return [int(state[LIMIT]) for state in (self.ads.extents.state, *self._states())]

    def _grant(self, need: Need, reserved: int) -> None:
        a, t = self.ads, self.targetings
        slots = min(int(a.extents.state[extents_.FRONTIER]) + need.slots, len(a.targeting))
        targetings = min(int(t.state[targetings_.FRONTIER]) + need.targetings, len(t.record))
        rows = min(int(t.rows.state[rows_.ROWS_FRONTIER]) + ROWS_AHEAD, len(t.rows.entry_of))
        slot_pages = -(-slots // (1 << self.sizes.slots_log2))
        targeting_pages = -(-targetings // (1 << self.sizes.targetings_log2))
        per_slot = [*self.bits.values(), *self.columns.values()]
        grants = [Grant(paged, 1, slot_pages) for paged in per_slot]
        grants += [Grant(self.rows, rows, targeting_pages), Grant(self.record, 1, targeting_pages)]
        for name, pool in self._pools().items():
            words = min(int(pool.state[pool_.FRONTIER]) + getattr(need, name), len(pool.words))
            grants.append(Grant(self.pools[name], 1, -(-words // (1 << self.sizes.words_log2))))
        try:
            grant_all(grants, self._spare(reserved))
        finally:  # pages that were granted may be used, whatever came after them
            self._set_limits(per_slot)

    def _spare(self, reserved: int) -> int:
        """Bytes that the index may take of the device, beside what is reserved for queries and not yet theirs."""
        return self.device.memory()[0] - max(reserved - self.buffers.nbytes, 0)

    def _set_limits(self, per_slot: list[Paged]) -> None:
        a, t = self.ads, self.targetings
        pages = min(paged.pages for paged in per_slot)
        a.extents.state[LIMIT] = min(pages << self.sizes.slots_log2, len(a.targeting))
        pages = min(self.rows.pages, self.record.pages)
        t.state[LIMIT] = min(pages << self.sizes.targetings_log2, len(t.record))
        t.rows.state[LIMIT] = self.rows.rows
        for name, pool in self._pools().items():
            pool.state[LIMIT] = min(self.pools[name].pages << self.sizes.words_log2, len(pool.words))

    # -- deltas

    def sync(self) -> int:
        """Brings the device up to date with the tables. -> bytes sent"""
        a, t = self.ads, self.targetings
        notes = taken(a.state)
        if notes is None:
            for paged in (*self.bits.values(), *self.columns.values()):
                paged.upload()
        elif len(notes):
            self._add_slots(notes)
        logs = [(t.state, self.record), (t.rows.state, self.rows)]
        logs += [(pool.state, self.pools[name]) for name, pool in self._pools().items()]
        for state, paged in logs:
            units = taken(state)
            if units is None:
                paged.upload()
            elif len(units):
                self._delta.add_units(paged, units)
        try:
            return self._delta.send(patch, THREADS)
        except OutOfDeviceMemory:  # queries had what was left for it
            self.buffers.give_back()
            return self._delta.send(patch, THREADS)

    def _add_slots(self, notes: Any) -> None:
        for paged in self.bits.values():
            self._delta.add_bits(paged, notes)
        for name, paged in self.columns.items():
            self._delta.add_slots(paged, notes, GROUP_OF.get(name, ads_.FACTS), self._item_bytes(paged))
