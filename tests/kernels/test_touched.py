"""The log of what changed, and what the kernels that make no arrays may ask for beforehand."""

from __future__ import annotations

import numpy as np
from numba import njit

from kernels.compiled import IN_PLACE, prefetch
from kernels.touched import LOGGED, note, note_words, state, taken


def test_notes_come_ascending_and_once() -> None:
    log = state(10, 8)
    for unit in (7, 3, 7):
        note(log, unit)
    note_words(log, 6, 3)  # words 6 to 8: units 1 and 2
    notes = taken(log)
    assert notes is not None and notes.tolist() == [1, 2, 3, 7, 7]
    again = taken(log)
    assert again is not None and len(again) == 0


def test_a_log_that_overflowed_says_so_and_begins_again() -> None:
    log = state(10, 2)
    for unit in (1, 2, 3):
        note(log, unit)
    assert taken(log) is None
    note(log, 4)
    notes = taken(log)
    assert notes is not None and notes.tolist() == [4]


def test_without_a_log_nothing_is_noted() -> None:
    log = state(10, 0)
    note(log, 1)
    assert log[LOGGED] == 0


@njit(**IN_PLACE)
def _fetched(array: np.ndarray, offset: int) -> int:
    prefetch(array, offset)
    return len(array)


def test_a_prefetch_changes_nothing_wherever_it_points() -> None:
    array = np.arange(4, dtype=np.uint32)
    for offset in (0, 8, -1, 1 << 40):
        assert _fetched(array, offset) == 4
    assert array.tolist() == [0, 1, 2, 3]
