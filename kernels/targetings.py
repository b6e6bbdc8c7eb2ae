"""The table of targetings: each distinct record once, counted by reference, its conditions in rows and lists.

What rows say of a targeting is a necessary condition, derived from its record: a conjunction, attribute by attribute,
of "one of these values" and "none of these". Where that is all that the record says, rows decide. Where it is not (OR
across attributes, two lists of one attribute, radii, open ranges), the targeting has its bit in the check row, and its
open conjuncts, whose places are kept behind the record in the pool, are run on what the rows leave. A record always
yields the same conditions, so removing needs no second record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels import table as tables
from kernels.compiled import ALLOCATES, IN_PLACE, INLINED, prefetch
from kernels.memory import reserve
from kernels.pool import Pool, fits, give, pool, take
from kernels.program import (
    ALL,
    ANY,
    CIRCLE,
    DEPTH_MAX,
    INTEGERS,
    NO_ZONE,
    NOT,
    RECORD_HEAD,
    SCHEDULE_WORDS,
    TERMS,
    int64_at,
    node_words,
)
from kernels.rows import (
    BLOCK_WORDS,
    CHECK_ROW,
    CONSTRAINED_ROW,
    USED_ROW,
    Rows,
    add_entry,
    clear_bit,
    remove_entry,
    room,
    rows,
    set_bit,
    sweep,
)
from kernels.touched import LIMIT, note, note_words, state

FRONTIER, FREE_COUNT, LIVE, PROGRAMS, ZEROED = 0, 1, 2, 3, 4
NO_SLOT = -1
SWEEP_ROWS = 4


class Targetings(NamedTuple):
    rows: Rows
    records: Pool
    record: NDArray[np.uint32]  # [slot] offset in records, 0 where unused
    references: NDArray[np.uint32]  # [slot] ads
    block_ads: NDArray[np.int64]  # [block of 8,192 slots] ads
    table: tables.Table
    free: NDArray[np.uint32]  # a stack of free slots
    state: NDArray[np.int64]  # frontier, free slots, live, with a program, zeroed terms; the log: units of `record`
    term_references: NDArray[np.uint32]  # [term] targetings
    zeroed: NDArray[np.uint32]  # terms that lost their last targeting, each once, to be given back
    is_zeroed: NDArray[np.bool_]  # [term] in `zeroed`
    domain: NDArray[np.int64]  # [attribute, 3] of small integers: first term (0: none), least and greatest value


def targetings(
    targetings_max: int, terms_max: int, domain: NDArray[np.int64], rows_max: int, words_max: int, touched_max: int = 0
) -> Targetings:
    """An empty table. `domain` has a line for each attribute."""
    return Targetings(
        rows(targetings_max, terms_max, len(domain) + 1, rows_max, words_max, touched_max),
        pool(words_max, touched_max),
        reserve(targetings_max, np.uint32), reserve(targetings_max, np.uint32),
        np.zeros(targetings_max // (64 * BLOCK_WORDS) + 1, np.int64), tables.table(targetings_max),
        reserve(targetings_max, np.uint32), state(targetings_max, touched_max), reserve(terms_max, np.uint32),
        reserve(terms_max, np.uint32), reserve(terms_max, np.bool_), domain,
    )  # fmt: skip


@njit(**INLINED)
def row_words(x: Any) -> int:
    """Words of a row that are in use, in whole blocks."""
    return (x.state[FRONTIER] + 64 * BLOCK_WORDS - 1) // (64 * BLOCK_WORDS) * BLOCK_WORDS


@njit(**INLINED)
def expression_at(words: Any, at: int) -> int:
    """Where the expression of the record at `at` begins."""
    return at + RECORD_HEAD + (SCHEDULE_WORDS if words[at + 1] != NO_ZONE else 0)


@njit(**IN_PLACE)
def _leaf_cover(x: Any, words: Any, p: int, out: Any, n: int) -> tuple[int, bool]:
    """Appends the terms of which a request has one wherever the leaf is true. -> count (-1: no such terms), exact"""
    op = words[p] & 15
    if op == TERMS:
        for i in range(np.int64(words[p] >> 4)):
            out[n + i] = words[p + 2 + i]
        return n + np.int64(words[p] >> 4), True
    if op == INTEGERS and x.domain[words[p + 1], 0] != 0:
        first, least, most = x.domain[words[p + 1]]
        low, high = max(int64_at(words, p + 2), least), min(int64_at(words, p + 4), most)
        for value in range(low, high + 1):
            out[n] = np.uint32(first + value - least)
            n += 1
        return n, True
    if op == CIRCLE and words[p] >> 4 != 0:
        for i in range(np.int64(words[p] >> 4)):
            out[n + i] = words[p + 16 + i]
        return n + np.int64(words[p] >> 4), False
    return -1, False


@njit(**IN_PLACE)
def _cover(x: Any, words: Any, p: int, out: Any, n: int) -> tuple[int, int, bool]:
    """The same of a leaf, or of an ANY of leaves of one attribute. -> attribute (-1: none), count, exact"""
    end, attribute, exact = p + node_words(words, p), np.int64(-1), True
    while p < end:
        op = words[p] & 15
        if op == ANY:
            p += 2
            continue
        if op == ALL or op == NOT:
            return -1, n, False
        n, whole = _leaf_cover(x, words, p, out, n)
        if n < 0 or (attribute >= 0 and attribute != words[p + 1]):
            return -1, n, False
        attribute, exact = np.int64(words[p + 1]), exact and whole
        p += node_words(words, p)
    return attribute, n, exact


@njit(**ALLOCATES)
def conditions(x: Any, words: Any, at: int) -> tuple[Any, Any, Any]:
    """What rows say of the record at `at`. -> entries (ascending), constrained[attributes + 1], and what is left to a
    program: the conjuncts that rows do not decide, each as its place from `at` << 1, and 1 where it is negated"""
    size = np.int64(words[at])
    out = np.empty(size + 200 + (size // 6 + 1) * 256, np.uint32)
    entries = np.empty(len(out), np.uint32)
    constrained = np.zeros(len(x.rows.constrained), np.bool_)
    open_conjuncts = np.empty(size, np.uint32)
    count, open_count = 0, 0
    if words[at + 1] != NO_ZONE:
        constrained[len(constrained) - 1] = True
        for hour in range(168):
            if (words[at + 2 + (hour >> 5)] >> np.uint32(hour & 31)) & np.uint32(1):
                entries[count] = np.uint32(2 * (words[at + 1] + hour))
                count += 1
    ends, negations = np.empty(DEPTH_MAX, np.int64), np.empty(DEPTH_MAX, np.bool_)
    p, depth, negated = expression_at(words, at), 0, False
    end = at + size
    while p < end:
        while depth > 0 and p == ends[depth - 1]:
            depth -= 1
            negated = negations[depth]
        op, after = words[p] & 15, p + node_words(words, p)
        one = op == NOT or (op <= ANY and p + 2 < after and p + 2 + node_words(words, p + 2) == after)
        if one or (op == ALL and not negated) or (op == ANY and negated):
            ends[depth], negations[depth] = after, negated
            depth += 1
            negated = negated != (op == NOT)
            p += 2
            continue
        if negated:
            n, exact = (-1, False) if op <= NOT else _leaf_cover(x, words, p, out, 0)
            attribute = np.int64(-1)
            if n < 0 or not exact:
                n, exact = 0, False
        else:
            attribute, n, exact = _cover(x, words, p, out, 0)
            if attribute < 0 or constrained[attribute]:
                n, exact = 0, False
            else:
                constrained[attribute] = True
        if not exact:
            open_conjuncts[open_count] = np.uint32((p - at) << 1 | np.int64(negated))
            open_count += 1
        for i in range(n):
            entries[count] = np.uint32(2 * out[i] + np.uint32(negated))
            count += 1
        p = after
    return _unique(entries, count), constrained, open_conjuncts[:open_count]


@njit(**ALLOCATES)
def _unique(entries: Any, count: int) -> Any:
    entries = np.sort(entries[:count])
    kept = 0
    for i in range(count):
        if i == 0 or entries[i] != entries[i - 1]:
            entries[kept] = entries[i]
            kept += 1
    return entries[:kept]


@njit(**IN_PLACE)
def _count_terms(x: Any, words: Any, at: int, step: int) -> None:
    """Adds `step` references to each term that the record names."""
    p, end = expression_at(words, at), at + np.int64(words[at])
    while p < end:
        op = words[p] & 15
        if op <= NOT:
            p += 2
            continue
        after = p + node_words(words, p)
        if op == TERMS or op == CIRCLE:
            for i in range(after - np.int64(words[p] >> 4), after):
                t = words[i]
                x.term_references[t] = np.uint32(np.int64(x.term_references[t]) + step)
                if x.term_references[t] == 0 and not x.is_zeroed[t]:
                    x.is_zeroed[t] = True
                    x.zeroed[x.state[ZEROED]] = t
                    x.state[ZEROED] += 1
        p = after


@njit(**IN_PLACE)
def record_hash(words: Any, at: int) -> np.uint64:
    h = np.uint64(0x243F6A8885A308D3)
    for i in range(at, at + np.int64(words[at])):
        h = np.uint64((h ^ np.uint64(words[i])) * np.uint64(0x9E3779B97F4A7C15))
        h ^= h >> np.uint64(29)
    return h


@njit(**IN_PLACE)
def find(x: Any, words: Any, at: int) -> int:
    """Slot of the record at words[at], or NO_SLOT."""
    h = record_hash(words, at)
    slot = np.int64(x.table.head[tables.bucket(x.table, h)]) - 1
    while slot >= 0:
        if x.table.hash[slot] == h:
            own, same = np.int64(x.record[slot]), True
            for i in range(np.int64(words[at])):
                if x.records.words[own + i] != words[at + i]:
                    same = False
                    break
            if same:
                return slot
        slot = np.int64(x.table.next[slot]) - 1
    return NO_SLOT


@njit(**ALLOCATES)
def find_or_add(x: Any, words: Any, at: int) -> int:
    """Slot of the record at words[at] (not in the own pool), added without a reference if new; NO_SLOT if full."""
    slot = find(x, words, at)
    if slot != NO_SLOT:
        return slot
    entries, constrained, open_conjuncts = conditions(x, words, at)
    return _add(x, words, at, entries, constrained, open_conjuncts)


@njit(**IN_PLACE)
def _fetch(x: Any, entries: Any) -> None:
    """Has what the entries' rows and lists begin with on its way, all at once: it lies anywhere in memory."""
    for entry in entries:
        prefetch(x.row, 4 * np.int64(entry))
        prefetch(x.uses, 4 * np.int64(entry))
        prefetch(x.offset, 4 * np.int64(entry))
        prefetch(x.capacity, np.int64(entry))


