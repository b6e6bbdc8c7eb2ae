"""What the end-to-end tests send: real ads with their real targeting as a stream of events, documented targeting specs,
real BidRequests and ads that fit them, requests aimed at ads, and bad events."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from api.openrtb import map_request
from gpu_index.evaluate import EARTH_RADIUS_KM
from gpu_index.schema import Attribute, Kind
from gpu_index.targeting import All, Any_, Between, Expression, In, Not, Within
from gpu_index.values import Point, Value, value_to_json
from gpu_index.zones import parse_time
from tests.end_to_end import DIM, EXPERTS, GATE_DIM, SCHEMA, SETTINGS, Json
from tests.kafka import Record
from tests.plain import PlainAd
from tests.shared import shared

PLACES_CSV = """\
kind,key,latitude,longitude
city,2420605,37.4530,-122.1817
city,777934,32.7767,-96.7970
address,"1601 Willow Road, Menlo Park, CA",37.4852,-122.1483
"""
FORMATS = ("banner", "video", "native", "audio")
SIZES = ("300x250", "320x50", "728x90", "970x250")
REFUSED_SPEC = "multi-city by population"  # of the documented specs the one that cannot be honoured
REFUSED_BID_REQUESTS = {"pbs_invalid_regs-gdpr-invalid.json": "regs.gdpr", "pbs_invalid_site-app-both.json": "app"}


def vector(r: random.Random, width: int) -> list[float]:
    return [round(r.gauss(0, 0.5), 3) for _ in range(width)]


def user(r: random.Random) -> Json:
    return {
        "experts": [vector(r, DIM) for _ in range(EXPERTS)],
        "gates": [vector(r, GATE_DIM) for _ in range(EXPERTS)],
        "gate_bias": vector(r, EXPERTS),
    }


# Real ads.


class Moment(NamedTuple):
    """An event of the past. `event` None: a tombstone."""

    time: datetime
    ad_id: str
    event: Json | None

    def record(self) -> Record:
        value = None if self.event is None else msgspec.json.encode(self.event)
        return Record(self.ad_id.encode(), value, timestamp_ms=int(self.time.timestamp() * 1000))

    def line(self) -> Json:
        """For `mirach produce`, which has no tombstones."""
        return self.event or {"type": "expire", "ad_id": self.ad_id}


def real_events(r: random.Random) -> list[Moment]:
    """The life of every real ad, all in the order of time: creates and expires, some of them tombstones or an end_time
    instead; bids and targetings that change; old creates that come once more, before and after they are forgotten."""
    moments: list[Moment] = []
    for row in map(json.loads, shared("data/real-ads.jsonl").read_text().splitlines()):
        moments += _life(r, row)
    return sorted(moments, key=lambda moment: moment.time)


def _life(r: random.Random, row: Json) -> Iterator[Moment]:
    ad_id, ad = row["id"], _real_ad(r, row)
    created = datetime.fromisoformat(row["created"])
    ended = None if row["ended"] is None else max(datetime.fromisoformat(row["ended"]), created)
    draw = r.random()
    if ended is not None and draw < 0.15:
        ad["end_time"] = row["ended"]

    def event(kind: str, version: int, time: datetime, **more: object) -> Moment:
        return Moment(time, ad_id, {"type": kind, "ad_id": ad_id, "version": version,
                                    "event_time": time.isoformat(), **more})  # fmt: skip

    yield event("create", 10, created, ad=ad)
    if r.random() < 0.3:
        time = created + ((ended or created + timedelta(days=9)) - created) * r.random()
        yield event("modify", 20, time, ad=_change(r, row))
    if ended is None or "end_time" in ad:
        return
    if draw < 0.3:
        yield Moment(ended, ad_id, None)
    else:
        yield event("expire", 30, ended)
    if r.random() < 0.2:  # stale within a day, and after it an ad that comes back
        yield event("create", 10, ended + timedelta(hours=r.choice([1, 60])), ad=ad)


def _real_ad(r: random.Random, row: Json) -> Json:
    ad: Json = {
        "advertiser_id": f"advertiser-{int(row['id']) % 40}",
        "campaign_id": f"campaign-{int(row['id']) % 300}",
        "bid": round(float(row["spend"]) % 3, 1) + 0.01,  # from few values, so that there are ties
        "start_time": row["created"],
        "targeting_meta": row["targeting"],
        "features": {"impressions": row["impressions"]},
        "fields": {"format": r.choice(FORMATS), "size": r.choice(SIZES), "categories": [f"IAB{r.randrange(1, 27)}"]},
    }
    if r.random() < 0.6:
        ad["embedding"], ad["gate"] = vector(r, DIM), vector(r, GATE_DIM)
    if r.random() < 0.03:
        ad["status"] = "paused"
    if r.random() < 0.06:
        zone = r.choice(["America/New_York", "Europe/Moscow", "Asia/Kolkata"])
        ad["schedule"] = {"timezone": zone, "hours": r.sample(range(168), 84)}
    return ad


def _change(r: random.Random, row: Json) -> Json:
    """The `ad` of a modify. Of the targetings that are null only Meta's is what the ad has."""
    return r.choice(
        [
            {"bid": round(r.uniform(0.1, 3), 1)},
            {"status": r.choice(["paused", "active"])},
            {"targeting": None, "fields": None},
            {"targeting_meta": {**row["targeting"], "genders": [1]}, "embedding": None},
            {"targeting": {"all": [{"attr": "age", "between": [r.randrange(18, 30), None]}]}},
        ]
    )


