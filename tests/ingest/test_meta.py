"""Meta targeting specs against users written by hand: every row of the table, every kind of refusal, the real cases."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_index.targeting import parse_expression
from gpu_index.values import InvalidInput
from ingest.meta import compile_meta
from ingest.meta_fields import FIELDS, FLEXIBLE, HONOURED, REFUSED, SEGMENTS, SWITCHES
from ingest.meta_geo import FIELDS as GEO_FIELDS
from tests.ingest.audiences import PLACES, SCHEMA, Json, matches, refusal
from tests.shared import shared

# Each honoured field: a spec, users who are in its audience, and users who are not.
ROWS: dict[str, tuple[Json, list[Json], list[Json]]] = {
    "age_min": ({"age_min": 21}, [{"age": 21}, {"age": 90}], [{"age": 20}, {"age": None}]),
    "age_max": ({"age_max": "24"}, [{"age": 24}, {"age": 18}], [{"age": 25}, {"age": 17}]),
    "age_range": ({"age_range": [25, 35]}, [{"age": 25}, {"age": 35}], [{"age": 24}, {"age": 36}]),
    "genders": ({"genders": [1]}, [{"gender": "male"}], [{"gender": "female"}, {"gender": "other"}, {}]),
    "geo_locations": ({"geo_locations": {"countries": ["JP"]}}, [{"geo.country": "JP"}], [{"geo.country": "US"}, {}]),
    "excluded_geo_locations": (
        {"excluded_geo_locations": {"regions": [{"key": "3847"}]}},
        [{"geo.region": "3886"}, {}],
        [{"geo.region": "3847"}],
    ),
    "locales": ({"locales": [6, "24"]}, [{"user.locales": [24, 9]}], [{"user.locales": 7}, {}]),
    "custom_audiences": (
        {"custom_audiences": [{"id": "23843", "name": "buyers"}]},
        [{"audience": ["1", "23843"]}],
        [{"audience": ["1"]}, {}],
    ),
    "excluded_custom_audiences": ({"excluded_custom_audiences": [23843]}, [{}], [{"audience": ["23843"]}]),
    "connections": ({"connections": [{"id": 15}]}, [{"user.connections": ["15"]}], [{}]),
    "excluded_connections": ({"excluded_connections": ["15"]}, [{}], [{"user.connections": ["15", "16"]}]),
    "friends_of_connections": (
        {"friends_of_connections": [{"id": "15"}]},
        [{"user.friends_of_connections": ["15"]}],
        [{"user.connections": ["15"]}, {}],
    ),
    "flexible_spec": (
        {"flexible_spec": [{"interests": [1, 2], "behaviors": [3]}, {"interests": [4]}]},
        [{"user.interests": ["2", "4"]}, {"user.interests": ["4"], "user.behaviors": ["3"]}],
        [{"user.interests": ["1", "2"], "user.behaviors": ["3"]}, {"user.interests": ["4"]}, {}],
    ),
    "exclusions": (
        {"exclusions": {"relationship_statuses": [1, 3], "life_events": [{"id": 60}]}},
        [{}, {"user.relationship_statuses": [2], "user.life_events": ["61"]}],
        [{"user.relationship_statuses": [3]}, {"user.life_events": ["60"]}],
    ),
    "publisher_platforms": (
        {"publisher_platforms": ["facebook", "messenger"]},
        [
            {"placement.platform": "messenger"},
            {"placement.platform": "facebook", "placement.position": "facebook:story"},
        ],
        [{"placement.platform": "instagram"}, {}],
    ),
    "device_platforms": (
        {"device_platforms": ["mobile"]},
        [{"device.platform": "mobile"}],
        [{"device.platform": "desktop"}, {}],
    ),
    "effective_publisher_platforms": (
        {"publisher_platforms": ["facebook", "instagram"], "effective_publisher_platforms": ["facebook"]},
        [{"placement.platform": "facebook"}],
        [{"placement.platform": "instagram"}],
    ),
    "effective_device_platforms": (
        {"effective_device_platforms": ["connected_tv"]},
        [{"device.platform": "connected_tv"}],
        [{"device.platform": "mobile"}, {}],
    ),
    "user_os": (
        {"user_os": ["Android_ver_4.2_and_above", "iOS_ver_8.0_to_9.0"]},
        [
            {"device.os": "android", "device.os_version": "4.2"},
            {"device.os": "android", "device.os_version": "14"},
            {"device.os": "ios", "device.os_version": "8.4.1"},
            {"device.os": "ios", "device.os_version": "9"},
        ],
        [
            {"device.os": "android", "device.os_version": "4.1.9"},
            {"device.os": "ios", "device.os_version": "9.0.1"},
            {"device.os": "ios", "device.os_version": "4.2"},
            {"device.os": "ios"},
            {},
        ],
    ),
    "user_device": ({"user_device": ["Galaxy S6"]}, [{"device.model": "Galaxy S6"}], [{"device.model": "One m9"}, {}]),
    "excluded_user_device": ({"excluded_user_device": ["iPad"]}, [{}], [{"device.model": "iPad"}]),
    "wireless_carrier": (
        {"wireless_carrier": ["Wifi"]},
        [{"device.connection_type": 2}],
        [{"device.connection_type": 6}, {}],
    ),
}
for kind, segment in SEGMENTS.items():
    value: Any = 4 if segment.is_number else segment.value(kind, "4")
    other: Any = 5 if segment.is_number else segment.value(kind, "5")
    ROWS[kind] = (
        {kind: [4]} if segment.is_number else {kind: [{"id": 4, "name": "anything"}]},
        [{segment.attribute: [value, other]}],
        [{segment.attribute: [other]}, {}],
    )
for prefix in ("", "effective_"):
    for platform in ("facebook", "instagram", "audience_network", "messenger", "threads", "whatsapp"):
        elsewhere = "threads" if platform == "facebook" else "facebook"
        ROWS[f"{prefix}{platform}_positions"] = (
            {f"{prefix}{platform}_positions": ["story"]},
            [
                {"placement.platform": platform, "placement.position": f"{platform}:story"},
                {"placement.platform": elsewhere, "placement.position": f"{elsewhere}:feed"},
                {"placement.platform": elsewhere},
            ],
            [
                {"placement.platform": platform, "placement.position": f"{platform}:feed"},
                {"placement.platform": platform},
                {},
            ],
        )


@pytest.mark.parametrize("field", HONOURED)
def test_every_honoured_field_chooses_its_users(field: str) -> None:
    spec, inside, outside = ROWS[field]
    assert field in spec
    for user in inside:
        assert matches(spec, user), user
    for user in outside:
        assert not matches(spec, user), user


@pytest.mark.parametrize("field", REFUSED)
def test_every_other_field_is_refused_by_name(field: str) -> None:
    for raw in (["x"], {"x": 1}, "x", 7, True):
        fault = refusal({"geo_locations": {"countries": ["US"]}, field: raw})
        assert fault.path == field
        assert field in fault.detail
        assert REFUSED[field] in fault.detail
    for nothing in (None, [], {}, ""):
        assert compile_meta({field: nothing}) == compile_meta({})


SWITCHED_ON: dict[str, list[object]] = {
    "targeting_automation": [
        {"advantage_audience": 1},
        {"advantage_audience": 0, "individual_setting": {"age": 1, "gender": 0}},
        {"shared_audiences": "1"},
        {"individual_setting": 1},
    ],
    "targeting_optimization": ["expansion_all", 1],
    "targeting_relaxation_types": [{"lookalike": 1, "custom_audience": 0}, {"custom_audience": True}],
}
SWITCHED_OFF: dict[str, list[object]] = {
    "targeting_automation": [{"advantage_audience": 0, "individual_setting": {"age": 0}}, {"shared_audiences": "0"}],
    "targeting_optimization": ["none"],
    "targeting_relaxation_types": [{"lookalike": 0, "custom_audience": 0}],
}


@pytest.mark.parametrize("field", SWITCHES)
def test_switches_are_refused_where_they_are_on(field: str) -> None:
    for raw in SWITCHED_ON.get(field, [True, 1, "1"]):
        fault = refusal({field: raw})
        assert fault.path == field
        assert SWITCHES[field] in fault.detail
    for raw in [*SWITCHED_OFF.get(field, [False, 0, "0"]), None]:
        assert compile_meta({field: raw}) == compile_meta({})


def test_unknown_settings_of_a_switch_are_refused() -> None:
    assert refusal({"targeting_automation": {"advantage_audienc": 0}}).path == "targeting_automation.advantage_audienc"


def test_a_spec_that_says_nothing_has_metas_defaults() -> None:
    assert compile_meta({}) == {"all": [{"attr": "age", "between": [18, None]}]}
    assert matches({}, {"age": 18})
    assert matches({}, {"age": 70})  # counts as 65, which is open-ended
    assert not matches({}, {"age": 17})
    assert not matches({}, {"age": None})


@pytest.mark.parametrize("nothing", [None, [], ""])
def test_a_field_that_says_nothing_is_as_good_as_absent(nothing: object) -> None:
    assert compile_meta(dict.fromkeys(FIELDS, nothing)) == compile_meta({})
    assert compile_meta({"geo_locations": dict.fromkeys(GEO_FIELDS, nothing)}) == compile_meta({})


# Ages.


def test_65_is_open_ended_and_below_it_is_not() -> None:
    assert matches({"age_min": 18, "age_max": 65}, {"age": 99})
    assert not matches({"age_min": 18, "age_max": 64}, {"age": 65})


def test_an_age_range_goes_with_the_two_ages() -> None:
    assert compile_meta({"age_range": [16, 65]})["all"] == [{"attr": "age", "between": [16, None]}]
    assert compile_meta({"age_range": [20, 40], "age_min": 25, "age_max": 50})["all"][0]["between"] == [25, 40]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"age_min": 12}, "age_min"),
        ({"age_max": 66}, "age_max"),
        ({"age_min": "x"}, "age_min"),
        ({"age_min": 20.5}, "age_min"),
        ({"age_min": True}, "age_min"),
        ({"age_min": 40, "age_max": 30}, "age_max"),
        ({"age_max": 17}, "age_max"),
        ({"age_range": [30]}, "age_range"),
        ({"age_range": [30, 70]}, "age_range"),
        ({"age_range": [30, 20]}, "age_range"),
        ({"age_range": [20, "b"]}, "age_range[1]"),
        ({"genders": [0]}, "genders[0]"),
        ({"genders": [1, 3]}, "genders[1]"),
        ({"genders": 1}, "genders"),
        ({"locales": ["en"]}, "locales[0]"),
        ({"locales": [2**63]}, "locales[0]"),
        ({"interests": [{"name": "Soccer"}]}, "interests[0]"),
        ({"interests": [{"id": 1, "key": 1}]}, "interests[0]"),
        ({"interests": [{"id": 1, "weight": 2}]}, "interests[0].weight"),
        ({"interests": [[1]]}, "interests[0]"),
        ({"interests": [1.5]}, "interests[0]"),
        ({"interests": [""]}, "interests[0]"),
        ({"relationship_statuses": ["single"]}, "relationship_statuses[0]"),
        ({"flexible_spec": {"interests": [1]}}, "flexible_spec"),
        ({"flexible_spec": [{}]}, "flexible_spec[0]"),
        ({"flexible_spec": [{"interests": []}]}, "flexible_spec[0]"),
        ({"flexible_spec": [{"interests": [1]}, {"locales": [6]}]}, "flexible_spec[1].locales"),
        ({"flexible_spec": [{"interests": [1, True]}]}, "flexible_spec[0].interests[1]"),
        ({"exclusions": {"genders": [1]}}, "exclusions.genders"),
        ({"exclusions": [1]}, "exclusions"),
        ({"publisher_platforms": ["facebok"]}, "publisher_platforms[0]"),
        ({"facebook_positions": [1]}, "facebook_positions[0]"),
        ({"device_platforms": ["phone"]}, "device_platforms[0]"),
        ({"user_os": ["iOS_ver_8.0"]}, "user_os[0]"),
        ({"user_os": ["iOS_ver_8.0_to_"]}, "user_os[0]"),
        ({"user_os": ["iOS_ver_99999999999999999999_and_above"]}, "user_os[0]"),
        ({"user_os": [8]}, "user_os[0]"),
        ({"wireless_carrier": ["Verizon"]}, "wireless_carrier[0]"),
        ({"geo_locations": ["US"]}, "geo_locations"),
        ({"geo_locations": {"country": ["US"]}}, "geo_locations.country"),
        ({"geo_locations": {"countries": "US"}}, "geo_locations.countries"),
        ({"geo_locations": {"regions": [{"key": 1, "radius": 2}]}}, "geo_locations.regions[0].radius"),
        ({"geo_locations": {"location_types": ["home"]}}, "geo_locations.location_types"),
        ({"geo_locations": {"countries": ["US"], "location_types": ["work"]}}, "geo_locations.location_types[0]"),
        ({"geo_locations": {"cities": [{"key": 777934, "radius": 10}]}}, "geo_locations.cities[0]"),
        (
            {"geo_locations": {"custom_locations": [{"latitude": 1, "longitude": 2}]}},
            "geo_locations.custom_locations[0].radius",
        ),
        ({"geo_locations": {"custom_locations": [{"radius": 2}]}}, "geo_locations.custom_locations[0]"),
        (
            {"geo_locations": {"custom_locations": [{"latitude": 91, "longitude": 2, "radius": 2}]}},
            "geo_locations.custom_locations[0].latitude",
        ),
        (
            {"geo_locations": {"custom_locations": [{"latitude": 1, "radius": 2}]}},
            "geo_locations.custom_locations[0].longitude",
        ),
        (
            {"geo_locations": {"custom_locations": [{"latitude": 1, "longitude": 2, "radius": -2}]}},
            "geo_locations.custom_locations[0].radius",
        ),
        (
            {
                "excluded_geo_locations": {
                    "custom_locations": [{"latitude": 1, "longitude": 2, "radius": 2, "distance_unit": "km"}]
                }
            },
            "excluded_geo_locations.custom_locations[0].distance_unit",
        ),
        ({"targetting": 1}, "targetting"),
        ({"geo location": 1}, '"geo location"'),
        ([], ""),
        ("US", ""),
        (None, ""),
    ],
)
def test_refusals_name_the_place(spec: object, path: str) -> None:
    assert refusal(spec).path == path


def test_a_misspelt_field_is_answered_with_the_right_name() -> None:
    assert '"geo_locations"' in refusal({"geolocations": {}}).detail


# Segments and audiences.


def test_segments_at_the_top_level_are_ored_and_anded_with_everything_else() -> None:
    spec = {"behaviors": [1], "interests": [2], "flexible_spec": [{"life_events": [3]}], "custom_audiences": [4]}
    rest = {"user.life_events": ["3"], "audience": ["4"]}
    assert matches(spec, {"user.behaviors": ["1"]} | rest)
    assert matches(spec, {"user.interests": ["2"]} | rest)
    assert not matches(spec, rest)
    assert not matches(spec, {"user.interests": ["2"], "audience": ["4"]})
    assert not matches(spec, {"user.interests": ["2"], "user.life_events": ["3"]})


@pytest.mark.parametrize("kind", FLEXIBLE)
def test_every_kind_stands_in_flexible_spec_and_in_exclusions(kind: str) -> None:
    segment = FLEXIBLE[kind]
    carried = {segment.attribute: [4 if segment.is_number else segment.value(kind, "4")]}
    assert matches({"flexible_spec": [{kind: ["4"]}]}, carried)
    assert not matches({"flexible_spec": [{kind: ["4"]}]}, {})
    assert matches({"exclusions": {kind: ["4"]}}, {})
    assert not matches({"exclusions": {kind: ["4"]}}, carried)


def test_the_documented_reading_of_flexible_spec() -> None:
    """[{a: [1, 2], b: [3]}, {c: [4, 5]}, {d: [6]}] is (1 or 2 or 3) and (4 or 5) and 6."""
    spec = {"flexible_spec": [{"interests": [1, 2], "behaviors": [3]}, {"industries": [4, 5]}, {"income": [6]}]}
    for first in ({"user.interests": ["1"]}, {"user.interests": ["2"]}, {"user.behaviors": ["3"]}, {}):
        for second in ({"user.industries": ["4"]}, {"user.industries": ["5"]}, {}):
            for third in ({"user.income": ["6"]}, {}):
                assert matches(spec, first | second | third) == bool(first and second and third)


def test_kinds_that_share_an_attribute_do_not_share_ids() -> None:
    assert not matches({"moms": [7]}, {"user.demographics": ["home_type:7"]})
    assert matches({"moms": [7], "home_type": [8]}, {"user.demographics": ["home_type:8"]})


@pytest.mark.parametrize(
    "element", [123, "123", 123.0, {"id": 123}, {"id": "123"}, {"key": 123}, {"key": "123", "name": "x"}]
)
def test_the_forms_of_an_element(element: object) -> None:
    assert matches({"interests": [element]}, {"user.interests": ["123"]})
    assert matches({"geo_locations": {"cities": [element]}}, {"geo.city": "123"})
    assert matches({"relationship_statuses": [element]}, {"user.relationship_statuses": [123]})


# Placements and devices.


def test_positions_restrict_their_own_platform_only() -> None:
    spec = {"publisher_platforms": ["facebook", "instagram"], "facebook_positions": ["feed", "story"]}
    assert matches(spec, {"placement.platform": "facebook", "placement.position": "facebook:story"})
    assert not matches(spec, {"placement.platform": "facebook", "placement.position": "facebook:search"})
    assert matches(spec, {"placement.platform": "instagram", "placement.position": "instagram:explore"})
    assert not matches(spec, {"placement.platform": "messenger"})


def test_positions_of_a_platform_that_is_not_chosen_open_nothing() -> None:
    spec = {"publisher_platforms": ["instagram"], "facebook_positions": ["feed"]}
    assert matches(spec, {"placement.platform": "instagram"})
    assert not matches(spec, {"placement.platform": "facebook", "placement.position": "facebook:feed"})


def test_effective_placements_are_a_second_condition() -> None:
    spec = {"facebook_positions": ["feed", "search"], "effective_facebook_positions": ["feed", "story"]}
    on = {"placement.platform": "facebook"}
    assert matches(spec, on | {"placement.position": "facebook:feed"})
    assert not matches(spec, on | {"placement.position": "facebook:search"})
    assert not matches(spec, on | {"placement.position": "facebook:story"})


def test_systems_by_name_in_any_case() -> None:
    for name in ("iOS", "IOS", "ios"):
        assert matches({"user_os": [name]}, {"device.os": "ios", "device.os_version": "17"})
        assert matches({"user_os": [name, "Android_ver_9_and_above"]}, {"device.os": "ios"})
        assert not matches({"user_os": [name]}, {"device.os": "android"})


# Real specs.


def test_the_tables_hold_every_field_that_meta_lists() -> None:
    lists = json.loads(shared("cases/meta/meta_api_specs_targeting.json").read_text())

    def names(of: str) -> set[str]:
        return {field["name"] for field in lists[of]["fields"]}

    assert names("Targeting") == set(FIELDS)
    assert len(FIELDS) == len(set(FIELDS))
    assert names("FlexibleTargeting") == set(FLEXIBLE)
    assert names("TargetingGeoLocation") == set(GEO_FIELDS)
    assert names("TargetingAutomation") <= set(SWITCHED_ON["targeting_automation"][0]) | {
        "creative_audience_pairing",
        "individual_setting",
        "shared_audiences",
        "value_expression",
    }


REFUSED_CASES = {
    "custom locations (numbers given as strings; one pin has only an address; no distance_unit on the first)": (
        "geo_locations.custom_locations[0]",
        None,
    ),
    "males 20-24 within 10 miles of Menlo Park, or in Texas, or in Japan (geo kinds OR together)": (
        "geo_locations.cities[0]",
        None,
    ),
    "multi-city by population": (
        "geo_locations.custom_locations[0].custom_type",
        "geo_locations.custom_locations[0].custom_type",
    ),
    "interest (city key given as a number here, as a string above)": ("geo_locations.cities[0]", None),
}


@pytest.mark.parametrize("file", ["meta_docs_basic_targeting.json", "meta_docs_flexible_targeting.json"])
def test_the_documented_examples(file: str) -> None:
    """Each compiles to an expression of the default schema, or is refused where the table above says."""
    for case in json.loads(shared(f"cases/meta/{file}").read_text()):
        if "targeting" not in case:
            continue
        for places, expected in zip((None, PLACES), REFUSED_CASES.get(case["case"], (None, None)), strict=True):
            if expected is None:
                parse_expression(compile_meta(case["targeting"], places), SCHEMA.attributes)
            else:
                assert refusal(case["targeting"], places).path == expected


def test_the_examples_of_metas_sdk() -> None:
    compiled = 0
    for case in json.loads(shared("cases/meta/meta_sdk_example_params.json").read_text()):
        spec = case["params"].get("targeting", case["params"].get("targeting_spec"))
        if spec is not None:
            parse_expression(compile_meta(spec, PLACES), SCHEMA.attributes)
            compiled += 1
    assert compiled == 17


def test_real_ads_are_all_honoured() -> None:
    outcomes: Counter[str] = Counter()
    for line in shared("data/real-ads.jsonl").read_text().splitlines():
        parse_expression(compile_meta(json.loads(line)["targeting"]), SCHEMA.attributes)
        outcomes["honoured"] += 1
    assert outcomes == {"honoured": 1749}


# Whatever is given.

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("aU1:é", max_size=5)
    | st.sampled_from(["facebook", "US", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*GEO_FIELDS, *FLEXIBLE, "id", "key", "radius", "latitude", "longitude"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
def test_any_spec_compiles_or_is_refused(spec: Json) -> None:
    try:
        compiled = compile_meta(spec, PLACES)
    except InvalidInput:
        return
    parse_expression(compiled, SCHEMA.attributes)
