from __future__ import annotations

import math
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_index.evaluate import EARTH_RADIUS_KM, SHOWN_VALUES_MAX, distance_km, evaluate, explain
from gpu_index.targeting import parse_expression
from gpu_index.values import Point, parse_attributes, parse_fields, request_values
from gpu_index.zones import hour_of_week
from tests.strategies import ATTRIBUTES, FIELDS, FILTER_LEAVES, SCHEMA, ZONES, expressions

NOW_US = 1_796_040_000_000_000


def matches(raw: Any, attributes: dict[str, Any], timezone: str | None = None) -> bool:
    values = request_values(SCHEMA, parse_attributes(SCHEMA, attributes, timezone), NOW_US)
    return evaluate(parse_expression(raw, SCHEMA.attributes), values)


def test_all_of_nothing_is_true_and_any_of_nothing_false() -> None:
    assert matches({"all": []}, {})
    assert not matches({"any": []}, {})
    assert not matches({"attr": "country", "in": []}, {"country": "US"})
    assert matches({"not": {"attr": "country", "in": []}}, {"country": "US"})


@pytest.mark.parametrize(
    "leaf",
    [
        {"attr": "country", "in": ["US"]},
        {"attr": "age", "between": [None, None]},
        {"attr": "score", "between": [None, None]},
        {"attr": "os_version", "between": [None, None]},
        {"attr": "wifi", "is": False},
        {"attr": "point", "within": {"lat": 0, "lon": 0, "radius_km": 30_000}},
        {"attr": "hour", "in": list(range(168))},
    ],
)
@pytest.mark.parametrize("attributes", [{}, {"country": [], "age": None, "point": [], "wifi": None}])
def test_every_predicate_on_what_is_not_carried_is_false(leaf: Any, attributes: dict[str, Any]) -> None:
    assert not matches(leaf, attributes)
    assert matches({"not": leaf}, attributes)


def test_one_of_several_values_is_enough_and_not_is_the_plain_negation() -> None:
    leaf = {"attr": "country", "in": ["US"]}
    assert matches(leaf, {"country": ["US", "GB"]})
    assert not matches({"not": leaf}, {"country": ["US", "GB"]})
    both = {"all": [{"attr": "locale", "between": [None, 1]}, {"attr": "locale", "between": [5, None]}]}
    assert matches(both, {"locale": [0, 7]})
    assert not matches(both, {"locale": 3})
    assert not matches({"attr": "locale", "between": [4, 6]}, {"locale": [0, 7]})


def test_bounds_are_inclusive_and_may_be_open_or_empty() -> None:
    for attribute, low, mid, high in (
        ("age", 18, 30, 40),
        ("score", 0.1, 0.2, 0.3),
        ("os_version", "9.9", "10", "10.0.1"),
    ):
        for value, inside in ((low, True), (mid, True), (high, True)):
            assert matches({"attr": attribute, "between": [low, high]}, {attribute: value}) is inside
        assert not matches({"attr": attribute, "between": [mid, high]}, {attribute: low})
        assert not matches({"attr": attribute, "between": [low, mid]}, {attribute: high})
        assert matches({"attr": attribute, "between": [None, high]}, {attribute: low})
        assert matches({"attr": attribute, "between": [None, None]}, {attribute: low})
        assert not matches({"attr": attribute, "between": [high, low]}, {attribute: mid})


def test_integers_are_compared_exactly_and_numbers_as_float64() -> None:
    big = 2**53
    assert not matches({"attr": "locale", "in": [big]}, {"locale": big + 1})
    assert not matches({"attr": "locale", "between": [None, big]}, {"locale": big + 1})
    assert matches({"attr": "locale", "in": [2**63 - 1]}, {"locale": 2**63 - 1})
    assert not matches({"attr": "locale", "in": [2**63 - 1]}, {"locale": 2**63 - 2})
    assert matches({"attr": "score", "between": [big, big]}, {"score": big + 1})
    assert matches({"attr": "score", "between": [0, 0]}, {"score": -0.0})


