"""Ads, events and requests with a realistic skew, made from a seed: for the demo, the benchmarks and tests.

Targetings are drawn over the default schema as ad servers see them: most name a few of many countries, an age range,
some interests out of 5,000; a fifth name custom audiences out of 50,000, a fifth exclude some; one in twenty has an OR
across attributes; a few have radii, schedules, version ranges. Values are skewed (the cube of a uniform draw), and a
campaign of 10 to 50 ads shares one targeting, or with `campaigns=False` every ad has one that no other ad has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from bench.targetings import targetings
from bench.vocabulary import (
    ADVERTISERS,
    AUDIENCE_NAMES,
    CATEGORIES,
    CHOICES,
    COUNTRIES,
    INTEREST_NAMES,
    PLACES,
    TITLES,
    VERSION_NAMES,
    skewed,
)

Json = dict[str, Any]

BLOCK = 4096  # ads or requests drawn at once
POOL = 512
CAMPAIGN_ADS_MIN, CAMPAIGN_ADS_MAX = 10, 50
AD_ID_FIRST = 120_210_000_000_000_000  # ids have 18 digits, above 2^53: a double would not hold them
EPOCH = datetime(2026, 11, 30, 12, tzinfo=UTC)  # "now" where the caller does not say
LIVE_ADS = 2_000  # of the endless stream: as many are live once it has run for a while


def ads(
    seed: int, n: int, *, campaigns: bool = True, vectors: tuple[int, int] | None = None, now: datetime = EPOCH
) -> Iterator[Json]:
    """`n` values of an event's `ad`; those of a campaign follow one another. `vectors`: widths of the embedding and
    the gate that each ad brings; None: they bring none."""
    rng = default_rng(seed)
    drawn = targetings(rng, distinct=not campaigns)
    creatives = _creatives(rng, vectors)
    made = 0
    for campaign, size in _campaigns(rng, now):
        targeting = next(drawn)
        for position in range(min(size, n - made)):
            if position and not campaigns:
                targeting = next(drawn)
            creative, fields = next(creatives)
            ad = {**campaign, **creative, "targeting": targeting}
            ad["fields"] = {**campaign["fields"], **fields}
            yield ad
        made += size
        if made >= n:
            return


def events(
    seed: int, n: int, *, campaigns: bool = True, vectors: tuple[int, int] | None = None, now: datetime = EPOCH
) -> Iterator[Json]:
    """`n` create events, as they stand in the topic; the key of each is its `ad_id`."""
    event_time = rfc3339(now)
    for number, ad in enumerate(ads(seed, n, campaigns=campaigns, vectors=vectors, now=now)):
        yield {"type": "create", "ad_id": ad_id(number), "version": 1, "event_time": event_time, "ad": ad}


def changes(
    seed: int, n: int, existing: int, *, vectors: tuple[int, int] | None = None, now: datetime = EPOCH
) -> Iterator[Json]:
    """`n` events, each of another one of the ads that `events` made `existing` of: three in five a modify, one a whole
    new ad in its place, one an expire."""
    assert n <= existing, (n, existing)
    rng = default_rng(seed + 3_000_017)
    fresh = ads(seed + 1, n, vectors=vectors, now=now)
    event_time = rfc3339(now)
    for number, draw in zip(rng.permutation(existing)[:n].tolist(), rng.random(n).tolist(), strict=True):
        event: Json = {"ad_id": ad_id(number), "version": 2, "event_time": event_time}
        if draw < 0.2:
            yield {"type": "expire", **event}
        elif draw < 0.4:
            yield {"type": "create", **event, "ad": next(fresh)}
        else:
            yield {"type": "modify", **event, "ad": _patch(rng, next(fresh))}


def ad_id(number: int) -> str:
    """The id of the `number`th ad: 18 digits, spread as ids of a real system are."""
    return str(AD_ID_FIRST + number * 7_919)


def stream(
    seed: int,
    *,
    live: int = LIVE_ADS,
    vectors: tuple[int, int] | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Json]:
    """Creates, modifies and expires without end: first `live` creates, then half modifies, a quarter each of the rest.
    `clock` gives the events' times."""
    rng = default_rng(seed)
    source = _endless_ads(seed, vectors, clock)
    number = 0
    versions: dict[str, int] = {}
    order: list[str] = []  # live ids; an expire takes one at random and puts the last in its place
    while True:
        draw = rng.random()
        event_time = rfc3339(clock())
        if number < live or draw < 0.25:
            identity = ad_id(number)
            number += 1
            versions[identity] = 1
            order.append(identity)
            yield {"type": "create", "ad_id": identity, "version": 1, "event_time": event_time, "ad": next(source)}
            continue
        position = int(rng.integers(len(order)))
        identity = order[position]
        versions[identity] += 1
        event = {"ad_id": identity, "version": versions[identity], "event_time": event_time}
        if draw < 0.5 and len(order) > live // 2:
            order[position] = order[-1]
            order.pop()
            del versions[identity]
            yield {"type": "expire", **event}
        else:
            yield {"type": "modify", **event, "ad": _patch(rng, next(source))}


