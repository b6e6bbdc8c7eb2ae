"""Terms to targetings: a dense row of bits for a common term, a posting list for a rare one.

A term is an (attribute, value). It has two entries, `2 * term` for targetings that include the value and
`2 * term + 1` for those that exclude it. An entry is a row once it has more than 64 targetings and 1 in 256 of all,
and a list again below half of that. Fixed rows come first: targetings in use, targetings that a program decides, and
for each attribute (and the schedule) the targetings that constrain it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.compiled import IN_PLACE, INLINED
from kernels.memory import reserve
from kernels.pool import FRONTIER as POOL_FRONTIER
from kernels.pool import Pool, class_of, class_words, give, pool, take
from kernels.touched import LIMIT, note, note_words, state

USED_ROW, CHECK_ROW, CONSTRAINED_ROW = 0, 1, 2
ROWS_FRONTIER, ROWS_FREE, SWEEP = 0, 1, 2
BLOCK_WORDS = 128  # words matched at a time: 8,192 targetings, 1 KiB of a row
STRIDE_PAD_WORDS = 136  # keeps the rows' blocks out of the same cache sets


class Rows(NamedTuple):
    bits: NDArray[np.uint64]  # [row, word]
    entry_of: NDArray[np.uint32]  # [row] entry; of a free row, the next free row
    row: NDArray[np.uint32]  # [entry] its row, 0 while it is a list
    uses: NDArray[np.uint32]  # [entry] targetings
    offset: NDArray[np.uint32]  # [entry] its list in postings
    capacity: NDArray[np.uint8]  # [entry] the list's class + 1, 0 for none
    postings: Pool
    constrained: NDArray[np.int64]  # [attribute, schedule last] targetings that constrain it
    state: NDArray[np.int64]  # rows frontier, first free row, sweep position; the log: units of `bits`


def rows(
    targetings_max: int, terms_max: int, attributes: int, rows_max: int, postings_words_max: int, touched_max: int = 0
) -> Rows:
    """No terms yet. `attributes` counts the schedule's pseudo-attribute too."""
    words = -(-targetings_max // (64 * BLOCK_WORDS)) * BLOCK_WORDS
    fixed = CONSTRAINED_ROW + attributes
    made = Rows(
        reserve((rows_max + fixed, words + STRIDE_PAD_WORDS), np.uint64, sparse=True),
        np.zeros(rows_max + fixed, np.uint32),
        reserve(2 * terms_max, np.uint32), reserve(2 * terms_max, np.uint32), reserve(2 * terms_max, np.uint32),
        reserve(2 * terms_max, np.uint8), pool(postings_words_max, touched_max), np.zeros(attributes, np.int64),
        state(rows_max + fixed, touched_max),
    )  # fmt: skip
    made.state[ROWS_FRONTIER] = fixed
    return made


@njit(**INLINED)
def common(live: int) -> int:
    """Above this many targetings of `live`, a term has a row."""
    return 64 + (live >> 8)


@njit(**INLINED)
def set_bit(x: Any, row: int, slot: int) -> None:
    x.bits[row, slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
    _note_bit(x, row, slot)


@njit(**INLINED)
def clear_bit(x: Any, row: int, slot: int) -> None:
    x.bits[row, slot >> 6] &= ~(np.uint64(1) << np.uint64(slot & 63))
    _note_bit(x, row, slot)


@njit(**INLINED)
def _note_bit(x: Any, row: int, slot: int) -> None:
    note(x.state, row * (x.bits.shape[1] >> 1) + (slot >> 7))


@njit(**INLINED)
def postings_room(entries: int, live: int) -> int:
    """Words beyond the frontier that `entries` more postings may take, however they fall."""
    return entries * class_words(class_of(common(live) + 2)) * 2


@njit(**INLINED)
def room(x: Any, entries: int, live: int) -> bool:
    """Whether `entries` more postings fit, however they fall."""
    return x.postings.state[POOL_FRONTIER] + postings_room(entries, live) <= x.postings.state[LIMIT]


@njit(**IN_PLACE)
def _grow(x: Any, entry: int, count: int) -> None:
    """Gives the entry's list room for `count`, keeping what it holds."""
    c = class_of(count)
    at = take(x.postings, count)
    assert at != 0  # `room` was asked
    held = np.int64(x.capacity[entry])
    if held != 0:
        old = np.int64(x.offset[entry])
        kept: Any = min(np.int64(x.uses[entry]), class_words(held - 1))
        for i in range(kept):
            x.postings.words[at + i] = x.postings.words[old + i]
        note_words(x.postings.state, at, kept)
        give(x.postings, old, class_words(held - 1))
    x.offset[entry] = np.uint32(at)
    x.capacity[entry] = np.uint8(c + 1)


@njit(**IN_PLACE)
def _drop_list(x: Any, entry: int) -> None:
    if x.capacity[entry] != 0:
        give(x.postings, np.int64(x.offset[entry]), class_words(np.int64(x.capacity[entry]) - 1))
        x.capacity[entry] = np.uint8(0)


@njit(**IN_PLACE)
def _to_row(x: Any, entry: int) -> None:
    """Makes the list a row, if there is one to be had; a list serves as well, only slower."""
    row = x.state[ROWS_FREE]
    if row != 0:
        x.state[ROWS_FREE] = np.int64(x.entry_of[row])
    elif x.state[ROWS_FRONTIER] < x.state[LIMIT]:
        row = x.state[ROWS_FRONTIER]
        x.state[ROWS_FRONTIER] += 1
    else:
        return
    at = np.int64(x.offset[entry])
    for i in range(at, at + np.int64(x.uses[entry])):
        set_bit(x, row, np.int64(x.postings.words[i]))
    _drop_list(x, entry)
    x.row[entry] = np.uint32(row)
    x.entry_of[row] = np.uint32(entry)


@njit(**IN_PLACE)
def _to_list(x: Any, entry: int, words: int) -> None:
    row = np.int64(x.row[entry])
    x.row[entry] = np.uint32(0)
    count = np.int64(x.uses[entry])
    if count > 0:
        _grow(x, entry, count)
    at = np.int64(x.offset[entry])
    for w in range(words):
        word = x.bits[row, w]
        if word != 0:
            for b in range(64):
                if (word >> np.uint64(b)) & np.uint64(1):
                    x.postings.words[at] = np.uint32(w * 64 + b)
                    at += 1
            x.bits[row, w] = np.uint64(0)
            _note_bit(x, row, w * 64)
    note_words(x.postings.state, at - count, count)
    x.entry_of[row] = np.uint32(x.state[ROWS_FREE])
    x.state[ROWS_FREE] = row


@njit(**IN_PLACE)
def add_entry(x: Any, entry: int, slot: int, live: int) -> None:
    """The targeting at `slot`, which has not this entry yet, has it from now on."""
    count = np.int64(x.uses[entry])
    if x.row[entry] == 0:
        held = np.int64(x.capacity[entry])
        if held == 0 or count == class_words(held - 1):
            _grow(x, entry, count + 1)
        at = np.int64(x.offset[entry]) + count
        x.postings.words[at] = np.uint32(slot)
        note(x.postings.state, at >> 2)
        x.uses[entry] = np.uint32(count + 1)
        if count + 1 > common(live):
            _to_row(x, entry)
    else:
        set_bit(x, np.int64(x.row[entry]), slot)
        x.uses[entry] = np.uint32(count + 1)


@njit(**IN_PLACE)
def remove_entry(x: Any, entry: int, slot: int, live: int, words: int) -> None:
    """The targeting at `slot`, which has this entry, has it no more. `words` of each row are in use."""
    count = np.int64(x.uses[entry]) - 1
    x.uses[entry] = np.uint32(count)
    if x.row[entry] != 0:
        clear_bit(x, np.int64(x.row[entry]), slot)
        if count < common(live) >> 1 and room(x, 1, live):
            _to_list(x, entry, words)
        return
    at = np.int64(x.offset[entry])
    i = at
    while x.postings.words[i] != slot:
        i += 1
    x.postings.words[i] = x.postings.words[at + count]
    note(x.postings.state, i >> 2)
    if count == 0:
        _drop_list(x, entry)
    elif count * 4 <= class_words(np.int64(x.capacity[entry]) - 1):
        _shrink(x, entry, count)


@njit(**IN_PLACE)
def _shrink(x: Any, entry: int, count: int) -> None:
    if class_of(count) + 1 < x.capacity[entry] and room(x, 1, count):
        _grow(x, entry, count)


@njit(**IN_PLACE)
def sweep(x: Any, steps: int, live: int, words: int) -> None:
    """Looks at the next few rows and turns those that became rare, as the index grew, into lists."""
    fixed = CONSTRAINED_ROW + len(x.constrained)
    for _ in range(steps):
        row = x.state[SWEEP]
        x.state[SWEEP] = row + 1 if fixed <= row + 1 < x.state[ROWS_FRONTIER] else fixed
        if fixed <= row < x.state[ROWS_FRONTIER]:
            entry = np.int64(x.entry_of[row])
            if np.int64(x.row[entry]) == row and np.int64(x.uses[entry]) < common(live) >> 1 and room(x, 1, live):
                _to_list(x, entry, words)
