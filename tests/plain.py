"""The whole contract as slow plain Python: events applied to a dict, every ad asked one by one, float64 scores.

Property tests hold the real index against it. Scores may be given from outside (`scores`), so that selection can be
compared exactly where the last bits of a score differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from gpu_index.evaluate import evaluate
from gpu_index.events import AdEvent, AdPatch, EventKind, Outcome, ParsedTargeting
from gpu_index.identity import tie_key
from gpu_index.schema import ADVERTISER_ID, AGE_S, BID, CAMPAIGN_ID, Schema
from gpu_index.targeting import Expression
from gpu_index.values import Values, request_values
from gpu_index.zones import Schedule, hour_of_week
from kernels.precision import Precision, dequantise, quantise, row_width, storage_dtype
from scoring.reference import score_reference
from scoring.request import Answer, Pathway, Request, Result
from scoring.user import User

Scores: TypeAlias = Callable[[User | None, "PlainAd"], float]


class PlainAd(msgspec.Struct):
    """An ad as the events so far have made it."""

    ad_id: str
    version: int | None  # the newest seen for this id
    created_ms: int
    advertiser_id: str | None
    campaign_id: str | None
    bid: float
    paused: bool
    start_us: int
    end_us: int
    schedule: Schedule | None
    targeting: ParsedTargeting | None
    features: bytes
    embedding: NDArray[np.float32] | None
    gate: NDArray[np.float32] | None
    fields: Values


class Remembered(msgspec.Struct):
    """The version of an expired ad, and what its forgetting is measured by."""

    version: int
    partition: int
    clock_ms: int


class PlainIndex:
    def __init__(
        self,
        schema: Schema,
        *,
        dim: int = 64,
        gate_dim: int = 16,
        precision: Precision = Precision.FLOAT32,
        expired_versions_s: int = 86_400,
        expired_max: int | None = None,
    ) -> None:
        """`expired_max`: entries for versions of expired ads; None: any number."""
        self.schema = schema
        self.dim = dim
        self.gate_dim = gate_dim
        self.precision = precision
        self.expired_versions_ms = expired_versions_s * 1000
        self.ads: dict[str, PlainAd] = {}
        self.expired: dict[str, Remembered] = {}
        self.expired_max = expired_max
        self.entries: list[tuple[int, int, str, Remembered]] = []  # clock, partition, ad; while there is a maximum
        self.evicted = 0
        self.clock_ms: dict[int, int] = {}  # partition -> newest record timestamp so far
        self.positions: dict[int, int] = {}  # partition -> next offset

    # The write path: contract section 3.

    def apply(self, event: AdEvent) -> Outcome:
        if event.offset < self.positions.get(event.partition, 0):
            return Outcome.DUPLICATE
        self.positions[event.partition] = event.offset + 1
        self.clock_ms[event.partition] = max(self.clock_ms.get(event.partition, 0), event.timestamp_ms)
        self._forget_old(event.partition)
        if event.ad_id is None:
            assert event.kind is EventKind.BAD
            return Outcome.BAD
        newest = self.newest_version(event.ad_id)
        if event.version is not None and newest is not None and event.version <= newest:
            return Outcome.STALE
        match event.kind:
            case EventKind.BAD:
                return Outcome.BAD
            case EventKind.EXPIRE:
                return self._expire(event, event.ad_id, newest)
            case EventKind.CREATE:
                self.ads[event.ad_id] = _created(event)
            case EventKind.MODIFY:
                if event.ad_id not in self.ads:
                    return Outcome.UNKNOWN_AD
                assert event.patch is not None
                _patch(self.ads[event.ad_id], event.patch)
        self.expired.pop(event.ad_id, None)
        self.ads[event.ad_id].version = newest if event.version is None else event.version
        return Outcome.APPLIED

    def newest_version(self, ad_id: str) -> int | None:
        """The newest version seen for an id that lives, or that expired not too long ago."""
        if ad_id in self.ads:
            return self.ads[ad_id].version
        held = self.expired.get(ad_id)
        if held is None or self.clock_ms[held.partition] - held.clock_ms > self.expired_versions_ms:
            return None
        return held.version

    def _expire(self, event: AdEvent, ad_id: str, newest: int | None) -> Outcome:
        ad = self.ads.pop(ad_id, None)
        version = event.version
        if version is None and ad is not None:
            version = newest
        if version is not None:  # of an unknown ad without a version, what was remembered stays as it is
            self._remember(ad_id, Remembered(version, event.partition, self.clock_ms[event.partition]))
        return Outcome.EXPIRE_UNKNOWN if ad is None else Outcome.APPLIED

    def _remember(self, ad_id: str, memory: Remembered) -> None:
        """Where there is a maximum, the newest by clock, then partition, then order stay. An entry counts until it is
        the first of its partition and over, also where its ad lives again."""
        if self.expired_max is None:
            self.expired[ad_id] = memory
            return
        entry = memory.clock_ms, memory.partition, ad_id, memory
        while len(self.entries) >= self.expired_max:
            oldest = min(self.entries, key=lambda entry: entry[:2], default=entry)
            if entry[:2] < oldest[:2] or oldest is entry:
                self.evicted += 1
                return
            self.entries.remove(oldest)
            self.evicted += self._drop(oldest)
        self.expired[ad_id] = memory
        self.entries.append(entry)

    def _forget_old(self, partition: int) -> None:
        for entry in [entry for entry in self.entries if entry[1] == partition]:
            held = self.expired.get(entry[2]) is entry[3]
            if held and self.clock_ms[partition] - entry[0] <= self.expired_versions_ms:
                return
            self.entries.remove(entry)
            self._drop(entry)

    def _drop(self, entry: tuple[int, int, str, Remembered]) -> bool:
        """Forgets the version of an entry, if it still is its ad's."""
        if self.expired.get(entry[2]) is not entry[3]:
            return False
        del self.expired[entry[2]]
        return True

    # The read path: contract sections 4 and 5.

    def is_eligible(self, ad: PlainAd, values: Values, now_us: int) -> bool:
        """Whether an ad matches a request's values at a time."""
        if ad.paused or not ad.start_us <= now_us < ad.end_us:
            return False
        if ad.schedule is not None and hour_of_week(ad.schedule.timezone, now_us) not in ad.schedule.hours:
            return False
        return ad.targeting is None or self.matches(ad.targeting, values)

    def matches(self, targeting: ParsedTargeting, values: Values) -> bool:
        """Whether a targeting is true of a request's values; apart, so that ads that share it may share the answer."""
        return evaluate(targeting.expression, values)

    def eligible(self, request: Request, now_us: int) -> dict[str, PlainAd]:
        """The ads that match a request, before filters, exclusions and caps."""
        now_us = now_us if request.now_us is None else request.now_us
        values = request_values(self.schema, request.attributes, now_us)
        return {ad_id: ad for ad_id, ad in self.ads.items() if self.is_eligible(ad, values, now_us)}

    def retrieve(self, request: Request, now_us: int, scores: Scores | None = None) -> Answer:
        """The answer at `now_us`, which a request's own `now` replaces. `scores`: in place of `score`."""
        score = self.score if scores is None else scores
        now_us = now_us if request.now_us is None else request.now_us
        eligible = self.eligible(request, now_us)
        candidates = [ad for ad_id, ad in eligible.items() if ad_id not in request.exclude_ads]
        results: list[Result] = []
        for pathway in request.pathways:
            filters = [each for each in (request.filter, pathway.filter) if each is not None]
            given = {result.ad_id for result in results}
            asked = [ad for ad in candidates if ad.ad_id not in given and _passes(filters, field_values(ad, now_us))]
            ranked = [(score(pathway.user, ad), ad) for ad in asked]
            ranked.sort(key=lambda scored: _rank(scored[0], scored[1], pathway))
            results += _take(ranked, pathway, request, results)
        offsets = {partition: position - 1 for partition, position in self.positions.items()}
        return Answer(results, len(eligible), len(self.ads), offsets, {})

    def score(self, user: User | None, ad: PlainAd) -> float:
        """Section 4 for one ad, with its vectors as the precision stores them."""
        if user is None:
            return 0.5
        embedding = self._stored(ad.embedding, self.dim)
        gate = self._stored(ad.gate, self.gate_dim)
        return float(score_reference(user, embedding[None], gate[None])[0])

    def _stored(self, vector: NDArray[np.float32] | None, dim: int) -> NDArray[np.float64]:
        if vector is None:
            return np.zeros(dim)
        row = np.zeros(row_width(dim, self.precision), storage_dtype(self.precision))
        return dequantise(row, quantise(vector, self.precision, row), dim)


