"""Requests against all targetings on the device, in bitmaps: one bit per targeting and request.

`scatter` puts the posting lists of a request's rare values into scratch rows. `match` goes over the rows: a thread
holds 128 targetings of one request, a block 32,768, and blocks of one range and different requests follow one another,
so that a row comes from memory once and then from the cache. The addresses of a request's rows are looked up together,
then four rows are read at a time, 16 bytes each; a warp stops where nothing is left. `check` decides what rows do not.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, int32, int64, uint16, uint32, uint64

from kernels.cuda.program import ENDS, PROGRAM_THREADS, DeviceFacts, queue_bits, request_holds
from kernels.cuda.raw import (
    atomic_and_u32,
    atomic_or_u32,
    load_u32,
    read2_u64,
    read_i64,
    read_u32,
    read_u64,
    store2_u64,
)
from kernels.cuda.words import flat_i64, flat_u32, paged_words
from kernels.plan import STEP_BEGINS, STEP_ENDS, STEP_EXCLUDES, STEP_GROUP, STEP_ROW, STEP_SCRATCH
from kernels.rows import CHECK_ROW, USED_ROW

THREADS = PROGRAM_THREADS
UNIT_TARGETINGS = 128  # 16 bytes of a row
MATCH_BLOCK = THREADS * UNIT_TARGETINGS
CHECK_BLOCK = THREADS * 32
STEPS_AT_ONCE = 512  # addresses in shared memory
SCATTER_WARP = 32
ALL_LANES = 0xFFFFFFFF
# what a step does, in the low bits of an address, which is a multiple of 16
_BEGINS, _ENDS, _EXCLUDES = 1, 2, 4
_KIND = 15


@cuda.jit
def scatter(postings: Any, postings_log2: Any, chunks: Any, count: Any, scratch: Any, stride_words: Any) -> None:
    """A warp for each chunk of a posting list: sets the bits of its targetings in a scratch row.

    chunks: uint32 [count, 4] offset in the postings, length, scratch row, unused. scratch: uint32 [row, stride_words].
    """
    chunk = cuda.grid(1) >> 5
    if chunk >= count:
        return
    words = paged_words(postings, postings_log2)
    at, length, row = read_u32(chunks, 4 * chunk), read_u32(chunks, 4 * chunk + 1), read_u32(chunks, 4 * chunk + 2)
    i = int64(cuda.threadIdx.x & 31)
    while i < length:
        targeting = words[int64(at) + i]
        word = int64(row) * stride_words + int64(targeting >> uint32(5))
        atomic_or_u32(scratch, word, uint32(1) << (targeting & uint32(31)))
        i += SCATTER_WARP


@cuda.jit(device=True)
def _step(kind: Any, row: Any, left: Any, group: Any) -> Any:
    """One row's 16 bytes. -> what is left, what the group lets through so far"""
    if kind & _BEGINS:
        group = (~row[0], ~row[1])
    elif kind & _EXCLUDES:
        left = (left[0] & ~row[0], left[1] & ~row[1])
    else:
        group = (group[0] | row[0], group[1] | row[1])
    if kind & _ENDS:
        left = (left[0] & group[0], left[1] & group[1])
    return left, group


@cuda.jit(device=True)
def _step_address(
    step: Any, rows: Any, pages: Any, page: Any, within: Any, scratch: Any, stride: Any, first: Any
) -> Any:
    """Where the block's part of a step's row begins, with what the step does in the low bits."""
    place = int64(step & uint32(STEP_ROW))
    if step & uint32(STEP_SCRATCH):
        address = scratch + uint64((place * stride + first) * 16)
    else:
        address = read_u64(rows, place * pages + page) + uint64(within * 16)
    if step & uint32(STEP_BEGINS):
        address |= uint64(_BEGINS)
    if step & uint32(STEP_ENDS):
        address |= uint64(_ENDS)
    if step & uint32(STEP_EXCLUDES):
        address |= uint64(_EXCLUDES)
    return address


