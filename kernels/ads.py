"""The table of ads: one slot each, in columns; which slots may be served now, as bits.

`active` holds the slots whose ad is not paused; `live` those of them whose start and end include the engine's clock.
Slots are looked at again only in segments where a start or an end has come (`change_us`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels import extents as extents_
from kernels import table as tables
from kernels.compiled import IN_PLACE, INLINED
from kernels.extents import Extents, extents
from kernels.memory import reserve
from kernels.pool import Pool, give, pool
from kernels.precision import Precision, row_width, storage_dtype
from kernels.touched import note, state

SEGMENT_SLOTS = 8192
NO_SLOT = -1
PAUSED, FROM_META, ZERO_EMBEDDING = np.uint8(1), np.uint8(2), np.uint8(4)
GIVEN_EMBEDDING, GIVEN_GATE = np.uint8(8), np.uint8(16)  # by an event, not by the model
ADS, PAUSED_ADS, ZERO_ADS, FIELDS_ZEROED = 0, 1, 2, 3
NEVER_US = 2**63 - 1
# groups of columns, as an event changes them and a copy is told: live and active bits; bid, start, end; vectors with
# their scales; all other columns that queries read
BITS, SERVING, VECTORS, FACTS = 1, 2, 4, 8
GROUPS_LOG2 = 4


class Ads(NamedTuple):
    extents: Extents
    table: tables.Table  # by the id's hash, which also orders exact ties
    texts: Pool  # ids and raw features: a count of bytes, then the bytes
    id_at: NDArray[np.uint32]  # [slot] in texts
    features_at: NDArray[np.uint32]  # [slot] in texts, 0 for none
    fields: Pool  # field records: a count of words, then [field, n terms, n numbers] terms, numbers ...
    fields_at: NDArray[np.uint32]  # [slot] in fields, 0 for none
    targeting: NDArray[np.uint32]  # [slot]
    advertiser: NDArray[np.uint32]  # [slot] field term, 0 for none
    campaign: NDArray[np.uint32]  # [slot]
    version: NDArray[np.int64]  # [slot] -1 for none
    offset: NDArray[np.int64]  # [slot] of the newest event
    partition: NDArray[np.int32]  # [slot]
    created_ms: NDArray[np.int64]  # [slot] record timestamp of the create
    bid: NDArray[np.float64]  # [slot]
    start_us: NDArray[np.int64]  # [slot]
    end_us: NDArray[np.int64]  # [slot]
    flags: NDArray[np.uint8]  # [slot]
    active: NDArray[np.uint64]  # [slot / 64]
    live: NDArray[np.uint64]  # [slot / 64]
    change_us: NDArray[np.int64]  # [segment] when the next start or end comes
    embedding: NDArray[Any]  # [slot, width of dim]
    embedding_scale: NDArray[np.float32]  # [slot]
    gate: NDArray[Any]  # [slot, width of gate_dim]
    gate_scale: NDArray[np.float32]  # [slot]
    field_references: NDArray[np.uint32]  # [field term] ads
    field_zeroed: NDArray[np.uint32]  # field terms that lost their last ad, each once
    field_is_zeroed: NDArray[np.bool_]  # [field term] in `field_zeroed`
    state: NDArray[np.int64]  # ads, paused, with a zero embedding, zeroed field terms; the log: see note_slot


def ads(
    ads_max: int, targetings_max: int, terms_max: int, words_max: int, dim: int, gate_dim: int, precision: Precision,
    touched_max: int = 0,
) -> Ads:  # fmt: skip
    """An empty table; `ads_max` is a multiple of 8,192."""
    assert ads_max % SEGMENT_SLOTS == 0, ads_max
    vector = storage_dtype(precision)
    n, u4, i8 = ads_max, np.uint32, np.int64
    return Ads(
        extents(targetings_max, n), tables.table(n), pool(words_max), reserve(n, u4), reserve(n, u4),
        pool(words_max, touched_max),
        reserve(n, u4), reserve(n, u4), reserve(n, u4), reserve(n, u4), reserve(n, i8), reserve(n, i8),
        reserve(n, np.int32), reserve(n, i8), reserve(n, np.float64), reserve(n, i8), reserve(n, i8),
        reserve(n, np.uint8), reserve(n // 64, np.uint64), reserve(n // 64, np.uint64),
        np.full(n // SEGMENT_SLOTS, NEVER_US, i8),
        reserve((n, row_width(dim, precision)), vector), reserve(n, np.float32),
        reserve((n, row_width(gate_dim, precision)), vector), reserve(n, np.float32),
        reserve(terms_max, u4), reserve(terms_max, u4), reserve(terms_max, np.bool_), state(n, touched_max),
    )  # fmt: skip


@njit(**INLINED)
def find_ad(a: Any, key: np.uint64, words: Any, at: int) -> int:
    """Slot of the ad whose id is the text at words[at] and whose hash is `key`; NO_SLOT if there is none."""
    slot = np.int64(a.table.head[tables.bucket(a.table, key)]) - 1
    while slot >= 0:
        if a.table.hash[slot] == key and same_text(a.texts.words, np.int64(a.id_at[slot]), words, at):
            return slot
        slot = np.int64(a.table.next[slot]) - 1
    return NO_SLOT


@njit(**INLINED)
def text_words(words: Any, at: int) -> int:
    """Words of the text at `at`: its count of bytes, then the bytes."""
    return 1 + (np.int64(words[at]) + 3) // 4


@njit(**INLINED)
def same_text(one: Any, at: int, other: Any, p: int) -> bool:
    if one[at] != other[p]:
        return False
    for i in range(1, text_words(one, at)):
        if one[at + i] != other[p + i]:
            return False
    return True


@njit(**INLINED)
def count_field_terms(a: Any, slot: int, step: int) -> None:
    """Adds `step` references to each field term of the ad."""
    _count(a, a.advertiser[slot], step)
    _count(a, a.campaign[slot], step)
    at = np.int64(a.fields_at[slot])
    if at == 0:
        return
    words, p, end = a.fields.words, at + 1, at + np.int64(a.fields.words[at])
    while p < end:
        for i in range(p + 3, p + 3 + np.int64(words[p + 1])):
            _count(a, words[i], step)
        p += 3 + np.int64(words[p + 1]) + 2 * np.int64(words[p + 2])


@njit(**INLINED)
def _count(a: Any, term: np.uint32, step: int) -> None:
    if term == 0:
        return
    a.field_references[term] = np.uint32(np.int64(a.field_references[term]) + step)
    if a.field_references[term] == 0 and not a.field_is_zeroed[term]:
        a.field_is_zeroed[term] = True
        a.field_zeroed[a.state[FIELDS_ZEROED]] = term
        a.state[FIELDS_ZEROED] += 1


@njit(**INLINED)
def set_live(a: Any, slot: int, now_us: int) -> None:
    """Sets the slot's bits from its flags and times, and notes when they change next."""
    word, bit = slot >> 6, np.uint64(1) << np.uint64(slot & 63)
    a.active[word] &= ~bit
    a.live[word] &= ~bit
    if not a.flags[slot] & PAUSED:
        a.active[word] |= bit
        if a.start_us[slot] <= now_us < a.end_us[slot]:
            a.live[word] |= bit
    segment = slot // SEGMENT_SLOTS
    for moment in (a.start_us[slot], a.end_us[slot]):
        if moment > now_us and moment < a.change_us[segment]:
            a.change_us[segment] = moment


