"""Which part of each array of an index is in use: what a snapshot holds, and where it is put back.

Arrays are declared at the capacity of the index and filled from the front, so that what is in use follows from a few
frontiers. A group is a set of columns of one length in use, `columns[name][:rows]`, that change together. Everything
that an index is made of is here but for its two vocabularies (vocabulary.py), its clock and positions, and what can be
made from these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_index.index import Index
from kernels import ads as ads_
from kernels import expired as expired_
from kernels import extents as extents_
from kernels import pool as pool_
from kernels import rows as rows_
from kernels import table as table_
from kernels import targetings as targetings_
from kernels.rows import BLOCK_WORDS

Columns = dict[str, NDArray[Any]]
BLOCK_SLOTS = 64 * BLOCK_WORDS  # of targetings, which Targetings.block_ads counts by


class Group(NamedTuple):
    """`rows` of each column are in use. The columns are the index's own memory, at its capacity."""

    name: str
    rows: int
    columns: Columns


def groups(index: Index, row_words: int | None = None) -> list[Group]:
    """All arrays of the index. `row_words`: how wide a row of targetings is in use; None: as it is now."""
    return [*_ads(index), *_targetings(index, row_words), *_expired(index), _state(index)]


def capacity(group: Group) -> int:
    """The most rows that its columns could hold."""
    return min(len(column) for column in group.columns.values())


def _ads(index: Index) -> list[Group]:
    a = index.ads
    slots = int(a.extents.state[extents_.FRONTIER])
    events = ("version", "offset", "partition", "bid", "flags")  # what nearly every event of an ad changes
    vectors = ("embedding", "embedding_scale", "gate", "gate_scale")
    rest = (
        "id_at", "features_at", "fields_at", "targeting", "advertiser", "campaign", "created_ms", "start_us", "end_us",
    )  # fmt: skip
    columns: Columns = {name: getattr(a, name) for name in rest}
    extents: Columns = {f"extent_{name}": getattr(a.extents, name) for name in ("next", "previous", "kind", "used")}
    words: Columns = {"used": a.extents.bits, "active": a.active, "live": a.live}
    return [
        Group("ads", slots, columns | extents | _chains(a.table)),
        Group("ads.events", slots, {name: getattr(a, name) for name in events}),
        Group("ads.vectors", slots, {name: getattr(a, name) for name in vectors}),
        Group("ads.words", slots // 64, words),
        Group("ads.segments", -(-slots // ads_.SEGMENT_SLOTS), {"change_us": a.change_us}),
        _buckets("ads.buckets", a.table),
        _words("ads.texts", a.texts),
        _words("ads.fields", a.fields),
        Group("ads.field_terms", index.fields.vocabulary.highest, {"references": a.field_references}),
    ]


def _targetings(index: Index, row_words: int | None) -> list[Group]:
    t, x = index.targetings, index.targetings.rows
    slots = int(t.state[targetings_.FRONTIER])
    width = int(targetings_.row_words(t)) if row_words is None else row_words
    columns: Columns = {"record": t.record, "references": t.references, "ring": index.ads.extents.ring}
    entries: Columns = {"row": x.row, "uses": x.uses, "offset": x.offset, "capacity": x.capacity}
    rows: Columns = {"bits": x.bits[:, :width], "entry_of": x.entry_of}
    terms = index.terms.vocabulary.highest
    return [
        Group("targetings", slots, columns | _chains(t.table)),
        Group("targetings.free", int(t.state[targetings_.FREE_COUNT]), {"slot": t.free}),
        Group("targetings.blocks", -(-slots // BLOCK_SLOTS), {"ads": t.block_ads}),
        _buckets("targetings.buckets", t.table),
        _words("targetings.records", t.records),
        _words("targetings.postings", x.postings),
        Group("targetings.rows", int(x.state[rows_.ROWS_FRONTIER]), rows),
        Group("targetings.entries", 2 * terms, entries),
        Group("targetings.terms", terms, {"references": t.term_references}),
    ]


def _expired(index: Index) -> list[Group]:
    x = index.expired
    names = ("id_at", "version", "clock_ms", "partition", "next")
    columns: Columns = {name: getattr(x, name) for name in names}
    partitions: Columns = {"first": x.first, "last": x.last, "newest_ms": x.newest_ms, "applied": index.applied}
    in_use = np.flatnonzero(np.logical_or.reduce([column != 0 for column in partitions.values()]))
    return [
        Group("expired", int(x.state[expired_.FRONTIER]), columns | _chains(x.table)),
        _buckets("expired.buckets", x.table),
        _words("expired.texts", x.texts),
        Group("partitions", int(in_use[-1]) + 1 if len(in_use) else 0, partitions),
    ]


def _state(index: Index) -> Group:
    """Counts, frontiers and heads of lists: small arrays, each as one row; not the limits and logs behind them."""
    a, t, x = index.ads, index.targetings, index.expired
    arrays: Columns = {
        "ads": a.state[:4], "ads.extents": a.extents.state[:2], "ads.extents.free": a.extents.free,
        "ads.table": a.table.state, "targetings": t.state[:5], "targetings.table": t.table.state,
        "targetings.rows": t.rows.state[:3],
        "targetings.rows.constrained": t.rows.constrained, "expired": x.state, "expired.table": x.table.state,
    }  # fmt: skip
    pools = {"ads.texts": a.texts, "ads.fields": a.fields, "targetings.records": t.records,
             "targetings.postings": t.rows.postings, "expired.texts": x.texts}  # fmt: skip
    for name, pool in pools.items():
        arrays[name + ".pool"], arrays[name + ".free"] = pool.state[:2], pool.free
    return Group("state", 1, {name: array[None] for name, array in arrays.items()})


def _chains(table: table_.Table) -> Columns:
    return {"table_next": table.next, "table_hash": table.hash}


def _buckets(name: str, table: table_.Table) -> Group:
    buckets = (1 << int(table.state[table_.LEVEL])) + int(table.state[table_.SPLIT])
    return Group(name, buckets, {"head": table.head})


def _words(name: str, pool: pool_.Pool) -> Group:
    return Group(name, int(pool.state[pool_.FRONTIER]), {"words": pool.words})