# Documented targeting specs.


def documented_specs() -> dict[str, Json]:
    """Meta's documented targeting specs and those of its SDK's examples, by name."""
    found: dict[str, Json] = {}
    for path in sorted(shared("cases/meta").glob("*.json")):
        cases = json.loads(path.read_text())
        for case in cases if isinstance(cases, list) else []:
            params = case.get("params", case)
            spec = params.get("targeting", params.get("targeting_spec"))
            if spec is not None:
                found[case.get("case", case.get("file"))] = spec
    return found


def documented_events(r: random.Random) -> list[Json]:
    return [
        {"type": "create", "ad_id": f"documented-{number}",
         "ad": {"bid": 1 + number / 8, "advertiser_id": name[:8], "targeting_meta": spec,
                "fields": {"format": r.choice(FORMATS), "size": r.choice(SIZES)}}}
        for number, (name, spec) in enumerate(documented_specs().items())
    ]  # fmt: skip


# BidRequests.


def bid_requests() -> dict[str, Json]:
    """Examples of the specification and of Prebid Server, by file."""
    cases = {path.name: json.loads(path.read_text()) for path in sorted(shared("cases/openrtb").glob("*.json"))}
    return {name: case.get("mockBidRequest", case) for name, case in cases.items()}


def known_user(r: random.Random, bid_request: Json) -> Json:
    """The BidRequest of an exchange that knows the user's age, gender and country."""
    device = {**bid_request.get("device", {}), "geo": {"country": r.choice(["USA", "USA", "CAN"])}}
    about = {"yob": r.randrange(1955, 2008), "gender": r.choice("MF")}
    return {**bid_request, "device": device, "user": {**bid_request.get("user", {}), **about}}


def ads_for(r: random.Random, bid_request: Json, count: int) -> Iterator[Json]:
    """Ads with some of the request's attributes in their targeting. Half fit one of its imps, the rest may be of what
    the exchange forbids, or of no format."""
    attributes = map_request(bid_request, SCHEMA, SETTINGS)["attributes"]
    for _ in range(count):
        names = r.sample(sorted(attributes), min(len(attributes), r.randrange(1, 4)))
        imp = r.choice(bid_request["imp"])
        yield {
            "bid": r.choice([0.005, 0.03, 0.3, 0.5, 1.2]),
            "targeting": {"all": [_leaf(r, SCHEMA.attributes[name], attributes[name]) for name in names]},
            "fields": _fitting(r, imp) | (_forbidden(r, bid_request, imp) if r.random() < 0.5 else {}),
        }


