"""Requests against all targetings: rows prune, programs decide, targetings expand to ads.

For a batch of requests: (1) each request's terms become a plan, for every constrained attribute the rows of its values,
and the lists of its rare values are scattered into scratch rows; (2) block by block of 8,192 targetings, and within a
block request by request, so that rows are read from memory once: AND over attributes, the most selective first, of
"not constrained, or one of these rows", stopping where nothing is left; then the exclusions are taken out; (3) what is
left and needs a program runs it; (4) `expand` writes the slots of the ads of what matched, extent by extent. Lists,
records and extents lie anywhere in memory, so (1), (3) and (4) ask for each AHEAD places before they read it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

from kernels.bits import fetch_add, lowest_bit
from kernels.compiled import IN_PLACE, INLINED, prefetch
from kernels.extents import CLASS_BITS
from kernels.memory import reserve
from kernels.plan import SERVICE_CLOCK, make_plan
from kernels.program import RequestFacts, holds, walk_stack
from kernels.rows import BLOCK_WORDS, CHECK_ROW, STRIDE_PAD_WORDS, USED_ROW
from kernels.targetings import row_words

BATCH_MAX = 16  # requests of one pass
ONE_THREAD_ROWS_MAX = 2048  # blocks of rows, a third of a millisecond: waking threads takes as long on busy cores
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
RECORD_BYTES = 256  # of a record are asked for at once: most have fewer
AHEAD = 16  # lists, or targetings: what is read is asked of memory so many before


class Scratch(NamedTuple):
    """Working memory of a pass, all zeros between passes but for `found`."""

    bits: NDArray[np.uint64]  # [request, term / 64]
    rows: NDArray[np.uint64]  # [place, word] as the plan numbers them
    found: NDArray[np.uint32]  # [request, ad] slots of eligible ads, each block's from where its ads may begin


def scratch(ads_max: int, targetings_max: int, terms_max: int, attributes: int) -> Scratch:
    """Working memory for BATCH_MAX requests. `attributes` counts the schedule's too."""
    words = -(-targetings_max // (64 * BLOCK_WORDS)) * BLOCK_WORDS + STRIDE_PAD_WORDS
    return Scratch(
        reserve((BATCH_MAX, -(-terms_max // 64)), np.uint64, forked=False),
        reserve((BATCH_MAX * (attributes + 1), words), np.uint64, sparse=True, forked=False),
        reserve((BATCH_MAX, ads_max), np.uint32, sparse=True, forked=False),
    )


class View(NamedTuple):
    """The arrays of both tables that blocks read: flat, since parallel loops take no nested tuples, and few, since each
    array that is handed over from Python costs a quarter of a microsecond."""

    bits: NDArray[np.uint64]  # [row, word]
    record: NDArray[np.uint32]  # [targeting]
    words: NDArray[np.uint32]  # records
    ring: NDArray[np.uint32]  # [targeting] as Extents has it
    next: NDArray[np.uint32]  # [slot]
    kind: NDArray[np.uint8]  # [slot]
    live: NDArray[np.uint64]  # [slot / 64]
    active: NDArray[np.uint64]  # [slot / 64]
    start_us: NDArray[np.int64]  # [slot]
    end_us: NDArray[np.int64]  # [slot]
    block_ads: NDArray[np.int64]  # [block]
    state: NDArray[np.int64]  # as Targetings has it


class Block(NamedTuple):
    """One thread's working memory."""

    acc: NDArray[np.uint64]  # [word] what is left
    one: NDArray[np.uint64]  # [word] what one attribute lets through
    listed: NDArray[np.uint32]  # targetings; then where the ads of each begin
    stack: NDArray[np.uint32]  # of programs


@njit(**INLINED)
def _scatter(x: Any, entry: int, row: Any) -> None:
    at = np.int64(x.offset[entry])
    for i in range(at, at + np.int64(x.uses[entry])):
        slot = x.postings.words[i]
        row[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)


@njit(**INLINED)
def _and_group(acc: Any, one: Any, constrained: Any, bits: Any, rows: Any, lo: int, scratch: Any) -> np.uint64:
    """acc &= not constrained, or one of the rows; groups of at most two rows, which most are, in one go.
    `scratch`: a block of a scratch row, or empty. -> what is left, all words ORed"""
    left, n = np.uint64(0), len(rows)
    if len(scratch) == 0 and n == 0:
        for w in range(BLOCK_WORDS):
            acc[w] &= ~constrained[w]
            left |= acc[w]
        return left
    if len(scratch) == 0 and n == 1:
        first = bits[rows[0], lo : lo + BLOCK_WORDS]
        for w in range(BLOCK_WORDS):
            acc[w] &= ~constrained[w] | first[w]
            left |= acc[w]
        return left
    if len(scratch) == 0:
        scratch = bits[rows[0], lo : lo + BLOCK_WORDS]
        rows = rows[1:]
    for w in range(BLOCK_WORDS):
        one[w] = ~constrained[w] | scratch[w]
    n = len(rows)
    for i in range(0, n - 1, 2):
        first, second = bits[rows[i], lo : lo + BLOCK_WORDS], bits[rows[i + 1], lo : lo + BLOCK_WORDS]
        for w in range(BLOCK_WORDS):
            one[w] |= first[w] | second[w]
    last = bits[rows[n - 1], lo : lo + BLOCK_WORDS] if n & 1 else one
    for w in range(BLOCK_WORDS):
        acc[w] &= one[w] | last[w]
        left |= acc[w]
    return left


@njit(**INLINED)
def _match_block(v: Any, s: Any, plan: Any, r: int, lo: int, acc: Any, one: Any) -> bool:
    """Rows of one request over one block, into acc. -> whether anything is left"""
    used = v.bits[USED_ROW, lo : lo + BLOCK_WORDS]
    for w in range(BLOCK_WORDS):
        acc[w] = used[w]
    for g in range(plan.groups[r]):
        constrained = v.bits[plan.constrained[r, g], lo : lo + BLOCK_WORDS]
        rows = plan.rows[plan.group[r, g] : plan.group[r, g + 1]]
        place = plan.scratch[r, g]
        scratch = s.rows[place, lo : lo + BLOCK_WORDS] if place >= 0 else s.rows[0, 0:0]
        if _and_group(acc, one, constrained, v.bits, rows, lo, scratch) == 0:
            return False
    for i in range(plan.exclude_start[r], plan.exclude_start[r + 1]):
        row = v.bits[plan.excluded[i], lo : lo + BLOCK_WORDS]
        for w in range(BLOCK_WORDS):
            acc[w] &= ~row[w]
    if plan.exclude_scratch[r] >= 0:
        row = s.rows[plan.exclude_scratch[r], lo : lo + BLOCK_WORDS]
        for w in range(BLOCK_WORDS):
            acc[w] &= ~row[w]
    return True


@njit(**INLINED)
def _list(bits: Any, lo: int, listed: Any, column: Any) -> int:
    """Lists the targetings whose bits are set in a block, and has what a column of 4 bytes says of each fetched.
    -> their number"""
    n = 0
    for w in range(BLOCK_WORDS):
        left = bits[w]
        while left != 0:
            targeting = (lo + w) * 64 + lowest_bit(left)
            left &= left - np.uint64(1)
            prefetch(column, 4 * targeting)
            listed[n] = np.uint32(targeting)
            n += 1
    return n


@njit(**INLINED)
def _decide(v: Any, facts: Any, lo: int, block: Any) -> None:
    """Runs the open conjuncts of what is left of a block: those that rows do not decide.

    A record lies anywhere in memory, so it is asked for some targetings ahead."""
    check = v.bits[CHECK_ROW, lo : lo + BLOCK_WORDS]
    for w in range(BLOCK_WORDS):
        block.one[w] = block.acc[w] & check[w]
    count = _list(block.one, lo, block.listed, v.record)
    for i in range(count + AHEAD):
        if i < count:
            record = 4 * np.int64(v.record[block.listed[i]])
            for line in range(0, RECORD_BYTES, 64):
                prefetch(v.words, record + line)
        if i >= AHEAD:
            targeting = np.int64(block.listed[i - AHEAD])
            if not _open_hold(v.words, np.int64(v.record[targeting]), facts, block.stack):
                block.acc[(targeting >> 6) - lo] &= ~(np.uint64(1) << np.uint64(targeting & 63))


@njit(**INLINED)
def _open_hold(words: Any, record: int, facts: Any, stack: Any) -> bool:
    """Whether the open conjuncts of the record are true of the request."""
    at = record + np.int64(words[record])
    for i in range(at + 1, at + 1 + np.int64(words[at])):
        place = words[i]
        if holds(words, record + np.int64(place >> 1), facts, stack) == (place & 1):
            return False
    return True


@njit(**IN_PLACE)
def _in_time(v: Any, word: int, now_us: int) -> np.uint64:
    """Of one word of slots, the ads that are active at a request's own time."""
    bits, left = np.uint64(0), v.active[word]
    while left != 0:
        b = lowest_bit(left)
        left &= left - np.uint64(1)
        slot = word * 64 + b
        if v.start_us[slot] <= now_us < v.end_us[slot]:
            bits |= np.uint64(1) << np.uint64(b)
    return bits


@njit(**IN_PLACE)
def _expand_block(v: Any, block: Any, lo: int, now_us: int, out: Any, n: int) -> int:
    """Writes the slots of the ads of a block's matched targetings to out[n:]. -> n after them

    An extent lies anywhere in memory, so it is asked for some targetings ahead."""
    listed = block.listed
    count = _list(block.acc, lo, listed, v.ring)
    for i in range(count + AHEAD):
        if i < count:
            start = np.int64(v.ring[listed[i]]) - 1
            listed[i] = np.uint32(start)
            prefetch(v.kind, start)
            prefetch(v.next, 4 * start)
            prefetch(v.live, (start >> 6) * 8)
        if i < AHEAD:
            continue
        first = np.int64(listed[i - AHEAD])
        start = first
        while True:
            size = np.int64(1) << np.int64(v.kind[start] & CLASS_BITS)
            mask = ALL_BITS
            if size < 64:
                mask = ((np.uint64(1) << np.uint64(size)) - np.uint64(1)) << np.uint64(start & 63)
            for word in range(start >> 6, (start + size + 63) >> 6):
                bits = (v.live[word] if now_us == SERVICE_CLOCK else _in_time(v, word, now_us)) & mask
                while bits != 0:
                    out[n] = np.uint32(word * 64 + lowest_bit(bits))
                    n += 1
                    bits &= bits - np.uint64(1)
            start = np.int64(v.next[start]) - 1
            if start == first:
                break
    return n


def match(a: Any, t: Any, q: Any, s: Any) -> Any:
    """Finds the eligible ads of each request (at most BATCH_MAX). -> their number, [request, block]"""
    x = a.extents
    v = View(
        t.rows.bits, t.record, t.records.words, x.ring, x.next, x.kind, a.live, a.active, a.start_us, a.end_us,
        t.block_ads, t.state,
    )  # fmt: skip
    return _match(v, t.rows, q, s, get_num_threads())


@njit(nogil=True, cache=True)
def _match(v: Any, x: Any, q: Any, s: Any, threads: int) -> Any:
    requests, blocks = len(q.start) - 1, row_words(v) // BLOCK_WORDS
    counts = np.zeros((requests, blocks), np.int64)
    plan = make_plan(x, q)
    _scatter_lists(x, plan, plan.list_start[requests], s.rows)
    for r in range(requests):
        for i in range(q.start[r], q.start[r + 1]):
            s.bits[r, q.terms[i] >> 6] |= np.uint64(1) << np.uint64(q.terms[i] & 63)
    rows_read = plan.groups.sum()
    for r in range(requests):
        rows_read += plan.group[r, plan.groups[r]] - plan.group[r, 0]
    if blocks * rows_read <= ONE_THREAD_ROWS_MAX:
        threads = 1
    _match_blocks(v, q, s, plan, counts, _first_ads(v.block_ads, blocks), threads, np.zeros(1, np.int64))
    for r in range(requests):
        for i in range(q.start[r], q.start[r + 1]):
            s.bits[r, q.terms[i] >> 6] = 0
    return counts


@njit(**IN_PLACE)
def _scatter_lists(x: Any, plan: Any, lists: int, rows: Any) -> None:
    for i in range(lists + AHEAD):
        if i < lists:
            prefetch(x.postings.words, 4 * np.int64(x.offset[plan.list_entry[i]]))
        if i >= AHEAD:
            _scatter(x, plan.list_entry[i - AHEAD], rows[plan.list_place[i - AHEAD]])


@njit(nogil=True, cache=True)
def _first_ads(block_ads: Any, blocks: int) -> Any:
    """Where the ads of each block may begin in s.found, if all of them matched."""
    first = np.zeros(blocks, np.int64)
    for b in range(1, blocks):
        first[b] = first[b - 1] + block_ads[b - 1]
    return first


@njit(nogil=True, cache=True, parallel=True)
def _match_blocks(v: Any, q: Any, s: Any, plan: Any, counts: Any, first: Any, threads: int, taken: Any) -> None:
    """`taken` counts blocks: each thread takes the next one, so that a thread whose core has other work to do holds up
    none."""
    if threads == 1:
        _match_some(v, q, s, plan, counts, first, taken)
    else:
        for _thread in prange(threads):
            _match_some(v, q, s, plan, counts, first, taken)


@njit(nogil=True, cache=True)
def _match_some(v: Any, q: Any, s: Any, plan: Any, counts: Any, first: Any, taken: Any) -> None:
    block = Block(
        np.empty(BLOCK_WORDS, np.uint64), np.empty(BLOCK_WORDS, np.uint64), np.empty(64 * BLOCK_WORDS, np.uint32),
        walk_stack(),
    )  # fmt: skip
    b = fetch_add(taken, 1)
    while b < counts.shape[1]:
        _match_block_of_all(v, q, s, plan, counts, first[b], b, block)
        b = fetch_add(taken, 1)


@njit(**IN_PLACE)
def _match_block_of_all(v: Any, q: Any, s: Any, plan: Any, counts: Any, first: int, b: int, block: Any) -> None:
    """One block, request by request."""
    lo = b * BLOCK_WORDS
    for r in range(len(counts)):
        if _match_block(v, s, plan, r, lo, block.acc, block.one):
            _decide(v, RequestFacts(s.bits[r], q.number_start[r], q.numbers), lo, block)
            counts[r, b] = _expand_block(v, block, lo, q.now_us[r], s.found[r], first) - first
        for place in range(plan.place_start[r], plan.place_start[r + 1]):
            s.rows[place, lo : lo + BLOCK_WORDS] = 0


def gather(t: Any, s: Any, counts: Any, out: Any) -> None:
    """Brings the slots that `match` found together: request after request, in the order of targetings."""
    _gather(t.block_ads, s.found, counts, out)


@njit(nogil=True, cache=True)
def _gather(block_ads: Any, found: Any, counts: Any, out: Any) -> None:
    first, n = _first_ads(block_ads, counts.shape[1]), 0
    for r in range(len(counts)):
        for b in range(counts.shape[1]):
            count = counts[r, b]
            out[n : n + count] = found[r, first[b] : first[b] + count]
            n += count
