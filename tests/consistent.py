"""What must hold of an index between batches, looked up in its arrays: every count, list, bit and reference says what
the ads' columns and the targetings' records say, every block of every pool is somebody's or free, scratch is zero."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpu_index.identity import tie_key
from gpu_index.index import Index
from gpu_index.vocabulary import Vocabulary
from kernels import ads as ads_
from kernels import expired as expired_
from kernels import extents as extents_
from kernels import pool as pool_
from kernels import program as ops
from kernels import rows as rows_
from kernels import table as table_
from kernels import targetings as targetings_
from kernels import touched

Slots = NDArray[np.int64]
CLASS_WORDS = sorted([2 << i for i in range(30)] + [3 << i for i in range(30)])


def assert_consistent(index: Index) -> None:
    """Raises AssertionError where anything is not as it must be between two batches."""
    slots = _extents(index)
    _ads(index, slots)
    _field_terms(index, slots)
    targetings = _targetings(index, slots)
    _rows(index, targetings)
    _terms(index, targetings)
    _expired(index)
    _scratch(index)


def assert_empty(index: Index) -> None:
    """No ad, no targeting, no term, nothing in any pool: as at the start but for what caches and frontiers keep."""
    assert_consistent(index)
    a, t = index.ads, index.targetings
    assert index.count == 0
    assert not a.state[:touched.OWN].any()
    for pool in (a.texts, a.fields, t.records, t.rows.postings):
        assert pool.state[pool_.USED] == 0
    assert t.state[targetings_.LIVE] == 0
    assert t.state[targetings_.PROGRAMS] == 0
    assert len(index.fields.vocabulary) == 0
    assert {term for terms in index.terms.vocabulary.terms_of for term in terms.values()} <= set(
        index.terms.vocabulary._pins
    )
    rows = int(t.rows.state[rows_.ROWS_FRONTIER])
    assert not t.rows.bits[:rows, : targetings_.row_words(t)].any()
    assert not a.extents.bits.any()
    free = int(np.count_nonzero(a.extents.kind))
    assert free * 4096 == a.extents.state[extents_.FRONTIER], "free neighbours did not melt together"


def slots_in_use(index: Index) -> Slots:
    words = index.ads.extents.bits[: int(index.ads.extents.state[extents_.FRONTIER]) // 64]
    return np.flatnonzero(bits_of(words))


def bits_of(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """[64 * words]"""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")


# Ads.


def _extents(index: Index) -> Slots:
    """-> slots in use"""
    x = index.ads.extents
    frontier = int(x.state[extents_.FRONTIER])
    assert frontier % 4096 == 0
    assert not x.bits[frontier // 64 :].any()
    assert not x.kind[frontier:].any()
    starts = np.flatnonzero(x.kind[:frontier])
    classes = (x.kind[starts] & extents_.CLASS_BITS).astype(np.int64)
    sizes = np.int64(1) << classes
    assert np.array_equal(starts, np.cumsum(sizes) - sizes), "extents do not lie side by side"
    assert sizes.sum() == frontier
    assert not (starts % sizes).any()
    is_free, is_taken = (x.kind[starts] & extents_.FREE) != 0, (x.kind[starts] & extents_.TAKEN) != 0
    assert (is_free != is_taken).all()
    bits = bits_of(x.bits[: frontier // 64])
    used = np.add.reduceat(bits, starts, dtype=np.int64) if len(starts) else np.zeros(0, np.int64)
    assert not used[is_free].any()
    assert np.array_equal(used[is_taken], x.used[starts[is_taken]])
    assert used[is_taken].all(), "an extent without an ad was not given back"
    _free_extents(x, dict(zip(starts[is_free].tolist(), classes[is_free].tolist(), strict=True)))
    _rings(index, dict(zip(starts[is_taken].tolist(), sizes[is_taken].tolist(), strict=True)), bits)
    assert x.state[extents_.SLOTS_USED] == bits.sum() == index.count
    return np.flatnonzero(bits)


def _free_extents(x: extents_.Extents, free: dict[int, int]) -> None:
    """Lists of free extents by class hold just these, and no two of them could be one."""
    for start, c in free.items():
        assert c == extents_.CLASS_MAX or free.get(start ^ (1 << c)) != c, (start, c)
    listed: dict[int, int] = {}
    for c, first in enumerate(x.free.tolist()):
        before, at = 0, first
        while at:
            assert x.previous[at - 1] == before
            assert at - 1 not in listed
            listed[at - 1] = c
            before, at = at, int(x.next[at - 1])
    assert listed == free


def _rings(index: Index, taken: dict[int, int], bits: NDArray[np.uint8]) -> None:
    """Every extent lies in the ring of the targeting of its ads, those with room first."""
    x, t = index.ads.extents, index.targetings
    frontier = int(t.state[targetings_.FRONTIER])
    assert not x.ring[frontier:].any()
    left = dict(taken)
    for targeting in np.flatnonzero(x.ring[:frontier]).tolist():
        first = at = int(x.ring[targeting]) - 1
        full, ads = [], 0
        while True:
            size = left.pop(at)
            full.append(int(x.used[at]) == size)
            ads += int(x.used[at])
            assert (index.ads.targeting[at : at + size][bits[at : at + size] == 1] == targeting).all()
            after = int(x.next[at]) - 1
            assert x.previous[after] == at + 1
            at = after
            if at == first:
                break
        assert full == sorted(full), (targeting, full)
        assert ads == t.references[targeting], (targeting, ads)
    assert not left, "extents of no ring"


def _ads(index: Index, slots: Slots) -> None:
    a, now_us = index.ads, index.now_us
    ids = [index.ad_id(slot) for slot in slots.tolist()]
    assert len(set(ids)) == len(ids)
    assert a.table.hash[slots].tolist() == [tie_key(ad_id) for ad_id in ids]
    _table(a.table, slots)
    flags = a.flags[slots]
    assert a.state[ads_.ADS] == len(slots)
    assert a.state[ads_.PAUSED_ADS] == np.count_nonzero(flags & ads_.PAUSED)
    assert a.state[ads_.ZERO_ADS] == np.count_nonzero(flags & ads_.ZERO_EMBEDDING)
    zero = ~a.embedding[slots].any(axis=1)
    assert zero[(flags & ads_.ZERO_EMBEDDING) != 0].all()
    active = slots[flags & ads_.PAUSED == 0]
    live = active[(a.start_us[active] <= now_us) & (now_us < a.end_us[active])]
    assert np.array_equal(np.flatnonzero(bits_of(a.active)), active)
    assert np.array_equal(np.flatnonzero(bits_of(a.live)), live)
    for moments in (a.start_us[active], a.end_us[active]):
        later = moments > now_us
        assert (a.change_us[active[later] // ads_.SEGMENT_SLOTS] <= moments[later]).all()
    texts = [(at, 1 + (int(a.texts.words[at]) + 3) // 4) for at in _offsets(a.id_at[slots], a.features_at[slots])]
    _pool(a.texts, texts)
    _pool(a.fields, [(at, int(a.fields.words[at])) for at in _offsets(a.fields_at[slots])])
    assert (a.bid[slots] > 0).all()


def _offsets(*columns: NDArray[np.uint32]) -> list[int]:
    """All offsets but 0, which is none."""
    return [at for column in columns for at in column.tolist() if at]


def _field_terms(index: Index, slots: Slots) -> None:
    a, vocabulary = index.ads, index.fields.vocabulary
    counts = np.zeros(len(vocabulary._value), np.int64)
    for column in (a.advertiser[slots], a.campaign[slots]):
        np.add.at(counts, column[column != 0], 1)
    for at in _offsets(a.fields_at[slots]):
        p, end, words = at + 1, at + int(a.fields.words[at]), a.fields.words
        while p < end:
            n_terms, n_numbers = int(words[p + 1]), int(words[p + 2])
            np.add.at(counts, words[p + 3 : p + 3 + n_terms], 1)
            p += 3 + n_terms + 2 * n_numbers
        assert p == end
    assert np.array_equal(a.field_references[: len(counts)], counts)
    assert not a.field_references[len(counts) :].any()
    assert a.state[ads_.FIELDS_ZEROED] == 0
    assert not a.field_is_zeroed.any()
    _vocabulary(vocabulary, counts, set())


# Targetings.


def _targetings(index: Index, slots: Slots) -> Slots:
    """-> slots of targetings in use"""
    t = index.targetings
    frontier, free_count = int(t.state[targetings_.FRONTIER]), int(t.state[targetings_.FREE_COUNT])
    used = np.flatnonzero(t.record[:frontier])
    assert not t.record[frontier:].any()
    free = t.free[:free_count].tolist()
    assert sorted([*free, *used.tolist()]) == list(range(frontier)), "a slot is lost, or free twice"
    assert t.state[targetings_.LIVE] == len(used)
    counts = np.bincount(index.ads.targeting[slots], minlength=frontier) if len(slots) else np.zeros(frontier)
    assert np.array_equal(t.references[used], counts[used])
    assert t.references[used].all(), "a targeting without an ad was not given back"
    _table(t.table, used)
    records = [t.records.words[at : at + int(t.records.words[at])] for at in t.record[used].tolist()]
    assert len({record.tobytes() for record in records}) == len(records), "one record twice"
    _pool(t.records, [(at, _record_words(t.records.words, at)) for at in t.record[used].tolist()])
    assert np.array_equal(np.flatnonzero(bits_of(_row(index, rows_.USED_ROW))), used)
    return used


def _record_words(words: NDArray[np.uint32], at: int) -> int:
    """A record with the places of its open conjuncts, and their count, behind it."""
    return int(words[at]) + 1 + int(words[at + int(words[at])])


def _row(index: Index, row: int) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = index.targetings.rows.bits[row]
    return words


def _rows(index: Index, targetings: Slots) -> None:
    """Rows, lists and their counts are what the records make of them, and nothing else."""
    t, x = index.targetings, index.targetings.rows
    constrained: list[list[int]] = [[] for _ in x.constrained]
    checked: list[int] = []
    entries: dict[int, list[int]] = {}
    for slot in targetings.tolist():
        mine, attributes, open_conjuncts = targetings_.conditions(t, t.records.words, int(t.record[slot]))
        for attribute in np.flatnonzero(attributes).tolist():
            constrained[attribute].append(slot)
        if len(open_conjuncts):
            checked.append(slot)
        behind = int(t.record[slot]) + int(t.records.words[t.record[slot]]) + 1
        assert np.array_equal(t.records.words[behind : behind + len(open_conjuncts)], open_conjuncts)
        assert t.records.words[behind - 1] == len(open_conjuncts)
        for entry in mine.tolist():
            entries.setdefault(entry, []).append(slot)
    assert t.state[targetings_.PROGRAMS] == len(checked)
    assert np.flatnonzero(bits_of(_row(index, rows_.CHECK_ROW))).tolist() == checked
    for attribute, held in enumerate(constrained):
        assert x.constrained[attribute] == len(held)
        assert np.flatnonzero(bits_of(_row(index, rows_.CONSTRAINED_ROW + attribute))).tolist() == held
    entries_max = 2 * len(index.terms.vocabulary._value)
    for column in (x.row, x.uses, x.capacity):
        assert not column[entries_max:].any()
    assert {entry: len(held) for entry, held in entries.items()} == _nonzero(x.uses[:entries_max])
    lists = _nonzero(x.capacity[:entries_max])
    in_rows = _nonzero(x.row[:entries_max])
    assert lists.keys().isdisjoint(in_rows)
    assert lists.keys() | in_rows.keys() == entries.keys()
    for entry, row in in_rows.items():
        assert x.entry_of[row] == entry
        assert np.flatnonzero(bits_of(_row(index, row))).tolist() == entries[entry]
    for entry, capacity in lists.items():
        at, count = int(x.offset[entry]), len(entries[entry])
        assert count <= CLASS_WORDS[capacity - 1]
        assert sorted(x.postings.words[at : at + count].tolist()) == entries[entry]
    _pool(x.postings, [(int(x.offset[entry]), CLASS_WORDS[capacity - 1]) for entry, capacity in lists.items()])
    fixed, frontier = rows_.CONSTRAINED_ROW + len(x.constrained), int(x.state[rows_.ROWS_FRONTIER])
    free, row = [], int(x.state[rows_.ROWS_FREE])
    while row:
        assert not _row(index, row).any(), "a free row has bits"
        free.append(row)
        row = int(x.entry_of[row])
    assert sorted([*free, *in_rows.values()]) == list(range(fixed, frontier)), "a row is lost, or free twice"


def _nonzero(column: NDArray[np.generic]) -> dict[int, int]:
    at = np.flatnonzero(column)
    return dict(zip(at.tolist(), column[at].tolist(), strict=True))


def _terms(index: Index, targetings: Slots) -> None:
    t, vocabulary = index.targetings, index.terms.vocabulary
    counts = np.zeros(len(vocabulary._value), np.int64)
    for at in t.record[targetings].tolist():
        for term in _terms_of(t.records.words, at):
            counts[term] += 1
    assert np.array_equal(t.term_references[: len(counts)], counts)
    assert not t.term_references[len(counts) :].any()
    assert t.state[targetings_.ZEROED] == 0
    assert not t.is_zeroed.any()
    pins = Counter(term for _, pinned in index.packer._records.values() for term in pinned)
    assert vocabulary._pins == pins
    assert not index.packer.loose
    _vocabulary(vocabulary, counts, set(pins))


def _terms_of(words: NDArray[np.uint32], at: int) -> Iterator[int]:
    """Every term that the record at `at` names, as often as it does."""
    p, end = int(targetings_.expression_at(words, at)), at + int(words[at])
    while p < end:
        op, count = int(words[p]) & 15, int(words[p]) >> 4
        if op <= ops.NOT:
            p += 2
            continue
        p += int(ops.node_words(words, p))
        if op in (ops.TERMS, ops.CIRCLE):
            yield from words[p - count : p].tolist()
    assert p == end


def _vocabulary(vocabulary: Vocabulary, references: NDArray[np.int64], pinned: set[int]) -> None:
    """Terms and values name each other; those in use, and only those, are not free."""
    named = {}
    for attribute, terms in enumerate(vocabulary.terms_of):
        for value, term in terms.items():
            assert vocabulary._value[term] == value
            assert vocabulary._attribute[term] == attribute
            named[term] = value
    assert len(named) == sum(map(len, vocabulary.terms_of))
    assert not vocabulary.fresh
    free = set(vocabulary._free)
    assert len(free) == len(vocabulary._free)
    assert all(vocabulary._value[term] is None and vocabulary._attribute[term] < 0 for term in free)
    blocks = {term for term, attribute in enumerate(vocabulary._attribute) if attribute < 0} - free - {0}
    used = set(np.flatnonzero(references).tolist()) | pinned
    assert used - blocks == set(named), "a term without a user was not given back, or one in use was"
    assert not free & (used | blocks)


# Expired versions, and what all share.


def _expired(index: Index) -> None:
    x = index.expired
    frontier = int(x.state[expired_.FRONTIER])
    seen: list[int] = []
    for partition in np.flatnonzero(x.first).tolist():
        slot, last, clocks = int(x.first[partition]), 0, []
        while slot:
            seen.append(slot - 1)
            assert x.partition[slot - 1] == partition
            clocks.append(int(x.clock_ms[slot - 1]))
            last, slot = slot, int(x.next[slot - 1])
        assert x.last[partition] == last
        assert all(one <= other for one, other in pairwise(clocks))
        assert clocks[-1] <= x.newest_ms[partition]
    assert not x.last[x.first == 0].any()
    held = np.array(sorted(slot for slot in seen if x.version[slot] != expired_.GONE), np.int64)
    free, slot = [], int(x.state[expired_.FREE])
    while slot:
        free.append(slot - 1)
        slot = int(x.next[slot - 1])
    assert sorted([*free, *seen]) == list(range(frontier)), "a slot is lost, or free twice"
    assert x.state[expired_.HELD] == len(held)
    _table(x.table, held)
    _pool(x.texts, [(at, 1 + (int(x.texts.words[at]) + 3) // 4) for at in x.id_at[held].tolist()])


def _scratch(index: Index) -> None:
    """Working memory is zero wherever it may have been written."""
    words = targetings_.row_words(index.targetings)
    assert not index._scratch.bits.any()
    assert not index._scratch.rows[:, :words].any()
    assert not index._marks.any()


def _table(t: table_.Table, slots: Slots) -> None:
    """Each slot, and nothing else, hangs in the chain that its hash says."""
    buckets = (1 << int(t.state[table_.LEVEL])) + int(t.state[table_.SPLIT])
    assert t.state[table_.SPLIT] < 1 << int(t.state[table_.LEVEL])
    assert not t.head[buckets:].any()
    found: list[int] = []
    for bucket, first in enumerate(t.head[:buckets].tolist()):
        at = first
        while at:
            found.append(at - 1)
            assert _bucket(t, int(t.hash[at - 1])) == bucket
            at = int(t.next[at - 1])
            assert len(found) <= len(slots), "a chain without an end, or slots that should be gone"
    assert sorted(found) == slots.tolist()
    assert t.state[table_.COUNT] == len(slots)


def _bucket(t: table_.Table, key: int) -> int:
    level, split = int(t.state[table_.LEVEL]), int(t.state[table_.SPLIT])
    low = key & ((1 << level) - 1)
    return key & ((2 << level) - 1) if low < split else low


def _pool(pool: pool_.Pool, used: Sequence[tuple[int, int]]) -> None:
    """Blocks in use (offset, words asked for) and free ones lie side by side from 2 to the frontier."""
    blocks = [(at, CLASS_WORDS[bisect_left(CLASS_WORDS, size)]) for at, size in used]
    assert pool.state[pool_.USED] == sum(words for _, words in blocks)
    blocks += _free_blocks(pool)
    blocks.sort()
    at = 2
    for start, words in blocks:
        assert start == at, "a block is lost, or in use twice"
        at += words
    assert at == pool.state[pool_.FRONTIER]


def _free_blocks(pool: pool_.Pool) -> Iterable[tuple[int, int]]:
    for c, first in enumerate(pool.free.tolist()):
        at = first
        while at:
            yield at, CLASS_WORDS[c]
            at = int(pool.words[at])