def test_a_clamped_age_counts_as_the_bound() -> None:
    assert matches({"attr": "age", "in": [65]}, {"age": 70})
    assert not matches({"attr": "age", "between": [66, None]}, {"age": 70})


def test_versions_and_texts() -> None:
    assert matches({"attr": "os_version", "in": ["17.0.0"]}, {"os_version": "17"})
    assert not matches({"attr": "os_version", "between": ["17.0.1", None]}, {"os_version": "17"})
    assert matches({"attr": "os_version", "between": ["9", None]}, {"os_version": "10"})
    assert not matches({"attr": "country", "in": ["\u00e9"]}, {"country": "e\u0301"})
    assert not matches({"attr": "country", "in": ["us"]}, {"country": "US"})


@pytest.mark.parametrize(
    ("one", "other", "km"),
    [
        ((0, 0), (0, 0), 0),
        ((90, 0), (-90, 0), math.pi * EARTH_RADIUS_KM),
        ((0, 0), (0, 180), math.pi * EARTH_RADIUS_KM),
        ((0, -90), (0, 90), math.pi * EARTH_RADIUS_KM),
        ((0, 0), (0, 1), math.pi * EARTH_RADIUS_KM / 180),
        ((0, 179.5), (0, -179.5), math.pi * EARTH_RADIUS_KM / 180),
        ((90, 10), (90, -170), 0),
        ((51.5074, -0.1278), (40.7128, -74.0060), 5570.2),
    ],
)
def test_distances(one: tuple[float, float], other: tuple[float, float], km: float) -> None:
    assert distance_km(Point(*one), Point(*other)) == pytest.approx(km, abs=0.1 if km == 5570.2 else 1e-6)
    assert distance_km(Point(*one), Point(*other)) == distance_km(Point(*other), Point(*one))


def test_a_radius_is_inclusive() -> None:
    circle = {"lat": 40.7, "lon": -74.0, "radius_km": 0}
    assert matches({"attr": "point", "within": circle}, {"point": {"lat": 40.7, "lon": -74}})
    assert not matches({"attr": "point", "within": circle}, {"point": {"lat": 40.7001, "lon": -74}})
    away = distance_km(Point(40.7, -74.0), Point(41, -75))
    assert matches({"attr": "point", "within": circle | {"radius_km": away}}, {"point": {"lat": 41, "lon": -75}})
    less = math.nextafter(away, 0)
    assert not matches({"attr": "point", "within": circle | {"radius_km": less}}, {"point": {"lat": 41, "lon": -75}})


def test_hours_need_a_time_zone() -> None:
    hour = hour_of_week("Asia/Tokyo", NOW_US)
    assert matches({"attr": "hour", "in": [hour]}, {}, "Asia/Tokyo")
    assert not matches({"attr": "hour", "in": [hour]}, {}, "UTC")
    assert not matches({"attr": "hour", "in": [hour]}, {})


# A second reading of the contract, straight from the JSON, without the parsers.


def directly(expression: Any, attributes: dict[str, Any], key: str = "attr") -> bool:
    if "all" in expression:
        return all(directly(each, attributes, key) for each in expression["all"])
    if "any" in expression:
        return any(directly(each, attributes, key) for each in expression["any"])
    if "not" in expression:
        return not directly(expression["not"], attributes, key)
    name = expression[key]
    sent = attributes.get(name)
    for value in sent if isinstance(sent, list) else [] if sent is None else [sent]:
        if name == "age":
            value = min(max(value, 13), 65)
        if "in" in expression and any(compare(name, value, each) == 0 for each in expression["in"]):
            return True
        if "is" in expression and value is expression["is"]:
            return True
        if "between" in expression:
            low, high = expression["between"]
            if (low is None or compare(name, low, value) <= 0) and (high is None or compare(name, value, high) <= 0):
                return True
        if "within" in expression:
            circle = expression["within"]
            if (
                distance_km(Point(value["lat"], value["lon"]), Point(circle["lat"], circle["lon"]))
                <= circle["radius_km"]
            ):
                return True
    return False


