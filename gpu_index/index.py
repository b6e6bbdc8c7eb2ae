"""The live index: ads and their targetings, one writer, queries between batches of whole events.

All methods run on one thread, the engine's; the index asserts it. `apply` takes a batch of events, `advance_clock`
turns ads on and off as their time comes, `select` gives the slots of the ads that match requests.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpu_index import footprint
from gpu_index.events import AdEvent, Batch, EventKind, Outcome
from gpu_index.field_terms import FieldTerms
from gpu_index.identity import tie_key
from gpu_index.packing import PackedEvents, Packer
from gpu_index.queries import Packed, queries
from gpu_index.schema import Schema
from gpu_index.targeting import Expression
from gpu_index.terms import TargetingTerms
from gpu_index.texts import put_text, text_at
from gpu_index.values import RequestAttributes
from kernels import ads as ads_
from kernels import apply as apply_
from kernels import expired as expired_
from kernels import filter as filter_
from kernels import match as match_
from kernels import targetings as targetings_
from kernels.memory import reserve
from kernels.plan import Queries
from kernels.precision import Precision
from kernels.score import ScoreColumns

EXPIRED_VERSIONS_S = 86_400
ROWS_MAX = 16_384
WORDS_MAX = 2**32 - 1  # of each pool
EVICTION_LOG_S = 60.0
UNLIMITED_BYTES = 2**62
TOUCHED_MAX = 2**20
_OUTCOMES = (
    Outcome.APPLIED,
    Outcome.STALE,
    Outcome.DUPLICATE,
    Outcome.EXPIRE_UNKNOWN,
    Outcome.BAD,
    Outcome.UNKNOWN_AD,
    Outcome.INDEX_FULL,
)


class Limits(NamedTuple):
    """What one index may hold. Address space is reserved for it; memory is taken as it fills."""

    ads: int = 2**25
    targetings: int = 2**25
    terms: int = 2**25  # distinct attribute values, and as many field values
    expired: int = 2**24  # versions of expired ads; beyond it the oldest are forgotten before their time
    held_bytes: int = 0  # beyond it no new ad is taken; 0: no such limit


DEFAULT_LIMITS = Limits()
_LOG = logging.getLogger("mirach.index")


class ModelName(msgspec.Struct, frozen=True):
    """Which model the ads' vectors are of."""

    name: str
    fingerprint: str


class Selection(NamedTuple):
    """The ads that match a batch of requests: request r's are slots[first[r] : first[r + 1]]."""

    slots: NDArray[np.uint32]
    first: NDArray[np.int64]


class Copy(Protocol):
    """The index on a device."""

    def grow(self, records: int, postings: int, fields: int) -> bool:
        """Makes room for one more event, which may need so many words of each. -> whether there is more than before"""

    def sync(self) -> int:
        """Brings it up to date. -> bytes sent"""

    def memory(self) -> dict[str, int]:
        """Bytes by part."""

    def widened(self, dim: int, gate_dim: int) -> tuple[int, int]:
        """Bytes that vectors of these widths take beyond those in use, and bytes that there are for them."""

    def renewed(self, ads: Any, dim: int, gate_dim: int) -> Copy:
        """One of an index whose ads have other columns, in place of this."""


