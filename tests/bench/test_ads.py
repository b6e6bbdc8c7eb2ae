"""The random ads, events and requests are valid, repeatable and as skewed as they say."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import islice

import msgspec

from bench.ads import EPOCH, ad_id, ads, events, requests, stream
from bench.vocabulary import CHOICES
from gpu_index.schema import Schema
from gpu_index.targeting import parse_expression
from gpu_index.values import parse_attributes, parse_fields
from gpu_index.zones import parse_schedule, parse_time

SCHEMA = Schema.load(None)


def canonical(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def test_every_ad_is_valid_under_the_default_schema() -> None:
    kinds: Counter[str] = Counter()
    for ad in ads(1, 4_000, campaigns=False, vectors=(8, 4)):
        parse_expression(ad["targeting"], SCHEMA.attributes, "attr", "targeting")
        parse_fields(SCHEMA, ad["fields"])
        assert ad["bid"] > 0
        assert len(ad["embedding"]) == 8
        assert len(ad["gate"]) == 4
        if "schedule" in ad:
            parse_schedule(ad["schedule"], "schedule")
        for name in ("start_time", "end_time"):
            if name in ad:
                parse_time(ad[name], name)
        kinds.update(ad.keys())
    assert kinds["schedule"] > 100
    assert kinds["start_time"] > 1_000
    assert kinds["status"] > 20


def test_every_request_is_valid_and_some_say_where_the_user_is() -> None:
    bodies = list(requests(1, 300, vectors=(8, 4, 3)))
    for body in bodies:
        parse_attributes(SCHEMA, body["attributes"], body.get("timezone"))
        assert len(body["user"]["experts"]) == 3
    assert 100 < sum("geo.point" in body["attributes"] for body in bodies) < 250
    assert "user" not in next(requests(1, 1))


def test_every_choice_is_an_attribute_of_the_default_schema() -> None:
    assert {choice.name for choice in CHOICES} <= set(SCHEMA.attributes)


def test_the_seed_decides_everything() -> None:
    assert list(map(canonical, events(5, 300))) == list(map(canonical, events(5, 300)))
    assert list(map(canonical, events(5, 300))) != list(map(canonical, events(6, 300)))
    assert list(map(canonical, requests(5, 20))) == list(map(canonical, requests(5, 20)))


def test_the_first_ads_do_not_depend_on_how_many_follow() -> None:
    assert list(map(canonical, ads(5, 100))) == list(map(canonical, islice(ads(5, 9_000), 100)))


def test_campaigns_share_targeting_and_distinct_ones_never_do() -> None:
    shared = Counter(canonical(ad["targeting"]) for ad in ads(2, 10_000))
    assert 200 < len(shared) < 10_000 / 10
    distinct = Counter(canonical(ad["targeting"]) for ad in ads(2, 10_000, campaigns=False))
    assert len(distinct) == 10_000


def test_ids_have_18_digits_and_differ() -> None:
    ids = {event["ad_id"] for event in events(3, 5_000)}
    assert len(ids) == 5_000
    assert {len(identity) for identity in ids} == {18}
    assert len(ad_id(100_000_000)) == 18


def test_the_endless_stream_is_a_valid_history() -> None:
    clock = lambda: EPOCH  # noqa: E731 - one line
    live: dict[str, int] = {}
    seen: Counter[str] = Counter()
    for event in islice(stream(4, live=200, clock=clock), 6_000):
        seen[event["type"]] += 1
        identity = event["ad_id"]
        if event["type"] == "create":
            assert identity not in live
            assert event["version"] == 1
            live[identity] = 1
            continue
        assert event["version"] == live[identity] + 1
        live[identity] = event["version"]
        if event["type"] == "expire":
            del live[identity]
    assert min(seen[kind] for kind in ("create", "modify", "expire")) > 500
    assert len(live) > 100


def test_the_stream_takes_its_times_from_the_clock() -> None:
    event = next(stream(4, clock=lambda: datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)))
    assert event["event_time"] == "2030-01-02T03:04:05.000Z"
