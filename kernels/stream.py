"""What this machine's memory gives: the read of STREAM (McCalpin, 1995), as the limit that kernels are held against.

Every thread sums its share of an array several times the size of the caches, eight words at a time so that the
additions do not wait for each other. The best of the repetitions counts, as STREAM has it.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numba import njit, prange

ARRAY_BYTES = 1 << 28
SHARES = 256
REPETITIONS_MIN = 3


def read_bandwidth(seconds: float, array_bytes: int = ARRAY_BYTES) -> float:
    """Bytes per second that all threads together read from memory, measured for about so long."""
    words = np.ones(array_bytes // 8, np.int64)
    best, repetitions, start = np.inf, 0, perf_counter()
    while repetitions < REPETITIONS_MIN or perf_counter() - start < seconds:
        before = perf_counter()
        total = _sum(words)
        best = min(best, perf_counter() - before)
        assert total == len(words), total
        repetitions += 1
    return float(words.nbytes / best)


@njit(nogil=True, cache=True, parallel=True)
def _sum(words: Any) -> int:
    share = (len(words) + SHARES - 1) // SHARES
    total = 0
    for i in prange(SHARES):
        part = 0
        for word in words[i * share : (i + 1) * share]:
            part += word
        total += part
    return total
