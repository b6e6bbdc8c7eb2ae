"""A pool of 32-bit words that gives out blocks by size class.

Classes are 2, 3, 4, 6, 8, 12, 16, ... words. A freed block waits in its class's list (linked through its first word)
and is given out again; fresh blocks come from the frontier. Memory is therefore bounded by the peak of each class.
Offset 0 is never given out and means "none". Who writes words of a mirrored pool notes them as touched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.compiled import INLINED
from kernels.memory import reserve
from kernels.touched import LIMIT, note, state

CLASSES = 60
FRONTIER, USED = 0, 1


class Pool(NamedTuple):
    words: NDArray[np.uint32]  # [capacity]
    free: NDArray[np.uint32]  # [class] first free block
    state: NDArray[np.int64]  # frontier, words in use; the log: units of words


def pool(words_max: int, touched_max: int = 0) -> Pool:
    """An empty pool of at most `words_max` words (2^32 at most)."""
    words_max = min(words_max, 2**32 - 1)
    made = Pool(reserve(words_max, np.uint32), np.zeros(CLASSES, np.uint32), state(words_max, touched_max))
    made.state[FRONTIER] = 2
    return made


@njit(**INLINED)
def class_words(c: int) -> int:
    """Words of a block of class c."""
    return (np.int64(2) << (c >> 1)) if c & 1 == 0 else (np.int64(3) << (c >> 1))


@njit(**INLINED)
def class_of(count: int) -> int:
    """The smallest class that holds `count` words."""
    c = 0
    while class_words(c) < count:
        c += 1
    return c


@njit(**INLINED)
def take(p: Any, count: int) -> int:
    """Offset of a block of at least `count` words, its contents undefined; 0 if the pool is full."""
    c = class_of(count)
    words = class_words(c)
    at = np.int64(p.free[c])
    if at != 0:
        p.free[c] = p.words[at]
    else:
        at = p.state[FRONTIER]
        if at + words > p.state[LIMIT]:
            return 0
        p.state[FRONTIER] = at + words
    p.state[USED] += words
    return at


@njit(**INLINED)
def fits(p: Any, count: int, other: int) -> bool:
    """Whether there is room for a block of `count` words and one of `other` words beside it; 0: no such block."""
    fresh = np.int64(0)
    if count > 0 and p.free[class_of(count)] == 0:
        fresh += class_words(class_of(count))
    if other > 0 and (p.free[class_of(other)] == 0 or (count > 0 and class_of(other) == class_of(count))):
        fresh += class_words(class_of(other))
    return p.state[FRONTIER] + fresh <= p.state[LIMIT]


@njit(**INLINED)
def give(p: Any, at: int, count: int) -> None:
    """Returns the block at offset `at` that was taken for `count` words."""
    c = class_of(count)
    p.words[at] = p.free[c]
    note(p.state, at >> 2)
    p.free[c] = np.uint32(at)
    p.state[USED] -= class_words(c)
