from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_index.invalid_input import InvalidInput
from gpu_index.json_input import decode_json
from gpu_index.schema import Schema
from gpu_index.values import (
    Point,
    parse_attributes,
    parse_fields,
    parse_value,
    parse_values,
    request_values,
    value_to_json,
)
from gpu_index.zones import parse_time
from tests.strategies import ATTRIBUTES, FIELDS, SCHEMA

BOUNDED = Schema.parse(
    """
    [attributes]
    clamped = { type = "integer", min = 13, max = 65, clamp = true }
    strict = { type = "integer", min = 13, max = 65 }
    from_below = { type = "integer", max = 10, clamp = true }
    from_above = { type = "integer", min = 10 }
    """
)


def sent(name: str, raw: Any, schema: Schema = SCHEMA) -> tuple[Any, ...]:
    return parse_values(schema.attributes[name], raw)


def fault(name: str, raw: Any, schema: Schema = SCHEMA) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        sent(name, raw, schema)
    return caught.value


def test_one_value_and_a_list_of_values() -> None:
    assert sent("country", "US") == sent("country", ["US", "US"]) == ("US",)
    assert sent("country", ["US", "é", "US", "GB"]) == ("US", "é", "GB")
    assert sent("locale", [3, 3.0, 1, 1e0]) == (3, 1)
    assert sent("score", 3) == (3.0,)
    assert type(sent("score", 3)[0]) is float
    assert sent("wifi", False) == (False,)
    assert sent("point", {"lat": 1, "lon": -2.5}) == (Point(1.0, -2.5),)


@pytest.mark.parametrize("name", list(SCHEMA.attributes))
def test_null_and_an_empty_list_carry_nothing(name: str) -> None:
    assert sent(name, None) == sent(name, []) == ()
    assert parse_attributes(SCHEMA, {name: []}).values == {}


WRONG = {
    "country": [1, True, {"a": 1}, ["US", 1], [None], [["US"]], 1.5],
    "audience": [7, ["a", True]],
    "age": ["30", True, 30.5, [30, "x"], [None], {"value": 3}],
    "score": ["1", True, [1.0], {}],
    "os_version": [
        17,
        17.0,
        True,
        ["17"],
        "",
        "17.",
        ".17",
        "17..1",
        "17.x",
        "-1",
        "+1",
        " 17",
        "17 ",
        "1_0",
        "١٧",
        "²",
    ],
    "wifi": [1, 0, "true", [True]],
    "point": [[1, 2], "1,2", {}, {"lat": 1}, {"lon": 1}, {"lat": "1", "lon": 2}, {"lat": True, "lon": 2}],
}


@pytest.mark.parametrize(("name", "raw"), [(name, raw) for name, raws in WRONG.items() for raw in raws])
def test_types_do_not_mix(name: str, raw: Any) -> None:
    assert fault(name, raw).code == "wrong_type"


@pytest.mark.parametrize(
    ("name", "raw", "code", "path"),
    [
        ("point", {"lat": 90.001, "lon": 0}, "out_of_range", "lat"),
        ("point", {"lat": -91, "lon": 0}, "out_of_range", "lat"),
        ("point", {"lat": 0, "lon": 180.5}, "out_of_range", "lon"),
        ("point", {"lat": 10**400, "lon": 0}, "out_of_range", "lat"),
        ("point", {"lat": float("nan"), "lon": 0}, "out_of_range", "lat"),
        ("point", {"lat": 0, "lon": 0, "radius": 1}, "unknown_key", "radius"),
        ("score", 10**309, "out_of_range", ""),
        ("score", float("inf"), "out_of_range", ""),
        ("locale", [1, 2**63], "out_of_range", "[1]"),
        ("os_version", ".".join("1" * 17), "out_of_range", ""),
        ("os_version", str(2**63), "out_of_range", ""),
        ("os_version", "9" * 5000, "out_of_range", ""),
        ("country", "\ud800", "lone_surrogate", ""),
        ("country", ["US", "a\udfff"], "lone_surrogate", "[1]"),
        ("hour", 3, "derived", ""),
        ("hour", [3], "derived", ""),
    ],
)
def test_values_out_of_range_are_refused_with_the_place(name: str, raw: Any, code: str, path: str) -> None:
    found = fault(name, raw)
    assert (found.code, found.path) == (code, path)


def test_declared_bounds_clamp_or_refuse() -> None:
    assert sent("clamped", [70, 12, 65, 13, 30], BOUNDED) == (65, 13, 30)
    assert sent("clamped", 2**63 - 1, BOUNDED) == (65,)
    assert sent("from_below", [-(2**63), 11], BOUNDED) == (-(2**63), 10)
    assert sent("strict", [13, 65], BOUNDED) == (13, 65)
    assert fault("strict", 66, BOUNDED).code == "out_of_range"
    assert fault("strict", [13, 13, 12], BOUNDED).path == "[2]"
    assert fault("from_above", 9, BOUNDED).detail == '"from_above" is at least 10, not 9'
    assert parse_value(BOUNDED.attributes["strict"], 99) == 99  # an ad may list what a request may not send