@njit(**INLINED)
def note_slot(a: Any, slot: int, groups: int) -> None:
    """Notes these groups of a slot's columns; no group: it is a segment, whose bits were turned."""
    note(a.state, slot << GROUPS_LOG2 | groups)


@njit(**INLINED)
def clear_live(a: Any, slot: int) -> None:
    bit = np.uint64(1) << np.uint64(slot & 63)
    a.active[slot >> 6] &= ~bit
    a.live[slot >> 6] &= ~bit


@njit(**IN_PLACE)
def turn(a: Any, now_us: int, again: bool) -> int:
    """Turns the live bits of all segments in which a start or end has come by now, of all segments if `again`: the
    clock went backwards. -> segments looked at"""
    looked = 0
    for segment in range(a.extents.state[extents_.FRONTIER] // SEGMENT_SLOTS + 1):
        if segment == len(a.change_us) or not (again or a.change_us[segment] <= now_us):
            continue
        looked += 1
        note_slot(a, segment, 0)
        a.change_us[segment] = NEVER_US
        for slot in range(segment * SEGMENT_SLOTS, (segment + 1) * SEGMENT_SLOTS):
            if (a.extents.bits[slot >> 6] >> np.uint64(slot & 63)) & np.uint64(1):
                set_live(a, slot, now_us)
    return looked


@njit(**INLINED)
def give_text(p: Any, at: int) -> None:
    if at != 0:
        give(p, at, text_words(p.words, at))
