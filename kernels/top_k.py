"""The k best of many, exactly, in linear time whatever the input: its order, its ties, its range.

1. Candidates fill a buffer of some 2 k. When it is full, the best k are kept and the worst of them is the threshold
   that every later candidate has to beat, so a buffer is filled at most n / k times.
2. The best k of a buffer are found by the bits of the order (value, then tie, then position) from the first that
   differs: no pivot to choose badly, and each bit at most once. Equal values cost no more than others.
3. What remains is sorted by merging.

An order is three unsigned integers, less is better: a value's bits so turned that they count downwards, the tie, the
position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.bits import as_i64

VALUE, TIE, POSITION = 0, 1, 2
SPARE_MIN = 256  # room for this many candidates beyond k at least
SKIP = 64  # values that are passed over together if none reaches the threshold
RUN = 16  # what is sorted by insertion before merging


def top_k(values: NDArray[np.float64], ties: NDArray[np.uint64], k: int) -> NDArray[np.int64]:
    """Positions [min(k, n)] of the k largest of `values` [n], best first; equal ones in the order of `ties` [n], then
    of their position. No value may be NaN (which is not checked: it would cost as much as the search)."""
    assert values.dtype == np.float64, values.dtype
    assert ties.dtype == np.uint64, ties.dtype
    assert values.flags.c_contiguous and ties.flags.c_contiguous  # another layout would be compiled for
    assert len(values) == len(ties), (len(values), len(ties))
    assert k >= 0, k
    k = min(k, len(values))
    if k == 0:
        return np.empty(0, np.int64)
    positions: NDArray[np.int64] = _top_k(values, ties, k)
    return positions


@njit(nogil=True, cache=True)
def _top_k(values: Any, ties: Any, k: int) -> Any:
    n = len(values)
    order = np.empty((3, min(n, k + max(k, SPARE_MIN))), np.uint64)
    held, at = 0, 0
    worst_value, worst_tie = -np.inf, np.uint64(0)  # of the k best so far, once the buffer has been full
    selective = False
    while at < n:
        end = min(at + SKIP, n)
        if not selective or _any_better(values, ties, at, end, worst_value, worst_tie):
            for i in range(at, end):
                value, tie = values[i], ties[i]
                if selective and not (value > worst_value or (value == worst_value and tie < worst_tie)):
                    continue
                if held == order.shape[1]:
                    _select(order, held, k)
                    held, selective = k, True
                    worst = _worst(order, k)
                    worst_value, worst_tie = values[np.int64(order[POSITION, worst])], order[TIE, worst]
                    if not (value > worst_value or (value == worst_value and tie < worst_tie)):
                        continue
                order[VALUE, held] = _downwards(value)
                order[TIE, held] = tie
                order[POSITION, held] = np.uint64(i)
                held += 1
        at = end
    _select(order, held, k)
    return _sorted_positions(order[:, :k].copy())


@njit(nogil=True, cache=True)
def _any_better(values: Any, ties: Any, start: int, end: int, worst_value: float, worst_tie: Any) -> bool:
    count = 0
    for i in range(start, end):
        count += np.int64(values[i] >= worst_value)
    if count == 0:
        return False
    count = 0
    for i in range(start, end):
        count += np.int64((values[i] > worst_value) | ((values[i] == worst_value) & (ties[i] < worst_tie)))
    return count != 0


@njit(nogil=True, cache=True)
def _downwards(value: float) -> Any:
    """A value's bits as an unsigned integer that is less for a larger value; 0.0 and -0.0 are one."""
    bits = as_i64(value + 0.0)
    ascending = np.uint64(bits) ^ (np.uint64(bits >> 63) | np.uint64(0x8000000000000000))
    return ~ascending


@njit(nogil=True, cache=True)
def _worst(order: Any, count: int) -> int:
    worst = 0
    for i in range(1, count):
        if _before(order, worst, order, i):
            worst = i
    return worst


@njit(nogil=True, cache=True)
def _before(a: Any, i: int, b: Any, j: int) -> bool:
    if a[VALUE, i] != b[VALUE, j]:
        return a[VALUE, i] < b[VALUE, j]
    if a[TIE, i] != b[TIE, j]:
        return a[TIE, i] < b[TIE, j]
    return a[POSITION, i] < b[POSITION, j]


@njit(nogil=True, cache=True)
def _select(order: Any, count: int, k: int) -> None:
    """Moves the k best of the first `count` to the front, in any order."""
    start, end, field = 0, count, VALUE
    while start < k < end:
        differing = np.uint64(0)
        for i in range(start + 1, end):
            differing |= order[field, i] ^ order[field, start]
        if differing == 0:
            field += 1  # a range only shrinks, so this field stays equal; positions always differ
            continue
        left, right, bit = start, end, _highest_bit(differing)
        while left < right:
            if order[field, left] & bit == 0:
                left += 1
            else:
                right -= 1
                _swap(order, left, right)
        if left <= k:
            start = left
        else:
            end = left


@njit(nogil=True, cache=True)
def _highest_bit(bits: Any) -> Any:
    for shift in (1, 2, 4, 8, 16, 32):
        bits |= bits >> np.uint64(shift)
    return bits ^ (bits >> np.uint64(1))


@njit(nogil=True, cache=True)
def _swap(order: Any, i: int, j: int) -> None:
    for field in range(3):
        order[field, i], order[field, j] = order[field, j], order[field, i]


@njit(nogil=True, cache=True)
def _copy(source: Any, i: int, target: Any, j: int) -> None:
    for field in range(3):
        target[field, j] = source[field, i]


@njit(nogil=True, cache=True)
def _sorted_positions(order: Any) -> Any:
    count = order.shape[1]
    for start in range(0, count, RUN):
        for i in range(start + 1, min(start + RUN, count)):
            j = i
            while j > start and _before(order, j, order, j - 1):
                _swap(order, j, j - 1)
                j -= 1
    other = np.empty_like(order)
    width = RUN
    while width < count:
        for start in range(0, count, 2 * width):
            _merge(order, start, min(start + width, count), min(start + 2 * width, count), other)
        order, other = other, order
        width *= 2
    return order[POSITION].astype(np.int64)


@njit(nogil=True, cache=True)
def _merge(order: Any, start: int, middle: int, end: int, out: Any) -> None:
    left, right = start, middle
    for i in range(start, end):
        if right == end or (left < middle and _before(order, left, order, right)):
            _copy(order, left, out, i)
            left += 1
        else:
            _copy(order, right, out, i)
            right += 1