def requests(seed: int, n: int, *, k: int = 100, vectors: tuple[int, int, int] | None = None) -> Iterator[Json]:
    """`n` bodies of /v1/retrieve. `vectors`: widths of embedding and gate, and the number of experts that the user of
    each request has; None: without `user`, so that the bid decides."""
    rng = default_rng(seed + 2_000_003)  # never the draws of the ads of the same seed
    for number in range(n):
        attributes, zone = _attributes(rng)
        body: Json = {"attributes": attributes, "k": k}
        if zone is not None:
            body["timezone"] = zone
        if vectors is not None:
            body["user"] = _user(rng, *vectors)
        if number % 10 == 0:
            body["max_per"] = {"advertiser_id": 3}
        yield body


def rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _endless_ads(seed: int, vectors: tuple[int, int] | None, clock: Callable[[], datetime]) -> Iterator[Json]:
    """Ads whose start and end times stay about the clock however long it runs."""
    for block in count():
        yield from ads(seed + block, BLOCK, vectors=vectors, now=clock())


def _campaigns(rng: Generator, now: datetime) -> Iterator[tuple[Json, int]]:
    """What the ads of a campaign have in common, and how many they are."""
    starts, ends = _times(rng, now)
    schedules = [_schedule(rng) for _ in range(64)]
    number = 0
    while True:
        advertisers = skewed(rng, ADVERTISERS, BLOCK)
        sizes = rng.integers(CAMPAIGN_ADS_MIN, CAMPAIGN_ADS_MAX + 1, size=BLOCK).tolist()
        for advertiser, size, draw in zip(advertisers, sizes, rng.random((BLOCK, 3)).tolist(), strict=True):
            number += 1
            campaign: Json = {"advertiser_id": str(1_000 + advertiser), "campaign_id": str(900_000 + number)}
            if draw[0] < 0.5:
                campaign["start_time"] = starts[int(draw[0] * 2 * len(starts))]
            if draw[1] < 0.4:
                campaign["end_time"] = ends[int(draw[1] * 2.5 * len(ends))]
            if draw[2] < 0.07:
                campaign["schedule"] = schedules[int(draw[2] / 0.07 * len(schedules))]
            campaign["fields"] = {
                "advertiser_domain": f"shop{advertiser}.example",
                "categories": CATEGORIES[advertiser % len(CATEGORIES)],
            }
            yield campaign, size


def _creatives(rng: Generator, vectors: tuple[int, int] | None) -> Iterator[tuple[Json, Json]]:
    """What an ad has of its own, and its fields."""
    shapes = [_shape(rng) for _ in range(POOL)]
    features = [{"title": title} for title in TITLES]
    while True:
        bids = np.round(np.exp(rng.normal(0.0, 0.8, BLOCK)) + 0.01, 2).tolist()
        paused = (rng.random(BLOCK) < 0.02).tolist()
        picks = rng.integers(len(shapes), size=BLOCK).tolist()
        embedding = gate = None
        if vectors is not None:
            embedding, gate = (np.round(rng.standard_normal((BLOCK, width)) * 0.3, 3).tolist() for width in vectors)
        for row, (bid, pick) in enumerate(zip(bids, picks, strict=True)):
            creative: Json = {"bid": bid, "features": features[pick % len(features)]}
            if paused[row]:
                creative["status"] = "paused"
            if embedding is not None and gate is not None:
                creative["embedding"], creative["gate"] = embedding[row], gate[row]
            yield creative, shapes[pick]


