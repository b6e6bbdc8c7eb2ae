"""The k best of a block's entries, in linear time whatever they are: by radix selection over the whole order.

An entry is its order (the bits of a non-negative float64, more is better), its slot, its score. The whole order is
order descending, tie ascending, slot ascending: 20 digits of 8 bits, read from the first that decides; ties are looked
up by slot, and only once orders are equal. Equal entries cost no more than others.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, int32, int64, uint32, uint64

from kernels.cuda.raw import load_f32, load_u32, load_u64, read_u64, store_f32, store_u32, store_u64

BINS = 256
WARP = 32
WARPS_MAX = 32
ORDER_DIGITS, TIE_DIGITS, DIGITS = 8, 16, 20  # digits end there
EVERY_BIT = 0xFFFFFFFFFFFFFFFF
FULL_WARP = 0xFFFFFFFF
DIGIT, NEEDED, INSIDE = 0, 1, 2  # in `found`
FOUND_ITEMS = 4


@cuda.jit(device=True, forceinline=True)
def tie_of(ties: Any, slots_log2: Any, slot: Any) -> Any:
    page = read_u64(ties, uint64(slot) >> uint64(slots_log2))
    return read_u64(page, uint64(slot) & ((uint64(1) << uint64(slots_log2)) - uint64(1)))


@cuda.jit(device=True, forceinline=True)
def _byte(word: Any, place: Any) -> Any:
    """The byte of a uint64 at `place`, counted from the highest."""
    return int64((word >> uint64(56 - 8 * place)) & uint64(0xFF))


@cuda.jit(device=True, forceinline=True)
def _same_above(word: Any, other: Any, place: Any) -> Any:
    """Whether two uint64 have the same bytes before `place`."""
    return place == 0 or (word ^ other) >> uint64(64 - 8 * place) == uint64(0)


@cuda.jit(device=True, forceinline=True)
def _digit_if_in(level: Any, order: Any, slot: Any, limit: Any, ties: Any, slots_log2: Any) -> Any:
    """The entry's digit at `level` if its digits before are those of `limit`, else -1."""
    at_order, at_tie, at_slot = limit
    if level < ORDER_DIGITS:
        return 255 - _byte(order, level) if _same_above(order, at_order, level) else -1
    if order != at_order:
        return -1
    tie = tie_of(ties, slots_log2, slot)
    if level < TIE_DIGITS:
        return _byte(tie, level - ORDER_DIGITS) if _same_above(tie, at_tie, level - ORDER_DIGITS) else -1
    if tie != at_tie:
        return -1
    word = uint64(slot) << uint64(32)
    return _byte(word, level - TIE_DIGITS) if _same_above(word, at_slot, level - TIE_DIGITS) else -1


@cuda.jit(device=True, forceinline=True)
def _count_digits(
    level: Any, orders: Any, slots: Any, count: Any, limit: Any, ties: Any, slots_log2: Any, histogram: Any
) -> Any:
    """Counts entries by digit; runs of one digit are added at once, so that equal entries do not queue."""
    threads, last, run = int64(cuda.blockDim.x), uint32(0), uint32(0)
    i = int64(cuda.threadIdx.x)
    while i < count:
        digit = _digit_if_in(level, load_u64(orders, i), load_u32(slots, i), limit, ties, slots_log2)
        if digit >= 0:
            if uint32(digit) != last and run != uint32(0):
                cuda.atomic.add(histogram, last, run)
                run = uint32(0)
            last = uint32(digit)
            run = uint32(run + uint32(1))
        i += threads
    if run != uint32(0):
        cuda.atomic.add(histogram, last, run)


@cuda.jit(device=True, forceinline=True)
def sum_before(count: Any) -> Any:
    """Of the lanes' int32, the sum over the lanes before this one; by a whole warp."""
    lane, upto, step = int32(cuda.laneid), count, int32(1)
    while step < int32(WARP):
        below = cuda.shfl_up_sync(FULL_WARP, upto, step)
        if lane >= step:
            upto = int32(upto + below)
        step = int32(step << int32(1))
    return int32(upto - count)


@cuda.jit(device=True, forceinline=True)
def _find_digit(histogram: Any, needed: Any, found: Any) -> Any:
    """By the first warp: the digit in which the `needed`-th entry lies, how many of its entries are needed, and how
    many there are."""
    digit = uint32(cuda.laneid) * uint32(8)
    mine = int32(0)
    for i in range(8):
        mine = int32(mine + int32(histogram[uint32(digit + uint32(i))]))
    upto = sum_before(mine) + mine
    before = int64(upto) - int64(mine)
    if before < needed <= int64(upto):
        while before + int64(histogram[digit]) < needed:
            before += int64(histogram[digit])
            digit = uint32(digit + uint32(1))
        found[DIGIT], found[NEEDED], found[INSIDE] = int64(digit), needed - before, int64(histogram[digit])


