"""A batch of ad events as the arrays that the apply kernel takes: texts, records and vectors side by side."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from gpu_index.events import AdEvent, AdPatch, EventKind, ParsedTargeting
from gpu_index.field_terms import FieldTerms
from gpu_index.identity import tie_key
from gpu_index.record import encode
from gpu_index.schema import ADVERTISER_ID, CAMPAIGN_ID
from gpu_index.targeting import All
from gpu_index.terms import TargetingTerms
from gpu_index.texts import put_text
from gpu_index.vocabulary import Key, VocabularyFull
from gpu_index.zones import Schedule
from kernels import apply as k
from kernels.precision import Precision, quantise_rows, row_width, storage_dtype
from kernels.program import NO_ZONE, SCHEDULE_WORDS

CACHED_TARGETINGS_MAX = 8192
CACHED_SOURCE_BYTES_MAX = 16_384  # a longer targeting is rarely shared, and would take much of the cache's memory
SEEN_MAX = 65_536
NOTHING = bytes(4)  # in place of no words at all
EVERYONE = ParsedTargeting(b"", All(()))
_KINDS = {
    EventKind.CREATE: k.CREATE,
    EventKind.MODIFY: k.MODIFY,
    EventKind.EXPIRE: k.EXPIRE,
    EventKind.BAD: k.BAD_EVENT,
}
_FORMATS = {"<i8": "q", "<u8": "Q", "<f8": "d"}
_LINE = struct.Struct("<" + "".join(_FORMATS[k.EVENT[name].str] for name in k.EVENT.names or ()))
assert _LINE.size == k.EVENT.itemsize


class PackedEvents(NamedTuple):
    events: NDArray[np.void]  # k.EVENT
    words: NDArray[np.uint32]
    vectors: k.Vectors


class Packer:
    """Owned by the writer, as the vocabularies are."""

    def __init__(
        self, terms: TargetingTerms, fields: FieldTerms, dim: int, gate_dim: int, precision: Precision
    ) -> None:
        self.terms, self.fields = terms, fields
        self.dim, self.gate_dim, self.precision = dim, gate_dim, precision
        self.loose: list[int] = []  # terms that a cache let go of
        self._records: dict[tuple[bytes, bool], tuple[bytes, list[int]]] = {}  # by source: record, its pinned terms
        self._nothing_known: list[dict[Key, int]] = [{} for _ in terms.attributes]
        self._seen: set[int] = set()  # hashes of sources met once: the second time they are cached

    def pack(self, events: Sequence[AdEvent]) -> PackedEvents:
        """The events as far as the vocabularies have room for their terms: those before the first that finds none."""
        out = bytearray()
        embeddings: list[NDArray[np.float32]] = []
        gates: list[NDArray[np.float32]] = []
        rows = bytearray()
        for event in events:
            try:
                rows += _LINE.pack(*self._row(event, out, embeddings, gates))
            except VocabularyFull:
                break
        words = np.frombuffer(bytes(out or NOTHING), np.uint32)  # read-only always: a kernel is compiled for what it is
        packed = np.frombuffer(rows, k.EVENT) if rows else np.empty(0, k.EVENT)  # writable, as a bytearray is
        embedding, embedding_scale = self._stored(embeddings, self.dim, packed["embedding"])
        gate, gate_scale = self._stored(gates, self.gate_dim, packed["gate"])
        return PackedEvents(packed, words, k.Vectors(embedding, embedding_scale, gate, gate_scale))

    @property
    def cached(self) -> int:
        """Targetings that are kept as records."""
        return len(self._records)

    def forget(self) -> None:
        """Lets go of all cached targetings, so that their terms can be given back."""
        for _, terms in self._records.values():
            self.loose += self.terms.vocabulary.unpin(terms)
        self._records.clear()
        self._seen.clear()

    def _stored(
        self, vectors: list[NDArray[np.float32]], dim: int, lines: NDArray[np.int64]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        """The vectors as the index stores them, and their scales; an event's line of nothing but zeros becomes -1."""
        rows = np.zeros((max(len(vectors), 1), row_width(dim, self.precision)), storage_dtype(self.precision))
        scales = np.ones(len(rows), np.float32)
        if vectors:
            stacked = np.concatenate(vectors).reshape(-1, dim)
            quantise_rows(stacked, self.precision, rows, scales)
            given = np.nonzero(lines >= 0)[0]
            empty = ~np.any(stacked, axis=1, keepdims=True)[lines[given], 0]
            lines[given[empty]] = -1
        return rows, scales

    def _row(
        self, event: AdEvent, out: bytearray, embeddings: list[NDArray[np.float32]], gates: list[NDArray[np.float32]]
    ) -> tuple[object, ...]:
        patch = event.patch
        if patch is None:
            return _row(event, _KINDS[event.kind], out)
        sets = 0
        targeting = schedule = fields = features = embedding = gate = -1
        from_meta = advertiser = campaign = 0
        if patch.clears_targeting or patch.clears_targeting_meta:
            sets |= k.CLEARS_TARGETING * patch.clears_targeting | k.CLEARS_META * patch.clears_targeting_meta
            targeting = self._record(EVERYONE, out)
        if patch.targeting is not UNSET:
            sets |= k.SETS_TARGETING
            targeting = self._record(patch.targeting or EVERYONE, out)
            from_meta = int(patch.targeting is not None and patch.targeting.from_meta)
        if patch.schedule is not UNSET:
            sets |= k.SETS_SCHEDULE
            schedule = self._schedule(patch.schedule, out)
        if patch.advertiser_id is not UNSET:
            sets |= k.SETS_ADVERTISER
            advertiser = self.fields.intern(ADVERTISER_ID, patch.advertiser_id)
        if patch.campaign_id is not UNSET:
            sets |= k.SETS_CAMPAIGN
            campaign = self.fields.intern(CAMPAIGN_ID, patch.campaign_id)
        if patch.fields is not UNSET:
            sets |= k.SETS_FIELDS
            fields = _put(self.fields.record(patch.fields), out)
        if patch.features is not UNSET:
            sets |= k.SETS_FEATURES
            features = put_text(patch.features, out) if patch.features else -1
        if patch.embedding is not UNSET:
            sets |= k.SETS_EMBEDDING
            sets |= k.GIVES_EMBEDDING * (patch.embedding is not None and not event.derives_embedding)
            embedding = _add(patch.embedding, embeddings)
        if patch.gate is not UNSET:
            sets |= k.SETS_GATE
            sets |= k.GIVES_GATE * (patch.gate is not None and not event.derives_gate)
            gate = _add(patch.gate, gates)
        scalar_sets, scalars = _scalars(patch)
        return _row(
            event, _KINDS[event.kind], out, sets | scalar_sets, targeting, from_meta, schedule, *scalars, advertiser,
            campaign, fields, features, embedding, gate,
        )  # fmt: skip

    def _record(self, targeting: ParsedTargeting, out: bytearray) -> int:
        """Appends the record of a targeting, without a schedule; -> its offset in words."""
        at = len(out) >> 2
        key = targeting.source, targeting.from_meta
        cached = self._records.get(key)
        if cached is None:
            words = [0, NO_ZONE]
            terms = self.terms
            encode(targeting.expression, terms.attributes, terms.vocabulary.terms_of, terms.intern, words)
            words[0] = len(words)
            record = array("I", words).tobytes()
            out += record
            if len(targeting.source) <= CACHED_SOURCE_BYTES_MAX:
                self._meet(targeting, hash(key), record)
        else:
            out += cached[0]
        return at

    def _meet(self, targeting: ParsedTargeting, key: int, record: bytes) -> None:
        """Caches a targeting that was met before."""
        if key in self._seen:
            self._cache(targeting, record)
            return
        if len(self._seen) >= SEEN_MAX:
            self._seen.clear()
        self._seen.add(key)

    def _cache(self, targeting: ParsedTargeting, record: bytes) -> None:
        if len(self._records) >= CACHED_TARGETINGS_MAX:
            _, terms = self._records.pop(next(iter(self._records)))  # the oldest
            self.loose += self.terms.vocabulary.unpin(terms)
        pinned: list[int] = []

        def find(attribute: int, value: Key) -> int:
            term = self.terms.intern(attribute, value)
            pinned.append(term)
            return term

        encode(targeting.expression, self.terms.attributes, self._nothing_known, find, [])
        self.terms.vocabulary.pin(pinned)
        self._records[targeting.source, targeting.from_meta] = record, pinned

    def _schedule(self, schedule: Schedule | None, out: bytearray) -> int:
        if schedule is None:
            return -1
        mask = [0] * SCHEDULE_WORDS
        for hour in schedule.hours:
            mask[hour >> 5] |= 1 << (hour & 31)
        return _put(array("I", [self.terms.zone(schedule.timezone), *mask]), out)