def _created(event: AdEvent) -> PlainAd:
    """The ad of a create, whose patch sets every field."""
    patch = event.patch
    assert patch is not None
    assert event.ad_id is not None
    assert all(getattr(patch, name) is not UNSET for name in PATCHED_FIELDS), patch
    fields = {name: getattr(patch, name) for name in PATCHED_FIELDS}
    return PlainAd(ad_id=event.ad_id, version=None, created_ms=event.timestamp_ms, **fields)


def _patch(ad: PlainAd, patch: AdPatch) -> None:
    """A shallow patch: each field that is present replaces the ad's as a whole."""
    if ad.targeting is not None and (patch.clears_targeting_meta if ad.targeting.from_meta else patch.clears_targeting):
        ad.targeting = None
    for name in PATCHED_FIELDS:
        value = getattr(patch, name)
        if value is not UNSET:
            setattr(ad, name, value)


PATCHED_FIELDS = tuple(set(AdPatch.__struct_fields__) - {"clears_targeting", "clears_targeting_meta"})


def field_values(ad: PlainAd, now_us: int) -> Values:
    """What a filter may ask of an ad: its own fields and those that every ad has."""
    values: Values = dict(ad.fields)
    if ad.advertiser_id is not None:
        values[ADVERTISER_ID] = (ad.advertiser_id,)
    if ad.campaign_id is not None:
        values[CAMPAIGN_ID] = (ad.campaign_id,)
    values[BID] = (ad.bid,)
    values[AGE_S] = ((now_us - ad.created_ms * 1000) / 1_000_000,)
    return values


def _passes(filters: Iterable[Expression], values: Values) -> bool:
    return all(evaluate(expression, values) for expression in filters)


def _rank(score: float, ad: PlainAd, pathway: Pathway) -> tuple[float, int, str]:
    by = score * ad.bid if pathway.rank_by == "value" else score
    return -by, tie_key(ad.ad_id), ad.ad_id


def _take(
    ranked: list[tuple[float, PlainAd]], pathway: Pathway, request: Request, earlier: list[Result]
) -> list[Result]:
    """The first k in rank order, passing over ads whose group is full; earlier pathways count."""
    taken: list[Result] = []
    for score, ad in ranked:
        if len(taken) == pathway.k:
            break
        if any(_is_full(field, limit, ad, earlier + taken) for field, limit in request.max_per.items()):
            continue
        value = score * ad.bid
        taken.append(Result(ad.ad_id, ad.advertiser_id, ad.campaign_id, score, value, pathway.name))
    return taken


def _is_full(field: str, limit: int, ad: PlainAd, results: list[Result]) -> bool:
    group = getattr(ad, field)
    return group is not None and sum(getattr(result, field) == group for result in results) >= limit
