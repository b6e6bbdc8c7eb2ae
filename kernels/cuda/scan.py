"""One pass over the ads: masks to scores to each block's best, with nothing kept of an ad that is not among them.

Warps work on their own; a block meets only when a buffer is full, and at the end.
1. A warp takes 1,024 slots at a time, the next that no warp has taken. Each lane reads the masks of all jobs for 32 of
   them; slots that any job wants go into the warp's queue, in their order. They lie in one page: it is looked up once.
2. It scores 32 of the queue at a time (rows.py, score.py): their rows are read once and multiplied with each user; in
   the end each lane has one ad.
3. An ad whose order (score * bid, or score) reaches what its job asks by now goes into the block's buffer for the job.
   Asked is the worst of the block's k best, with its tie, once the buffer has been full, and the largest of these
   orders that any block has published: k ads are as good, so no ad below can be among the k best of all.
4. A full buffer is cut to its k best by the whole block (best.py). A warp stops when it has seen a buffer near full;
   each has room for one more tile from every warp, so none overflows.
5. At the end each block hands what can still be among the best to the job's list, from which `merge` takes the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cuda, float32, float64, int32, int64, uint16, uint32, uint64

from kernels.cuda import ptx
from kernels.cuda.best import (
    BINS,
    EVERY_BIT,
    FOUND_ITEMS,
    FULL_WARP,
    WARPS_MAX,
    is_within,
    keep_best,
    sort_best,
    sum_before,
)
from kernels.cuda.raw import (
    atomic_add_u32,
    load_f32,
    load_u32,
    load_u64,
    read_f32,
    read_f64,
    read_u32,
    read_u64,
    store_f32,
    store_f64,
    store_u32,
    store_u64,
)
from kernels.cuda.rows import WARP_ADS, load_rows
from kernels.cuda.score import scorer
from kernels.cuda.users import Layout

WARPS = 8
THREADS = 32 * WARPS
MERGE_THREADS = 1024
SEGMENT = 1024  # slots that a warp takes at a time: 32 for each lane
QUEUES = WARPS * SEGMENT
BASES = 5  # addresses of a warp's segment
ALL_BASES = WARPS * BASES
JOBS_MAX = 64
assert JOBS_MAX <= THREADS and THREADS >= BINS
MARGIN = WARPS * WARP_ADS  # entries that may come after a buffer was seen full
UNSCORED = 0.5
TWO_BLOCKS_BYTES_MAX = 192  # rows of which a thread holds no more leave room for two blocks on a multiprocessor

# what is known of a job, as uint64 [job, JOB_ITEMS]
MASK, BY_VALUE, ROOM, K, FIRST, MERGED_FIRST, OUT_FIRST = 0, 1, 2, 3, 4, 5, 6
JOB_ITEMS = 8

FULL, DONE = 0, 1  # in a block's `state`


@cuda.jit(device=True, forceinline=True)
def _job(jobs: Any, job: Any, item: Any) -> Any:
    return read_u64(jobs, uint64(job) * uint64(JOB_ITEMS) + uint64(item))


@cuda.jit(device=True, forceinline=True)
def _wanted(jobs: Any, job_count: Any, word: Any) -> Any:
    """The slots of a mask word that any job wants."""
    bits, job = uint32(0), uint64(0)
    while job < uint64(job_count):
        bits = uint32(bits | read_u32(_job(jobs, job, MASK), word))
        job += uint64(1)
    return bits


@cuda.jit(device=True, forceinline=True)
def _fill_queue(queue: Any, bits: Any) -> Any:
    """Puts the slots of the lanes' bits into the warp's queue, as offsets from the segment's first. -> how many"""
    lane = uint32(cuda.laneid)
    mine = int32(cuda.popc(bits))
    before = sum_before(mine)
    at = uint32(before)
    while bits != uint32(0):
        queue[at] = uint16(lane * uint32(32) + uint32(cuda.ffs(bits) - 1))
        bits = uint32(bits & (bits - uint32(1)))
        at = uint32(at + uint32(1))
    cuda.syncwarp(FULL_WARP)
    return cuda.shfl_sync(FULL_WARP, int32(before + mine), 31)