def compare(name: str, left: Any, right: Any) -> int:
    if name in ("os_version", "sdk"):
        for one, other in zip_longest(left.split("."), right.split("."), fillvalue="0"):
            if int(one) != int(other):
                return -1 if int(one) < int(other) else 1
        return 0
    return (left > right) - (left < right)


@given(expressions(leaves_max=20), ATTRIBUTES, st.none() | ZONES)
def test_evaluation_equals_a_direct_reading(raw: Any, attributes: dict[str, Any], timezone: str | None) -> None:
    derived = {} if timezone is None else {"hour": hour_of_week(timezone, NOW_US)}
    assert matches(raw, attributes, timezone) == directly(raw, attributes | derived)


@given(expressions(FILTER_LEAVES), FIELDS)
def test_filters_equal_a_direct_reading(raw: Any, fields: dict[str, Any]) -> None:
    filter_ = parse_expression(raw, SCHEMA.fields, "field")
    assert evaluate(filter_, parse_fields(SCHEMA, fields)) == directly(raw, fields, "field")


def test_an_explanation_says_what_each_part_is_and_why() -> None:
    raw = {
        "all": [
            {"attr": "country", "in": ["US"]},
            {"not": {"any": [{"attr": "wifi", "is": True}, {"attr": "os_version", "between": ["9.0", None]}]}},
            {"attr": "point", "within": {"lat": 1.0, "lon": 2.0, "radius_km": 3.0}},
        ]
    }
    attributes = {"country": ["GB", "US"], "os_version": "10.0", "point": {"lat": 1, "lon": 2}}
    values = parse_attributes(SCHEMA, attributes).values
    assert explain(parse_expression(raw, SCHEMA.attributes), values, SCHEMA.attribute_list) == {
        "all": [
            {"attr": "country", "in": ["US"], "value": ["GB", "US"], "result": True},
            {
                "not": {
                    "any": [
                        {"attr": "wifi", "is": True, "value": None, "result": False},
                        {"attr": "os_version", "between": ["9", None], "value": "10", "result": True},
                    ],
                    "result": True,
                },
                "result": False,
            },
            {
                "attr": "point",
                "within": {"lat": 1.0, "lon": 2.0, "radius_km": 3.0},
                "value": {"lat": 1.0, "lon": 2.0},
                "result": True,
            },
        ],
        "result": False,
    }


def test_an_explanation_shows_some_of_very_many_values() -> None:
    values = parse_attributes(SCHEMA, {"audience": [f"a{i}" for i in range(10_000)]}).values
    leaf = parse_expression({"attr": "audience", "in": ["a9999"]}, SCHEMA.attributes)
    shown = explain(leaf, values, SCHEMA.attribute_list)
    assert shown["result"] is True
    assert shown["value"] == ["a9999", *(f"a{i}" for i in range(SHOWN_VALUES_MAX - 1))]
    assert shown["value_count"] == 10_000


@given(expressions(leaves_max=20), ATTRIBUTES)
def test_an_explanation_is_the_expression_with_results(raw: Any, attributes: dict[str, Any]) -> None:
    expression = parse_expression(raw, SCHEMA.attributes)
    values = parse_attributes(SCHEMA, attributes).values
    explained = explain(expression, values, SCHEMA.attribute_list)
    assert explained["result"] == evaluate(expression, values)

    def bare(node: Any) -> Any:
        if isinstance(node, list):
            return [bare(each) for each in node]
        if not isinstance(node, dict):
            return node
        return {key: bare(each) for key, each in node.items() if key not in ("result", "value", "value_count")}

    assert parse_expression(bare(explained), SCHEMA.attributes) == expression