def _leaf(r: random.Random, attribute: Attribute, carried: Any) -> Json:
    """A leaf that is true of what a request carries."""
    if attribute.kind is Kind.GEO_POINT:
        return {"attr": attribute.name, "within": {**carried, "radius_km": r.choice([1, 50])}}
    if attribute.kind is Kind.BOOLEAN:
        return {"attr": attribute.name, "is": carried}
    if attribute.kind in (Kind.VERSION, Kind.NUMBER) or (attribute.kind is Kind.INTEGER and r.random() < 0.5):
        return {"attr": attribute.name, "between": r.choice([[carried, None], [None, carried]])}
    value = r.choice(carried) if isinstance(carried, list) else carried
    other: object = 99 if attribute.kind is Kind.INTEGER else "another"
    return {"attr": attribute.name, "in": [other, value]}


def _fitting(r: random.Random, imp: Json) -> Json:
    kind = r.choice([name for name in FORMATS if name in imp])
    fields: Json = {"format": kind}
    if kind == "banner":
        sizes = [*imp["banner"].get("format", []), imp["banner"]]
        fields["size"] = r.choice([f"{size['w']}x{size['h']}" for size in sizes if "w" in size])
    return fields


def _forbidden(r: random.Random, bid_request: Json, imp: Json) -> Json:
    """Fields of an ad that may not be shown, as far as this request forbids anything."""
    shown_in = next(iter(imp[name] for name in FORMATS if name in imp))
    choices: list[Json] = [{"format": None}, {"size": "1x1"}]
    for forbidden, field in (("bcat", "categories"), ("badv", "advertiser_domain"), ("bapp", "app_bundle")):
        choices += [{field: value} for value in bid_request.get(forbidden, [])]
    choices += [{"categories": [f"{code}-1", "IAB1"]} for code in bid_request.get("bcat", []) if "-" not in code]
    choices += [{"creative_attributes": [value, 1]} for value in shown_in.get("battr", [])]
    return r.choice(choices)


# Requests aimed at ads.


def aimed_request(r: random.Random, ads: Sequence[PlainAd]) -> tuple[Json, PlainAd]:
    """A request that a random ad, and perhaps a second one, should match: of the users whom its targeting describes.
    Some are just outside a circle, or in what the ad excludes. -> body, the ad"""
    ad = r.choice(ads)
    wanted: dict[int, list[Value]] = {}
    for each in [ad, r.choice(ads)] if r.random() < 0.4 else [ad]:
        if each.targeting is not None:
            satisfy(r, each.targeting.expression, wanted)
    body: Json = {"attributes": {}}
    for index, values in wanted.items():
        attribute = SCHEMA.attribute_list[index]
        if attribute.kind is not Kind.HOUR_OF_WEEK and r.random() > 0.02:
            body["attributes"][attribute.name] = _sent(attribute, values)
    if ad.schedule is not None or r.random() < 0.2:
        body["timezone"] = "America/Chicago"
    body["k"] = r.choice([1, 10, 100, 1000])
    if r.random() < 0.4:
        body["now"] = random_time(r, ad)
    return body, ad


def random_time(r: random.Random, ad: PlainAd) -> str:
    """Near the ad's start or end, or at any hour."""
    first, last = parse_time("2015-06-01T00:00:00Z", ""), parse_time("2026-12-01T00:00:00Z", "")
    choices = [us for us in (ad.start_us, ad.end_us) if first < us < last]
    us = r.choice(choices) + r.choice([-1, 0, 1]) if choices and r.random() < 0.3 else r.randrange(first, last)
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)).isoformat()


def satisfy(r: random.Random, node: Expression, wanted: dict[int, list[Value]]) -> None:
    """Adds to `wanted`, by attribute, values for which the expression is true, mostly."""
    match node:
        case All(children):
            for child in children:
                satisfy(r, child, wanted)
        case Any_(children):
            if children:
                satisfy(r, r.choice(children), wanted)
        case Not(child):
            if r.random() < 0.05:
                satisfy(r, child, wanted)
        case In(attribute, values):
            wanted.setdefault(attribute, []).extend(r.sample(values, min(len(values), r.choice([1, 1, 3]))))
        case Between(attribute):
            wanted.setdefault(attribute, []).append(_between(r, node))
        case Within(attribute):
            wanted.setdefault(attribute, []).append(_around(r, node))


