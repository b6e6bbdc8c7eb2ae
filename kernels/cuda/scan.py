"""One pass over the ads: masks to scores to each block's best, with nothing kept of an ad that is not among them.

Warps work on their own; a block meets only when a buffer is full, and at the end.
1. A warp takes 1,024 slots at a time, the next that no warp has taken. Each lane reads the masks of all jobs for 32 of
   them; slots that any job wants go into the warp's queue, in their order. They lie in one page: it is looked up once.
2. It takes a first look at 32 of the queue at a time (look.py): their rows are read once and multiplied with each
   user's experts, coarsely. A mixture is at most its largest part, so an ad of which no expert may reach what any of
   the user's jobs asks needs no gate, which is not read. The others wait in a list of the warp and the user.
3. It scores 32 of a list at a time (rows.py, score.py): in the end each lane has one ad. One whose order (score * bid,
   or score) reaches what its job asks by now goes into the block's buffer for the job. Asked is the largest order that
   k ads are known to reach (asked.py), and the worst of the block's k best, with its tie, once a buffer was full.
4. A full buffer is cut to its k best by the whole block (best.py). A warp stops when it has seen a buffer near full;
   each has room for 32 more ads from every warp, so none overflows.
5. At the end each block hands what can still be among the best to the job's list; merge.py makes the answer of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from numba import cuda, float32, float64, int32, int64, uint16, uint32, uint64

from kernels.cuda import ptx
from kernels.cuda.asked import BINS as ORDER_BINS
from kernels.cuda.asked import (
    BY_VALUE,
    FIRST,
    MASK,
    MERGED_FIRST,
    ROOM,
    K,
    ask_more,
    bin_of,
    put_need,
    read_bounds,
)
from kernels.cuda.asked import job_item as _job
from kernels.cuda.best import (
    BINS,
    EVERY_BIT,
    FOUND_ITEMS,
    FULL_WARP,
    WARPS_MAX,
    is_within,
    keep_best,
    sum_before,
)
from kernels.cuda.look import WAITING_ADS, looker
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
    store_u32,
    store_u64,
)
from kernels.cuda.rows import WARP_ADS, load_rows
from kernels.cuda.score import scorer
from kernels.cuda.users import Layout

WARPS = 8
THREADS = 32 * WARPS
SEGMENT = 1024  # slots that a warp takes at a time: 32 for each lane
QUEUES = WARPS * SEGMENT
BASES = 4  # addresses of a warp's segment, and of its lists
LISTS = 3
ALL_BASES = WARPS * BASES
JOBS_MAX = 64
ALL_WAITING = WARPS * JOBS_MAX
assert JOBS_MAX <= THREADS and THREADS >= BINS
MARGIN = WARPS * WARP_ADS  # entries that may come after a buffer was seen full
UNSCORED = 0.5
TWO_BLOCKS_BYTES_MAX = 192  # rows of which a thread holds no more leave room for two blocks on a multiprocessor

FULL, DONE = 0, 1  # in a block's `state`


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
    shared: Any, published: Any,
) -> Any:  # fmt: skip
    """Puts the lanes' ads that reach what the job asks into the block's buffer, and counts them; by a whole warp."""
    histogram, bounds = published
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
        bin_ = bin_of(order, _job(jobs, job, BY_VALUE))
        ptx.count_u32(histogram, uint64(job) * uint64(ORDER_BINS) + bin_)
    ask_more(job, jobs, histogram, bounds, asked_order)


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
def _cut_full(
    working: bool, jobs_end: Any, jobs: Any, ties: Any, slots_log2: Any, block: Any, shared: Any, search: Any,
    bounds: Any,
) -> None:  # fmt: skip
    """Cuts the buffers that are near full, at the end all that hold more than k; by the whole block."""
    held = shared[0]
    job = uint32(0)
    while job < jobs_end:
        full = uint64(held[job]) + uint64(MARGIN) > _job(jobs, job, ROOM)
        if full or (not working and uint64(held[job]) > _job(jobs, job, K)):
            _cut(job, jobs, ties, slots_log2, block, shared, search, bounds)
        job = uint32(job + uint32(1))


@cuda.jit(device=True, forceinline=True)
def _hand_over_all(jobs_end: Any, jobs: Any, block: Any, held: Any, bounds: Any, merged: Any) -> None:
    job = uint32(0)
    while job < jobs_end:
        _hand_over(job, jobs, block, held, bounds, merged)
        job = uint32(job + uint32(1))


@cuda.jit(device=True, forceinline=True)
def _next_segment(ticket: Any) -> Any:
    """The next that no warp has taken; by a whole warp."""
    segment = int32(0)
    if cuda.laneid == 0:
        segment = int32(atomic_add_u32(ticket, 0, uint32(1)))
    return int64(cuda.shfl_sync(FULL_WARP, segment, 0))


@cuda.jit(device=True, forceinline=True)
def _put_bases(bases: Any, tables: Any, slots_log2: Any, first_slot: Any, row_bytes: Any) -> None:
    """Where a segment's rows, scales and bids begin, into shared memory: registers are dear. By one lane."""
    embedding, embedding_scale, _gate, _gate_scale, bid = tables
    page = first_slot >> uint64(slots_log2)
    inside = first_slot & ((uint64(1) << uint64(slots_log2)) - uint64(1))
    bases[uint32(0)] = read_u64(embedding, page) + inside * uint64(row_bytes)
    bases[uint32(1)] = read_u64(embedding_scale, page) + inside * uint64(4)
    bases[uint32(2)] = read_u64(bid, page) + inside * uint64(8)