def _times(rng: Generator, now: datetime) -> tuple[list[str], list[str]]:
    """Start times, one in thirty to come yet, and end times, one in thirty past."""
    starts = [now + timedelta(hours=float(hours)) for hours in rng.uniform(-60 * 24, 2 * 24, POOL)]
    ends = [now + timedelta(hours=float(hours)) for hours in rng.uniform(-2 * 24, 60 * 24, POOL)]
    return [rfc3339(start) for start in starts], [rfc3339(end) for end in ends]


def _schedule(rng: Generator) -> Json:
    """The same hours on some days of the week, in the zone of one of the places."""
    first, length = int(rng.integers(6, 14)), int(rng.integers(4, 11))
    days = range(5) if rng.random() < 0.6 else range(7)
    hours = [day * 24 + hour for day in days for hour in range(first, min(first + length, 24))]
    return {"timezone": PLACES[skewed(rng, len(PLACES), 1)[0]].zone, "hours": hours}


def _shape(rng: Generator) -> Json:
    """Format and what belongs to it."""
    kind = ("banner", "native", "video", "audio")[skewed(rng, 4, 1)[0]]
    shape: Json = {"format": kind, "language": ("en", "es", "pt", "de", "fr", "hi")[skewed(rng, 6, 1)[0]]}
    if kind == "banner":
        shape["size"] = ("300x250", "728x90", "320x50", "160x600", "970x250")[skewed(rng, 5, 1)[0]]
    if rng.random() < 0.1:
        shape["creative_attributes"] = sorted({int(value) for value in rng.integers(1, 18, size=2)})
    if rng.random() < 0.1:
        shape["app_bundle"] = f"com.example.app{skewed(rng, 500, 1)[0]}"
    return shape


def _patch(rng: Generator, ad: Json) -> Json:
    """The `ad` of a modify: mostly a new bid, else a pause, a return, other targeting or other vectors."""
    draw = rng.random()
    if draw < 0.6:
        return {"bid": ad["bid"]}
    if draw < 0.8:
        return {"status": "paused" if draw < 0.7 else "active"}
    if draw < 0.9 or "embedding" not in ad:
        return {"targeting": ad["targeting"]}
    return {"embedding": ad["embedding"], "gate": ad["gate"]}


def _attributes(rng: Generator) -> tuple[Json, str | None]:
    """A request's attributes and its time zone. Three of five say where the user is to the kilometre."""
    attributes: Json = {
        "age": int(rng.integers(13, 66)),
        "user.interests": _some(rng, INTEREST_NAMES, 5, 39),
        "audience": _some(rng, AUDIENCE_NAMES, 5, 59),
        "device.os_version": VERSION_NAMES[int(rng.integers(len(VERSION_NAMES)))],
        "custom.score": round(float(rng.random()), 3),
    }
    for choice, draw in zip(CHOICES, rng.random(len(CHOICES)).tolist(), strict=True):
        if draw < choice.carried:
            some = _some(rng, choice.vocabulary, 1, choice.carried_max)
            attributes[choice.name] = some if choice.carried_max > 1 else some[0]
    if rng.random() >= 0.6:
        attributes["geo.country"] = COUNTRIES[skewed(rng, len(COUNTRIES), 1)[0]]
        return attributes, None
    place = PLACES[skewed(rng, len(PLACES), 1)[0]]
    lat, lon = (np.array([place.lat, place.lon]) + rng.normal(0.0, 0.2, 2)).round(4).tolist()
    attributes |= {"geo.country": place.country, "geo.region": place.region, "geo.city": place.city}
    attributes |= {"geo.metro": place.metro, "geo.point": {"lat": lat, "lon": lon}}
    return attributes, place.zone


def _some(rng: Generator, vocabulary: Sequence[Any], low: int, high: int) -> list[Any]:
    """`low` to `high` skewed draws, fewer where draws fall together."""
    return [vocabulary[value] for value in sorted(set(skewed(rng, len(vocabulary), int(rng.integers(low, high + 1)))))]


def _user(rng: Generator, dim: int, gate_dim: int, experts: int) -> Json:
    """Experts, gate keys and gate bias of a user, rounded as a client would to keep the body short."""
    return {
        "experts": np.round(rng.standard_normal((experts, dim)) * 0.3, 3).tolist(),
        "gates": np.round(rng.standard_normal((experts, gate_dim)), 3).tolist(),
        "gate_bias": np.round(rng.standard_normal(experts) * 0.1, 3).tolist(),
    }
