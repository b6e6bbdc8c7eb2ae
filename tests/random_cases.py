"""Random targetings and requests over a small schema with every kind of attribute: small ranges, so that they meet."""

from __future__ import annotations

import random
from collections.abc import Callable

from gpu_index.schema import Attribute, Kind, Schema

SCHEMA = Schema.parse(
    """
    [attributes.country]
    type = "category"
    [attributes.age]
    type = "integer"
    min = 13
    max = 65
    clamp = true
    [attributes.audience]
    type = "category"
    cardinality = "high"
    [attributes.level]
    type = "integer"
    [attributes.price]
    type = "number"
    [attributes.os_version]
    type = "version"
    [attributes.wifi]
    type = "boolean"
    [attributes.point]
    type = "geo_point"
    [attributes.hour]
    type = "hour_of_week"
    [fields.format]
    type = "category"
    [fields.size]
    type = "category"
    [fields.duration]
    type = "integer"
    [fields.weight]
    type = "number"
    [fields.sdk]
    type = "version"
    [fields.skippable]
    type = "boolean"
    """
)
ZONES = ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "UTC"]


def _version(r: random.Random) -> str:
    return ".".join(str(r.randrange(3)) for _ in range(r.randrange(1, 4)))


_VALUES: dict[str, Callable[[random.Random], object]] = {
    "country": lambda r: f"C{int(12 * r.random() ** 2)}",
    "age": lambda r: r.randrange(10, 70),
    "audience": lambda r: f"a{int(400 * r.random() ** 2)}",
    "level": lambda r: r.choice([r.randrange(-3, 4), 2**53 + r.randrange(2), -(2**63), 2**63 - 1]),
    "price": lambda r: r.choice([r.uniform(-2, 2), 0.0, 1.0, 1]),
    "os_version": _version,
    "wifi": lambda r: r.random() < 0.5,
    "point": lambda r: {"lat": r.uniform(-90, 90), "lon": r.uniform(-180, 180)}
    if r.random() < 0.3
    else {"lat": r.uniform(40, 43), "lon": r.uniform(-75, -71)},
    "hour": lambda r: r.randrange(168),
    "format": lambda r: r.choice(["banner", "video", "audio"]),
    "size": lambda r: r.choice(["300x250", "728x90"]),
    "duration": lambda r: r.randrange(4),
    "weight": lambda r: r.choice([r.uniform(0, 2), 1.0]),
    "sdk": _version,
    "skippable": lambda r: r.random() < 0.5,
    "advertiser_id": lambda r: str(r.randrange(4)),
    "campaign_id": lambda r: str(r.randrange(8)),
    "bid": lambda r: float(r.randrange(1, 5)),
    "age_s": lambda r: r.randrange(100),
}


def leaf(r: random.Random, attribute: Attribute, key: str) -> dict[str, object]:
    name, kind = attribute.name, attribute.kind
    value = _VALUES[name]
    if kind is Kind.GEO_POINT:
        return {key: name, "within": value(r) | {"radius_km": r.choice([0, 5, 40, 200, 3000, 21000])}}  # type: ignore[operator]
    if kind is Kind.BOOLEAN:
        return {key: name, "is": value(r)}
    ranged = kind in (Kind.NUMBER, Kind.VERSION, Kind.INTEGER)
    if ranged and (kind is Kind.NUMBER or r.random() < 0.6):
        return {key: name, "between": [value(r) if r.random() < 0.8 else None for _ in range(2)]}
    return {key: name, "in": [value(r) for _ in range(r.choice([0, 1, 1, 2, 3, 6]))]}


def expression(r: random.Random, depth: int, names: list[Attribute], key: str = "attr") -> dict[str, object]:
    """A random expression of at most `depth` levels."""
    if depth == 1 or r.random() < 0.25:
        return leaf(r, r.choice(names), key)
    what = r.random()
    if what < 0.2:
        return {"not": expression(r, depth - 1, names, key)}
    children = [expression(r, depth - 1, names, key) for _ in range(r.choice([0, 1, 2, 2, 3, 4]))]
    return {"all" if what < 0.65 else "any": children}


def targeting(r: random.Random, depth: int = 6) -> dict[str, object]:
    """Half are conjunctions as campaigns have them, half are anything."""
    names = list(SCHEMA.attribute_list)
    if r.random() < 0.5:
        return expression(r, depth, names)
    parts = [leaf(r, attribute, "attr") for attribute in r.sample(names, r.randrange(4))]
    return {"all": [{"not": part} if r.random() < 0.25 else part for part in parts]}


def filter_(r: random.Random, depth: int = 3) -> dict[str, object]:
    return expression(r, depth, list(SCHEMA.field_list), "field")


def attributes(r: random.Random) -> dict[str, object]:
    carried: dict[str, object] = {}
    for attribute in SCHEMA.attribute_list:
        if attribute.kind is not Kind.HOUR_OF_WEEK and r.random() < 0.75:
            value = _VALUES[attribute.name]
            several = attribute.kind in (Kind.CATEGORY, Kind.INTEGER) and r.random() < 0.5
            carried[attribute.name] = [value(r) for _ in range(r.randrange(5))] if several else value(r)
    return carried


def fields(r: random.Random) -> dict[str, object]:
    carried: dict[str, object] = {}
    for attribute in SCHEMA.field_list[4:]:
        if r.random() < 0.6:
            value = _VALUES[attribute.name]
            carried[attribute.name] = [value(r) for _ in range(r.randrange(1, 3))] if r.random() < 0.5 else value(r)
    return carried
