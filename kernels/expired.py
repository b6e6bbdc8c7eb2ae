"""Versions of expired ads, remembered for a while so that an old create cannot bring an ad back.

An entry is forgotten once the newest record timestamp of the partition of its expire is more than the limit past the
one at the expire: a measure that every replica shares. Entries of one partition form a queue in the order of their
expires; an entry that is taken back early stays in the queue, marked, until its turn comes.

Where there is no room for another, the oldest by that measure goes before its time (ties: the lowest partition's), so
that what stays is the newest so many entries, in whatever order the partitions were read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels import table as tables
from kernels.ads import same_text, text_words
from kernels.compiled import IN_PLACE, INLINED
from kernels.memory import reserve
from kernels.pool import Pool, fits, give, pool, take

PARTITIONS_MAX = 65_536
ID_CLASSES_WORDS = 2 + 3 + 4 + 6 + 8 + 12 + 16 + 24  # a block of each class that ids have: no mixture needs more
FRONTIER, FREE, HELD = 0, 1, 2
NO_SLOT = -1
GONE = -1  # in place of a version


class Expired(NamedTuple):
    table: tables.Table
    texts: Pool
    id_at: NDArray[np.uint32]  # [slot]
    version: NDArray[np.int64]  # [slot] GONE: taken back
    clock_ms: NDArray[np.int64]  # [slot] the partition's newest record timestamp at the expire
    partition: NDArray[np.int32]  # [slot]
    next: NDArray[np.uint32]  # [slot] + 1: the next in its partition's queue, or the next free slot
    first: NDArray[np.uint32]  # [partition] slot + 1
    last: NDArray[np.uint32]  # [partition] slot + 1
    newest_ms: NDArray[np.int64]  # [partition] newest record timestamp so far
    state: NDArray[np.int64]  # frontier, first free slot + 1, entries held
    evicted: NDArray[np.int64]  # [1] versions forgotten before their time since this process began


def expired(expired_max: int) -> Expired:
    """Nothing remembered yet."""
    n = expired_max
    return Expired(
        tables.table(n), pool(min(ID_CLASSES_WORDS * n, 2**32 - 1)), reserve(n, np.uint32), reserve(n, np.int64),
        reserve(n, np.int64), reserve(n, np.int32), reserve(n, np.uint32), reserve(PARTITIONS_MAX, np.uint32),
        reserve(PARTITIONS_MAX, np.uint32), reserve(PARTITIONS_MAX, np.int64), np.zeros(3, np.int64),
        np.zeros(1, np.int64),
    )  # fmt: skip


@njit(**IN_PLACE)
def recall(x: Any, key: np.uint64, words: Any, at: int, limit_ms: int) -> int:
    """Slot of the remembered version of the id at words[at], or NO_SLOT."""
    slot = np.int64(x.table.head[tables.bucket(x.table, key)]) - 1
    while slot >= 0:
        if x.table.hash[slot] == key and same_text(x.texts.words, np.int64(x.id_at[slot]), words, at):
            over = x.newest_ms[x.partition[slot]] - x.clock_ms[slot] > limit_ms
            return NO_SLOT if over else slot
        slot = np.int64(x.table.next[slot]) - 1
    return NO_SLOT


@njit(**IN_PLACE)
def _forget(x: Any, slot: int) -> None:
    if x.version[slot] == GONE:
        return
    tables.remove(x.table, slot)
    at = np.int64(x.id_at[slot])
    give(x.texts, at, text_words(x.texts.words, at))
    x.version[slot] = GONE
    x.state[HELD] -= 1


@njit(**IN_PLACE)
def take_back(x: Any, key: np.uint64, words: Any, at: int) -> None:
    """Forgets the version of this id, if one is held: the ad lives again, or a newer expire comes."""
    slot = np.int64(x.table.head[tables.bucket(x.table, key)]) - 1
    while slot >= 0:
        if x.table.hash[slot] == key and same_text(x.texts.words, np.int64(x.id_at[slot]), words, at):
            _forget(x, slot)
            return
        slot = np.int64(x.table.next[slot]) - 1


@njit(**IN_PLACE)
def _drop_first(x: Any, partition: int) -> None:
    """Gives back the entry at the head of the partition's queue."""
    slot = np.int64(x.first[partition]) - 1
    _forget(x, slot)
    x.first[partition] = x.next[slot]
    if x.first[partition] == 0:
        x.last[partition] = np.uint32(0)
    x.next[slot] = np.uint32(x.state[FREE])
    x.state[FREE] = slot + 1


@njit(**INLINED)
def _has_room(x: Any, words: Any, at: int) -> bool:
    room = x.state[FREE] != 0 or x.state[FRONTIER] < len(x.version)
    return room and fits(x.texts, text_words(words, at), 0)


@njit(**IN_PLACE)
def make_room(x: Any, words: Any, at: int, partition: int, partitions: int) -> bool:
    """Makes room for the version of the id at words[at], expired in this partition just now, at the cost of the oldest
    entries of all `partitions`. False: it would itself be the oldest, and is not to be remembered."""
    while not _has_room(x, words, at):
        oldest, oldest_ms = -1, np.int64(0)
        for other in range(partitions):
            if x.first[other] != 0:
                head_ms = x.clock_ms[np.int64(x.first[other]) - 1]
                if oldest < 0 or head_ms < oldest_ms:
                    oldest, oldest_ms = other, head_ms
        now_ms = x.newest_ms[partition]
        if oldest < 0 or now_ms < oldest_ms or (now_ms == oldest_ms and partition < oldest):
            x.evicted[0] += 1
            return False
        if x.version[np.int64(x.first[oldest]) - 1] != GONE:
            x.evicted[0] += 1
        _drop_first(x, oldest)
    return True


@njit(**IN_PLACE)
def remember(x: Any, key: np.uint64, words: Any, at: int, version: int, partition: int) -> None:
    """Remembers the version of an ad that expired in this partition just now, in place of an older one."""
    take_back(x, key, words, at)
    slot = x.state[FREE] - 1
    if slot >= 0:
        x.state[FREE] = np.int64(x.next[slot])
    else:
        slot = x.state[FRONTIER]
        x.state[FRONTIER] += 1
    size = text_words(words, at)
    own = take(x.texts, size)
    for i in range(size):
        x.texts.words[own + i] = words[at + i]
    x.id_at[slot], x.version[slot], x.partition[slot] = np.uint32(own), version, partition
    x.clock_ms[slot] = x.newest_ms[partition]
    x.next[slot] = np.uint32(0)
    if x.last[partition] != 0:
        x.next[x.last[partition] - 1] = np.uint32(slot + 1)
    else:
        x.first[partition] = np.uint32(slot + 1)
    x.last[partition] = np.uint32(slot + 1)
    tables.insert(x.table, slot, key)
    x.state[HELD] += 1


@njit(**INLINED)
def forget_old(x: Any, partition: int, limit_ms: int) -> None:
    """Gives back the entries at the head of the partition's queue whose time is over."""
    while x.first[partition] != 0:
        slot = np.int64(x.first[partition]) - 1
        if x.version[slot] != GONE and x.newest_ms[partition] - x.clock_ms[slot] <= limit_ms:
            return
        _drop_first(x, partition)
