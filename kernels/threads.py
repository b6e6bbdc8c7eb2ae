"""How many threads the parallel kernels use, for those who may not import numba."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba


def threads_max() -> int:
    """What this process started with: one for each core it may use, unless NUMBA_NUM_THREADS says otherwise."""
    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Kernels called by this thread inside the block use `count` threads, 1 to `threads_max()`."""
    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        yield
    finally:
        numba.set_num_threads(before)