@cuda.jit
def match(
    rows: Any, pages: Any, page_log2: Any, scratch: Any, scratch_units: Any, steps: Any, step_start: Any,
    requests: Any, units: Any, out: Any,
) -> None:  # fmt: skip
    """A block for each MATCH_BLOCK targetings and request, requests first.

    rows: uint64 [row, pages] addresses of pages of 2^page_log2 units. scratch: [row, scratch_units] units. steps, with
    step_start int64 [requests + 1], as kernels/plan.py has them. out: [request, units] units, all written."""
    addresses = cuda.shared.array(STEPS_AT_ONCE, uint64)
    thread = int64(cuda.threadIdx.x)
    r = int64(cuda.blockIdx.x) % requests
    first = int64(cuda.blockIdx.x) // requests * THREADS
    page, within = first >> page_log2, first & ((int64(1) << page_log2) - 1)
    mine = uint64(min(thread, units - 1 - first) * 16)  # threads beyond the end do the last unit again
    left = read2_u64(read_u64(rows, USED_ROW * pages + page) + uint64(within * 16) + mine, 0)
    group = (uint64(0), uint64(0))
    begin, end = read_i64(step_start, r), read_i64(step_start, r + 1)
    while begin < end:
        count = min(end - begin, int64(STEPS_AT_ONCE))
        cuda.syncthreads()
        i = thread
        while i < count:
            step = read_u32(steps, begin + i)
            addresses[uint64(i)] = _step_address(step, rows, pages, page, within, scratch, scratch_units, first)
            i += THREADS
        cuda.syncthreads()
        i = int64(0)
        while i < count:
            if not cuda.any_sync(ALL_LANES, (left[0] | left[1]) != 0):
                break
            a, b = addresses[uint64(i)], addresses[uint64(i + 1)]
            c, d = addresses[uint64(i + 2)], addresses[uint64(i + 3)]
            row_a, row_b = read2_u64((a & ~uint64(_KIND)) + mine, 0), read2_u64((b & ~uint64(_KIND)) + mine, 0)
            row_c, row_d = read2_u64((c & ~uint64(_KIND)) + mine, 0), read2_u64((d & ~uint64(_KIND)) + mine, 0)
            left, group = _step(a, row_a, left, group)
            left, group = _step(b, row_b, left, group)
            left, group = _step(c, row_c, left, group)
            left, group = _step(d, row_d, left, group)
            i += STEP_GROUP
        begin += STEPS_AT_ONCE
    if first + thread < units:
        store2_u64(out, 2 * (r * units + first + thread), left)


@cuda.jit
def check(
    matched: Any, requests: Any, units: Any, rows: Any, pages: Any, page_log2: Any, record: Any, record_log2: Any,
    records: Any, records_log2: Any, terms: Any, term_start: Any, numbers: Any, number_start: Any, attributes: Any,
) -> None:  # fmt: skip
    """A block for each CHECK_BLOCK targetings and request, requests first: takes out of `matched` those whose program
    is not true of the request.

    record: pages of 2^record_log2 uint32 [targeting]; records: pages of words. terms: uint32, each request's ascending,
    at term_start int64 [requests + 1]; numbers: int64, at number_start int64 [request, attributes + 1]."""
    queue = cuda.shared.array(CHECK_BLOCK, uint16)
    queued = cuda.shared.array(1, int32)
    ends = cuda.shared.array(ENDS, uint32)[uint32(cuda.threadIdx.x) :]
    thread = int64(cuda.threadIdx.x)
    r = int64(cuda.blockIdx.x) % requests
    first = int64(cuda.blockIdx.x) // requests * THREADS  # word
    unit = first >> 2
    page_at = read_u64(rows, CHECK_ROW * pages + (unit >> page_log2)) + uint64(
        (unit & ((int64(1) << page_log2) - 1)) * 16
    )
    queue_bits(load_u32(matched, r * units * 4 + first + thread) & read_u32(page_at, thread), queue, queued)
    words, slots = paged_words(records, records_log2), paged_words(record, record_log2)
    lo = read_i64(term_start, r)
    facts = DeviceFacts(
        flat_u32(terms + uint64(lo * 4)), read_i64(term_start, r + 1) - lo,
        flat_i64(number_start + uint64(r * (attributes + 1) * 8)), flat_i64(numbers),
    )  # fmt: skip
    i = thread
    while i < queued[0]:
        of_block = int64(queue[uint64(i)])
        at = int64(slots[first * 32 + of_block])
        conjuncts = at + int64(words[at])
        for j in range(conjuncts + 1, conjuncts + 1 + int64(words[conjuncts])):
            place = words[j]
            if request_holds(words, at + int64(place >> uint32(1)), facts, ends) == ((place & uint32(1)) != 0):
                word = r * units * 4 + first + (of_block >> 5)
                atomic_and_u32(matched, word, ~(uint32(1) << uint32(of_block & 31)))
                break
        i += THREADS
