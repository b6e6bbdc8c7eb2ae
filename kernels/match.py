"""Requests against all targetings: rows prune, programs decide, targetings expand to ads.

For a batch of requests: (1) each request's terms become a plan, for every constrained attribute the rows of its values,
and the lists of its rare values are scattered into scratch rows; (2) block by block of 8,192 targetings, and within a
block request by request, so that rows are read from memory once: AND over attributes, the most selective first, of
"not constrained, or one of these rows", stopping where nothing is left; then the exclusions are taken out; (3) what is
left and needs a program runs it; (4) `expand` writes the slots of the ads of what matched, extent by extent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

from kernels.bits import fetch_add, lowest_bit
from kernels.extents import CLASS_BITS
from kernels.memory import reserve
from kernels.plan import SERVICE_CLOCK, make_plan
from kernels.program import RequestFacts, holds, walk_stack
from kernels.rows import BLOCK_WORDS, CHECK_ROW, STRIDE_PAD_WORDS, USED_ROW
from kernels.targetings import row_words

BATCH_MAX = 16  # requests of one pass
ONE_THREAD_ROWS_MAX = 2048  # blocks of rows, a millisecond or so: waking threads takes as long where cores are busy
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)


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
    """The arrays of both tables that blocks read: flat, since parallel loops take no nested tuples."""

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


@njit(nogil=True, cache=True)
def _view(a: Any, t: Any) -> Any:
    x = a.extents
    return View(t.rows.bits, t.record, t.records.words, x.ring, x.next, x.kind, a.live, a.active, a.start_us, a.end_us)


@njit(nogil=True, cache=True)
def _scatter(x: Any, entry: int, row: Any) -> None:
    at = np.int64(x.offset[entry])
    for i in range(at, at + np.int64(x.uses[entry])):
        slot = x.postings.words[i]
        row[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _decide(v: Any, facts: Any, lo: int, acc: Any) -> None:
    """Runs the open conjuncts of what is left of a block: those that rows do not decide."""
    stack = walk_stack()
    for w in range(BLOCK_WORDS):
        open_ = acc[w] & v.bits[CHECK_ROW, lo + w]
        while open_ != 0:
            b = lowest_bit(open_)
            open_ &= open_ - np.uint64(1)
            record = np.int64(v.record[(lo + w) * 64 + b])
            at = record + np.int64(v.words[record])
            for i in range(at + 1, at + 1 + np.int64(v.words[at])):
                place = v.words[i]
                if holds(v.words, record + np.int64(place >> 1), facts, stack) == (place & 1):
                    acc[w] &= ~(np.uint64(1) << np.uint64(b))
                    break


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True)
def _expand_block(v: Any, acc: Any, lo: int, now_us: int, out: Any, n: int) -> int:
    """Writes the slots of the ads of a block's matched targetings to out[n:]. -> n after them

    One function, since calls that pass so many arrays cost more than what they would do."""
    for w in range(BLOCK_WORDS):
        left = acc[w]
        while left != 0:
            first = np.int64(v.ring[(lo + w) * 64 + lowest_bit(left)]) - 1
            left &= left - np.uint64(1)
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
    return _match(a, t, q, s, get_num_threads())


@njit(nogil=True, cache=True)
def _match(a: Any, t: Any, q: Any, s: Any, threads: int) -> Any:
    requests, blocks = len(q.start) - 1, row_words(t) // BLOCK_WORDS
    counts = np.zeros((requests, blocks), np.int64)
    plan = make_plan(t.rows, q)
    for i in range(plan.list_start[requests]):
        _scatter(t.rows, plan.list_entry[i], s.rows[plan.list_place[i]])
    for r in range(requests):
        for i in range(q.start[r], q.start[r + 1]):
            s.bits[r, q.terms[i] >> 6] |= np.uint64(1) << np.uint64(q.terms[i] & 63)
    rows_read = plan.groups.sum()
    for r in range(requests):
        rows_read += plan.group[r, plan.groups[r]] - plan.group[r, 0]
    if blocks * rows_read <= ONE_THREAD_ROWS_MAX:
        threads = 1
    _match_blocks(_view(a, t), q, s, plan, counts, _first_ads(t, blocks), threads, np.zeros(1, np.int64))
    for r in range(requests):
        for i in range(q.start[r], q.start[r + 1]):
            s.bits[r, q.terms[i] >> 6] = 0
    return counts


@njit(nogil=True, cache=True)
def _first_ads(t: Any, blocks: int) -> Any:
    """Where the ads of each block may begin in s.found, if all of them matched."""
    first = np.zeros(blocks, np.int64)
    for b in range(1, blocks):
        first[b] = first[b - 1] + t.block_ads[b - 1]
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
    b = fetch_add(taken, 1)
    while b < counts.shape[1]:
        _match_block_of_all(v, q, s, plan, counts, first[b], b)
        b = fetch_add(taken, 1)


@njit(nogil=True, cache=True)
def _match_block_of_all(v: Any, q: Any, s: Any, plan: Any, counts: Any, first: int, b: int) -> None:
    """One block, request by request."""
    lo = b * BLOCK_WORDS
    acc, one = np.empty(BLOCK_WORDS, np.uint64), np.empty(BLOCK_WORDS, np.uint64)
    for r in range(len(counts)):
        if _match_block(v, s, plan, r, lo, acc, one):
            _decide(v, RequestFacts(s.bits[r], q.number_start[r], q.numbers), lo, acc)
            counts[r, b] = _expand_block(v, acc, lo, q.now_us[r], s.found[r], first) - first
        for place in range(plan.place_start[r], plan.place_start[r + 1]):
            s.rows[place, lo : lo + BLOCK_WORDS] = 0


@njit(nogil=True, cache=True)
def gather(t: Any, s: Any, counts: Any, out: Any) -> None:
    """Brings the slots that `match` found together: request after request, in the order of targetings."""
    first, n = _first_ads(t, counts.shape[1]), 0
    for r in range(len(counts)):
        for b in range(counts.shape[1]):
            count = counts[r, b]
            out[n : n + count] = s.found[r, first[b] : first[b] + count]
            n += count