def _put(words: array[int], out: bytearray) -> int:
    """Appends words; -> their offset, -1 for none."""
    if not words:
        return -1
    at = len(out) >> 2
    out += words.tobytes()
    return at


def _add(vector: NDArray[np.float32] | None, vectors: list[NDArray[np.float32]]) -> int:
    """-> the vector's line, -1 for none."""
    if vector is None:
        return -1
    vectors.append(vector)
    return len(vectors) - 1


def _scalars(patch: AdPatch) -> tuple[int, tuple[float, int, int, int]]:
    """What the patch sets of bid, paused, start and end, and their values."""
    sets, bid, paused, start, end = 0, 0.0, 0, 0, 0
    if patch.bid is not UNSET:
        sets, bid = sets | k.SETS_BID, patch.bid
    if patch.paused is not UNSET:
        sets, paused = sets | k.SETS_PAUSED, int(patch.paused)
    if patch.start_us is not UNSET:
        sets, start = sets | k.SETS_START, patch.start_us
    if patch.end_us is not UNSET:
        sets, end = sets | k.SETS_END, patch.end_us
    return sets, (bid, paused, start, end)


def _row(
    event: AdEvent, kind: int, out: bytearray, sets: int = 0, targeting: int = -1, from_meta: int = 0,
    schedule: int = -1, bid: float = 0.0, paused: int = 0, start_us: int = 0, end_us: int = 0, advertiser: int = 0,
    campaign: int = 0, fields: int = -1, features: int = -1, embedding: int = -1, gate: int = -1,
) -> tuple[object, ...]:  # fmt: skip
    """A line of k.EVENT."""
    key, at = 0, -1
    if event.ad_id is not None:
        key, at = tie_key(event.ad_id), put_text(event.ad_id.encode(), out)
    version = -1 if event.version is None else event.version
    return (
        kind, sets, key, at, version, event.partition, event.offset, event.timestamp_ms, targeting, from_meta,
        schedule, bid, paused, start_us, end_us, advertiser, campaign, fields, features, embedding, gate,
    )  # fmt: skip
