"""The index and the plain index side by side: random events to both, random requests of both, one outcome, one answer.

Everything is drawn from the Random that is given, hypothesis' own or a seeded one. Ids, values and versions come from
small ranges, so that they meet.
"""

from __future__ import annotations

import random

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpu_index.events import (
    ALWAYS_FROM_US,
    ALWAYS_UNTIL_US,
    AdEvent,
    AdPatch,
    Batch,
    EventKind,
    Fault,
    Outcome,
    ParsedTargeting,
)
from gpu_index.identity import tie_key
from gpu_index.index import Index, Limits
from gpu_index.inspection import targeting_of
from gpu_index.json_input import INTEGER_MAX, INTEGER_MIN
from gpu_index.targeting import All, Between, In, Not, parse_expression
from gpu_index.texts import put_text, text_at
from gpu_index.values import parse_attributes, parse_fields
from gpu_index.zones import Schedule
from kernels import ads as ads_
from kernels import expired as expired_
from kernels.precision import Precision, quantise, row_width, storage_dtype
from kernels.score import score
from scoring.request import Answer, Pathway, Request
from scoring.retrieve import retrieve
from scoring.user import User, pack
from tests import random_cases as cases
from tests.consistent import assert_consistent, slots_in_use
from tests.plain import PlainAd, PlainIndex

START_US = 1_796_000_000_000_000
DIM, GATE_DIM = 8, 4
EXPIRED_VERSIONS_S = 600
LIMITS = Limits(ads=2**15, targetings=2**15, terms=2**15, expired=2**12)
OUTCOMES_REFUSED = {Outcome.STALE, Outcome.DUPLICATE, Outcome.BAD, Outcome.UNKNOWN_AD, Outcome.INDEX_FULL}


def new_index(
    *, limits: Limits = LIMITS, precision: Precision = Precision.INT8, expired_versions_s: int = EXPIRED_VERSIONS_S
) -> Index:
    return Index(
        cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=precision, limits=limits,
        expired_versions_s=expired_versions_s,
    )  # fmt: skip


def parsed(raw: object, *, from_meta: bool = False) -> ParsedTargeting:
    """A targeting as ingest gives it. The same source read as Meta's is another expression, as it is in earnest."""
    expression = parse_expression(raw, cases.SCHEMA.attributes)
    return ParsedTargeting(msgspec.json.encode(raw), Not(expression) if from_meta else expression, from_meta)


def whole_patch(**fields: object) -> AdPatch:
    """The patch of a create that says nothing but `fields`."""
    defaults: dict[str, object] = {
        "advertiser_id": None, "campaign_id": None, "bid": 1.0, "paused": False, "start_us": ALWAYS_FROM_US,
        "end_us": ALWAYS_UNTIL_US, "schedule": None, "targeting": None, "features": b"", "embedding": None,
        "gate": None, "fields": {},
    }  # fmt: skip
    return AdPatch(**defaults | fields)  # type: ignore[arg-type]


