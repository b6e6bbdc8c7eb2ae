"""Filters and exclusions on the survivors of a match: which of these ads may be in the answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

from kernels.ads import find_ad
from kernels.bits import fetch_add
from kernels.program import AdFacts, holds, walk_stack

CHUNK = 1024
ONE_THREAD_ADS_MAX = 8192


class Columns(NamedTuple):
    """What a filter reads of ads, by slot: as Ads has it, but flat, since parallel loops take no nested tuples."""

    words: NDArray[np.uint32]
    at: NDArray[np.uint32]
    advertiser: NDArray[np.uint32]
    campaign: NDArray[np.uint32]
    bid: NDArray[np.float64]
    created_ms: NDArray[np.int64]


def filter_ads(a: Any, slots: Any, words: Any, now_us: int, keep: Any) -> None:
    """Clears keep[i] where the filter in `words` is not true of the ad at slots[i]; `now_us` is the request's."""
    columns = Columns(a.fields.words, a.fields_at, a.advertiser, a.campaign, a.bid, a.created_ms)
    threads = 1 if len(slots) <= ONE_THREAD_ADS_MAX else get_num_threads()
    _filter_chunks(columns, slots, words, now_us, keep, threads, np.zeros(1, np.int64))


@njit(nogil=True, cache=True, parallel=True)
def _filter_chunks(columns: Any, slots: Any, words: Any, now_us: int, keep: Any, threads: int, taken: Any) -> None:
    """`taken` counts chunks: each thread takes the next one."""
    if threads == 1:
        _filter_some(columns, slots, words, now_us, keep, taken)
    else:
        for _thread in prange(threads):
            _filter_some(columns, slots, words, now_us, keep, taken)


@njit(nogil=True, cache=True)
def _filter_some(columns: Any, slots: Any, words: Any, now_us: int, keep: Any, taken: Any) -> None:
    start = fetch_add(taken, CHUNK)
    while start < len(slots):
        _filter_chunk(columns, slots, words, now_us, keep, start, min(start + CHUNK, len(slots)))
        start = fetch_add(taken, CHUNK)


@njit(nogil=True, cache=True)
def _filter_chunk(x: Any, slots: Any, words: Any, now_us: int, keep: Any, lo: int, hi: int) -> None:
    stack = walk_stack()
    for i in range(lo, hi):
        if keep[i]:
            slot = slots[i]
            age_s = (now_us - x.created_ms[slot] * 1000) / 1e6
            facts = AdFacts(
                x.words, np.int64(x.at[slot]), np.int64(x.advertiser[slot]), np.int64(x.campaign[slot]), x.bid[slot],
                age_s,
            )  # fmt: skip
            keep[i] = holds(words, 0, facts, stack)


@njit(nogil=True, cache=True)
def exclude(a: Any, slots: Any, keys: Any, words: Any, at: Any, marks: Any, keep: Any) -> None:
    """Clears keep[i] of the ads whose ids (texts at words[at[j]], hashes keys[j]) are excluded. `marks` is a bit per
    slot, all zeros before and after."""
    for j in range(len(keys)):
        slot = find_ad(a, keys[j], words, at[j])
        if slot >= 0:
            marks[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
    for i in range(len(slots)):
        if (marks[slots[i] >> 6] >> np.uint64(slots[i] & 63)) & np.uint64(1):
            keep[i] = False
    for j in range(len(keys)):
        slot = find_ad(a, keys[j], words, at[j])
        if slot >= 0:
            marks[slot >> 6] = np.uint64(0)


@njit(nogil=True, cache=True)
def find_ads(a: Any, keys: Any, words: Any, at: Any, out: Any) -> None:
    """Slots of ads by id, -1 for none."""
    for j in range(len(keys)):
        out[j] = find_ad(a, keys[j], words, at[j])
