"""Filters and exclusions on the survivors of a match: which of these ads may be in the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from kernels.ads import find_ad
from kernels.program import AdFacts, holds

CHUNK = 1024


@njit(nogil=True, cache=True, parallel=True)
def filter_ads(a: Any, slots: Any, words: Any, now_ms: int, keep: Any) -> None:
    """Clears keep[i] where the filter in `words` is not true of the ad at slots[i]; `now_ms` is the request's."""
    chunks = (len(slots) + CHUNK - 1) // CHUNK
    for c in prange(chunks):
        for i in range(c * CHUNK, min((c + 1) * CHUNK, len(slots))):
            if keep[i]:
                slot = slots[i]
                age_s = (now_ms - a.created_ms[slot]) / 1000.0
                facts = AdFacts(
                    a.fields.words, np.int64(a.fields_at[slot]), np.int64(a.advertiser[slot]),
                    np.int64(a.campaign[slot]), a.bid[slot], age_s,
                )  # fmt: skip
                keep[i] = holds(words, 0, facts)


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
