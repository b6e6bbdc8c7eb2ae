"""A batch of ad events into the tables, event by event, whole or not at all.

For each event in order: (1) an offset of its partition that was applied before is a duplicate; (2) a version not above
the newest one known for the ad is stale; (3) a bad event is bad; (4) expire, modify or create. Everything that can
fail for want of room is asked for before anything is changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels import table as tables
from kernels.ads import (
    ADS,
    BITS,
    FACTS,
    FROM_META,
    GIVEN_EMBEDDING,
    GIVEN_GATE,
    PAUSED,
    PAUSED_ADS,
    SERVING,
    VECTORS,
    ZERO_ADS,
    ZERO_EMBEDDING,
    clear_live,
    count_field_terms,
    find_ad,
    give_text,
    note_slot,
    set_live,
    text_words,
)
from kernels.compiled import ALLOCATES, IN_PLACE, INLINED, prefetch
from kernels.expired import NO_SLOT as NOT_HELD
from kernels.expired import forget_old, make_room, recall, remember, take_back
from kernels.extents import NO_SLOT, give_slot, take_slot
from kernels.pool import fits, give, take
from kernels.program import NO_ZONE, RECORD_HEAD, SCHEDULE_WORDS
from kernels.rows import postings_room
from kernels.targetings import (
    LIVE,
    conditions,
    drop_reference,
    expression_at,
    find_or_add,
    refer,
    release,
    tidy,
)
from kernels.touched import note_words

CREATE, MODIFY, EXPIRE, BAD_EVENT = range(4)
APPLIED, STALE, DUPLICATE, EXPIRE_UNKNOWN, BAD, UNKNOWN_AD, INDEX_FULL = range(7)

# what an event sets
SETS_TARGETING, SETS_SCHEDULE, SETS_BID, SETS_PAUSED, SETS_START, SETS_END = 1, 2, 4, 8, 16, 32
SETS_ADVERTISER, SETS_CAMPAIGN, SETS_FIELDS, SETS_FEATURES, SETS_EMBEDDING, SETS_GATE = 64, 128, 256, 512, 1024, 2048
CLEARS_TARGETING, CLEARS_META = 4096, 8192
GIVES_EMBEDDING, GIVES_GATE = 16384, 32768  # the vector that it sets is its own, not the model's
AHEAD = 4  # events
NO_TEXT = 0xFFFFFFFF  # in place of an offset into the batch's words

EVENT = np.dtype(
    [
        ("kind", np.int64), ("sets", np.int64), ("key", np.uint64), ("id", np.int64), ("version", np.int64),
        ("partition", np.int64), ("offset", np.int64), ("timestamp_ms", np.int64), ("targeting", np.int64),
        ("from_meta", np.int64), ("schedule", np.int64), ("bid", np.float64), ("paused", np.int64),
        ("start_us", np.int64), ("end_us", np.int64), ("advertiser", np.int64), ("campaign", np.int64),
        ("fields", np.int64), ("features", np.int64), ("embedding", np.int64), ("gate", np.int64),
    ]
)  # fmt: skip
"""`id`, `targeting` (a record without schedule), `schedule` (zone, six words), `fields`, `features` are offsets into
the batch's words, -1 for none; `embedding` and `gate` are lines of the batch's vectors, -1 for zeros."""


class Vectors(NamedTuple):
    """The vectors of a batch, stored as the index stores them."""

    embedding: NDArray[Any]  # [line, width]
    embedding_scale: NDArray[np.float32]
    gate: NDArray[Any]
    gate_scale: NDArray[np.float32]


@njit(**ALLOCATES)
def _record(t: Any, slot_targeting: int, e: Any, words: Any, keep_targeting: bool, keep_schedule: bool) -> Any:
    """The record of the ad after the event: its expression from the event or kept, its schedule likewise."""
    own = np.int64(t.record[slot_targeting]) if keep_targeting or keep_schedule else np.int64(0)
    if keep_targeting:
        from_words, p = t.records.words, expression_at(t.records.words, own)
        size = own + np.int64(t.records.words[own]) - p
    else:
        from_words, p = words, e.targeting + RECORD_HEAD
        size = np.int64(words[e.targeting]) - RECORD_HEAD
    zone_words, z = words, e.schedule
    if keep_schedule:
        zone_words, z = t.records.words, own + 1
    scheduled = z >= 0 and zone_words[z] != NO_ZONE
    head = RECORD_HEAD + (SCHEDULE_WORDS if scheduled else 0)
    out = np.empty(head + size, np.uint32)
    out[0], out[1] = np.uint32(head + size), np.uint32(NO_ZONE)
    if scheduled:
        for i in range(1 + SCHEDULE_WORDS):
            out[1 + i] = zone_words[z + i]
    for i in range(size):
        out[head + i] = from_words[p + i]
    return out


@njit(**ALLOCATES)
def _find_targeting(t: Any, held: int, e: Any, words: Any, keep: bool) -> int:
    """Slot of the ad's record after the event, new ones added; NO_SLOT if full. `keep`: it has one, `held`."""
    record = _record(t, held, e, words, keep and not e.sets & SETS_TARGETING, keep and not e.sets & SETS_SCHEDULE)
    return find_or_add(t, record, 0)


