"""From matched targetings to ads: one bit per ad and request, then per pathway.

`eligible` goes over ad slots: a thread reads the targetings of four slots at once, and for each request their bits in
its bitmap, which stays in the cache. `filter_ads` runs a filter's program on the ads of a bitmap, `exclude` clears
single ones.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, int32, int64, uint16, uint32, uint64

from kernels.cuda.program import ENDS, PROGRAM_THREADS, ad_holds, queue_bits
from kernels.cuda.raw import (
    atomic_add_u32,
    atomic_and_u32,
    read2_u64,
    read4_u32,
    read_f64,
    read_i64,
    read_u32,
    read_u64,
    store2_u64,
    store_u32,
)
from kernels.cuda.words import flat_u32, paged_words
from kernels.plan import SERVICE_CLOCK
from kernels.program import AdFacts

THREADS = PROGRAM_THREADS
ELIGIBLE_BLOCK = 8192  # slots
FILTER_BLOCK = THREADS * 32
BATCH_MAX = 64
_AT_ONCE = THREADS * 4
_ROUNDS = ELIGIBLE_BLOCK // _AT_ONCE
ALL_LANES = 0xFFFFFFFF


@cuda.jit(device=True)
def _bit(matched: Any, targeting: Any) -> Any:
    return uint32(read_u32(matched, targeting >> uint32(5)) >> (targeting & uint32(31)) & uint32(1))


@cuda.jit(device=True)
def _in_time(nibble: Any, start_us: Any, end_us: Any, at: Any, now_us: Any) -> Any:
    """Of four slots, from `at` in their page, those whose start and end include now."""
    kept = uint32(0)
    for b in range(4):
        if nibble >> uint32(b) & uint32(1):
            if read_i64(start_us, at + b) <= now_us and now_us < read_i64(end_us, at + b):
                kept = uint32(kept | uint32(1) << uint32(b))
    return kept


@cuda.jit
def eligible(
    slots_log2: Any, targeting: Any, live: Any, active: Any, start_us: Any, end_us: Any, matched: Any, units: Any,
    requests: Any, now_us: Any, out: Any, out_words: Any, counts: Any,
) -> None:  # fmt: skip
    """A block for each ELIGIBLE_BLOCK slots, all requests.

    Columns are tables of pages of 2^slots_log2 slots. matched: [request, units] units of targetings. now_us: int64
    [request]. out: uint32 [request, out_words] a bit per slot, all written. counts: uint32 [request], added to."""
    sums = cuda.shared.array(BATCH_MAX, int32)
    thread = int64(cuda.threadIdx.x)
    shift = uint32(4 * (cuda.threadIdx.x & 7))  # of the thread's four bits in the word of eight threads
    first = int64(cuda.blockIdx.x) * ELIGIBLE_BLOCK
    page, within = first >> slots_log2, first & ((int64(1) << slots_log2) - 1)
    targetings, lives, actives = read_u64(targeting, page), read_u64(live, page), read_u64(active, page)
    starts, ends = read_u64(start_us, page), read_u64(end_us, page)
    if thread < requests:
        sums[uint64(thread)] = 0
    cuda.syncthreads()
    for part in range(_ROUNDS):
        at = within + part * _AT_ONCE + thread * 4
        one, two, three, four = read4_u32(targetings, at)
        is_live = uint32(read_u32(lives, at >> 5) >> shift & uint32(15))
        is_active = uint32(read_u32(actives, at >> 5) >> shift & uint32(15))
        for r in range(requests):
            bits = matched + uint64(r * units * 16)
            low = uint32(_bit(bits, one) | _bit(bits, two) << uint32(1))
            nibble = uint32(low | _bit(bits, three) << uint32(2) | _bit(bits, four) << uint32(3))
            now = read_i64(now_us, r)
            if now == SERVICE_CLOCK:
                nibble = uint32(nibble & is_live)
            else:
                nibble = _in_time(uint32(nibble & is_active), starts, ends, at, now)
            word = uint32(nibble << shift)
            word = uint32(word | uint32(cuda.shfl_xor_sync(ALL_LANES, int32(word), 1)))
            word = uint32(word | uint32(cuda.shfl_xor_sync(ALL_LANES, int32(word), 2)))
            word = uint32(word | uint32(cuda.shfl_xor_sync(ALL_LANES, int32(word), 4)))
            if shift == 0:
                store_u32(out, r * out_words + ((first + part * _AT_ONCE + thread * 4) >> 5), word)
                if word != 0:
                    cuda.atomic.add(sums, uint64(r), int32(cuda.popc(word)))
    cuda.syncthreads()
    if thread < requests and sums[uint64(thread)] != 0:
        atomic_add_u32(counts, thread, uint32(sums[uint64(thread)]))


@cuda.jit
def filter_ads(
    mask: Any, out: Any, program: Any, now_us: Any, slots_log2: Any, fields_at: Any, advertiser: Any, campaign: Any,
    bid: Any, created_ms: Any, fields: Any, fields_log2: Any,
) -> None:  # fmt: skip
    """A block for each FILTER_BLOCK slots: of the ads in `mask`, those of which the filter is true, to `out`; both
    uint32, a bit per slot. program: words of the filter; fields: pages of field records."""
    queue = cuda.shared.array(FILTER_BLOCK, uint16)
    kept = cuda.shared.array(THREADS, uint32)
    queued = cuda.shared.array(1, int32)
    ends = cuda.shared.array(ENDS, uint32)[uint32(cuda.threadIdx.x) :]
    thread = int64(cuda.threadIdx.x)
    first = int64(cuda.blockIdx.x) * FILTER_BLOCK
    page, within = first >> slots_log2, first & ((int64(1) << slots_log2) - 1)
    kept[uint64(thread)] = 0
    queue_bits(read_u32(mask, (first >> 5) + thread), queue, queued)
    words, records = flat_u32(program), paged_words(fields, fields_log2)
    fields_page, bids, created = read_u64(fields_at, page), read_u64(bid, page), read_u64(created_ms, page)
    advertisers, campaigns = read_u64(advertiser, page), read_u64(campaign, page)
    i = thread
    while i < queued[0]:
        of_block = int64(queue[uint64(i)])
        at = within + of_block
        age_s = (now_us - read_i64(created, at) * 1000) / 1e6
        facts = AdFacts(
            records, int64(read_u32(fields_page, at)), int64(read_u32(advertisers, at)),
            int64(read_u32(campaigns, at)), read_f64(bids, at), age_s,
        )  # fmt: skip
        if ad_holds(words, 0, facts, ends):
            cuda.atomic.or_(kept, uint64(of_block >> 5), uint32(1) << uint32(of_block & 31))
        i += THREADS
    cuda.syncthreads()
    store_u32(out, (first >> 5) + thread, kept[uint64(thread)])


@cuda.jit
def exclude(masks: Any, slots: Any, count: Any) -> None:
    """Clears single bits: slots[i] (uint32) in the bitmap at masks[i] (uint64 addresses)."""
    i = cuda.grid(1)
    if i < count:
        slot = read_u32(slots, i)
        atomic_and_u32(read_u64(masks, i), slot >> uint32(5), ~(uint32(1) << (slot & uint32(31))))


@cuda.jit
def copy_units(source: Any, target: Any, units: Any) -> None:
    """Copies 16 bytes a thread."""
    i = cuda.grid(1)
    if i < units:
        store2_u64(target, 2 * i, read2_u64(source, 2 * i))


@cuda.jit
def zero_units(target: Any, units: Any) -> None:
    i = cuda.grid(1)
    if i < units:
        store2_u64(target, 2 * i, (uint64(0), uint64(0)))


@cuda.jit
def patch(addresses: Any, units: Any, count: Any) -> None:
    """The delta of a batch of events: writes units[i] (16 bytes) to addresses[i] (uint64)."""
    i = cuda.grid(1)
    if i < count:
        store2_u64(read_u64(addresses, i), 0, read2_u64(units, 2 * i))