@cuda.jit(device=True, forceinline=True)
def _offer(
    asked: bool, order: Any, slot: Any, score: Any, job: Any, jobs: Any, ties: Any, slots_log2: Any, block: Any,
    shared: Any,
) -> Any:  # fmt: skip
    """Puts the lanes' ads that reach what the job asks into the block's buffer; by a whole warp."""
    held, limit_order, limit_tie, limit_slot, asked_order, state = shared
    better = asked and order >= asked_order[job]
    if better and order == limit_order[job]:
        better = is_within(order, slot, (limit_order[job], limit_tie[job], limit_slot[job]), ties, slots_log2)
    votes = cuda.ballot_sync(FULL_WARP, better)
    if votes == 0:
        return
    first = uint32(0)
    if cuda.laneid == 0:
        first = cuda.atomic.add(held, job, uint32(cuda.popc(votes)))
        if uint64(first) + uint64(cuda.popc(votes)) + uint64(MARGIN) > _job(jobs, job, ROOM):
            state[FULL] = 1
    first = uint32(cuda.shfl_sync(FULL_WARP, int32(first), 0))
    if better:
        at = _job(jobs, job, FIRST) + uint64(first) + uint64(cuda.popc(votes & cuda.lanemask_lt()))
        store_u64(block[uint32(0)], at, order)
        store_u32(block[uint32(1)], at, slot)
        store_f32(block[uint32(2)], at, score)


@cuda.jit(device=True, forceinline=True)
def _order(score: Any, bid: Any, by_value: Any) -> Any:
    value = float64(score) * bid if by_value != uint64(0) else float64(score)
    return ptx.bits_f64(value)


@cuda.jit(device=True, forceinline=True)
def _cut(job: Any, jobs: Any, ties: Any, slots_log2: Any, block: Any, shared: Any, search: Any, bounds: Any) -> Any:
    """Cuts a buffer to the job's k best, and publishes the worst of them; by the whole block."""
    held, limit_order, limit_tie, limit_slot, asked_order, _state = shared
    histogram, found, warp_counts = search
    orders, slots, scores = block[uint32(0)], block[uint32(1)], block[uint32(2)]
    first, k = _job(jobs, job, FIRST), _job(jobs, job, K)
    limit = keep_best(
        orders + first * uint64(8), slots + first * uint64(4), scores + first * uint64(4), int64(held[job]), int64(k),
        ties, slots_log2, histogram, found, warp_counts,
    )  # fmt: skip
    if cuda.threadIdx.x == 0:
        held[job] = uint32(k)
        limit_order[job], limit_tie[job], limit_slot[job] = limit
        asked_order[job] = max(asked_order[job], limit[0])
        ptx.atomic_max_u64(bounds, uint64(job), limit[0])
    cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def _hand_over(job: Any, jobs: Any, block: Any, held: Any, bounds: Any, merged: Any) -> None:
    """Adds what can be among the job's best to its list; by the whole block."""
    orders, slots, scores = block[uint32(0)], block[uint32(1)], block[uint32(2)]
    merged_orders, merged_slots, merged_scores, merged_counts = merged
    first, target = _job(jobs, job, FIRST), _job(jobs, job, MERGED_FIRST)
    bound = ptx.load_latest_u64(bounds, uint64(job))
    i, count = uint64(cuda.threadIdx.x), uint64(held[job])
    while i < count:
        order = load_u64(orders, first + i)
        if order >= bound:
            at = target + uint64(atomic_add_u32(merged_counts, uint64(job), uint32(1)))
            store_u64(merged_orders, at, order)
            store_u32(merged_slots, at, load_u32(slots, first + i))
            store_f32(merged_scores, at, load_f32(scores, first + i))
        i += uint64(THREADS)