@njit(**IN_PLACE)
def _fetch_bits(x: Any, entries: Any, slot: int) -> None:
    """The same of the words that will change in them."""
    for entry in entries:
        row = np.int64(x.row[entry])
        if row != 0:
            prefetch(x.bits, row * x.bits.shape[1] * 8 + (slot >> 6) * 8)
        else:
            prefetch(x.postings.words, 4 * (np.int64(x.offset[entry]) + np.int64(x.uses[entry]) - 1))


@njit(**IN_PLACE)
def _add(x: Any, words: Any, at: int, entries: Any, constrained: Any, open_conjuncts: Any) -> int:
    """Slot of a new record, without a reference; NO_SLOT if full."""
    _fetch(x.rows, entries)
    size = np.int64(words[at])
    full = x.state[FREE_COUNT] == 0 and x.state[FRONTIER] >= x.state[LIMIT]
    room_for = size + 1 + len(open_conjuncts)
    if full or not fits(x.records, room_for, 0) or not room(x.rows, len(entries), x.state[LIVE]):
        return NO_SLOT
    if x.state[FREE_COUNT] > 0:
        x.state[FREE_COUNT] -= 1
        slot = np.int64(x.free[x.state[FREE_COUNT]])
    else:
        slot = x.state[FRONTIER]
        x.state[FRONTIER] += 1
    own = take(x.records, room_for)
    for i in range(size):
        x.records.words[own + i] = words[at + i]
    x.records.words[own + size] = np.uint32(len(open_conjuncts))
    for i in range(len(open_conjuncts)):
        x.records.words[own + size + 1 + i] = open_conjuncts[i]
    note_words(x.records.state, own, room_for)
    note(x.state, slot >> 2)
    _fetch_bits(x.rows, entries, slot)
    x.record[slot], x.references[slot] = np.uint32(own), np.uint32(0)
    x.state[LIVE] += 1
    tables.insert(x.table, slot, record_hash(words, at))
    _count_terms(x, words, at, 1)
    set_bit(x.rows, USED_ROW, slot)
    for a in range(len(constrained)):
        if constrained[a]:
            set_bit(x.rows, CONSTRAINED_ROW + a, slot)
            x.rows.constrained[a] += 1
    if len(open_conjuncts) > 0:
        set_bit(x.rows, CHECK_ROW, slot)
        x.state[PROGRAMS] += 1
    for entry in entries:
        add_entry(x.rows, np.int64(entry), slot, x.state[LIVE])
    return slot