@njit(**INLINED)
def _put(p: Any, words: Any, at: int, size: int) -> np.uint32:
    own = take(p, size)
    for i in range(size):
        p.words[own + i] = words[at + i]
    note_words(p.state, own, size)
    return np.uint32(own)


@njit(**INLINED)
def _give_record(p: Any, at: int) -> None:
    if at != 0:
        give(p, at, np.int64(p.words[at]))


@njit(**IN_PLACE)
def _move(a: Any, slot: int, to: int) -> None:
    """Carries an ad's columns over to another slot."""
    a.id_at[to], a.features_at[to], a.fields_at[to] = a.id_at[slot], a.features_at[slot], a.fields_at[slot]
    a.advertiser[to], a.campaign[to], a.version[to] = a.advertiser[slot], a.campaign[slot], a.version[slot]
    a.created_ms[to], a.bid[to], a.flags[to] = a.created_ms[slot], a.bid[slot], a.flags[slot]
    a.start_us[to], a.end_us[to] = a.start_us[slot], a.end_us[slot]
    for i in range(a.embedding.shape[1]):
        a.embedding[to, i] = a.embedding[slot, i]
    for i in range(a.gate.shape[1]):
        a.gate[to, i] = a.gate[slot, i]
    a.embedding_scale[to], a.gate_scale[to] = a.embedding_scale[slot], a.gate_scale[slot]
    key = a.table.hash[slot]
    tables.remove(a.table, slot)
    tables.insert(a.table, to, key)


@njit(**INLINED)
def _tally(a: Any, slot: int, step: int) -> None:
    a.state[ADS] += step
    if a.flags[slot] & PAUSED:
        a.state[PAUSED_ADS] += step
    if a.flags[slot] & ZERO_EMBEDDING:
        a.state[ZERO_ADS] += step


