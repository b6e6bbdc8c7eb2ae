"""Hypothesis strategies: expressions and requests as JSON has them, over a schema with every kind of attribute.

Values come from small ranges, so that predicates are true about as often as not.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gpu_index.schema import Schema

Json: TypeAlias = Any

SCHEMA = Schema.parse(
    """
    [attributes]
    country = { type = "category" }
    audience = { type = "category", cardinality = "high" }
    age = { type = "integer", min = 13, max = 65, clamp = true }
    locale = { type = "integer" }
    score = { type = "number" }
    os_version = { type = "version" }
    wifi = { type = "boolean" }
    point = { type = "geo_point" }
    hour = { type = "hour_of_week" }
    [fields]
    format = { type = "category" }
    creative_attributes = { type = "integer" }
    quality = { type = "number" }
    secure = { type = "boolean" }
    sdk = { type = "version" }
    """
)

COUNTRIES = st.sampled_from(["US", "GB", "DE", "Ελλάδα", "\u00e9", "e\u0301", ""])  # é in two ways
AUDIENCES = st.integers(0, 40).map("a{}".format)
AGES = st.sampled_from([13, 14, 17, 18, 34, 35, 64, 65])
LOCALES = st.sampled_from([0, 1, 6, 24, -(2**63), 2**63 - 1, 2**53, 2**53 + 1])
SCORES = st.sampled_from([-1.5, 0, 0.0, -0.0, 0.1, 0.25, 1, 1e300])
VERSIONS = st.lists(st.sampled_from(["0", "1", "9", "10", "17"]), min_size=1, max_size=4).map(".".join)
POINTS = st.fixed_dictionaries(
    {"lat": st.sampled_from([0, 40.7, 41, -90]), "lon": st.sampled_from([0, -74.0, 180, -180])}
)
ZONES = st.sampled_from(["America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "UTC", "Asia/Kathmandu"])


def _in(name: str, values: SearchStrategy[Json], key: str = "attr") -> SearchStrategy[Json]:
    return st.fixed_dictionaries({key: st.just(name), "in": st.lists(values, max_size=4)})


def _between(name: str, values: SearchStrategy[Json], key: str = "attr") -> SearchStrategy[Json]:
    bound = st.none() | values
    return st.fixed_dictionaries({key: st.just(name), "between": st.tuples(bound, bound).map(list)})


def _is(name: str, key: str = "attr") -> SearchStrategy[Json]:
    return st.fixed_dictionaries({key: st.just(name), "is": st.booleans()})


CIRCLES = st.builds(lambda point, km: point | {"radius_km": km}, POINTS, st.sampled_from([0, 40, 300.5, 5600, 20_100]))
LEAVES: SearchStrategy[Json] = st.one_of(
    _in("country", COUNTRIES),
    _in("audience", AUDIENCES),
    _in("age", AGES),
    _between("age", AGES),
    _in("locale", LOCALES),
    _between("locale", LOCALES),
    _between("score", SCORES),
    _in("os_version", VERSIONS),
    _between("os_version", VERSIONS),
    _is("wifi"),
    st.fixed_dictionaries({"attr": st.just("point"), "within": CIRCLES}),
    _in("hour", st.integers(0, 167)),
)
FILTER_LEAVES: SearchStrategy[Json] = st.one_of(
    _in("format", st.sampled_from(["banner", "video"]), "field"),
    _in("creative_attributes", st.integers(1, 4), "field"),
    _between("creative_attributes", st.integers(1, 4), "field"),
    _between("quality", SCORES, "field"),
    _is("secure", "field"),
    _in("sdk", VERSIONS, "field"),
    _in("advertiser_id", st.sampled_from(["1", "2"]), "field"),
    _in("campaign_id", st.sampled_from(["10", "20"]), "field"),
    _between("bid", st.sampled_from([0.5, 1, 2]), "field"),
    _between("age_s", st.sampled_from([0, 60, 3600.5]), "field"),
)


def expressions(leaves: SearchStrategy[Json] = LEAVES, leaves_max: int = 12) -> SearchStrategy[Json]:
    """Expressions as JSON, of any nesting."""

    def nest(children: SearchStrategy[Json]) -> SearchStrategy[Json]:
        some = st.lists(children, max_size=4)
        return st.one_of(
            some.map(lambda each: {"all": each}),
            some.map(lambda each: {"any": each}),
            children.map(lambda one: {"not": one}),
        )

    return st.recursive(leaves, nest, max_leaves=leaves_max)


def _one_or_list(values: SearchStrategy[Json]) -> SearchStrategy[Json]:
    return st.none() | values | st.lists(values, max_size=4)


ATTRIBUTES: SearchStrategy[dict[str, Json]] = st.fixed_dictionaries(
    {},
    optional={
        "country": _one_or_list(COUNTRIES),
        "audience": st.lists(AUDIENCES, max_size=20),
        "age": _one_or_list(st.integers(10, 70)),
        "locale": _one_or_list(LOCALES),
        "score": st.none() | SCORES,
        "os_version": st.none() | VERSIONS,
        "wifi": st.none() | st.booleans(),
        "point": st.none() | POINTS,
    },
)
"""The `attributes` of a request as JSON."""

FIELDS: SearchStrategy[dict[str, Json]] = st.fixed_dictionaries(
    {},
    optional={
        "format": _one_or_list(st.sampled_from(["banner", "video"])),
        "creative_attributes": _one_or_list(st.integers(1, 4)),
        "quality": _one_or_list(SCORES),
        "secure": _one_or_list(st.booleans()),
        "sdk": _one_or_list(VERSIONS),
    },
)
"""The `fields` of an ad as JSON."""