@njit(**ALLOCATES)
def release(x: Any, slot: int) -> None:
    """Frees a targeting without references: clears what its record says was set."""
    entries, constrained, open_conjuncts = conditions(x, x.records.words, np.int64(x.record[slot]))
    _release(x, slot, entries, constrained, len(open_conjuncts))


@njit(**IN_PLACE)
def _release(x: Any, slot: int, entries: Any, constrained: Any, open_count: int) -> None:
    _fetch(x.rows, entries)
    own, words = np.int64(x.record[slot]), x.records.words
    _count_terms(x, words, own, -1)
    _fetch_bits(x.rows, entries, slot)
    x.state[LIVE] -= 1
    for entry in entries:
        remove_entry(x.rows, np.int64(entry), slot, x.state[LIVE], row_words(x))
    for a in range(len(constrained)):
        if constrained[a]:
            clear_bit(x.rows, CONSTRAINED_ROW + a, slot)
            x.rows.constrained[a] -= 1
    clear_bit(x.rows, USED_ROW, slot)
    if open_count > 0:
        clear_bit(x.rows, CHECK_ROW, slot)
        x.state[PROGRAMS] -= 1
    tables.remove(x.table, slot)
    give(x.records, own, np.int64(words[own]) + 1 + open_count)
    x.record[slot] = np.uint32(0)
    note(x.state, slot >> 2)
    x.free[x.state[FREE_COUNT]] = np.uint32(slot)
    x.state[FREE_COUNT] += 1


@njit(**INLINED)
def refer(x: Any, slot: int) -> None:
    """One more ad has this targeting."""
    x.references[slot] += np.uint32(1)
    x.block_ads[slot // (64 * BLOCK_WORDS)] += 1


@njit(**IN_PLACE)
def drop_reference(x: Any, slot: int) -> None:
    """One ad less has this targeting, which is freed with its last."""
    x.references[slot] -= np.uint32(1)
    x.block_ads[slot // (64 * BLOCK_WORDS)] -= 1
    if x.references[slot] == 0:
        release(x, slot)


@njit(**IN_PLACE)
def tidy(x: Any) -> None:
    """A few steps of housekeeping, once a batch."""
    sweep(x.rows, SWEEP_ROWS, x.state[LIVE], row_words(x))