@njit(**INLINED)
def _fill(a: Any, slot: int, e: Any, words: Any, vectors: Any) -> None:
    """Writes what the event sets into the ad's slot."""
    sets = e.sets
    if sets & (SETS_ADVERTISER | SETS_CAMPAIGN | SETS_FIELDS):
        count_field_terms(a, slot, -1)
        if sets & SETS_ADVERTISER:
            a.advertiser[slot] = np.uint32(e.advertiser)
        if sets & SETS_CAMPAIGN:
            a.campaign[slot] = np.uint32(e.campaign)
        if sets & SETS_FIELDS:
            _give_record(a.fields, np.int64(a.fields_at[slot]))
            a.fields_at[slot] = np.uint32(0)
            if e.fields >= 0:
                a.fields_at[slot] = _put(a.fields, words, e.fields, np.int64(words[e.fields]))
        count_field_terms(a, slot, 1)
    if sets & SETS_FEATURES:
        give_text(a.texts, np.int64(a.features_at[slot]))
        a.features_at[slot] = np.uint32(0)
        if e.features >= 0:
            a.features_at[slot] = _put(a.texts, words, e.features, text_words(words, e.features))
    if sets & SETS_BID:
        a.bid[slot] = e.bid
    if sets & SETS_START:
        a.start_us[slot] = e.start_us
    if sets & SETS_END:
        a.end_us[slot] = e.end_us
    flags = a.flags[slot]
    if sets & SETS_PAUSED:
        flags = (flags & ~PAUSED) | (PAUSED if e.paused else np.uint8(0))
    if sets & (SETS_TARGETING | CLEARS_TARGETING | CLEARS_META):
        flags = (flags & ~FROM_META) | (FROM_META if e.from_meta else np.uint8(0))
    if sets & SETS_EMBEDDING:
        _vector(a.embedding, a.embedding_scale, slot, vectors.embedding, vectors.embedding_scale, e.embedding)
        flags = (flags & ~ZERO_EMBEDDING) | (ZERO_EMBEDDING if e.embedding < 0 else np.uint8(0))
        flags = (flags & ~GIVEN_EMBEDDING) | (GIVEN_EMBEDDING if sets & GIVES_EMBEDDING else np.uint8(0))
    if sets & SETS_GATE:
        _vector(a.gate, a.gate_scale, slot, vectors.gate, vectors.gate_scale, e.gate)
        flags = (flags & ~GIVEN_GATE) | (GIVEN_GATE if sets & GIVES_GATE else np.uint8(0))
    a.flags[slot] = flags


@njit(**INLINED)
def _vector(rows: Any, scales: Any, slot: int, from_rows: Any, from_scales: Any, line: int) -> None:
    for i in range(rows.shape[1]):
        rows[slot, i] = from_rows[line, i] if line >= 0 else 0
    scales[slot] = from_scales[line] if line >= 0 else np.float32(1)


@njit(**INLINED)
def _groups(sets: int, whole: bool) -> int:
    """Of columns, what an event changes in a slot that it had before; `whole`: all."""
    if whole:
        return BITS | SERVING | VECTORS | FACTS
    groups = BITS
    if sets & (SETS_BID | SETS_START | SETS_END):
        groups |= SERVING
    if sets & (SETS_EMBEDDING | SETS_GATE):
        groups |= VECTORS
    if sets & (SETS_ADVERTISER | SETS_CAMPAIGN | SETS_FIELDS):
        groups |= FACTS
    return groups


@njit(**INLINED)
def _remove(a: Any, t: Any, slot: int) -> None:
    targeting = np.int64(a.targeting[slot])
    _tally(a, slot, -1)
    clear_live(a, slot)
    note_slot(a, slot, BITS)
    count_field_terms(a, slot, -1)
    tables.remove(a.table, slot)
    give_text(a.texts, np.int64(a.id_at[slot]))
    give_text(a.texts, np.int64(a.features_at[slot]))
    _give_record(a.fields, np.int64(a.fields_at[slot]))
    give_slot(a.extents, targeting, slot)
    drop_reference(t, targeting)


@njit(**INLINED)
def _put_ad(a: Any, t: Any, e: Any, slot: int, words: Any, vectors: Any, now_us: int) -> int:
    """A create or modify whose ad is at `slot` (NO_SLOT: none yet). -> slot after it, NO_SLOT if there is no room"""
    id_words = text_words(words, e.id) if slot == NO_SLOT else 0
    if not fits(a.texts, id_words, text_words(words, e.features) if e.features >= 0 else 0):
        return NO_SLOT
    if e.fields >= 0 and not fits(a.fields, np.int64(words[e.fields]), 0):
        return NO_SLOT
    held = np.int64(a.targeting[slot]) if slot != NO_SLOT else np.int64(0)
    to, changed = slot, slot == NO_SLOT or (e.sets & (SETS_TARGETING | SETS_SCHEDULE)) != 0
    if changed:
        keep = slot != NO_SLOT
        targeting = _find_targeting(t, held, e, words, keep)
        if targeting == NO_SLOT:
            return NO_SLOT
        if slot == NO_SLOT or targeting != held:
            to = take_slot(a.extents, targeting, np.int64(t.references[targeting]))
            if to == NO_SLOT:
                if t.references[targeting] == 0:
                    release(t, targeting)
                return NO_SLOT
            refer(t, targeting)
            if slot != NO_SLOT:
                _move(a, slot, to)
                clear_live(a, slot)
                note_slot(a, slot, BITS)
                give_slot(a.extents, held, slot)
                drop_reference(t, held)
            else:
                a.id_at[to] = _put(a.texts, words, e.id, text_words(words, e.id))
                a.features_at[to], a.fields_at[to] = np.uint32(0), np.uint32(0)
                a.advertiser[to], a.campaign[to], a.flags[to] = np.uint32(0), np.uint32(0), np.uint8(0)
                tables.insert(a.table, to, e.key)
            a.targeting[to] = np.uint32(targeting)
    if slot != NO_SLOT:
        _tally(a, to, -1)
    _fill(a, to, e, words, vectors)
    _tally(a, to, 1)
    a.partition[to], a.offset[to] = np.int32(e.partition), e.offset
    set_live(a, to, now_us)
    note_slot(a, to, _groups(e.sets, e.kind == CREATE or to != slot))
    return to