@cuda.jit(device=True, forceinline=True)
def _next_segment(ticket: Any) -> Any:
    """The next that no warp has taken; by a whole warp."""
    segment = int32(0)
    if cuda.laneid == 0:
        segment = int32(atomic_add_u32(ticket, 0, uint32(1)))
    return int64(cuda.shfl_sync(FULL_WARP, segment, 0))


@cuda.jit(device=True, forceinline=True)
def _read_bounds(bounds: Any, asked_order: Any, jobs_end: Any) -> None:
    """What other blocks have published by now; by a whole warp."""
    job = uint32(cuda.laneid)
    while job < jobs_end:
        asked_order[job] = max(asked_order[job], ptx.load_latest_u64(bounds, uint64(job)))
        job = uint32(job + uint32(32))


@cuda.jit(device=True, forceinline=True)
def _put_bases(
    bases: Any, tables: Any, slots_log2: Any, first_slot: Any, row_bytes: Any, gate_row_bytes: Any
) -> None:
    """Where a segment's rows, scales and bids begin, into shared memory: registers are dear. By one lane."""
    embedding, embedding_scale, gate, gate_scale, bid = tables
    page = first_slot >> uint64(slots_log2)
    inside = first_slot & ((uint64(1) << uint64(slots_log2)) - uint64(1))
    bases[uint32(0)] = read_u64(embedding, page) + inside * uint64(row_bytes)
    bases[uint32(1)] = read_u64(embedding_scale, page) + inside * uint64(4)
    bases[uint32(2)] = read_u64(gate, page) + inside * uint64(gate_row_bytes)
    bases[uint32(3)] = read_u64(gate_scale, page) + inside * uint64(4)
    bases[uint32(4)] = read_u64(bid, page) + inside * uint64(8)


@cuda.jit(device=True, forceinline=True)
def _row_addresses(base: Any, offsets: Any, bytes_: Any) -> Any:
    a, b, c, d = offsets
    return base + a * bytes_, base + b * bytes_, base + c * bytes_, base + d * bytes_


@cache
def _tile(layout: Layout, make: Callable[[Layout], Any]) -> Any:
    """A device function: scores up to 32 of the queue's ads for every user and offers them to the users' jobs."""
    score = make(layout)
    load_embedding, load_gate = (
        load_rows(bytes_, layout.precision) for bytes_ in (layout.row_bytes, layout.gate_row_bytes)
    )
    row_bytes, gate_row_bytes, record_bytes = layout.row_bytes, layout.gate_row_bytes, layout.bytes

    @cuda.jit(device=True, forceinline=True)
    def tile(
        queue: Any, at: Any, have: Any, first_slot: Any, bases: Any, records: Any, user_jobs: Any, users: Any,
        jobs: Any, job_count: Any, ties: Any, slots_log2: Any, block: Any, shared: Any,
    ) -> None:  # fmt: skip
        lane, last = uint32(cuda.laneid), uint32(have - 1)
        mine = uint32(uint32(at) + lane)
        is_ad = mine <= last
        offset = uint64(queue[min(mine, last)])
        slot = uint32(first_slot + uint32(offset))
        bid = read_f64(bases[uint32(4)], offset)
        word, bit = uint64(slot >> uint32(5)), uint32(slot & uint32(31))
        if users > 0:
            four = uint32(uint32(at) + (lane & uint32(28)))
            offsets = (
                uint64(queue[min(four, last)]), uint64(queue[min(uint32(four + uint32(1)), last)]),
                uint64(queue[min(uint32(four + uint32(2)), last)]), uint64(queue[min(uint32(four + uint32(3)), last)]),
            )  # fmt: skip
            zero = uint32(slots_log2 >> 32)  # which is not known before the launch
            rows = load_embedding(_row_addresses(bases[uint32(0)], offsets, uint64(row_bytes)), zero)
            gate_rows = load_gate(_row_addresses(bases[uint32(2)], offsets, uint64(gate_row_bytes)), zero)
            scale, gate_scale = read_f32(bases[uint32(1)], offset), read_f32(bases[uint32(3)], offset)
            user, record, job = uint64(0), records, uint32(0)
            while user < uint64(users):
                value = score(rows, gate_rows, scale, gate_scale, record)
                user += uint64(1)
                record += uint64(record_bytes)
                end = read_u32(user_jobs, user)
                while job < end:
                    asked = is_ad
                    if job_count > 1:
                        asked = is_ad and (read_u32(_job(jobs, job, MASK), word) >> bit) & uint32(1) != 0
                    order = _order(value, bid, _job(jobs, job, BY_VALUE))
                    _offer(asked, order, slot, value, job, jobs, ties, slots_log2, block, shared)
                    job = uint32(job + uint32(1))
        job = read_u32(user_jobs, uint64(users))
        while job < uint32(job_count):
            asked = is_ad and (read_u32(_job(jobs, job, MASK), word) >> bit) & uint32(1) != 0
            order = _order(float32(UNSCORED), bid, _job(jobs, job, BY_VALUE))
            _offer(asked, order, slot, float32(UNSCORED), job, jobs, ties, slots_log2, block, shared)
            job = uint32(job + uint32(1))

    return tile


