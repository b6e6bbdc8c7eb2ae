"""Slots of ads, given out so that the ads of one targeting lie side by side.

A targeting owns a ring of extents: aligned runs of 2^c slots, doubled in place where the neighbour is free. They come
from a buddy allocator (Knuth, The Art of Computer Programming 1, 2.5), so free neighbours melt together and slots serve
again whatever the sizes asked for. In a ring, extents with room come first: if the first is full, all are.
Links are kept at an extent's first slot; slot numbers in links are stored plus one, 0 is none.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.compiled import IN_PLACE, INLINED
from kernels.memory import reserve
from kernels.touched import LIMIT, state

CLASS_MAX = 12  # the largest extent: 4,096 slots
NO_SLOT = -1
FREE, TAKEN, CLASS_BITS = np.uint8(128), np.uint8(64), np.uint8(63)  # marks beside the class at an extent's first slot
FRONTIER, SLOTS_USED = 0, 1


class Extents(NamedTuple):
    ring: NDArray[np.uint32]  # [targetings] first extent + 1
    next: NDArray[np.uint32]  # [slots] at an extent's first slot: the next extent of its ring or free list, + 1
    previous: NDArray[np.uint32]  # [slots] the one before, + 1
    kind: NDArray[np.uint8]  # [slots] at an extent's first slot: its class, FREE or TAKEN; 0 elsewhere
    used: NDArray[np.uint16]  # [slots] at an extent's first slot: slots in use
    bits: NDArray[np.uint64]  # [slots / 64] slots in use
    free: NDArray[np.uint32]  # [class] first free extent + 1
    state: NDArray[np.int64]  # frontier, slots in use


def extents(targetings_max: int, slots_max: int) -> Extents:
    """Nothing given out yet; `slots_max` is a multiple of 4,096."""
    assert slots_max % (1 << CLASS_MAX) == 0, slots_max
    return Extents(
        reserve(targetings_max, np.uint32), reserve(slots_max, np.uint32), reserve(slots_max, np.uint32),
        reserve(slots_max, np.uint8), reserve(slots_max, np.uint16), reserve(slots_max // 64, np.uint64),
        np.zeros(CLASS_MAX + 1, np.uint32), state(slots_max, 0),
    )  # fmt: skip


@njit(**INLINED)
def _push_free(x: Any, start: int, c: int) -> None:
    x.kind[start] = np.uint8(c) | FREE
    x.previous[start] = np.uint32(0)
    x.next[start] = x.free[c]
    if x.free[c] != 0:
        x.previous[x.free[c] - 1] = np.uint32(start + 1)
    x.free[c] = np.uint32(start + 1)


@njit(**INLINED)
def _unlink_free(x: Any, start: int, c: int) -> None:
    before, after = x.previous[start], x.next[start]
    if before != 0:
        x.next[before - 1] = after
    else:
        x.free[c] = after
    if after != 0:
        x.previous[after - 1] = before


@njit(**IN_PLACE)
def _take_extent(x: Any, c: int) -> int:
    """First slot of an extent of class c, or NO_SLOT."""
    of = c
    while of <= CLASS_MAX and x.free[of] == 0:
        of += 1
    if of <= CLASS_MAX:
        start = np.int64(x.free[of]) - 1
        _unlink_free(x, start, of)
    else:
        of = CLASS_MAX
        start = x.state[FRONTIER]
        if start + (1 << CLASS_MAX) > x.state[LIMIT]:
            return NO_SLOT
        x.state[FRONTIER] = start + (1 << CLASS_MAX)
    while of > c:
        of -= 1
        _push_free(x, start + (1 << of), of)
    x.kind[start] = np.uint8(c) | TAKEN
    x.used[start] = np.uint16(0)
    return start


@njit(**IN_PLACE)
def _give_extent(x: Any, start: int, c: int) -> None:
    x.kind[start] = np.uint8(0)
    while c < CLASS_MAX:
        buddy = start ^ (np.int64(1) << c)
        if x.kind[buddy] != np.uint8(c) | FREE:
            break
        _unlink_free(x, buddy, c)
        x.kind[buddy] = np.uint8(0)
        start = min(start, buddy)
        c += 1
    _push_free(x, start, c)


@njit(**INLINED)
def _link(x: Any, targeting: int, start: int) -> None:
    """Puts an extent first in its targeting's ring."""
    if x.ring[targeting] == 0:
        x.next[start] = np.uint32(start + 1)
        x.previous[start] = np.uint32(start + 1)
    else:
        first = np.int64(x.ring[targeting]) - 1
        last = np.int64(x.previous[first]) - 1
        x.next[last] = np.uint32(start + 1)
        x.previous[start] = np.uint32(last + 1)
        x.next[start] = np.uint32(first + 1)
        x.previous[first] = np.uint32(start + 1)
    x.ring[targeting] = np.uint32(start + 1)


