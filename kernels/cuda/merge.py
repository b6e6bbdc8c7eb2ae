"""From the blocks' lists of a pass to its answers: each job's k best, in their order.

`merge` cuts a job's list to its k best. `rank` counts for each of them how many of the others are better, which is its
place: the order is total, so no two have one. Counting compares all with all, yet by many blocks at once and in
registers, where a sort of so many by one block goes to memory in every round. Ties are read only where orders are
equal.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float64, int32, int64, uint32, uint64

from kernels.cuda.asked import MERGED_FIRST, OUT_FIRST, K
from kernels.cuda.asked import job_item as _job
from kernels.cuda.best import BINS, FOUND_ITEMS, WARPS_MAX, keep_best, tie_of
from kernels.cuda.raw import load_f32, load_u32, load_u64, read_f64, read_u64, store_f32, store_f64, store_u32

MERGE_THREADS = 1024
RANK_THREADS = 128  # and entries of a block
_AT_ONCE = 16  # entries that a thread looks at between two questions whether there are more
assert RANK_THREADS % _AT_ONCE == 0


@cuda.jit
def merge(
    jobs: Any, ties: Any, slots_log2: Any, merged_orders: Any, merged_slots: Any, merged_scores: Any,
    merged_counts: Any,
) -> None:  # fmt: skip
    """Block j moves the k best of job j's list to its front, in any order."""
    histogram = cuda.shared.array(BINS, uint32)
    found = cuda.shared.array(FOUND_ITEMS, int64)
    warp_counts = cuda.shared.array(WARPS_MAX, uint32)
    job = uint64(cuda.blockIdx.x)
    first, k, count = _job(jobs, job, MERGED_FIRST), int64(_job(jobs, job, K)), int64(load_u32(merged_counts, job))
    if count > k:
        keep_best(
            merged_orders + first * uint64(8), merged_slots + first * uint64(4), merged_scores + first * uint64(4),
            count, k, ties, slots_log2, histogram, found, warp_counts,
        )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def _count_above(order: Any, tile_orders: Any, held: Any) -> Any:
    """Of the tile's `held` entries and the zeros behind them: how many are above this order, and whether one is it."""
    even, odd, alike, n = uint32(0), uint32(0), False, uint32(0)
    while n < held:
        for i in range(0, _AT_ONCE, 2):  # two sums, so that neither waits for itself
            one, other = tile_orders[uint32(n + uint32(i))], tile_orders[uint32(n + uint32(i + 1))]
            even, odd = uint32(even + uint32(one > order)), uint32(odd + uint32(other > order))
            alike = alike or one == order or other == order
        n = uint32(n + uint32(_AT_ONCE))
    return uint32(even + odd), alike


@cuda.jit(device=True, forceinline=True)
def _is_another_alike(order: Any, tile_orders: Any, held: Any, own: Any) -> Any:
    """Whether one of the tile's entries but its own has this order."""
    alike, n = False, uint32(0)
    while n < held:
        alike = alike or (tile_orders[n] == order and n != own)
        n = uint32(n + uint32(1))
    return alike


@cuda.jit(device=True, forceinline=True)
def _count_before(order: Any, tie: Any, slot: Any, tile: Any, held: Any) -> Any:
    """Of the tile's entries of this order, how many come before by their ties, then by their slots."""
    tile_orders, tile_slots, tile_ties = tile
    before, n = uint32(0), uint32(0)
    while n < held:
        if tile_orders[n] == order and (tile_ties[n] < tie or (tile_ties[n] == tie and tile_slots[n] < slot)):
            before = uint32(before + uint32(1))
        n = uint32(n + uint32(1))
    return before


@cuda.jit
def rank(
    jobs: Any, part_count: Any, bid: Any, ties: Any, slots_log2: Any, merged_orders: Any, merged_slots: Any,
    merged_scores: Any, merged_counts: Any, out_slots: Any, out_scores: Any, out_values: Any,
) -> None:  # fmt: skip
    """`part_count` blocks for each job, each for so many entries as it has threads: writes them to their places."""
    tile_orders = cuda.shared.array(RANK_THREADS, uint64)
    tile_slots = cuda.shared.array(RANK_THREADS, uint32)
    tile_ties = cuda.shared.array(RANK_THREADS, uint64)
    equals = cuda.shared.array(1, int32)
    block, thread = uint64(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
    job = block // uint64(part_count)
    mine = (block - job * uint64(part_count)) * uint64(RANK_THREADS)  # the block's first
    first, count = _job(jobs, job, MERGED_FIRST), min(uint64(load_u32(merged_counts, job)), _job(jobs, job, K))
    if mine >= count:
        return
    i = mine + uint64(thread)
    own = first + min(i, count - uint64(1))  # threads beyond the end go along with the last
    order, slot = load_u64(merged_orders, own), load_u32(merged_slots, own)
    place, at = uint32(0), uint64(0)
    while at < count:
        held = uint32(min(count - at, uint64(RANK_THREADS)))
        tile_orders[thread] = uint64(0)
        if thread < held:
            tile_orders[thread] = load_u64(merged_orders, first + at + uint64(thread))
            tile_slots[thread] = load_u32(merged_slots, first + at + uint64(thread))
        if thread == uint32(0):
            equals[0] = 0
        cuda.syncthreads()
        above, alike = _count_above(order, tile_orders, held)
        place = uint32(place + above)
        if at == mine:
            alike = _is_another_alike(order, tile_orders, held, uint32(own - first - mine))
        if alike:
            equals[0] = 1
        cuda.syncthreads()
        if equals[0] != 0:
            if thread < held:
                tile_ties[thread] = tie_of(ties, slots_log2, tile_slots[thread])
            cuda.syncthreads()
            if alike:
                tie = tie_of(ties, slots_log2, slot)
                place = uint32(place + _count_before(order, tie, slot, (tile_orders, tile_slots, tile_ties), held))
        cuda.syncthreads()
        at += uint64(RANK_THREADS)
    if i < count:
        score, to = load_f32(merged_scores, own), _job(jobs, job, OUT_FIRST) + uint64(place)
        store_u32(out_slots, to, slot)
        store_f32(out_scores, to, score)
        page = read_u64(bid, uint64(slot) >> uint64(slots_log2))
        inside = uint64(slot) & ((uint64(1) << uint64(slots_log2)) - uint64(1))
        store_f64(out_values, to, float64(score) * read_f64(page, inside))
