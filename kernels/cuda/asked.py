"""What a job asks of an ad by now: an order that k ads of the pass are known to reach, by a histogram of all blocks.

Every ad that is offered to a job is counted in one of BINS bins by its order; the lower edge of the highest bin from
which on k ads lie is asked from then on. Counts are of distinct ads and only grow, so whatever a warp sees of them, k
ads are at least as good as what it asks.

Bins are a sixteenth of an octave wide: of score * bid from 2^-40 to 2^24, of a score from 2^-24 up to a half and, seen
from 1, on to 1 - 2^-24. What lies beyond counts in the last bin of its side.

For the first look (rows.py, `reach`) each user has two numbers of the jobs that ask the least: an ad's score reaches
what one of them asks only if 1 / score - 1 <= max(bid * `per_bid` - 1, `at_most`).
"""

from __future__ import annotations

from typing import Any

from numba import cuda, float32, int32, int64, uint32, uint64

from kernels.cuda import ptx
from kernels.cuda.best import EVERY_BIT, FULL_WARP, sum_before
from kernels.cuda.raw import read_u32, read_u64

# what is known of a job, as uint64 [job, JOB_ITEMS]
MASK, BY_VALUE, ROOM, K, FIRST, MERGED_FIRST, OUT_FIRST = 0, 1, 2, 3, 4, 5, 6
JOB_ITEMS = 8

BINS = 1024
CHUNK = 128  # bins that a warp reads at a time
STEP_BIT = 48  # of a float64, above which lie the exponent and four bits of the mantissa
OCTAVE = 16
VALUE_FIRST, SCORE_FIRST = (1023 - 40) * OCTAVE, (1023 - 24) * OCTAVE
HALF_BIN = 23 * OCTAVE
HALF_BITS = 1022 << 52
assert 2 * HALF_BIN < BINS and 64 * OCTAVE == BINS and BINS % CHUNK == 0

ASKED_MAX = 2.0**100  # what is asked beyond this, or below its inverse, is not looked at in float32
ROUNDED_UP = 1.0 + 2.0**-18  # by more than all roundings from a score to what is asked of it
AT_MOST_MIN = 2.0**-30


@cuda.jit(device=True, forceinline=True)
def job_item(jobs: Any, job: Any, item: Any) -> Any:
    return read_u64(jobs, uint64(job) * uint64(JOB_ITEMS) + uint64(item))


@cuda.jit(device=True, forceinline=True)
def bin_of(order: Any, by_value: Any) -> Any:
    if by_value != uint64(0):
        return uint64(min(max(int64(order >> uint64(STEP_BIT)) - int64(VALUE_FIRST), int64(0)), int64(BINS - 1)))
    near = order >= uint64(HALF_BITS)
    bits = ptx.bits_f64(1.0 - ptx.f64_of_bits(order)) if near else order
    step = min(max(int64(bits >> uint64(STEP_BIT)) - int64(SCORE_FIRST), int64(0)), int64(HALF_BIN))
    return uint64(2 * HALF_BIN - step if near else step)


@cuda.jit(device=True, forceinline=True)
def edge_of(bin_: Any, by_value: Any) -> Any:
    """An order that none of this bin or a higher one lies below."""
    if bin_ <= int64(0):
        return uint64(0)
    if by_value != uint64(0):
        return uint64(bin_ + int64(VALUE_FIRST)) << uint64(STEP_BIT)
    if bin_ < int64(HALF_BIN):
        return uint64(bin_ + int64(SCORE_FIRST)) << uint64(STEP_BIT)
    step = int64(2 * HALF_BIN) - bin_ + int64(1 + SCORE_FIRST)
    return ptx.bits_f64(1.0 - ptx.f64_of_bits(uint64(step) << uint64(STEP_BIT)))