def _between(r: random.Random, node: Between) -> Value:
    kind = SCHEMA.attribute_list[node.attribute].kind
    if kind is Kind.VERSION:
        return node.low if node.low is not None else node.high if node.high is not None else (1,)
    high = node.high if isinstance(node.high, int | float) else 60
    low = node.low if isinstance(node.low, int | float) else min(13, high)
    high = max(low, high)
    return r.randint(int(low), int(high)) if kind is Kind.INTEGER else r.uniform(low, high)


def _around(r: random.Random, node: Within) -> Point:
    """A point in the circle, one in six a little outside."""
    distance, bearing = node.radius_km * 1.1 * math.sqrt(r.random()) / EARTH_RADIUS_KM, r.uniform(0, 2 * math.pi)
    lat = math.radians(node.lat)
    there = math.asin(math.sin(lat) * math.cos(distance) + math.cos(lat) * math.sin(distance) * math.cos(bearing))
    east = math.atan2(
        math.sin(bearing) * math.sin(distance) * math.cos(lat), math.cos(distance) - math.sin(lat) * math.sin(there)
    )
    lon = (node.lon + math.degrees(east) + 180) % 360 - 180
    return Point(math.degrees(there), lon)


def _sent(attribute: Attribute, values: list[Value]) -> object:
    """As a request has it: a list where the attribute may have several values."""
    several = attribute.kind in (Kind.CATEGORY, Kind.INTEGER) and len(values) > 1
    return [value_to_json(value) for value in values] if several else value_to_json(values[-1])


def ask_for(r: random.Random, body: Json, answer: Json) -> Json:
    """The same once more with what a request may ask beyond attributes; `answer` is what it got without."""
    given = [result["ad_id"] for result in answer["results"]]
    body = {**body, "k": r.choice([1, 5, 50])}
    if r.random() < 0.5:
        body["exclude_ads"] = [*given[: r.randrange(4)], "no such ad"]
    if r.random() < 0.5:
        body["max_per"] = r.choice([{"advertiser_id": 1}, {"campaign_id": 2, "advertiser_id": 3}])
    if r.random() < 0.5:
        body["filter"] = r.choice(FILTERS)
    if r.random() < 0.5:
        body["pathways"] = [
            {"name": "filtered", "k": 3, "filter": r.choice(FILTERS)},
            {"name": "by score", "rank_by": "score"},
            {"name": "rest", "k": 200},
        ]
    return body


SOME_ADVERTISERS = [f"advertiser-{number}" for number in range(15)]
FILTERS: list[Json] = [
    {"field": "format", "in": ["banner", "native"]},
    {"not": {"field": "categories", "in": ["IAB1", "IAB2", "IAB3"]}},
    {"field": "bid", "between": [0.5, 2]},
    {"all": [{"field": "age_s", "between": [86_400, None]}, {"not": {"field": "size", "in": ["320x50"]}}]},
    {"any": [{"field": "advertiser_id", "in": SOME_ADVERTISERS}, {"field": "bid", "between": [2, None]}]},
]


# Bad events.


class Bad(NamedTuple):
    """A record that is a bad event, and the code that it must get."""

    what: str
    code: str
    key: bytes | None
    value: bytes | None


def _event(**fields: object) -> bytes:
    return msgspec.json.encode({"type": "create", "ad_id": "bad", "ad": {"bid": 1}} | fields)


def _ad(**fields: object) -> bytes:
    return _event(ad={"bid": 1} | fields)


def _deep(depth: int) -> Json:
    leaf: Json = {"attr": "age", "in": [30]}
    for _ in range(depth - 1):
        leaf = {"not": leaf}
    return leaf


