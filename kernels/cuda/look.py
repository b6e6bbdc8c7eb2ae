"""The first look at ads: which of them may reach what a user's jobs ask, without their gates.

score = logistic(temperature * sum_e g_e (U_e . a) + bias), with weights g that sum to 1, is at most that of the largest
temperature * (U_e . a). So an ad is passed over where even that, with room for every rounding, is below what the least
asking job asks (asked.py). The products are made of experts rounded to one scale (users.py); a lane says for its ad
what is lacking, and the sums begin there: their signs are the answer. float32 has no first look: every ad goes on.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from kernels.cuda import ptx
from kernels.cuda.asked import MASK, job_item
from kernels.cuda.best import FULL_WARP
from kernels.cuda.raw import read_f32, read_f64, read_u32, store_u32
from kernels.cuda.rows import WARP_ADS, load_rows, reach
from kernels.cuda.users import LOOK_AT, Layout
from kernels.precision import Precision

WAITING_ADS = 2 * WARP_ADS  # room of a list: 31 that wait, and 32 more
SCALE_MAX = 2.0**100  # of a row; beyond it, or below its inverse, float32 is not to be trusted
BID_MIN = 2.0**-120  # smaller bids count as this one
LACKS_MAX = {Precision.INT8: 2.0**30, Precision.FLOAT16: 2.0**100}  # beyond all products, and no sum overflows


@cuda.jit(device=True, forceinline=True)
def _inverse(scale: Any) -> Any:
    """NaN where any ad may reach."""
    inside = scale >= float32(1 / SCALE_MAX) and scale <= float32(SCALE_MAX)
    return ptx.reciprocal(scale) if inside else float32(float("nan"))


@cuda.jit(device=True, forceinline=True)
def _is_wanted(user: Any, user_jobs: Any, jobs: Any, slot: Any) -> Any:
    """Whether one of the user's jobs wants the ad."""
    word, bits = uint64(slot >> uint32(5)), uint32(0)
    job, end = read_u32(user_jobs, user), read_u32(user_jobs, user + uint64(1))
    while job < end:
        bits = uint32(bits | read_u32(job_item(jobs, job, MASK), word))
        job = uint32(job + uint32(1))
    return (bits >> (slot & uint32(31))) & uint32(1) != uint32(0)


@cuda.jit(device=True, forceinline=True)
def _of_own_row(below: Any) -> Any:
    """Whether a lane of the quad found that an expert of this lane's ad may reach."""
    a, b = cuda.ballot_sync(FULL_WARP, int32(below[0]) >= 0), cuda.ballot_sync(FULL_WARP, int32(below[1]) >= 0)
    c, d = cuda.ballot_sync(FULL_WARP, int32(below[2]) >= 0), cuda.ballot_sync(FULL_WARP, int32(below[3]) >= 0)
    lane = uint32(cuda.laneid)
    low, high = (b if lane & uint32(1) else a), (d if lane & uint32(1) else c)
    votes = uint32(high) if lane & uint32(2) else uint32(low)
    return (votes >> (lane & uint32(28))) & uint32(15) != uint32(0)


@cuda.jit(device=True, forceinline=True)
def _put_waiting(passed: bool, slot: Any, user: Any, waiting: Any, counts: Any, ripe: Any) -> Any:
    """Adds the lanes' ads to the user's list. -> the users whose lists hold 32, with this one if so"""
    votes = cuda.ballot_sync(FULL_WARP, passed)
    held = uint32(counts[user])
    if passed:
        place = uint32(held + uint32(cuda.popc(votes & cuda.lanemask_lt())))
        store_u32(waiting, user * uint64(WAITING_ADS) + uint64(place), slot)
    held = uint32(held + uint32(cuda.popc(votes)))
    cuda.syncwarp(FULL_WARP)
    counts[user] = held  # all lanes the same
    cuda.syncwarp(FULL_WARP)
    return ripe | uint64(1) << user if held >= uint32(WARP_ADS) else ripe


