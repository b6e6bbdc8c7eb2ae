"""A hash table over slots that grows by one bucket at a time (linear hashing: Litwin, VLDB 1980), so it never pauses.

The table holds slots; what a slot's key is, its owner knows: `find` callers compare keys along the chain. Buckets are
heads of chains linked through `next`, by slot. Slot numbers are stored plus one, 0 ends a chain.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.compiled import IN_PLACE, INLINED
from kernels.memory import reserve

LEVEL, SPLIT, COUNT = 0, 1, 2


class Table(NamedTuple):
    head: NDArray[np.uint32]  # [buckets] slot + 1
    next: NDArray[np.uint32]  # [slots] slot + 1
    hash: NDArray[np.uint64]  # [slots]
    state: NDArray[np.int64]  # level, split, count


def table(slots_max: int) -> Table:
    """An empty table for slots below `slots_max`."""
    heads = 1 << max(slots_max, 1).bit_length()
    return Table(
        reserve(heads, np.uint32), reserve(slots_max, np.uint32), reserve(slots_max, np.uint64), np.zeros(3, np.int64)
    )


@njit(**INLINED)
def bucket(t: Any, key: np.uint64) -> int:
    level = t.state[LEVEL]
    b = np.int64(key & np.uint64((np.int64(1) << level) - 1))
    if b < t.state[SPLIT]:
        b = np.int64(key & np.uint64((np.int64(2) << level) - 1))
    return b


@njit(**INLINED)
def insert(t: Any, slot: int, key: np.uint64) -> None:
    """Adds a slot that is not in the table."""
    t.hash[slot] = key
    b = bucket(t, key)
    t.next[slot] = t.head[b]
    t.head[b] = np.uint32(slot + 1)
    t.state[COUNT] += 1
    if t.state[COUNT] > (np.int64(1) << t.state[LEVEL]) + t.state[SPLIT]:
        _split(t)


@njit(**IN_PLACE)
def _split(t: Any) -> None:
    level, low = t.state[LEVEL], t.state[SPLIT]
    size = np.int64(1) << level
    at, stay, move = t.head[low], np.uint32(0), np.uint32(0)
    while at != 0:
        following = t.next[at - 1]
        if t.hash[at - 1] & np.uint64(size):
            t.next[at - 1] = move
            move = at
        else:
            t.next[at - 1] = stay
            stay = at
        at = following
    t.head[low], t.head[low + size] = stay, move
    t.state[SPLIT] += 1
    if t.state[SPLIT] == size:
        t.state[LEVEL] += 1
        t.state[SPLIT] = 0


@njit(**INLINED)
def remove(t: Any, slot: int) -> None:
    """Takes a slot that is in the table out of it."""
    b = bucket(t, t.hash[slot])
    at = t.head[b]
    if at == slot + 1:
        t.head[b] = t.next[slot]
    else:
        while t.next[at - 1] != slot + 1:
            at = t.next[at - 1]
        t.next[at - 1] = t.next[slot]
    t.state[COUNT] -= 1