_LEAVES = {"all": [{"attr": "age", "in": [n]} for n in range(1001)]}
_VALUES: list[tuple[str, str, bytes]] = [
    ("an empty value", "not_json", b""),
    ("no JSON", "not_json", b'{"type": "create", "ad_id": "bad", '),
    ("not UTF-8", "not_utf8", _event(note="?").replace(b"?", b"\xff")),
    ("a lone surrogate", "lone_surrogate", _ad(advertiser_id="?").replace(b"?", b"\\ud800")),
    ("not a number", "not_json", b'{"type": "create", "ad_id": "bad", "ad": {"bid": NaN}}'),
    ("a list", "wrong_type", b'["create", "bad"]'),
    ("no type", "missing", b'{"ad_id": "bad", "ad": {"bid": 1}}'),
    ("an unknown type", "unknown_value", _event(type="upsert")),
    ("no ad_id", "missing", b'{"type": "create", "ad": {"bid": 1}}'),
    ("a number as ad_id", "wrong_type", _event(ad_id=17)),
    ("another key", "key_mismatch", _event(ad_id="worse")),
    ("a negative version", "out_of_range", _event(version=-1)),
    ("a text as version", "wrong_type", _event(version="7")),
    ("a time without offset", "bad_time", _event(event_time="2026-11-30T12:00:00")),
    ("no ad", "missing", b'{"type": "create", "ad_id": "bad"}'),
    ("no bid", "missing", _event(ad={})),
    ("a bid of zero", "out_of_range", _ad(bid=0)),
    ("a bid beyond float64", "out_of_range", _ad(bid=77).replace(b"77", b"1e999")),
    ("a text as bid", "wrong_type", _ad(bid="1")),
    ("an unknown status", "unknown_value", _ad(status="archived")),
    ("a misspelt field", "unknown_field", _ad(targetting={"all": []})),
    ("an unknown ad field", "unknown_field", _ad(fields={"colour": "red"})),
    ("a day that does not exist", "bad_time", _ad(end_time="2026-02-30T00:00:00Z")),
    ("an unknown time zone", "unknown_timezone", _ad(schedule={"timezone": "Mars/Olympus", "hours": [1]})),
    ("an hour that no week has", "out_of_range", _ad(schedule={"timezone": "UTC", "hours": [168]})),
    ("an unknown attribute", "unknown_attribute", _ad(targeting={"attr": "geo.countri", "in": ["US"]})),
    ("a predicate of another type", "wrong_predicate", _ad(targeting={"attr": "geo.country", "between": [1, 2]})),
    ("a value of another type", "wrong_type", _ad(targeting={"attr": "geo.country", "in": [1]})),
    ("no expression", "bad_expression", _ad(targeting={"every": []})),
    ("too many leaves", "too_large", _ad(targeting=_LEAVES)),
    ("too deep", "too_large", _ad(targeting=_deep(33))),
    ("both targetings", "targeting_twice", _ad(targeting={"all": []}, targeting_meta={"age_min": 20})),
    ("a Meta field that cannot be honoured", "targeting_meta", _ad(targeting_meta={"keywords": ["shoes"]})),
    ("a vector of another width", "wrong_length", _ad(embedding=[0.5] * (DIM + 1))),
    ("a vector beyond float32", "out_of_range", _ad(gate=[1e39] * GATE_DIM)),
    ("a large event", "too_large", _ad(features={"text": "x" * 70_000})),
    ("a change of no ad", "unknown_ad", _event(type="modify", ad_id="bad")),
]
BAD_EVENTS = [
    *(Bad(what, code, b"bad", value) for what, code, value in _VALUES),
    Bad("no key", "key_mismatch", None, _event()),
    Bad("an empty id", "wrong_length", b"", _event(ad_id="")),
    Bad("a long id", "wrong_length", b"x" * 65, _event(ad_id="x" * 65)),
    Bad("neither key nor value", "key_mismatch", None, None),
    Bad("a tombstone whose key is not UTF-8", "not_utf8", b"\xff", None),
]


def write_places(folder: Path) -> Path:
    file = folder / "places.csv"
    file.write_text(PLACES_CSV)
    return file