@cache
def looker(layout: Layout) -> Any:
    """A device function: puts those of up to 32 of the queue's ads that may reach into the users' lists. -> a bit for
    each user whose list then holds 32 or more"""
    return _coarse_looker(layout) if layout.looks else _no_looker()


def _coarse_looker(layout: Layout) -> Any:
    load = load_rows(layout.row_bytes, layout.precision)
    may_reach = reach(layout.row_bytes, layout.precision, layout.tiles)
    row_bytes, record_bytes, look_at = layout.row_bytes, layout.bytes, layout.look
    lacks_max = float32(LACKS_MAX[layout.precision])
    read4 = ptx.reader_f32(4)

    @cuda.jit(device=True, forceinline=True)
    def look(
        queue: Any, at: Any, have: Any, first_slot: Any, bases: Any, records: Any, user_jobs: Any, users: Any,
        jobs: Any, masks: Any, needs: Any, waiting: Any, counts: Any, slots_log2: Any,
    ) -> Any:  # fmt: skip
        per_bid, at_most = needs
        lane, last = uint32(cuda.laneid), uint32(have - 1)
        mine, four = uint32(uint32(at) + lane), uint32(uint32(at) + (lane & uint32(28)))
        base = bases[uint32(0)]
        rows = load(
            (
                base + uint64(queue[min(four, last)]) * uint64(row_bytes),
                base + uint64(queue[min(uint32(four + uint32(1)), last)]) * uint64(row_bytes),
                base + uint64(queue[min(uint32(four + uint32(2)), last)]) * uint64(row_bytes),
                base + uint64(queue[min(uint32(four + uint32(3)), last)]) * uint64(row_bytes),
            ), uint32(slots_log2 >> 32),
        )  # fmt: skip
        offset = uint64(queue[min(mine, last)])
        inverse = _inverse(read_f32(bases[uint32(1)], offset))
        bid = ptx.larger(float32(read_f64(bases[uint32(2)], offset)), float32(BID_MIN))
        slot = uint32(first_slot + uint32(offset))
        ripe, user, record = uint64(0), uint64(0), records
        while user < uint64(users):
            wanted, any_wanted = mine <= last, True
            if masks > 1:
                wanted = wanted and _is_wanted(user, user_jobs, jobs, slot)
                any_wanted = cuda.any_sync(FULL_WARP, wanted)
            if any_wanted:
                numbers = read4(record, uint64(LOOK_AT))
                x = ptx.larger(ptx.fused(bid, per_bid[user], float32(-1.0)), at_most[user])
                lacks = ptx.fused(ptx.fused(ptx.log2(x), numbers[0], numbers[1]), inverse, numbers[2])
                lacks = ptx.larger(ptx.smaller(lacks, lacks_max), -lacks_max)  # of NaN, the largest
                if masks > 1 and not wanted:
                    lacks = -lacks_max
                below = may_reach(rows, record + uint64(look_at), lacks)
                if cuda.any_sync(FULL_WARP, int32(below[0] & below[1] & below[2] & below[3]) >= 0):
                    may = _of_own_row(below)  # by all lanes, so not behind an `and`
                    ripe = _put_waiting(wanted and may, slot, user, waiting, counts, ripe)
            user += uint64(1)
            record += uint64(record_bytes)
        return ripe

    return look


@cache
def _no_looker() -> Any:
    @cuda.jit(device=True, forceinline=True)
    def look(
        queue: Any, at: Any, have: Any, first_slot: Any, _bases: Any, _records: Any, user_jobs: Any, users: Any,
        jobs: Any, masks: Any, _needs: Any, waiting: Any, counts: Any, _slots_log2: Any,
    ) -> Any:  # fmt: skip
        mine, last = uint32(uint32(at) + uint32(cuda.laneid)), uint32(have - 1)
        slot = uint32(first_slot + uint32(queue[min(mine, last)]))
        ripe, user = uint64(0), uint64(0)
        while user < uint64(users):
            wanted = mine <= last
            if masks > 1:
                wanted = wanted and _is_wanted(user, user_jobs, jobs, slot)
            ripe = _put_waiting(wanted, slot, user, waiting, counts, ripe)
            user += uint64(1)
        return ripe

    return look