@cuda.jit(device=True, forceinline=True)
def _of_quad(address: Any) -> Any:
    """The addresses that the four lanes of a quad have."""
    first, held = int32(cuda.laneid & 28), int64(address)
    return (
        uint64(cuda.shfl_sync(FULL_WARP, held, first)), uint64(cuda.shfl_sync(FULL_WARP, held, first + 1)),
        uint64(cuda.shfl_sync(FULL_WARP, held, first + 2)), uint64(cuda.shfl_sync(FULL_WARP, held, first + 3)),
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def _offer_unscored(
    queue: Any, at: Any, have: Any, first_slot: Any, bases: Any, first_job: Any, jobs: Any, job_count: Any, ties: Any,
    slots_log2: Any, block: Any, shared: Any, published: Any,
) -> None:  # fmt: skip
    """Offers up to 32 of the queue's ads to the jobs that have no user."""
    mine, last = uint32(uint32(at) + uint32(cuda.laneid)), uint32(have - 1)
    offset = uint64(queue[min(mine, last)])
    slot = uint32(first_slot + uint32(offset))
    bid = read_f64(bases[uint32(2)], offset)
    word, bit, job = uint64(slot >> uint32(5)), uint32(slot & uint32(31)), uint32(first_job)
    while job < uint32(job_count):
        asked = mine <= last and (read_u32(_job(jobs, job, MASK), word) >> bit) & uint32(1) != 0
        order = _order(float32(UNSCORED), bid, _job(jobs, job, BY_VALUE))
        _offer(asked, order, slot, float32(UNSCORED), job, jobs, ties, slots_log2, block, shared, published)
        job = uint32(job + uint32(1))


@cache
def _score_waiting(layout: Layout, make: Callable[[Layout], Any]) -> Any:
    """A device function: scores the last 32 ads, or all, of a user's list and offers them to the user's jobs."""
    score = make(layout)
    load_embedding, load_gate = (
        load_rows(bytes_, layout.precision) for bytes_ in (layout.row_bytes, layout.gate_row_bytes)
    )
    row_bytes, gate_row_bytes, record_bytes = layout.row_bytes, layout.gate_row_bytes, layout.bytes

    @cuda.jit(device=True, forceinline=True)
    def score_waiting(
        waiting: Any, counts: Any, user: Any, tables: Any, records: Any, user_jobs: Any, jobs: Any, masks: Any,
        ties: Any, slots_log2: Any, block: Any, shared: Any, published: Any, needs: Any,
    ) -> None:  # fmt: skip
        embedding, embedding_scale, gate, gate_scale, bid = tables
        lane, held = uint32(cuda.laneid), uint32(counts[user])
        count = uint32(min(held, uint32(WARP_ADS)))
        is_ad = lane < count
        place = uint32(held - count + min(lane, uint32(count - uint32(1))))
        slot = load_u32(waiting, uint64(user) * uint64(WAITING_ADS) + uint64(place))
        page = uint64(slot) >> uint64(slots_log2)
        inside = uint64(slot) & ((uint64(1) << uint64(slots_log2)) - uint64(1))
        zero = uint32(slots_log2 >> 32)  # which is not known before the launch
        rows = load_embedding(_of_quad(read_u64(embedding, page) + inside * uint64(row_bytes)), zero)
        gate_rows = load_gate(_of_quad(read_u64(gate, page) + inside * uint64(gate_row_bytes)), zero)
        scale, own_gate_scale = (
            read_f32(read_u64(embedding_scale, page), inside), read_f32(read_u64(gate_scale, page), inside),
        )  # fmt: skip
        own_bid = read_f64(read_u64(bid, page), inside)
        value = score(rows, gate_rows, scale, own_gate_scale, records + uint64(user) * uint64(record_bytes))
        word, bit = uint64(slot >> uint32(5)), uint32(slot & uint32(31))
        job, end = read_u32(user_jobs, uint64(user)), read_u32(user_jobs, uint64(user) + uint64(1))
        while job < end:
            asked = is_ad
            if masks > 1:
                asked = is_ad and (read_u32(_job(jobs, job, MASK), word) >> bit) & uint32(1) != 0
            order = _order(value, own_bid, _job(jobs, job, BY_VALUE))
            _offer(asked, order, slot, value, job, jobs, ties, slots_log2, block, shared, published)
            job = uint32(job + uint32(1))
        counts[user] = uint32(held - count)  # all lanes the same
        put_need(user, user_jobs, jobs, shared[4], needs[0], needs[1])
        cuda.syncwarp(FULL_WARP)

    return score_waiting


@cuda.jit(device=True, forceinline=True)
def _any_waiting(counts: Any, users: Any) -> Any:
    """A bit for each user whose list is not empty; by a whole warp."""
    low, high = uint32(cuda.laneid), uint32(cuda.laneid + 32)
    below = cuda.ballot_sync(FULL_WARP, low < uint32(users) and counts[low] != 0)
    above = cuda.ballot_sync(FULL_WARP, high < uint32(users) and counts[high] != 0)
    return uint64(uint32(above)) << uint64(32) | uint64(uint32(below))


def blocks_at_once(layout: Layout) -> int:
    """Blocks that a multiprocessor is to hold at a time: registers are bounded for that."""
    return 2 if layout.tiles == 1 and layout.row_bytes + layout.gate_row_bytes <= TWO_BLOCKS_BYTES_MAX else 1


@cache
def scan_kernel(layout: Layout, make: Callable[[Layout], Any] = scorer) -> Any:
    """The kernel for an index's widths and precision and a number of experts. `make` makes what scores an ad:
    benchmarks have another."""
    look, score_waiting = looker(layout), _score_waiting(layout, make)
    row_bytes = layout.row_bytes

    @cuda.jit(launch_bounds=(THREADS, blocks_at_once(layout)))
    def scan(
        embedding: Any, embedding_scale: Any, gate: Any, gate_scale: Any, bid: Any, ties: Any, slots_log2: Any,
        segments: Any, records: Any, user_jobs: Any, users: Any, jobs: Any, job_count: Any, mask_count: Any,
        waiting: Any, orders: Any, entry_slots: Any, entry_scores: Any, block_entries: Any, histogram: Any,
        bounds: Any, ticket: Any, merged_orders: Any, merged_slots: Any, merged_scores: Any, merged_counts: Any,
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
        digits = cuda.shared.array(BINS, uint32)
        found = cuda.shared.array(FOUND_ITEMS, int64)
        warp_counts = cuda.shared.array(WARPS_MAX, uint32)
        all_counts = cuda.shared.array(ALL_WAITING, uint32)
        per_bid = cuda.shared.array(JOBS_MAX, float32)
        at_most = cuda.shared.array(JOBS_MAX, float32)
        shared = (held, limit_order, limit_tie, limit_slot, asked_order, state)
        search, published, needs = (digits, found, warp_counts), (histogram, bounds), (per_bid, at_most)
        tables = (embedding, embedding_scale, gate, gate_scale, bid)
        thread, jobs_end = uint32(cuda.threadIdx.x), uint32(job_count)
        if thread < jobs_end:  # of which a block has no more than threads
            held[thread] = uint32(0)
            limit_order[thread], limit_tie[thread], limit_slot[thread] = uint64(0), uint64(EVERY_BIT), uint64(EVERY_BIT)
            asked_order[thread] = uint64(0)
        if thread == uint32(0):
            state[FULL], state[DONE] = 0, 0
            own = uint64(cuda.blockIdx.x) * uint64(block_entries)
            block[uint32(0)], block[uint32(1)] = orders + own * uint64(8), entry_slots + own * uint64(4)
            block[uint32(2)] = entry_scores + own * uint64(4)
        cuda.syncthreads()
        queue_first = uint32(thread >> uint32(5)) * uint32(SEGMENT)
        queue = queues[queue_first : queue_first + SEGMENT]
        bases = all_bases[uint32(thread >> uint32(5)) * uint32(BASES) :]
        counts = all_counts[uint32(thread >> uint32(5)) * uint32(JOBS_MAX) :]
        counts[uint32(cuda.laneid)], counts[uint32(cuda.laneid + 32)] = uint32(0), uint32(0)
        if cuda.laneid == 0:
            warp = uint64(cuda.blockIdx.x) * uint64(WARPS) + uint64(thread >> uint32(5))
            bases[uint32(LISTS)] = waiting + warp * uint64(users) * uint64(WAITING_ADS * 4)
        cuda.syncwarp(FULL_WARP)
        unscored = read_u32(user_jobs, uint64(users))
        at, have, finished, first_slot, ripe = int32(0), int32(0), False, uint32(0), uint64(0)
        working = True
        while working:
            while not finished and not cuda.any_sync(FULL_WARP, state[FULL] != 0):
                if ripe != uint64(0):
                    score_waiting(
                        bases[uint32(LISTS)], counts, uint32(cuda.ffs(ripe) - 1), tables, records, user_jobs, jobs,
                        mask_count, ties, slots_log2, block, shared, published, needs,
                    )  # fmt: skip
                    ripe &= ripe - uint64(1)
                    continue
                if at < have:
                    if users > 0:
                        ripe = look(
                            queue, at, have, first_slot, bases, records, user_jobs, users, jobs, mask_count, needs,
                            bases[uint32(LISTS)], counts, slots_log2,
                        )  # fmt: skip
                    if unscored < jobs_end:
                        _offer_unscored(
                            queue, at, have, first_slot, bases, unscored, jobs, job_count, ties, slots_log2, block,
                            shared, published,
                        )  # fmt: skip
                    at = int32(at + WARP_ADS)
                    continue
                segment = _next_segment(ticket)
                if segment >= segments:
                    ripe = _any_waiting(counts, users)
                    finished = ripe == uint64(0)
                    if finished and cuda.laneid == 0:
                        cuda.atomic.add(state, DONE, 1)
                else:
                    read_bounds(bounds, jobs, jobs_end, user_jobs, users, asked_order, per_bid, at_most)
                    first_slot = uint32(segment) * uint32(SEGMENT)
                    if cuda.laneid == 0:
                        _put_bases(bases, tables, slots_log2, uint64(first_slot), row_bytes)
                    word = uint64(first_slot >> uint32(5)) + uint64(cuda.laneid)
                    have = _fill_queue(queue, _wanted(jobs, job_count, word))
                    at = int32(0)
            cuda.syncthreads()
            working = state[DONE] < WARPS or state[FULL] != 0
            cuda.syncthreads()
            if thread == uint32(0):
                state[FULL] = 0
            _cut_full(working, jobs_end, jobs, ties, slots_log2, block, shared, search, bounds)
            cuda.syncthreads()
        _hand_over_all(jobs_end, jobs, block, held, bounds, (merged_orders, merged_slots, merged_scores, merged_counts))

    return scan
