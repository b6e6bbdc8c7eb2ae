"""Targeting as words: the one record of a targeting, and the interpreter that decides it exactly.

A record is `[words, zone, mask x 6 (only with a zone), expression]`: its length, the first term of the schedule's zone
(0 without a schedule), the hours as 192 bits, and the expression in prefix order. Nodes:

    ALL, ANY, NOT    [op, words of the subtree] children...
    TERMS            [op | n << 4, attribute] n terms, ascending
    INTEGERS         [op, attribute] low, high          (int64 each, two words)
    NUMBERS          [op, attribute] low, high          (float64 each)
    VERSIONS         [op, attribute, n low, n high] parts... (int64 each; OPEN parts: no bound)
    CIRCLE           [op | n << 4, attribute] x, y, z, chord squared, lat, lon, radius (float64 each), n cell terms

A filter over an ad's fields is an expression of the same form. Facts are what it is held against: a request's terms as
bits and its numbers, or an ad's field record (`[field, n terms, n numbers] terms, numbers` for each field).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray

from kernels.compiled import IN_PLACE, INLINED

ALL, ANY, NOT, TERMS, INTEGERS, NUMBERS, VERSIONS, CIRCLE = range(8)
OPEN = 0xFFFFFFFF  # in place of a version's number of parts: no bound
NO_ZONE = 0
RECORD_HEAD, SCHEDULE_WORDS = 2, 6
DEPTH_MAX = 32  # of the language: a leaf is 1
KIND_BITS = 2
_KIND = (1 << KIND_BITS) - 1
assert NOT <= _KIND and (DEPTH_MAX - 1) * KIND_BITS < 64  # bits of an int64 that is not negative
ENCLOSING_MAX = DEPTH_MAX - 2  # nodes around the innermost that has children
ENDS_STRIDE = 1  # another on a device, where many threads have theirs side by side
FIELD_ADVERTISER, FIELD_CAMPAIGN, FIELD_BID, FIELD_AGE_S = range(4)


class RequestFacts(NamedTuple):
    """What is true of a request."""

    bits: NDArray[np.uint64]  # [terms / 64]
    start: NDArray[np.int64]  # [attributes + 1] into numbers
    numbers: NDArray[np.int64]  # integers; floats as bits; versions as n, parts; points as x, y, z


class FieldNumbers(NamedTuple):
    """The numbers of one field of an ad, where they lie."""

    words: NDArray[np.uint32]
    at: int  # two words each


class AdFacts(NamedTuple):
    """What is true of an ad."""

    words: NDArray[np.uint32]  # the pool of field records
    at: int  # 0: no declared fields
    advertiser: int  # term or 0
    campaign: int
    bid: float
    age_s: float


@njit(**INLINED)
def int64_at(words: Any, p: int) -> int:
    return np.int64(np.uint64(words[p]) | (np.uint64(words[p + 1]) << np.uint64(32)))


@njit(**INLINED)
def float64_at(words: Any, p: int) -> float:
    return np.uint64(np.uint64(words[p]) | (np.uint64(words[p + 1]) << np.uint64(32))).view(np.float64)


def _number(numbers: Any, i: int) -> int:  # noqa: ARG001 — the overload's names
    """The i-th of int64 numbers, which are an array or FieldNumbers."""
    raise AssertionError("only in compiled code")


@overload(_number, strict=False)
def _number_overload(numbers: Any, i: Any) -> Any:  # noqa: ARG001
    if isinstance(numbers, types.NamedTuple):
        return lambda numbers, i: int64_at(numbers.words, numbers.at + 2 * i)
    return lambda numbers, i: numbers[i]


@njit(**INLINED)
def sum_of_squares(x: float, y: float, z: float) -> float:
    return x * x + y * y + z * z


@njit(**IN_PLACE)
def node_words(words: Any, p: int) -> int:
    """Words of the node at p with all below it."""
    op = words[p] & 15
    if op <= NOT:
        return np.int64(words[p + 1])
    if op == TERMS:
        return 2 + np.int64(words[p] >> 4)
    if op == CIRCLE:
        return 16 + np.int64(words[p] >> 4)
    if op == VERSIONS:
        low, high = np.int64(words[p + 2]), np.int64(words[p + 3])
        return 4 + 2 * ((0 if low == OPEN else low) + (0 if high == OPEN else high))
    return 6


@njit(**IN_PLACE)
def _version_order(numbers: Any, at: int, words: Any, p: int, count: int) -> int:
    """Sign of (the version [n, parts] at numbers[at]) - (the bound of `count` parts at words[p])."""
    n = _number(numbers, at)
    for i in range(max(n, count)):
        left = _number(numbers, at + 1 + i) if i < n else np.int64(0)
        right = int64_at(words, p + 2 * i) if i < count else np.int64(0)
        if left != right:
            return -1 if left < right else 1
    return 0


@njit(**IN_PLACE)
def _numbers_hold(words: Any, p: int, numbers: Any, lo: int, hi: int) -> bool:
    """Whether the leaf at p (any but TERMS) is true of one of the values in numbers[lo:hi]."""
    op = words[p] & 15
    if op == INTEGERS:
        low, high = int64_at(words, p + 2), int64_at(words, p + 4)
        for i in range(lo, hi):
            if low <= _number(numbers, i) <= high:
                return True
    elif op == NUMBERS:
        least, most = float64_at(words, p + 2), float64_at(words, p + 4)
        for i in range(lo, hi):
            if least <= np.int64(_number(numbers, i)).view(np.float64) <= most:
                return True
    elif op == VERSIONS:
        n_low, n_high = np.int64(words[p + 2]), np.int64(words[p + 3])
        p_high = p + 4 + (0 if n_low == OPEN else 2 * n_low)
        i = lo
        while i < hi:
            above = n_low == OPEN or _version_order(numbers, i, words, p + 4, n_low) >= 0
            if above and (n_high == OPEN or _version_order(numbers, i, words, p_high, n_high) <= 0):
                return True
            i += 1 + _number(numbers, i)
    else:
        x, y, z = float64_at(words, p + 2), float64_at(words, p + 4), float64_at(words, p + 6)
        chord2 = float64_at(words, p + 8)
        for i in range(lo, hi, 3):
            dx = np.int64(_number(numbers, i)).view(np.float64) - x
            dy = np.int64(_number(numbers, i + 1)).view(np.float64) - y
            dz = np.int64(_number(numbers, i + 2)).view(np.float64) - z
            if sum_of_squares(dx, dy, dz) <= chord2:
                return True
    return False


@njit(**INLINED)
def _request_holds(words: Any, p: int, facts: Any) -> bool:
    if words[p] & 15 == TERMS:
        for i in range(p + 2, p + 2 + np.int64(words[p] >> 4)):
            t = words[i]
            if (facts.bits[t >> 6] >> np.uint64(t & 63)) & np.uint64(1):
                return True
        return False
    a = np.int64(words[p + 1])
    return _numbers_hold(words, p, facts.numbers, facts.start[a], facts.start[a + 1])


@njit(**INLINED)
def _listed(words: Any, lo: int, hi: int, term: int) -> bool:
    """Whether `term` is among the ascending words[lo:hi]."""
    end = hi
    while lo < hi:
        middle = (lo + hi) >> 1
        if words[middle] < term:
            lo = middle + 1
        else:
            hi = middle
    return False if term == 0 else bool(lo < end and words[lo] == term)


@njit(**INLINED)
def _ad_holds(words: Any, p: int, facts: Any) -> bool:
    field = np.int64(words[p + 1])
    lo, hi = p + 2, p + 2 + np.int64(words[p] >> 4)
    if field <= FIELD_CAMPAIGN:
        term = facts.advertiser if field == FIELD_ADVERTISER else facts.campaign
        return term != 0 and hi > lo and words[hi - 1] >= term and _listed(words, lo, hi, term)
    if field <= FIELD_AGE_S:
        number = facts.bid if field == FIELD_BID else facts.age_s
        return float64_at(words, p + 2) <= number <= float64_at(words, p + 4)
    if facts.at == 0:
        return False
    at, end = facts.at + 1, facts.at + np.int64(facts.words[facts.at])
    while at < end:
        n_terms, n_numbers = np.int64(facts.words[at + 1]), np.int64(facts.words[at + 2])
        if facts.words[at] == field:
            if words[p] & 15 == TERMS:
                for i in range(at + 3, at + 3 + n_terms):
                    term = np.int64(facts.words[i])
                    if hi > lo and words[hi - 1] >= term and _listed(words, lo, hi, term):
                        return True
                return False
            return _numbers_hold(words, p, FieldNumbers(facts.words, at + 3 + n_terms), 0, n_numbers)
        at += 3 + n_terms + 2 * n_numbers
    return False


def _leaf_holds(words: Any, p: int, facts: Any) -> bool:  # noqa: ARG001 — the overload's names
    """Whether the leaf at p is true of the facts; chosen by their type when compiled."""
    raise AssertionError("only in compiled code")


@overload(_leaf_holds, strict=False)
def _leaf_holds_overload(words: Any, p: Any, facts: Any) -> Any:  # noqa: ARG001
    if isinstance(facts, types.NamedTuple) and facts.instance_class is AdFacts:
        return lambda words, p, facts: _ad_holds(words, p, facts)
    return lambda words, p, facts: _request_holds(words, p, facts)


@njit(nogil=True, cache=True)
def walk_stack() -> Any:
    """Working memory for `holds`: made once for many."""
    return np.empty(ENCLOSING_MAX, np.uint32)


@njit(**IN_PLACE)
def holds(words: Any, root: int, facts: Any, ends: Any) -> bool:
    """Whether the expression at words[root] is true of the facts. Walks in prefix order and skips what cannot matter.

    Of the nodes that it is inside of, what they are is two bits each of a number, and where the innermost ends is at
    hand: only the ends of those around it go to memory, to `ends`."""
    p, end, depth, kinds, value = root, root, 0, 0, False
    while True:
        op = np.int64(words[p] & 15)
        if op <= NOT:
            after = p + np.int64(words[p + 1])
            p += 2
            if p < after:
                if depth > 0:
                    ends[np.uint64((depth - 1) * ENDS_STRIDE)] = end - root
                depth, kinds, end = depth + 1, kinds << KIND_BITS | op, after
                continue
            value = op == ALL  # all of nothing is true, any of nothing is false
        else:
            value = _leaf_holds(words, p, facts)
            p += node_words(words, p)
        while depth > 0:
            op = kinds & _KIND
            if op == NOT:
                value = not value
            elif p < end and value == (op == ALL):
                break  # undecided: the next child
            p = end
            depth, kinds = depth - 1, kinds >> KIND_BITS
            if depth > 0:
                end = root + np.int64(ends[np.uint64((depth - 1) * ENDS_STRIDE)])
        if depth == 0:
            return value