def _blocks(layout: Layout) -> int:
    """Blocks that a multiprocessor is to hold at a time: registers are bounded for that."""
    return 2 if layout.tiles == 1 and layout.row_bytes + layout.gate_row_bytes <= TWO_BLOCKS_BYTES_MAX else 1


@cache
def scan_kernel(layout: Layout, make: Callable[[Layout], Any] = scorer) -> Any:
    """The kernel for an index's widths and precision and a number of experts. `make` makes what scores an ad:
    benchmarks have another."""
    tile = _tile(layout, make)
    row_bytes, gate_row_bytes = layout.row_bytes, layout.gate_row_bytes

    @cuda.jit(launch_bounds=(THREADS, _blocks(layout)))
    def scan(
        embedding: Any, embedding_scale: Any, gate: Any, gate_scale: Any, bid: Any, ties: Any, slots_log2: Any,
        segments: Any, records: Any, user_jobs: Any, users: Any, jobs: Any, job_count: Any, orders: Any,
        entry_slots: Any, entry_scores: Any, block_entries: Any, bounds: Any, ticket: Any, merged_orders: Any,
        merged_slots: Any,
        merged_scores: Any, merged_counts: Any,
    ) -> None:  # fmt: skip
        queues = cuda.shared.array(QUEUES, uint16)
        all_bases = cuda.shared.array(ALL_BASES, uint64)
        held = cuda.shared.array(JOBS_MAX, uint32)
        limit_order = cuda.shared.array(JOBS_MAX, uint64)
        limit_tie = cuda.shared.array(JOBS_MAX, uint64)
        limit_slot = cuda.shared.array(JOBS_MAX, uint64)
        asked_order = cuda.shared.array(JOBS_MAX, uint64)
        block = cuda.shared.array(3, uint64)  # where the block's buffers begin: orders, slots, scores
        state = cuda.shared.array(2, int32)
        histogram = cuda.shared.array(BINS, uint32)
        found = cuda.shared.array(FOUND_ITEMS, int64)
        warp_counts = cuda.shared.array(WARPS_MAX, uint32)
        shared = (held, limit_order, limit_tie, limit_slot, asked_order, state)
        search = (histogram, found, warp_counts)
        tables = (embedding, embedding_scale, gate, gate_scale, bid)
        thread, jobs_end = uint32(cuda.threadIdx.x), uint32(job_count)
        if thread < jobs_end:  # of which a block has no more than threads
            held[thread] = uint32(0)
            limit_order[thread], limit_tie[thread], limit_slot[thread] = uint64(0), uint64(EVERY_BIT), uint64(EVERY_BIT)
            asked_order[thread] = uint64(0)
        if thread < uint32(2):
            state[thread] = 0
        if thread == uint32(0):
            own = uint64(cuda.blockIdx.x) * uint64(block_entries)
            block[uint32(0)], block[uint32(1)] = orders + own * uint64(8), entry_slots + own * uint64(4)
            block[uint32(2)] = entry_scores + own * uint64(4)
        cuda.syncthreads()
        queue_first = uint32(thread >> uint32(5)) * uint32(SEGMENT)
        queue = queues[queue_first : queue_first + SEGMENT]
        bases = all_bases[uint32(thread >> uint32(5)) * uint32(BASES) :]
        at, have, finished, first_slot = int32(0), int32(0), False, uint32(0)
        working = True
        while working:
            while not finished and not cuda.any_sync(FULL_WARP, state[FULL] != 0):
                if at < have:
                    tile(
                        queue, at, have, first_slot, bases, records, user_jobs, users, jobs, job_count, ties,
                        slots_log2, block, shared,
                    )  # fmt: skip
                    at = int32(at + WARP_ADS)
                    continue
                segment = _next_segment(ticket)
                if segment >= segments:
                    finished = True
                    if cuda.laneid == 0:
                        cuda.atomic.add(state, DONE, 1)
                else:
                    _read_bounds(bounds, asked_order, jobs_end)
                    first_slot = uint32(segment) * uint32(SEGMENT)
                    if cuda.laneid == 0:
                        _put_bases(bases, tables, slots_log2, uint64(first_slot), row_bytes, gate_row_bytes)
                    word = uint64(first_slot >> uint32(5)) + uint64(cuda.laneid)
                    have = _fill_queue(queue, _wanted(jobs, job_count, word))
                    at = int32(0)
            cuda.syncthreads()
            working = state[DONE] < WARPS or state[FULL] != 0
            cuda.syncthreads()
            if thread == uint32(0):
                state[FULL] = 0
            job = uint32(0)
            while job < jobs_end:
                full = uint64(held[job]) + uint64(MARGIN) > _job(jobs, job, ROOM)
                if full or (not working and uint64(held[job]) > _job(jobs, job, K)):
                    _cut(job, jobs, ties, slots_log2, block, shared, search, bounds)
                job = uint32(job + uint32(1))
            cuda.syncthreads()
        job = uint32(0)
        while job < jobs_end:
            _hand_over(job, jobs, block, held, bounds, (merged_orders, merged_slots, merged_scores, merged_counts))
            job = uint32(job + uint32(1))

    return scan