class Twins:
    def __init__(
        self, r: random.Random, *, ids: int, partitions: int = 3, limits: Limits = LIMITS,
        precision: Precision = Precision.INT8, targetings: int = 40, depth: int = 5,
    ) -> None:  # fmt: skip
        self.index = new_index(limits=limits, precision=precision)
        self.plain = PlainIndex(
            cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=precision, expired_versions_s=EXPIRED_VERSIONS_S,
            expired_max=limits.expired,
        )  # fmt: skip
        self.now_us = START_US
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.ids = [f"ad {i}" if i % 7 else f"é{i}" * 8 for i in range(ids)]
        self.partitions = partitions
        self.raws = [cases.targeting(r, depth) for _ in range(targetings)]  # what ads share
        self.depth = depth
        self.offset = [0] * partitions
        self.clock_ms = [START_US // 1000] * partitions
        self.versions: dict[str, int] = {}
        self.users = [user(r) for _ in range(3)]
        self._scores: dict[tuple[int, str], float] | None = None

    # Events.

    def send(self, events: list[AdEvent]) -> list[Outcome]:
        """One batch to both; the same outcomes."""
        positions = {partition: self.offset[partition] for partition in {event.partition for event in events}}
        outcomes = self.index.apply(Batch(events, positions, lambda *_: None), self.now_us)
        want = [
            Outcome.INDEX_FULL if outcome is Outcome.INDEX_FULL and self._refused(event) else self.plain.apply(event)
            for event, outcome in zip(events, outcomes, strict=True)
        ]
        assert outcomes == want, [each for each in zip(events, outcomes, want, strict=True) if each[1] != each[2]]
        for outcome in outcomes:
            self.outcomes[outcome] += 1
        self._scores = None
        return outcomes

    def _refused(self, event: AdEvent) -> bool:
        """To the plain index, which has no limits, what found no room is a bad event."""
        bad = msgspec.structs.replace(event, kind=EventKind.BAD, patch=None)
        return self.plain.apply(bad) is Outcome.BAD

    def event(self, r: random.Random, kind: EventKind | None = None, ad_id: str | None = None) -> AdEvent:
        """Any event: mostly new, now and then an offset again, an old version, another partition than the ad's."""
        if kind is None:
            kind = r.choices(list(EventKind), [40, 30, 18, 4])[0]
        ad_id = r.choice(self.ids) if ad_id is None else ad_id
        partition = tie_key(ad_id) % self.partitions
        if r.random() < 0.02:  # the topic was given more partitions
            partition = r.randrange(self.partitions)
        offset = self.offset[partition]
        if r.random() < 0.03 and offset:
            offset -= 1 + r.randrange(min(offset, 5))
        else:
            offset += r.choice([0, 0, 0, 0, 0, 0, 3])  # markers lie between
            self.offset[partition] = offset + 1
        leap = r.random() < 0.02
        self.clock_ms[partition] += EXPIRED_VERSIONS_S * 500 if leap else r.choice([0, 0, 10, 1000, 20_000])
        timestamp_ms = self.clock_ms[partition] - (r.randrange(5000) if r.random() < 0.1 else 0)
        event = AdEvent(kind, ad_id, self._version(r, ad_id), partition, offset, timestamp_ms)
        if kind is EventKind.BAD:
            event.fault = Fault("bad", "")
            event.ad_id = r.choice([ad_id, None])
        elif kind is EventKind.CREATE:
            event.patch = self.create_patch(r)
        elif kind is EventKind.MODIFY:
            event.patch = self.modify_patch(r)
        return event

    def _version(self, r: random.Random, ad_id: str) -> int | None:
        newest = self.versions.get(ad_id, 0)
        version = r.choice([None, None, newest, newest + 1, newest + 1, newest + 1, newest + 7, max(newest - 1, 0)])
        if version is not None and version > newest:
            self.versions[ad_id] = version
        return version

    def create_patch(self, r: random.Random) -> AdPatch:
        start, end = self.times(r)
        return AdPatch(
            advertiser_id=r.choice([None, "0", "1", "2"]), campaign_id=r.choice([None, "4", "5", "ü"]),
            bid=r.choice([1.0, 2.0, 0.1]), paused=r.random() < 0.15, start_us=start, end_us=end,
            schedule=self.schedule(r), targeting=self.targeting(r), embedding=vector(r, DIM), gate=vector(r, GATE_DIM),
            features=r.choice([b"", b'{"title":"t"}', b"{}" * 40]),
            fields=parse_fields(cases.SCHEMA, cases.fields(r)),
        )  # fmt: skip

    def modify_patch(self, r: random.Random) -> AdPatch:
        """Some of the fields of a create, and the nulls that clear one kind of targeting."""
        whole, patch = self.create_patch(r), AdPatch()
        for name in r.sample(AdPatch.__struct_fields__, r.randrange(1, 6)):
            if name.startswith("clears"):
                setattr(patch, name, True)
            else:
                setattr(patch, name, getattr(whole, name))
        if r.random() < 0.2:
            patch.clears_targeting, patch.clears_targeting_meta = r.random() < 0.5, r.random() < 0.5
        return patch

    def targeting(self, r: random.Random) -> ParsedTargeting | None:
        if r.random() < 0.1:
            return None
        raw = r.choice(self.raws) if r.random() < 0.6 else cases.targeting(r, self.depth)
        return parsed(raw, from_meta=r.random() < 0.2)

    def schedule(self, r: random.Random) -> Schedule | None:
        if r.random() < 0.8:
            return None
        return Schedule(r.choice(cases.ZONES), tuple(sorted(r.sample(range(168), r.choice([0, 1, 60, 168])))))

    def times(self, r: random.Random) -> tuple[int, int]:
        """Mostly open; else near the clock, so that it passes them."""
        if r.random() < 0.7:
            return ALWAYS_FROM_US, ALWAYS_UNTIL_US
        near = lambda: self.now_us + r.randrange(-40, 40) * 1_000_000  # noqa: E731
        return r.choice([ALWAYS_FROM_US, near()]), r.choice([ALWAYS_UNTIL_US, near()])

    # Requests.

    def advance(self, by_us: int) -> None:
        """The service's clock moves, or steps back."""
        self.now_us += by_us
        self.index.advance_clock(self.now_us)

    def request(self, r: random.Random) -> Request:
        pathways = tuple(
            Pathway(
                str(n), r.choice([1, 7, 200]), r.choice(["value", "score"]), r.choice([None, *self.users]),
                parse_expression(cases.filter_(r), cases.SCHEMA.fields, "field") if r.random() < 0.4 else None,
            )
            for n in range(r.choice([1, 1, 2, 3]))
        )  # fmt: skip
        caps = {field: r.randrange(1, 4) for field in ("advertiser_id", "campaign_id") if r.random() < 0.3}
        excluded = [*r.sample(self.ids, min(len(self.ids), r.choice([0, 0, 5, 50]))), "no such ad"]
        own = self.now_us + r.choice([-(10**14), -20_000_000, 20_000_000, 10**13])
        return Request(
            parse_attributes(cases.SCHEMA, cases.attributes(r), r.choice([None, *cases.ZONES])), pathways,
            max_per=caps, exclude_ads=tuple(r.choice([[], excluded])),
            filter=parse_expression(cases.filter_(r), cases.SCHEMA.fields, "field") if r.random() < 0.3 else None,
            now_us=own if r.random() < 0.3 else None,
        )  # fmt: skip

    def ask(self, requests: list[Request]) -> list[Answer]:
        """The same answers to the last bit, with the scores of the index's own kernel; requests in one batch."""
        answers = retrieve(self.index, requests)
        for request, answer in zip(requests, answers, strict=True):
            want = self.plain.retrieve(request, self.now_us, self._score)
            assert answer.eligible == want.eligible
            assert answer.results == want.results
            assert (answer.indexed, answer.offsets) == (want.indexed, want.offsets)
        return answers

    def _score(self, user: User | None, ad: PlainAd) -> float:
        if user is None:
            return 0.5
        if self._scores is None:
            self._scores = {}
            slots = slots_in_use(self.index)
            ids = [self.index.ad_id(slot) for slot in slots.tolist()]
            for each in self.users:
                out = np.empty(len(slots))
                start = np.array([0, len(slots)], np.int64)
                score(self.index.score_columns, slots.astype(np.uint32), start, pack([each], self.index.precision), out)
                self._scores |= {(id(each), ad_id): value for ad_id, value in zip(ids, out.tolist(), strict=True)}
        return self._scores[id(user), ad.ad_id]

    # State.

    def check(self) -> None:
        """The index is whole, holds the ads of the plain one, and remembers the same versions."""
        assert_consistent(self.index)
        index, plain = self.index, self.plain
        assert index.positions == plain.positions
        assert {index.ad_id(slot) for slot in slots_in_use(index).tolist()} == plain.ads.keys()
        for ad in plain.ads.values():
            self._check_ad(ad)
        for ad in list(plain.ads.values())[:20]:
            for each in self.users:  # held as the precision has it, in int16 beside int8 ads
                assert abs(self._score(each, ad) - plain.score(each, ad)) < 1e-4
        for ad_id in self.ids:
            if ad_id not in plain.ads:
                assert recalled(index, ad_id) == plain.newest_version(ad_id)

    def _check_ad(self, ad: PlainAd) -> None:
        index, a, slot = self.index, self.index.ads, self.index.slot_of(ad.ad_id)
        assert slot is not None
        version = None if a.version[slot] < 0 else int(a.version[slot])
        got = version, int(a.created_ms[slot]), index.advertiser(slot), index.campaign(slot), float(a.bid[slot])
        assert got == (ad.version, ad.created_ms, ad.advertiser_id, ad.campaign_id, ad.bid)
        flags = int(a.flags[slot])
        from_meta = ad.targeting is not None and ad.targeting.from_meta
        assert (bool(flags & ads_.PAUSED), bool(flags & ads_.FROM_META)) == (ad.paused, from_meta)
        assert (int(a.start_us[slot]), int(a.end_us[slot])) == (ad.start_us, ad.end_us)
        features_at, fields_at = int(a.features_at[slot]), int(a.fields_at[slot])
        assert (text_at(a.texts.words, features_at) if features_at else b"") == ad.features
        assert (index.fields.values(a.fields.words, fields_at) if fields_at else {}) == ad.fields
        expression, schedule = targeting_of(index, slot)
        assert schedule == ad.schedule
        assert sorted_lists(expression) == sorted_lists(All(()) if ad.targeting is None else ad.targeting.expression)
        for vectors, scales, wanted in (
            (a.embedding, a.embedding_scale, ad.embedding), (a.gate, a.gate_scale, ad.gate),
        ):  # fmt: skip
            row, scale = np.zeros(vectors.shape[1], vectors.dtype), 1.0
            if wanted is not None:
                assert vectors.shape[1] == row_width(len(wanted), index.precision)
                assert vectors.dtype == storage_dtype(index.precision)
                scale = quantise(wanted, index.precision, row)
            assert np.array_equal(vectors[slot], row)
            assert scales[slot] == scale


def sorted_lists(expression: object) -> object:
    """An expression with its lists as sets and its open bounds as None, to be compared."""
    if isinstance(expression, In):
        return "in", expression.attribute, frozenset(expression.values)
    if isinstance(expression, Between):
        low = None if expression.low == INTEGER_MIN else expression.low
        return "between", expression.attribute, low, None if expression.high == INTEGER_MAX else expression.high
    if isinstance(expression, Not):
        return "not", sorted_lists(expression.child)
    children = getattr(expression, "children", None)
    return expression if children is None else (type(expression), tuple(map(sorted_lists, children)))


def recalled(index: Index, ad_id: str) -> int | None:
    """The version that is remembered of an expired ad."""
    out = bytearray()
    at = put_text(ad_id.encode(), out)
    words, key = np.frombuffer(bytes(out), np.uint32), np.uint64(tie_key(ad_id))
    slot = expired_.recall(index.expired, key, words, at, index._limit_ms)
    return None if slot == expired_.NO_SLOT else int(index.expired.version[slot])


def vector(r: random.Random, dim: int) -> NDArray[np.float32] | None:
    """Often none, and from few values, so that scores tie."""
    return None if r.random() < 0.3 else np.array([r.choice([-1.0, 0.0, 0.5, 1.0]) for _ in range(dim)], np.float32)


def user(r: random.Random) -> User:
    count = r.choice([1, 3, 4])
    experts = np.array([[r.uniform(-1, 1) for _ in range(DIM)] for _ in range(count)], np.float32)
    gates = np.array([[r.uniform(-1, 1) for _ in range(GATE_DIM)] for _ in range(count)], np.float32)
    bias = np.array([r.uniform(-1, 1) for _ in range(count)], np.float32)
    temperature, shift = r.choice([1.0, 0.7]), r.choice([0.0, -0.4])
    return User(experts, gates, bias, temperature, shift, route=r.choice([1, count]))