@njit(**INLINED)
def _ad_bytes(e: Any, words: Any, slot_bytes: int) -> int:
    """The most memory that a new ad takes: its slot, its words in pools whose blocks are up to half larger than what
    was asked for, and a posting of four bytes for each word of its targeting, in lists that may double."""
    count = text_words(words, e.id)
    if e.features >= 0:
        count += text_words(words, e.features)
    if e.fields >= 0:
        count += np.int64(words[e.fields])
    if e.targeting >= 0:
        count += 3 * np.int64(words[e.targeting])
    return slot_bytes + 6 * count


@njit(**INLINED)
def _one(
    a: Any, t: Any, x: Any, e: Any, words: Any, vectors: Any, partitions: int, room_bytes: Any, slot_bytes: int,
    now_us: int, limit_ms: int,
) -> int:  # fmt: skip
    """One event that is not a duplicate. -> outcome"""
    if e.id < 0:
        return BAD
    slot = find_ad(a, e.key, words, e.id)
    known = np.int64(-1)
    if slot != NO_SLOT:
        known = a.version[slot]
    else:
        memory = recall(x, e.key, words, e.id, limit_ms)
        if memory != NOT_HELD:
            known = x.version[memory]
    if e.version >= 0 and known >= e.version:
        return STALE
    if e.kind == BAD_EVENT:
        return BAD
    version = e.version if e.version >= 0 else known
    if e.kind == EXPIRE:
        if version >= 0 and (e.version >= 0 or slot != NO_SLOT):
            if make_room(x, words, e.id, e.partition, partitions):
                remember(x, e.key, words, e.id, version, e.partition)
        if slot == NO_SLOT:
            return EXPIRE_UNKNOWN
        _remove(a, t, slot)
        return APPLIED
    if e.kind == MODIFY and slot == NO_SLOT:
        return UNKNOWN_AD
    if slot != NO_SLOT and e.sets & (CLEARS_TARGETING | CLEARS_META) and not e.sets & SETS_TARGETING:
        _clear_targeting(a, slot, e)
    taken = _ad_bytes(e, words, slot_bytes) if slot == NO_SLOT else np.int64(0)
    if taken > room_bytes[0]:
        return INDEX_FULL
    to = _put_ad(a, t, e, slot, words, vectors, now_us)
    if to == NO_SLOT:
        return INDEX_FULL
    if slot == NO_SLOT:
        room_bytes[0] -= taken
        take_back(x, e.key, words, e.id)
    if e.kind == CREATE:
        a.created_ms[to] = e.timestamp_ms
    a.version[to] = version
    return APPLIED


@njit(**INLINED)
def _clear_targeting(a: Any, slot: int, e: Any) -> None:
    """A null clears only its own kind of targeting: where the ad has the other, the event leaves it."""
    meta = (a.flags[slot] & FROM_META) != 0
    if (meta and e.sets & CLEARS_META) or (not meta and e.sets & CLEARS_TARGETING):
        e.sets |= SETS_TARGETING
        e.from_meta = 0
    else:
        e.from_meta = 1 if meta else 0


