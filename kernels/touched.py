"""A table's state: its own few numbers, its limit, and a log of what changed in it.

The log is for a copy elsewhere to be brought up to date. It holds numbers of units, of 16 bytes where nothing else is
said, in any order and more than once. It is bounded: what finds no room in it is only counted, and then everything in
use counts as touched. Without a log (capacity 0, as on the CPU alone) a note costs one branch that is always the same.
All three share one array, since every array more in the tables' tuples makes each call that passes them dearer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.compiled import IN_PLACE, INLINED

UNIT_BYTES = 16
OWN = 6  # numbers of the table itself, from the first
LIMIT = 6  # how much may be in use: at most the capacity, and less where a copy has no room for more
LOGGED = 7  # notes made
LOG = 8  # where they begin


def state(limit: int, touched_max: int) -> NDArray[np.int64]:
    """All zeros, with a log of at most `touched_max` notes; 0: none is kept."""
    made = np.zeros(LOG + touched_max, np.int64)
    made[LIMIT] = limit
    return made


@njit(**INLINED)
def note(state: Any, unit: int) -> None:
    if len(state) > LOG:
        append(state, unit)


@njit(**IN_PLACE)
def append(state: Any, unit: int) -> None:
    n = state[LOGGED]
    state[LOGGED] = n + 1
    if LOG + n < len(state):
        state[LOG + n] = unit


@njit(**IN_PLACE)
def note_words(state: Any, first: int, count: int) -> None:
    """Notes the units of `count` 32-bit words."""
    if len(state) > LOG:
        for unit in range(first >> 2, (first + count + 3) >> 2):
            append(state, unit)


def taken(state: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The notes, ascending, and empties the log; None: it overflowed, everything may have changed. What is given lies
    in the log itself and is good until the next note."""
    count = int(state[LOGGED])
    state[LOGGED] = 0
    if LOG + count > len(state):
        return None
    notes = state[LOG : LOG + count]
    notes.sort()  # neighbours come together, and what was noted twice
    return notes