@cuda.jit
def merge(
    jobs: Any, bid: Any, ties: Any, slots_log2: Any, merged_orders: Any, merged_slots: Any, merged_scores: Any,
    merged_counts: Any, out_slots: Any, out_scores: Any, out_values: Any,
) -> None:  # fmt: skip
    """Block j takes the k best of job j's list, in their order."""
    histogram = cuda.shared.array(BINS, uint32)
    found = cuda.shared.array(FOUND_ITEMS, int64)
    warp_counts = cuda.shared.array(WARPS_MAX, uint32)
    job = uint64(cuda.blockIdx.x)
    first, k = _job(jobs, job, MERGED_FIRST), int64(_job(jobs, job, K))
    orders, slots = merged_orders + first * uint64(8), merged_slots + first * uint64(4)
    scores = merged_scores + first * uint64(4)
    count = int64(load_u32(merged_counts, job))
    if count > k:
        keep_best(orders, slots, scores, count, k, ties, slots_log2, histogram, found, warp_counts)
        count = k
    sort_best(orders, slots, scores, count, ties, slots_log2)
    i = uint64(cuda.threadIdx.x)
    while i < uint64(count):
        slot, score, at = load_u32(slots, i), load_f32(scores, i), _job(jobs, job, OUT_FIRST) + i
        store_u32(out_slots, at, slot)
        store_f32(out_scores, at, score)
        page = read_u64(bid, uint64(slot) >> uint64(slots_log2))
        inside = uint64(slot) & ((uint64(1) << uint64(slots_log2)) - uint64(1))
        store_f64(out_values, at, float64(score) * read_f64(page, inside))
        i += uint64(MERGE_THREADS)