class Index:
    def __init__(
        self, schema: Schema, *, dim: int, gate_dim: int, precision: Precision, limits: Limits = DEFAULT_LIMITS,
        expired_versions_s: int = EXPIRED_VERSIONS_S, model: ModelName | None = None, touched_max: int = 0,
    ) -> None:  # fmt: skip
        """An empty index, of vectors of this model; None: events bring them. `touched_max`: for a copy on a device, how
        many changes its tables may note between two batches (TOUCHED_MAX), 0 for none. Raises AddressSpaceError where
        the system will not reserve what `limits` ask for."""
        self.schema, self.dim, self.gate_dim, self.precision = schema, dim, gate_dim, precision
        self.model = model
        self.limits = limits._replace(ads=-(-limits.ads // ads_.SEGMENT_SLOTS) * ads_.SEGMENT_SLOTS)
        self.positions: dict[int, int] = {}  # partition -> next offset
        self.now_us = 0
        self.terms, self.fields = TargetingTerms(schema, limits.terms), FieldTerms(schema, limits.terms)
        self.packer = Packer(self.terms, self.fields, dim, gate_dim, precision)
        self.targetings = targetings_.targetings(
            limits.targetings, limits.terms, self.terms.domain, ROWS_MAX, WORDS_MAX, touched_max
        )
        self.ads = ads_.ads(
            self.limits.ads, limits.targetings, limits.terms, WORDS_MAX, dim, gate_dim, precision, touched_max
        )
        self.copy: Copy | None = None  # on a device
        self.expired = expired_.expired(limits.expired)
        self.parts = footprint.Parts(
            self.ads, self.targetings, self.expired, self.terms.vocabulary, self.fields.vocabulary
        )
        self._evictions_said: tuple[int, float] = 0, float("-inf")  # how many, when
        self._limit_ms = expired_versions_s * 1000
        self._scratch = match_.scratch(
            self.limits.ads, limits.targetings, limits.terms, len(schema.attribute_list) + 1
        )
        self._marks = reserve(self.limits.ads // 64, np.uint64, forked=False)
        self.applied = reserve(expired_.PARTITIONS_MAX, np.int64)  # [partition] next offset
        self._thread: int | None = None

    def _assert_owner(self) -> None:
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        assert self._thread == here, "the index has one writer"

    def release_thread(self) -> None:
        """Lets another thread take the index over."""
        self._thread = None

    # -- write

    def apply(self, batch: Batch, now_us: int) -> list[Outcome]:
        """Applies the events in order, each whole or not at all, and moves the positions on. -> an outcome for each"""
        self._assert_owner()
        self.advance_clock(now_us)
        outcomes: list[Outcome] = []
        while len(outcomes) < len(batch.events):
            outcomes += self._apply_some(batch.events[len(outcomes) :])
        for partition, position in batch.positions.items():
            assert position >= self.positions.get(partition, 0), (partition, position)
            self.positions[partition] = position
            self.applied[partition] = max(position, self.applied[partition])
        self._say_evictions()
        return outcomes

    def _say_evictions(self) -> None:
        said, at = self._evictions_said
        evicted, now = int(self.expired.evicted[0]), monotonic()
        if evicted != said and now - at >= EVICTION_LOG_S:
            self._evictions_said = evicted, now
            _LOG.warning(
                "%d versions of expired ads are remembered, as many as may be: the oldest %d were forgotten early, so "
                "that a late create may bring such an ad back", int(self.expired.state[expired_.HELD]), evicted - said,
            )  # fmt: skip

    def _apply_some(self, events: Sequence[AdEvent]) -> list[Outcome]:
        """Applies events as far as there is room for their terms, and gives back terms then, which may make more; at
        least one event, which is refused if there is no room even without the cached targetings."""
        packed = self.packer.pack(events)
        if not len(packed.events):
            self.packer.forget()
            self._give_back()
            packed = self.packer.pack(events)
        full = not len(packed.events)
        if full:
            packed = self.packer.pack([msgspec.structs.replace(events[0], kind=EventKind.BAD, patch=None)])
        codes = np.zeros(len(packed.events), np.int64)
        self._apply_packed(packed, codes)
        self._give_back()
        if self.copy is not None:
            self.copy.sync()
        outcomes = [_OUTCOMES[code] for code in codes.tolist()]
        return [Outcome.INDEX_FULL if full and outcome is Outcome.BAD else outcome for outcome in outcomes]

    def take_vectors(
        self, dim: int, gate_dim: int, embedding: NDArray[Any], embedding_scale: NDArray[np.float32],
        gate: NDArray[Any], gate_scale: NDArray[np.float32], model: ModelName,
    ) -> None:  # fmt: skip
        """From now on the ads' vectors are these columns, at the capacity of the index, of another model."""
        self._assert_owner()
        self.dim, self.gate_dim, self.model = dim, gate_dim, model
        self.packer.dim, self.packer.gate_dim = dim, gate_dim
        self.ads = self.ads._replace(
            embedding=embedding, embedding_scale=embedding_scale, gate=gate, gate_scale=gate_scale
        )
        self.parts = self.parts._replace(ads=self.ads)
        if self.copy is not None:
            self.copy = self.copy.renewed(self.ads, dim, gate_dim)

    def _room_bytes(self) -> NDArray[np.int64]:
        """[1] What new ads may take."""
        limit = self.limits.held_bytes
        return np.array([limit - footprint.held(self.parts) if limit else UNLIMITED_BYTES])

    def _apply_packed(self, packed: PackedEvents, codes: NDArray[np.int64]) -> None:
        """Where an event finds no room, the copy is asked for more; what finds none then is refused."""
        events, done, room_bytes = packed.events, 0, self._room_bytes()
        partitions = max(int(events["partition"].max()), *self.positions, 0) + 1
        refused = 0 if self.copy is not None else len(events)
        while done < len(events):
            done = apply_.apply_events(
                self.ads, self.targetings, self.expired, events, packed.words, packed.vectors,
                self.applied[:partitions], room_bytes, footprint.slot_bytes(self.ads), self.now_us, self._limit_ms,
                codes, done, refused,
            )  # fmt: skip
            if done < len(events):
                assert self.copy is not None
                needed = apply_.room_needed(self.ads, self.targetings, events[done], packed.words)
                if not self.copy.grow(*needed):
                    refused = done + 1

    def _give_back(self) -> None:
        """Terms that nothing refers to leave the vocabularies."""
        t, a = self.targetings, self.ads
        zeroed = t.zeroed[: t.state[targetings_.ZEROED]]
        t.is_zeroed[zeroed] = False
        t.state[targetings_.ZEROED] = 0
        for term in zeroed.tolist() + self.terms.vocabulary.fresh + self.packer.loose:
            if t.term_references[term] == 0:
                self.terms.vocabulary.release(term)
        zeroed = a.field_zeroed[: a.state[ads_.FIELDS_ZEROED]]
        a.field_is_zeroed[zeroed] = False
        a.state[ads_.FIELDS_ZEROED] = 0
        for term in zeroed.tolist() + self.fields.vocabulary.fresh:
            if a.field_references[term] == 0:
                self.fields.vocabulary.release(term)
        self.terms.vocabulary.fresh.clear()
        self.fields.vocabulary.fresh.clear()
        self.packer.loose.clear()

    def advance_clock(self, now_us: int) -> None:
        """Turns ads on and off whose start or end has come. The clock may step back."""
        self._assert_owner()
        again = now_us < self.now_us
        self.now_us = now_us
        ads_.turn(self.ads, now_us, again)

    # -- read

    @property
    def count(self) -> int:
        """Ads, paused ones too."""
        return int(self.ads.state[ads_.ADS])

    def queries(self, requests: Sequence[tuple[RequestAttributes, int | None]]) -> Queries:
        """Requests (attributes, own now or None) as the kernels take them."""
        self._assert_owner()
        packed = [
            Packed(self.terms, self.schema, attributes, self.now_us if now is None else now)
            for attributes, now in requests
        ]
        return queries(packed, [now for _, now in requests])

    def select(self, requests: Sequence[tuple[RequestAttributes, int | None]]) -> Selection:
        """The ads eligible for each (attributes, own now or None); at most match.BATCH_MAX requests."""
        assert 0 < len(requests) <= match_.BATCH_MAX, len(requests)
        counts = match_.match(self.ads, self.targetings, self.queries(requests), self._scratch)
        first = np.zeros(len(requests) + 1, np.int64)
        np.cumsum(counts.sum(axis=1), out=first[1:])
        slots = np.empty(first[-1], np.uint32)
        match_.gather(self.targetings, self._scratch, counts, slots)
        return Selection(slots, first)

    def keep(
        self, slots: NDArray[np.uint32], filter: Expression | None, exclude_ads: Sequence[str], now_us: int | None
    ) -> NDArray[np.bool_] | None:
        """Which of the slots pass a filter and are not excluded; None: all do."""
        if filter is None and not exclude_ads:
            return None
        kept = np.ones(len(slots), np.bool_)
        if exclude_ads:
            keys, words, at = _ids(exclude_ads)
            filter_.exclude(self.ads, slots, keys, words, at, self._marks, kept)
        if filter is not None:
            now_us = self.now_us if now_us is None else now_us
            filter_.filter_ads(self.ads, slots, self.fields.filter(filter), now_us, kept)
        return kept

    @property
    def score_columns(self) -> ScoreColumns:
        a = self.ads
        return ScoreColumns(a.embedding, a.embedding_scale, a.gate, a.gate_scale)

    def bids(self, slots: NDArray[np.uint32]) -> NDArray[np.float64]:
        bids: NDArray[np.float64] = self.ads.bid[slots]
        return bids

    def ties(self, slots: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """What orders exact ties: the hash of the ad's id."""
        keys: NDArray[np.uint64] = self.ads.table.hash[slots]
        return keys

    def ad_id(self, slot: int) -> str:
        return text_at(self.ads.texts.words, int(self.ads.id_at[slot])).decode()

    def advertiser(self, slot: int) -> str | None:
        return self.fields.text(int(self.ads.advertiser[slot]))

    def campaign(self, slot: int) -> str | None:
        return self.fields.text(int(self.ads.campaign[slot]))

    def slot_of(self, ad_id: str) -> int | None:
        """The slot of an ad, None where there is none with this id."""
        found = self.slots_of([ad_id])
        return int(found[0]) if len(found) else None

    def slots_of(self, ad_ids: Sequence[str]) -> NDArray[np.uint32]:
        """The slots of those of the ads that there are."""
        self._assert_owner()
        keys, words, at = _ids(ad_ids)
        out = np.empty(len(at), np.int64)
        filter_.find_ads(self.ads, keys, words, at, out)
        found: NDArray[np.uint32] = out[out >= 0].astype(np.uint32)
        return found


def _ids(ad_ids: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.int64]]:
    """Hashes, texts and their offsets."""
    out = bytearray()
    at = np.array([put_text(ad_id.encode(), out) for ad_id in ad_ids], np.int64)
    return np.array([tie_key(ad_id) for ad_id in ad_ids], np.uint64), np.frombuffer(bytes(out), np.uint32), at