def test_text_is_compared_by_code_point() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    assert sent("country", [composed, decomposed]) == (composed, decomposed)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("17", (17,)),
        ("17.0.0", (17,)),
        ("17.0.1", (17, 0, 1)),
        ("017.01", (17, 1)),
        ("0", ()),
        ("0.0", ()),
        ("0.1", (0, 1)),
        ("0" * 5000 + "1", (1,)),
        (str(2**63 - 1), (2**63 - 1,)),
        (".".join("1" * 16), (1,) * 16),
    ],
)
def test_versions(text: str, value: tuple[int, ...]) -> None:
    assert sent("os_version", text) == (value,)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_versions_compare_number_by_number_with_zeros_for_missing_parts(one: list[int], other: list[int]) -> None:
    (left,), (right,) = (sent("os_version", ".".join(map(str, parts))) for parts in (one, other))
    pad = [0] * 5
    assert (left < right) == ((one + pad)[:5] < (other + pad)[:5])
    assert (left == right) == ((one + pad)[:5] == (other + pad)[:5])


def test_faults_of_attributes_have_their_path_and_the_nearest_name() -> None:
    schema = Schema.load()
    with pytest.raises(InvalidInput) as caught:
        parse_attributes(schema, {"age": 3, "geo.country": ["US", 3]})
    assert str(caught.value).startswith('attributes."geo.country"[1]: "geo.country" takes a string')
    with pytest.raises(InvalidInput) as caught:
        parse_attributes(schema, {"geo.contry": "US"})
    assert caught.value.code == "unknown_attribute"
    assert caught.value.detail == 'unknown attribute "geo.contry", did you mean "geo.country"?'
    with pytest.raises(InvalidInput) as caught:
        parse_attributes(schema, {"no\nsuch thing": None})
    assert caught.value.path == 'attributes."no\\nsuch thing"'
    for raw in (None, [], "x", 3):
        with pytest.raises(InvalidInput) as caught:
            parse_attributes(schema, raw)
        assert (caught.value.path, caught.value.code) == ("attributes", "wrong_type")


def test_the_time_zone_is_checked() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_attributes(SCHEMA, {}, "America/New_Yrok")
    assert (caught.value.path, caught.value.code) == ("timezone", "unknown_timezone")
    assert 'did you mean "America/New_York"?' in caught.value.detail


def test_hours_of_the_week_are_derived_from_zone_and_time() -> None:
    now_us = parse_time("2026-11-30T04:59:59Z", "now")  # a Monday in UTC
    hour = SCHEMA.attributes["hour"].index
    attributes = parse_attributes(SCHEMA, {"country": "US"}, "America/New_York")
    assert request_values(SCHEMA, attributes, now_us) == {0: ("US",), hour: (167,)}
    assert request_values(SCHEMA, attributes, now_us + 1_000_000) == {0: ("US",), hour: (0,)}
    assert attributes.values == {0: ("US",)}
    assert request_values(SCHEMA, parse_attributes(SCHEMA, {}), now_us) == {}


def test_ad_fields_take_one_value_or_a_list_of_any_kind() -> None:
    raw = {"format": "video", "quality": [1, 0.5], "secure": [True, False], "sdk": ["1.0"], "creative_attributes": None}
    assert parse_fields(SCHEMA, raw) == {4: ("video",), 6: (1.0, 0.5), 7: (True, False), 8: ((1,),)}
    for raw, code, path in (
        ({"fromat": "video"}, "unknown_field", "fields.fromat"),
        ({"bid": 3}, "derived", "fields.bid"),
        ({"sdk": ["1", "x"]}, "wrong_type", "fields.sdk[1]"),
        ({"secure": 1}, "wrong_type", "fields.secure"),
        ([], "wrong_type", "fields"),
    ):
        with pytest.raises(InvalidInput) as caught:
            parse_fields(SCHEMA, raw)
        assert (caught.value.code, caught.value.path) == (code, path)


@given(ATTRIBUTES, FIELDS)
def test_values_written_back_are_read_as_the_same(attributes: dict[str, Any], fields: dict[str, Any]) -> None:
    values = parse_attributes(SCHEMA, attributes).values
    for index, each in values.items():
        attribute = SCHEMA.attribute_list[index]
        assert tuple(parse_value(attribute, value_to_json(value)) for value in each) == each
    parsed = parse_fields(SCHEMA, fields)
    again = {SCHEMA.field_list[index].name: [value_to_json(value) for value in each] for index, each in parsed.items()}
    assert parse_fields(SCHEMA, again) == parsed


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["lat", "lon", "x"]), inner, max_size=3)
    ),
)


@given(st.sampled_from(list(SCHEMA.attributes)), ANYTHING)
def test_anything_at_all_is_read_or_refused(name: str, raw: Any) -> None:
    for parse in (lambda: parse_attributes(SCHEMA, {name: raw}), lambda: parse_fields(SCHEMA, {"format": raw})):
        found = None
        try:
            parse()
        except InvalidInput as error:
            found = error
        if found is not None:
            assert found.path.startswith(("attributes.", "fields."))
            assert found.detail
            assert str(found).encode()


def test_decoded_json_flows_into_attributes_exactly() -> None:
    raw = decode_json(b'{"locale": [9007199254740993, 9007199254740992.0], "score": 1e-400}')
    assert parse_attributes(SCHEMA, raw).values == {3: (2**53 + 1, 2**53), 4: (0.0,)}
    with pytest.raises(InvalidInput) as caught:
        parse_attributes(SCHEMA, decode_json(b'{"locale": [1, 9007199254740993.0]}'))
    assert (caught.value.code, caught.value.path) == ("out_of_range", "attributes.locale[1]")