@njit(**INLINED)
def _unlink(x: Any, targeting: int, start: int) -> None:
    after, before = x.next[start], x.previous[start]
    if after == start + 1:
        x.ring[targeting] = np.uint32(0)
        return
    x.next[before - 1] = after
    x.previous[after - 1] = before
    if x.ring[targeting] == start + 1:
        x.ring[targeting] = after


@njit(**INLINED)
def _lowest_unused(x: Any, start: int, size: int) -> int:
    slot = start
    while slot < start + size:
        word = x.bits[slot >> 6] >> np.uint64(slot & 63)
        if word & np.uint64(1) == 0:
            return slot
        slot += 64 if slot & 63 == 0 and word == np.uint64(0xFFFFFFFFFFFFFFFF) else 1
    return NO_SLOT


@njit(**INLINED)
def extent_of(x: Any, slot: int) -> int:
    """First slot of the extent that a slot in use lies in."""
    c = 0
    while True:
        start = (slot >> c) << c
        if x.kind[start] & TAKEN and np.int64(x.kind[start] & CLASS_BITS) >= c:
            return start
        c += 1


@njit(**INLINED)
def extent_slots(x: Any, start: int) -> int:
    """Slots of the extent that begins at `start`."""
    return np.int64(1) << np.int64(x.kind[start] & CLASS_BITS)


@njit(**INLINED)
def _double(x: Any, start: int) -> bool:
    """Makes an extent twice as large where the neighbour above is its buddy and free; so the ads of a campaign that
    come one after another lie in one run."""
    c = np.int64(x.kind[start] & CLASS_BITS)
    buddy = start + (np.int64(1) << c)
    if c == CLASS_MAX or start & (np.int64(1) << c) or x.kind[buddy] != np.uint8(c) | FREE:
        return False
    _unlink_free(x, buddy, c)
    x.kind[buddy] = np.uint8(0)
    x.kind[start] = np.uint8(c + 1) | TAKEN
    return True


@njit(**IN_PLACE)
def take_slot(x: Any, targeting: int, held: int) -> int:
    """A slot for one more ad of this targeting, which holds `held` so far, beside them where there is room.

    NO_SLOT if the table is full."""
    head = np.int64(x.ring[targeting]) - 1
    if head < 0 or (np.int64(x.used[head]) == extent_slots(x, head) and not _double(x, head)):
        c = 0
        while c < CLASS_MAX and np.int64(2) << c <= held:
            c += 1
        head = _take_extent(x, c)
        while head == NO_SLOT and c > 0:  # near the capacity a smaller extent will do
            c -= 1
            head = _take_extent(x, c)
        if head == NO_SLOT:
            return NO_SLOT
        _link(x, targeting, head)
    size = extent_slots(x, head)
    slot = _lowest_unused(x, head, size)
    x.bits[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
    x.used[head] += np.uint16(1)
    x.state[SLOTS_USED] += 1
    if np.int64(x.used[head]) == size:
        x.ring[targeting] = x.next[head]  # the full one becomes the last
    return slot


@njit(**IN_PLACE)
def give_slot(x: Any, targeting: int, slot: int) -> None:
    """Takes back a slot that this targeting was given."""
    x.bits[slot >> 6] &= ~(np.uint64(1) << np.uint64(slot & 63))
    x.state[SLOTS_USED] -= 1
    start = extent_of(x, slot)
    x.used[start] -= np.uint16(1)
    if x.used[start] == 0:
        _unlink(x, targeting, start)
        _give_extent(x, start, np.int64(x.kind[start] & CLASS_BITS))
    elif x.ring[targeting] != start + 1:
        _unlink(x, targeting, start)
        _link(x, targeting, start)