@cuda.jit(device=True, forceinline=True)
def _with_digit(limit: Any, level: Any, digit: Any) -> Any:
    order, tie, slot = limit
    if level < ORDER_DIGITS:
        order |= uint64(255 - digit) << uint64(56 - 8 * level)
    elif level < TIE_DIGITS:
        tie |= uint64(digit) << uint64(56 - 8 * (level - ORDER_DIGITS))
    else:
        slot |= uint64(digit) << uint64(56 - 8 * (level - TIE_DIGITS))
    return order, tie, slot


@cuda.jit(device=True, forceinline=True)
def _worst_below(limit: Any, levels: Any) -> Any:
    """The worst entry that has the limit's first `levels` digits."""
    order, tie, slot = limit
    if levels <= ORDER_DIGITS:
        return order, uint64(EVERY_BIT), uint64(EVERY_BIT)
    if levels <= TIE_DIGITS:
        rest = uint64(8 * (TIE_DIGITS - levels))
        return order, tie | ((uint64(1) << rest) - uint64(1)), uint64(EVERY_BIT)
    return order, tie, slot | ((uint64(1) << uint64(8 * (24 - levels))) - uint64(1))


@cuda.jit(device=True, forceinline=True)
def is_within(order: Any, slot: Any, limit: Any, ties: Any, slots_log2: Any) -> Any:
    """Whether an entry is as good as the limit (order, tie, slot << 32) or better."""
    at_order, at_tie, at_slot = limit
    if order != at_order:
        return order > at_order
    if at_tie == uint64(EVERY_BIT) and at_slot == uint64(EVERY_BIT):
        return True
    tie = tie_of(ties, slots_log2, slot)
    if tie != at_tie:
        return tie < at_tie
    return uint64(slot) << uint64(32) <= at_slot


@cuda.jit(device=True, forceinline=True)
def _compact(
    orders: Any, slots: Any, scores: Any, count: Any, limit: Any, ties: Any, slots_log2: Any, warp_counts: Any
) -> Any:
    """Moves the entries within the limit to the front. An entry never moves back, and all of a round are read before
    any is written."""
    thread, threads = int64(cuda.threadIdx.x), int64(cuda.blockDim.x)
    warp, warps = uint32(cuda.threadIdx.x >> 5), uint32(cuda.blockDim.x >> 5)
    first, held = int64(0), int64(0)
    while first < count:
        order, slot, score, kept = uint64(0), uint32(0), load_f32(scores, 0), False
        if first + thread < count:
            order, slot, score = (
                load_u64(orders, first + thread),
                load_u32(slots, first + thread),
                load_f32(scores, first + thread),
            )
            kept = is_within(order, slot, limit, ties, slots_log2)
        votes = cuda.ballot_sync(FULL_WARP, kept)
        if cuda.laneid == 0:
            warp_counts[warp] = uint32(cuda.popc(votes))
        cuda.syncthreads()
        at, total, w = held, held, uint32(0)
        while w < warps:
            if w < warp:
                at += int64(warp_counts[w])
            total += int64(warp_counts[w])
            w = uint32(w + uint32(1))
        at += int64(cuda.popc(votes & cuda.lanemask_lt()))
        if kept:
            store_u64(orders, at, order)
            store_u32(slots, at, slot)
            store_f32(scores, at, score)
        held = total
        first += threads
        cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def keep_best(
    orders: Any, slots: Any, scores: Any, count: Any, k: Any, ties: Any, slots_log2: Any, histogram: Any, found: Any,
    warp_counts: Any,
) -> Any:  # fmt: skip
    """Moves the k best of `count` > k entries to the front, in any order; by all threads of a block. -> the limit
    (order, tie, slot << 32) that exactly these entries are within: at least k entries are."""
    thread = uint32(cuda.threadIdx.x)
    limit, needed, level = (uint64(0), uint64(0), uint64(0)), k, int64(0)
    searching = True
    while searching:
        if thread < uint32(BINS):  # a block has as many threads or more
            histogram[thread] = uint32(0)
        cuda.syncthreads()
        _count_digits(level, orders, slots, count, limit, ties, slots_log2, histogram)
        cuda.syncthreads()
        if thread < uint32(WARP):
            _find_digit(histogram, needed, found)
        cuda.syncthreads()
        limit = _with_digit(limit, level, found[DIGIT])
        needed = found[NEEDED]
        level += 1
        searching = needed != found[INSIDE] and level < DIGITS
    limit = _worst_below(limit, level)
    cuda.syncthreads()
    _compact(orders, slots, scores, count, limit, ties, slots_log2, warp_counts)
    return limit