@njit(**INLINED)
def _look_ahead(a: Any, t: Any, events: Any, i: int) -> None:
    """Has what the next events will need on its way from memory, each step of it when the one before has come: the
    bucket of the ad's id, then the columns of the first ad of the bucket, mostly the one, then what these refer to."""
    if i + 3 * AHEAD < len(events):
        prefetch(a.table.head, 4 * tables.bucket(a.table, events[i + 3 * AHEAD].key))
    if i + 2 * AHEAD < len(events):
        slot = np.int64(a.table.head[tables.bucket(a.table, events[i + 2 * AHEAD].key)]) - 1
        if slot >= 0:
            _fetch_columns(a, slot)
    if i + AHEAD < len(events):
        slot = np.int64(a.table.head[tables.bucket(a.table, events[i + AHEAD].key)]) - 1
        if slot >= 0:
            prefetch(a.texts.words, 4 * np.int64(a.id_at[slot]))
            prefetch(t.references, 4 * np.int64(a.targeting[slot]))
            prefetch(t.record, 4 * np.int64(a.targeting[slot]))


@njit(**INLINED)
def _fetch_columns(a: Any, slot: int) -> None:
    prefetch(a.table.hash, 8 * slot)
    for longs in (a.version, a.offset, a.start_us, a.end_us):
        prefetch(longs, 8 * slot)
    prefetch(a.bid, 8 * slot)
    for words in (a.id_at, a.targeting, a.fields_at, a.features_at):
        prefetch(words, 4 * slot)
    prefetch(a.partition, 4 * slot)
    prefetch(a.flags, slot)
    prefetch(a.active, slot >> 3)
    prefetch(a.live, slot >> 3)


@njit(**IN_PLACE)
def apply_events(
    ads: Any, targetings: Any, expired: Any, events: Any, words: Any, vectors: Any, positions: Any, room_bytes: Any,
    slot_bytes: int, now_us: int, limit_ms: int, outcomes: Any, first: int, refused: int,
) -> int:  # fmt: skip
    """Applies `events` (EVENT records) in order from event `first`. `positions` [partition] holds the next offset of
    each and moves on; `outcomes` [event] is written. `room_bytes` [1]: what new ads may take, each at least
    `slot_bytes`; it shrinks. With a clearing null, `targeting` of the event is the record of no targeting.

    -> their number, or that of the first that finds no room and lies at `refused` or behind: nothing of it has been
    applied, and it may be tried again with more room; those before `refused` are INDEX_FULL then."""
    for i in range(first, len(events)):
        _look_ahead(ads, targetings, events, i)
        e = events[i]
        position = positions[e.partition]
        if e.offset < position:
            outcomes[i] = DUPLICATE
            continue
        positions[e.partition] = e.offset + 1
        expired.newest_ms[e.partition] = max(expired.newest_ms[e.partition], e.timestamp_ms)
        forget_old(expired, e.partition, limit_ms)
        outcomes[i] = _one(
            ads, targetings, expired, e, words, vectors, len(positions), room_bytes, slot_bytes, now_us, limit_ms
        )
        if outcomes[i] == INDEX_FULL and i >= refused:
            positions[e.partition] = position
            return i
    tidy(targetings)
    return len(events)


@njit(**ALLOCATES)
def room_needed(a: Any, t: Any, e: Any, words: Any) -> tuple[int, int, int]:
    """Words that a create or modify may take at most. -> of records, of postings, of fields"""
    fields = 2 * np.int64(words[e.fields]) if e.fields >= 0 else np.int64(0)
    slot = find_ad(a, e.key, words, e.id)
    changes = slot == NO_SLOT or e.sets & (SETS_TARGETING | SETS_SCHEDULE) != 0
    if not changes or (slot == NO_SLOT and e.targeting < 0):
        return 0, 0, fields
    keep, held = slot != NO_SLOT, np.int64(a.targeting[slot]) if slot != NO_SLOT else np.int64(0)
    record = _record(t, held, e, words, keep and not e.sets & SETS_TARGETING, keep and not e.sets & SETS_SCHEDULE)
    entries, _, open_conjuncts = conditions(t, record, 0)
    return 2 * (len(record) + 1 + len(open_conjuncts)), postings_room(len(entries), t.state[LIVE]), fields