@cuda.jit(device=True, forceinline=True)
def _highest_bin(histogram: Any, job: Any, k: Any) -> Any:
    """The highest bin from which on k ads are counted, or -1; by a whole warp."""
    first = uint64(job) * uint64(BINS) + uint64(cuda.laneid) * uint64(4)
    chunk, above, found, needed = int64(BINS // CHUNK - 1), int32(0), int32(-1), int32(k)
    while chunk >= int64(0):
        a, b, c, d = ptx.load4_latest_u32(histogram, first + uint64(chunk) * uint64(CHUNK))
        mine = int32(a + b + c + d)
        total = ptx.warp_sum(mine)
        if int32(above + total) >= needed:
            behind = int32(above + total - sum_before(mine) - mine)  # with the higher lanes'
            if behind < needed <= int32(behind + mine):
                from_d = int32(behind + int32(d))
                from_c = int32(from_d + int32(c))
                from_b = int32(from_c + int32(b))
                inside = 3 if from_d >= needed else 2 if from_c >= needed else 1 if from_b >= needed else 0
                found = int32(chunk * int64(CHUNK) + int64(4 * cuda.laneid + inside))
            winner = cuda.ballot_sync(FULL_WARP, found >= 0)
            return int64(cuda.shfl_sync(FULL_WARP, found, cuda.ffs(winner) - 1))
        above = int32(above + total)
        chunk -= int64(1)
    return int64(-1)


@cuda.jit(device=True, forceinline=True)
def ask_more(job: Any, jobs: Any, histogram: Any, bounds: Any, asked_order: Any) -> None:
    """Takes up what the counts say by now, and publishes it; by a whole warp."""
    by_value = job_item(jobs, job, BY_VALUE)
    edge = edge_of(_highest_bin(histogram, job, job_item(jobs, job, K)), by_value)
    before = asked_order[job]
    asked_order[job] = max(before, edge)  # all lanes the same: none has to wait for another
    if cuda.laneid == 0 and edge > before:
        ptx.atomic_max_u64(bounds, uint64(job), edge)


@cuda.jit(device=True, forceinline=True)
def _over(asked: Any) -> Any:
    """1 / asked, rather more; infinite where float32 is not to be trusted with it."""
    if asked < 1.0 / ASKED_MAX or asked > ASKED_MAX:
        return float32(float("inf"))
    return ptx.multiply(ptx.reciprocal(float32(asked)), float32(ROUNDED_UP))


@cuda.jit(device=True, forceinline=True)
def put_need(user: Any, user_jobs: Any, jobs: Any, asked_order: Any, per_bid: Any, at_most: Any) -> None:
    value, score = uint64(EVERY_BIT), uint64(EVERY_BIT)
    job, end = read_u32(user_jobs, uint64(user)), read_u32(user_jobs, uint64(user) + uint64(1))
    while job < end:
        if job_item(jobs, job, BY_VALUE) != uint64(0):
            value = min(value, asked_order[job])
        else:
            score = min(score, asked_order[job])
        job = uint32(job + uint32(1))
    each = float32(0.0)
    if value != uint64(EVERY_BIT):
        each = _over(ptx.f64_of_bits(value))
    most = float32(AT_MOST_MIN)
    if score != uint64(EVERY_BIT):
        most = ptx.larger(float32(_over(ptx.f64_of_bits(score)) - float32(1.0)), most)
    per_bid[user], at_most[user] = each, most


@cuda.jit(device=True, forceinline=True)
def read_bounds(
    bounds: Any, jobs: Any, jobs_end: Any, user_jobs: Any, users: Any, asked_order: Any, per_bid: Any, at_most: Any
) -> None:
    """What all blocks have published by now; by a whole warp."""
    job = uint32(cuda.laneid)
    while job < jobs_end:
        asked_order[job] = max(asked_order[job], ptx.load_latest_u64(bounds, uint64(job)))
        job = uint32(job + uint32(32))
    cuda.syncwarp(FULL_WARP)
    user = uint32(cuda.laneid)
    while user < uint32(users):
        put_need(user, user_jobs, jobs, asked_order, per_bid, at_most)
        user = uint32(user + uint32(32))
    cuda.syncwarp(FULL_WARP)
