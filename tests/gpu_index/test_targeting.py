from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_index.invalid_input import InvalidInput
from gpu_index.json_input import decode_json
from gpu_index.schema import Schema
from gpu_index.targeting import (
    DEPTH_MAX,
    LEAVES_MAX,
    All,
    Any_,
    Between,
    Expression,
    In,
    NameKey,
    Not,
    Within,
    parse_expression,
    to_json,
)
from tests.strategies import FILTER_LEAVES, SCHEMA, expressions

COUNTRY, AUDIENCE, AGE, LOCALE, SCORE, OS_VERSION, WIFI, POINT, HOUR = range(9)
LEAF = {"attr": "country", "in": ["US"]}


def parse(raw: Any, key: NameKey = "attr") -> Expression:
    return parse_expression(raw, SCHEMA.attributes if key == "attr" else SCHEMA.fields, key)


def fault(raw: Any, key: NameKey = "attr") -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        parse(raw, key)
    return caught.value


def test_every_form() -> None:
    raw = {
        "all": [
            {"attr": "country", "in": ["US", "GB", "US"]},
            {"any": [{"attr": "age", "between": [18, None]}, {"attr": "age", "in": [13.0]}]},
            {"not": {"attr": "audience", "in": []}},
            {"attr": "score", "between": [None, 1]},
            {"attr": "os_version", "between": ["10", "17.1.0"]},
            {"attr": "os_version", "in": ["9.0", "9"]},
            {"attr": "wifi", "is": False},
            {"attr": "point", "within": {"lat": 40, "lon": -74.5, "radius_km": 0}},
            {"attr": "hour", "in": [0, 167]},
            {"all": []},
            {"any": []},
        ]
    }
    assert parse(raw) == All(
        (
            In(COUNTRY, ("US", "GB")),
            Any_((Between(AGE, 18, None), In(AGE, (13,)))),
            Not(In(AUDIENCE, ())),
            Between(SCORE, None, 1.0),
            Between(OS_VERSION, (10,), (17, 1)),
            In(OS_VERSION, ((9,),)),
            In(WIFI, (False,)),
            Within(POINT, 40.0, -74.5, 0.0),
            In(HOUR, (0, 167)),
            All(()),
            Any_(()),
        )
    )


def test_the_order_of_the_keys_does_not_matter() -> None:
    assert parse({"in": ["US"], "attr": "country"}) == parse(LEAF)


def test_an_ads_bounds_and_lists_may_lie_outside_the_declared_ones() -> None:
    assert parse({"attr": "age", "between": [0, 120]}) == Between(AGE, 0, 120)
    assert parse({"attr": "age", "in": [-5, 99]}) == In(AGE, (-5, 99))


def test_low_above_high_is_an_empty_range() -> None:
    assert parse({"attr": "age", "between": [30, 20]}) == Between(AGE, 30, 20)


@given(expressions(leaves_max=30))
def test_an_expression_written_back_is_read_as_the_same(raw: Any) -> None:
    expression = parse(raw)
    written = to_json(expression, SCHEMA.attribute_list)
    assert parse(written) == expression
    assert parse(decode_json(json.dumps(written).encode())) == expression
    assert hash(parse(written)) == hash(expression)


@given(expressions(FILTER_LEAVES))
def test_a_filter_is_the_same_language_with_field(raw: Any) -> None:
    expression = parse(raw, "field")
    assert parse(to_json(expression, SCHEMA.field_list, "field"), "field") == expression


