"""The plain index against the sentences of the contract, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpu_index.events import (
    ALWAYS_FROM_US,
    ALWAYS_UNTIL_US,
    AdEvent,
    AdPatch,
    EventKind,
    Fault,
    Outcome,
    ParsedTargeting,
)
from gpu_index.identity import tie_key
from gpu_index.targeting import parse_expression
from gpu_index.values import parse_attributes, parse_fields
from gpu_index.zones import Schedule, parse_time
from kernels.precision import Precision
from scoring.request import Pathway, Request
from scoring.user import parse_user
from tests.plain import PlainIndex
from tests.strategies import SCHEMA

NOW_US = parse_time("2026-11-30T12:00:00Z", "now")
NOW_MS = NOW_US // 1000
US_ONLY: dict[str, Any] = {"attr": "country", "in": ["US"]}


class Stream:
    """A plain index and the events sent to it, each with the next offset of its partition."""

    def __init__(self, **options: Any) -> None:
        self.index = PlainIndex(SCHEMA, dim=2, gate_dim=1, **options)
        self.offsets: dict[int, int] = {}

    def send(
        self,
        kind: EventKind,
        ad_id: str | None,
        version: int | None = None,
        patch: AdPatch | None = None,
        *,
        partition: int = 0,
        timestamp_ms: int = NOW_MS,
    ) -> Outcome:
        offset = self.offsets.get(partition, 0)
        self.offsets[partition] = offset + 1
        fault = Fault("bad_json", "x") if kind is EventKind.BAD else None
        return self.index.apply(AdEvent(kind, ad_id, version, partition, offset, timestamp_ms, None, patch, fault))

    def create(self, ad_id: str, version: int | None = None, timestamp_ms: int = NOW_MS, **fields: Any) -> Outcome:
        return self.send(EventKind.CREATE, ad_id, version, created(**fields), timestamp_ms=timestamp_ms)

    def modify(self, ad_id: str, version: int | None = None, **fields: Any) -> Outcome:
        return self.send(EventKind.MODIFY, ad_id, version, AdPatch(**fields))

    def expire(self, ad_id: str, version: int | None = None, **where: Any) -> Outcome:
        return self.send(EventKind.EXPIRE, ad_id, version, **where)

    def ids(self, now_us: int = NOW_US, **options: Any) -> list[str]:
        return [result.ad_id for result in self.index.retrieve(request(**options), now_us).results]


def created(**fields: Any) -> AdPatch:
    whole: dict[str, Any] = {
        "advertiser_id": None,
        "campaign_id": None,
        "bid": 1.0,
        "paused": False,
        "start_us": ALWAYS_FROM_US,
        "end_us": ALWAYS_UNTIL_US,
        "schedule": None,
        "targeting": None,
        "features": b"",
        "embedding": None,
        "gate": None,
        "fields": {},
    }
    return AdPatch(**(whole | fields))


def targeting(raw: Any, *, from_meta: bool = False) -> ParsedTargeting:
    return ParsedTargeting(str(raw).encode(), parse_expression(raw, SCHEMA.attributes), from_meta)


def request(attributes: dict[str, Any] | None = None, timezone: str | None = None, **options: Any) -> Request:
    options.setdefault("pathways", (Pathway("main", 100),))
    return Request(parse_attributes(SCHEMA, attributes or {}, timezone), **options)


def filter_(raw: Any) -> Any:
    return parse_expression(raw, SCHEMA.fields, "field", "filter")


def test_versions_must_grow() -> None:
    stream = Stream()
    assert stream.create("a", 5) is Outcome.APPLIED
    assert stream.create("a", 5) is Outcome.STALE
    assert stream.modify("a", 4, bid=2.0) is Outcome.STALE
    assert stream.modify("a", bid=3.0) is Outcome.APPLIED  # without a version the order decides
    assert stream.modify("a", 5, bid=4.0) is Outcome.STALE  # and the remembered one stays
    assert stream.index.ads["a"].bid == 3.0
    assert stream.expire("a", 5) is Outcome.STALE
    assert stream.expire("a", 6) is Outcome.APPLIED
    assert stream.create("a", 6) is Outcome.STALE
    assert stream.create("a", 7) is Outcome.APPLIED


def test_an_expired_ads_version_outlives_events_without_one() -> None:
    stream = Stream()
    stream.create("a", 5)
    assert stream.expire("a") is Outcome.APPLIED
    assert stream.create("a", 5) is Outcome.STALE
    assert stream.create("a") is Outcome.APPLIED
    assert stream.create("a", 5) is Outcome.STALE
    assert stream.create("a", 6) is Outcome.APPLIED


def test_an_expire_of_an_unknown_id_remembers_its_version() -> None:
    stream = Stream()
    assert stream.expire("a", 5) is Outcome.EXPIRE_UNKNOWN
    assert stream.expire("a", 5) is Outcome.STALE
    assert stream.expire("a") is Outcome.EXPIRE_UNKNOWN
    assert stream.create("a", 5) is Outcome.STALE
    assert stream.expire("b") is Outcome.EXPIRE_UNKNOWN
    assert stream.create("b", 0) is Outcome.APPLIED


def test_versions_are_forgotten_by_the_clock_of_the_expires_partition() -> None:
    stream = Stream(expired_versions_s=10)
    stream.expire("a", 5, timestamp_ms=NOW_MS)
    stream.create("z", timestamp_ms=NOW_MS + 10_000)
    assert stream.create("a", 5, timestamp_ms=NOW_MS) is Outcome.STALE  # not more than 10 s past
    stream.expire("b", 1, partition=1, timestamp_ms=NOW_MS + 99_000)
    assert stream.create("a", 5, timestamp_ms=NOW_MS) is Outcome.STALE  # another partition's clock
    assert stream.create("a", 5, timestamp_ms=NOW_MS + 10_001) is Outcome.APPLIED  # its own record turns the clock


def test_a_live_ads_version_is_never_forgotten() -> None:
    stream = Stream(expired_versions_s=10)
    stream.create("a", 5)
    assert stream.create("a", 4, timestamp_ms=NOW_MS + 99_000_000) is Outcome.STALE


def test_bad_events_change_nothing_and_stale_comes_first() -> None:
    stream = Stream()
    stream.create("a", 5)
    assert stream.send(EventKind.BAD, "a", 9) is Outcome.BAD
    assert stream.send(EventKind.BAD, "a", 5) is Outcome.STALE
    assert stream.send(EventKind.BAD, None, 9) is Outcome.BAD
    assert stream.modify("a", 8, bid=2.0) is Outcome.APPLIED  # 9 is not remembered
    assert stream.modify("b", 9, bid=2.0) is Outcome.UNKNOWN_AD
    assert stream.create("b", 3) is Outcome.APPLIED
    stream.expire("b", 4)
    assert stream.modify("b", 4, bid=2.0) is Outcome.STALE
    assert stream.modify("b", 5, bid=2.0) is Outcome.UNKNOWN_AD


def test_a_redelivered_offset_is_applied_once() -> None:
    index = PlainIndex(SCHEMA)
    event = AdEvent(EventKind.CREATE, "a", None, 0, 7, NOW_MS, None, created())
    assert index.apply(event) is Outcome.APPLIED
    assert index.apply(event) is Outcome.DUPLICATE
    assert index.retrieve(request(), NOW_US).offsets == {0: 7}


def test_a_modify_is_a_shallow_patch() -> None:
    stream = Stream()
    fields = parse_fields(SCHEMA, {"format": "video", "quality": 1})
    stream.create("a", advertiser_id="1", fields=fields, targeting=targeting(US_ONLY))
    stream.modify("a", fields=parse_fields(SCHEMA, {"quality": 2}), advertiser_id=None)
    ad = stream.index.ads["a"]
    assert (ad.advertiser_id, ad.bid, ad.fields) == (None, 1.0, {6: (2.0,)})
    assert stream.ids() == []
    stream.modify("a", clears_targeting_meta=True)  # which is not there
    assert stream.ids() == []
    stream.modify("a", targeting=targeting({"attr": "country", "in": ["GB"]}, from_meta=True))
    stream.modify("a", clears_targeting=True)
    assert stream.ids() == []
    assert stream.ids(attributes={"country": "GB"}) == ["a"]
    stream.modify("a", clears_targeting_meta=True)
    assert stream.ids() == ["a"]


def test_a_create_replaces_the_whole_ad() -> None:
    stream = Stream()
    stream.create("a", advertiser_id="1", targeting=targeting(US_ONLY), timestamp_ms=NOW_MS - 60_000)
    stream.create("a", bid=2.0)
    ad = stream.index.ads["a"]
    assert (ad.advertiser_id, ad.targeting, ad.bid, ad.created_ms) == (None, None, 2.0, NOW_MS)


def test_when_an_ad_is_eligible() -> None:
    stream = Stream()
    stream.create("paused", paused=True)
    stream.create("from now", start_us=NOW_US)
    stream.create("from later", start_us=NOW_US + 1)
    stream.create("until now", end_us=NOW_US)
    stream.create("until later", end_us=NOW_US + 1)
    stream.create("now in New York", schedule=Schedule("America/New_York", (7,)))
    stream.create("now in UTC", schedule=Schedule("UTC", (7,)))
    stream.create("never", schedule=Schedule("UTC", ()))
    answer = stream.index.retrieve(request(), NOW_US)
    assert {result.ad_id for result in answer.results} == {"from now", "until later", "now in New York"}
    assert (answer.eligible, answer.indexed) == (3, 8)
    hour_later = request(now_us=NOW_US + 3_600_000_000)  # the request's own time holds
    answer = stream.index.retrieve(hour_later, NOW_US)
    assert {result.ad_id for result in answer.results} == {"from now", "from later"}


def test_the_bid_decides_without_a_user_and_ties_have_one_order() -> None:
    stream = Stream()
    names = [f"ad{i}" for i in range(20)]
    for name in names:
        stream.create(name, bid=2.0 if name == "ad7" else 1.0)
    ties = sorted((name for name in names if name != "ad7"), key=tie_key)
    assert stream.ids() == ["ad7", *ties]
    assert stream.ids(pathways=(Pathway("main", 3),)) == ["ad7", *ties[:2]]
    assert stream.ids(pathways=(Pathway("main", 100, rank_by="score"),)) == sorted(names, key=tie_key)


@pytest.mark.parametrize("precision", list(Precision))
def test_scores_and_values(precision: Precision) -> None:
    stream = Stream(precision=precision)
    stream.create("up", embedding=np.array([1, 0], np.float32), bid=2.0)
    stream.create("down", embedding=np.array([-1, 0], np.float32), bid=4.0)
    stream.create("none", bid=3.0)
    user = parse_user({"experts": [[1.0, 0.0]]}, 2, 1, 8)
    by_value = stream.index.retrieve(request(pathways=(Pathway("main", 9, user=user),)), NOW_US).results
    assert [(each.ad_id, round(each.score, 6)) for each in by_value] == [
        ("none", 0.5),
        ("up", 0.731059),
        ("down", 0.268941),
    ]
    assert [each.value for each in by_value] == [each.score * stream.index.ads[each.ad_id].bid for each in by_value]
    by_score = stream.ids(pathways=(Pathway("main", 9, "score", user),))
    assert by_score == ["up", "none", "down"]


def test_filters_exclusions_and_the_count_of_the_eligible() -> None:
    stream = Stream()
    stream.create("banner", fields=parse_fields(SCHEMA, {"format": "banner"}))
    stream.create("video", fields=parse_fields(SCHEMA, {"format": ["video", "banner"]}), bid=2.0)
    stream.create("bare", advertiser_id="1", timestamp_ms=NOW_MS - 60_000)
    banners = filter_({"field": "format", "in": ["banner"]})
    assert stream.ids(filter=banners) == ["video", "banner"]
    assert stream.ids(filter=banners, exclude_ads=("video",)) == ["banner"]
    assert stream.ids(filter=filter_({"field": "bid", "between": [2, None]})) == ["video"]
    assert stream.ids(filter=filter_({"field": "advertiser_id", "in": ["1"]})) == ["bare"]
    assert stream.ids(filter=filter_({"field": "age_s", "between": [60, None]})) == ["bare"]
    assert stream.ids(filter=filter_({"field": "age_s", "between": [60.5, None]})) == []
    answer = stream.index.retrieve(request(filter=banners, exclude_ads=("video",)), NOW_US)
    assert (answer.eligible, answer.indexed) == (3, 3)


def test_caps_pass_over_full_groups_and_count_across_pathways() -> None:
    stream = Stream()
    for i in range(6):
        stream.create(f"ad{i}", bid=6.0 - i, advertiser_id="1" if i < 4 else "2", campaign_id="10" if i == 5 else None)
    stream.create("free", bid=0.5)
    assert stream.ids(max_per={"advertiser_id": 2}) == ["ad0", "ad1", "ad4", "ad5", "free"]
    assert stream.ids(max_per={"advertiser_id": 1, "campaign_id": 1}) == ["ad0", "ad4", "free"]
    pathways = (Pathway("first", 2, filter=filter_({"field": "bid", "between": [None, 5]})), Pathway("second", 9))
    answer = stream.index.retrieve(request(pathways=pathways, max_per={"advertiser_id": 3}), NOW_US)
    assert [(each.ad_id, each.pathway) for each in answer.results] == [
        ("ad1", "first"),
        ("ad2", "first"),
        ("ad0", "second"),
        ("ad4", "second"),
        ("ad5", "second"),
        ("free", "second"),
    ]


def test_scores_may_come_from_outside() -> None:
    stream = Stream()
    stream.create("a")
    stream.create("b")
    given = {"a": 0.25, "b": 0.75}
    answer = stream.index.retrieve(request(), NOW_US, scores=lambda user, ad: given[ad.ad_id])
    assert [(each.ad_id, each.score) for each in answer.results] == [("b", 0.75), ("a", 0.25)]