MALFORMED: list[tuple[str, Any, str, str]] = [
    ("not an object", ["all"], "bad_expression", "targeting"),
    ("a bare boolean", {"all": [True]}, "bad_expression", "targeting.all[0]"),
    ("null", {"not": None}, "bad_expression", "targeting.not"),
    ("an empty object", {"any": [LEAF, {}]}, "bad_expression", "targeting.any[1]"),
    ("an unknown word", {"al": [LEAF]}, "bad_expression", "targeting.al"),
    ("two nodes in one", {"all": [LEAF], "any": [LEAF]}, "bad_expression", "targeting"),
    ("a key too many", {"not": LEAF, "comment": "x"}, "bad_expression", "targeting.comment"),
    ("all of an object", {"all": LEAF}, "bad_expression", "targeting.all"),
    ("not of a list", {"not": [LEAF]}, "bad_expression", "targeting.not"),
    ("no predicate", {"attr": "country"}, "bad_expression", "targeting"),
    ("no attribute", {"in": ["US"]}, "bad_expression", "targeting"),
    ("two predicates", {"attr": "age", "in": [1], "between": [1, 2]}, "bad_expression", "targeting"),
    ("an unknown predicate", {"attr": "age", "betwen": [1, 2]}, "bad_expression", "targeting.betwen"),
    ("a leaf and a node in one", {"attr": "age", "all": []}, "bad_expression", "targeting"),
    ("field in a targeting", {"field": "age", "in": [3]}, "bad_expression", "targeting.field"),
    ("a name that is no string", {"attr": ["age"], "in": [3]}, "bad_expression", "targeting.attr"),
    ("an unknown attribute", {"all": [{"attr": "contry", "in": []}]}, "unknown_attribute", "targeting.all[0].attr"),
    ("a predicate of another type", {"attr": "country", "between": [1, 2]}, "wrong_predicate", "targeting.between"),
    ("in of a point", {"attr": "point", "in": []}, "wrong_predicate", "targeting.in"),
    ("in of a number", {"attr": "score", "in": [1]}, "wrong_predicate", "targeting.in"),
    ("between of hours", {"attr": "hour", "between": [1, 2]}, "wrong_predicate", "targeting.between"),
    ("in of one value", {"attr": "country", "in": "US"}, "bad_expression", "targeting.in"),
    ("a number in a category", {"not": {"attr": "country", "in": ["a", "b", 3]}}, "wrong_type", "targeting.not.in[2]"),
    ("null in a list", {"attr": "country", "in": [None]}, "wrong_type", "targeting.in[0]"),
    ("text in an integer", {"attr": "age", "in": [18, "19"]}, "wrong_type", "targeting.in[1]"),
    ("true in an integer", {"attr": "age", "in": [True]}, "wrong_type", "targeting.in[0]"),
    ("a fraction in an integer", {"attr": "age", "between": [18.5, None]}, "wrong_type", "targeting.between[0]"),
    ("an integer beyond 64 bits", {"attr": "age", "between": [None, 2**63]}, "out_of_range", "targeting.between[1]"),
    ("one bound", {"attr": "age", "between": [18]}, "bad_expression", "targeting.between"),
    ("three bounds", {"attr": "age", "between": [18, 19, 20]}, "bad_expression", "targeting.between"),
    ("bounds as an object", {"attr": "age", "between": {"low": 1}}, "bad_expression", "targeting.between"),
    ("1 for true", {"attr": "wifi", "is": 1}, "wrong_type", "targeting.is"),
    ("a list for true", {"attr": "wifi", "is": [True]}, "wrong_type", "targeting.is"),
    ("null for true", {"attr": "wifi", "is": None}, "wrong_type", "targeting.is"),
    ("a number as a version", {"attr": "os_version", "in": [17.1]}, "wrong_type", "targeting.in[0]"),
    ("hour 168", {"attr": "hour", "in": [168]}, "out_of_range", "targeting.in[0]"),
    ("hour -1", {"attr": "hour", "in": [-1]}, "out_of_range", "targeting.in[0]"),
    ("no radius", {"attr": "point", "within": {"lat": 1, "lon": 1}}, "wrong_type", "targeting.within.radius_km"),
    (
        "a negative radius",
        {"attr": "point", "within": {"lat": 1, "lon": 1, "radius_km": -1}},
        "out_of_range",
        "targeting.within.radius_km",
    ),
    (
        "a misspelt radius",
        {"attr": "point", "within": {"lat": 1, "lon": 1, "radius_km": 1, "unit": "km"}},
        "unknown_key",
        "targeting.within.unit",
    ),
    (
        "a latitude beyond the pole",
        {"attr": "point", "within": {"lat": 91, "lon": 1, "radius_km": 1}},
        "out_of_range",
        "targeting.within.lat",
    ),
    ("within a list", {"attr": "point", "within": [1, 2, 3]}, "wrong_type", "targeting.within"),
    ("half a pair", {"attr": "country", "in": ["\udc00"]}, "lone_surrogate", "targeting.in[0]"),
]


@pytest.mark.parametrize(("raw", "code", "path"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED])
def test_a_malformed_expression_is_refused_with_the_place(raw: Any, code: str, path: str) -> None:
    found = fault(raw)
    assert (found.code, found.path) == (code, path)
    assert found.detail


def test_the_nearest_right_name_is_suggested() -> None:
    assert 'did you mean "country"?' in fault({"attr": "contry", "in": []}).detail
    assert 'did you mean "attr"?' in fault({"atr": "country", "in": []}).detail
    assert 'did you mean "between"?' in fault({"attr": "age", "betwen": [1, 2]}).detail
    assert 'unknown field "fromat", did you mean "format"?' in fault({"field": "fromat", "in": []}, "field").detail
    assert "type number, which has between, not in" in fault({"attr": "score", "in": []}).detail


def test_the_path_of_a_deep_fault_has_every_step() -> None:
    schema = Schema.load()
    raw = {"all": [LEAF, {"any": [{"not": {"attr": "geo.country", "in": ["US", 5]}}]}]}
    raw["all"][0] = {"attr": "age", "between": [18, None]}
    with pytest.raises(InvalidInput) as caught:
        parse_expression(raw, schema.attributes, path="ad.targeting")
    assert caught.value.path == "ad.targeting.all[1].any[0].not.in[1]"


def nested(depth: int, inner: Any) -> Any:
    """`inner`, which counts as 1, below not, all and any in turn."""
    for level in range(depth - 1):
        inner = ({"not": inner}, {"all": [inner]}, {"any": [LEAF, inner]})[level % 3]
    return inner


@pytest.mark.parametrize("inner", [LEAF, {"all": []}, {"any": []}])
def test_depth_32_is_accepted_and_33_is_not(inner: Any) -> None:
    expression = parse(nested(DEPTH_MAX, inner))
    assert parse(to_json(expression, SCHEMA.attribute_list)) == expression
    found = fault(nested(DEPTH_MAX + 1, inner))
    assert found.code == "too_large"
    assert fault(nested(500, inner)).code == "too_large"


def test_a_thousand_leaves_are_accepted_and_one_more_is_not() -> None:
    assert LEAVES_MAX == 1000
    halves = [{"any": [LEAF] * 500}, {"not": {"all": [LEAF] * 500}}]
    parse({"all": halves})
    assert fault({"all": [*halves, LEAF]}).code == "too_large"
    parse({"all": [{"all": []}] * 5000})  # which has no leaves
    parse({"attr": "audience", "in": [f"a{i}" for i in range(50_000)]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["US", "country", "age", "17"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["all", "any", "not", "attr", "in", "is", "between", "within"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_anything_at_all_is_read_or_refused(raw: Any) -> None:
    try:
        expression = parse(raw)
    except InvalidInput:
        return
    assert parse(to_json(expression, SCHEMA.attribute_list)) == expression
