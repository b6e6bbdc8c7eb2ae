"""Places of Meta targeting specs: by key, by circle, by the table of places, and who counts as being there."""

from __future__ import annotations

from typing import Any

import pytest

from ingest.meta import compile_meta
from ingest.meta_geo import KINDS
from tests.ingest.audiences import ELEVEN_MILES_AWAY, MENLO_PARK, NINE_MILES_AWAY, PLACES, Json, matches, refusal


def test_kinds_of_places_are_ored_and_exclusions_subtracted() -> None:
    spec = {
        "geo_locations": {"countries": ["US"], "regions": [{"key": "4081"}], "zips": ["CA:V5"]},
        "excluded_geo_locations": {"regions": [{"key": "3847"}], "cities": [{"key": 12}]},
    }
    assert matches(spec, {"geo.country": "US"})
    assert matches(spec, {"geo.country": "MX", "geo.region": "4081"})
    assert matches(spec, {"geo.zip": "CA:V5"})
    assert not matches(spec, {"geo.country": "MX"})
    assert not matches(spec, {"geo.country": "US", "geo.region": "3847"})
    assert not matches(spec, {"geo.country": "US", "geo.city": "12"})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.field)
def test_a_place_by_key_alone_is_matched_by_its_key(kind: Any) -> None:
    spec = {"geo_locations": {kind.field: [{"key": "X:1", "name": "anything", "country": "US"}]}}
    assert matches(spec, {kind.attribute: kind.value("X:1")})
    assert not matches(spec, {kind.attribute: kind.value("X:2")})


def test_kinds_that_share_geo_place_do_not_share_keys() -> None:
    assert not matches({"geo_locations": {"subcities": ["1"]}}, {"geo.place": "neighborhood:1"})


def test_worldwide_is_everywhere() -> None:
    assert matches({"geo_locations": {"country_groups": ["worldwide"]}}, {})
    assert not matches({"geo_locations": {"country_groups": ["europe"]}}, {})
    assert not matches({"excluded_geo_locations": {"country_groups": ["worldwide"]}}, {"geo.country": "US"})


def test_a_pin_is_a_circle_in_miles_unless_it_says_kilometers() -> None:
    pin = {"latitude": "37.4530", "longitude": -122.1817, "radius": "10"}
    spec = {"geo_locations": {"custom_locations": [pin]}}
    assert matches(spec, {"geo.point": NINE_MILES_AWAY})
    assert not matches(spec, {"geo.point": ELEVEN_MILES_AWAY})
    in_kilometers = {"geo_locations": {"custom_locations": [pin | {"distance_unit": "kilometer"}]}}
    assert not matches(in_kilometers, {"geo.point": NINE_MILES_AWAY})
    within = compile_meta(spec)["all"][0]["within"]
    assert within == {"lat": 37.453, "lon": -122.1817, "radius_km": 16.09344}


def test_males_20_to_24_near_menlo_park_or_in_texas_or_in_japan() -> None:
    spec = {
        "age_min": 20,
        "age_max": 24,
        "genders": [1],
        "geo_locations": {
            "countries": ["JP"],
            "regions": [{"key": "3886"}],
            "cities": [{"key": "2420605", "radius": 10, "distance_unit": "mile"}],
        },
        "publisher_platforms": ["facebook", "audience_network"],
        "device_platforms": ["mobile"],
    }
    user = {"age": 22, "gender": "male", "placement.platform": "audience_network", "device.platform": "mobile"}
    for place in (
        {"geo.country": "JP"},
        {"geo.region": "3886"},
        {"geo.point": MENLO_PARK},
        {"geo.point": NINE_MILES_AWAY},
    ):
        assert matches(spec, user | place, PLACES)
        assert not matches(spec, user | place | {"gender": "female"}, PLACES)
        assert not matches(spec, user | place | {"age": 25}, PLACES)
        assert not matches(spec, user | place | {"device.platform": "desktop"}, PLACES)
        assert not matches(spec, user | place | {"placement.platform": "instagram"}, PLACES)
    assert not matches(spec, user | {"geo.point": ELEVEN_MILES_AWAY}, PLACES)
    assert not matches(spec, user | {"geo.country": "US"}, PLACES)


def test_a_key_with_a_radius_needs_the_table_of_places() -> None:
    spec = {"geo_locations": {"zips": [{"key": "US:94304", "radius": 5}]}}
    assert "MIRACH_PLACES" in refusal(spec).detail
    assert matches(spec, {"geo.point": {"lat": 37.40, "lon": -122.16}}, PLACES)
    unknown = {"geo_locations": {"zips": [{"key": "US:00501", "radius": 5}]}}
    assert "zip" in refusal(unknown, PLACES).detail
    assert matches(
        {"geo_locations": {"geo_markets": [{"key": "DMA:501", "radius": 50}]}},
        {"geo.point": {"lat": 40.7, "lon": -74}},
        PLACES,
    )


def test_a_city_with_a_radius_of_nothing_is_its_key() -> None:
    for radius in (None, 0, "0"):
        assert matches({"geo_locations": {"cities": [{"key": "1", "radius": radius}]}}, {"geo.city": "1"})


def test_a_place_with_its_own_coordinates_needs_no_table() -> None:
    place = {"key": "1", "latitude": 37.453, "longitude": -122.1817, "radius": 10}
    assert matches({"geo_locations": {"places": [place]}}, {"geo.point": NINE_MILES_AWAY})
    assert matches({"geo_locations": {"places": [{"key": "1"}]}}, {"geo.place": "place:1"})


def test_a_pin_with_an_address_only_is_looked_up() -> None:
    pin = {"address_string": "1601 Willow Road, Menlo Park, CA", "radius": "5"}
    spec = {"geo_locations": {"custom_locations": [pin]}}
    assert "MIRACH_PLACES" in refusal(spec).detail
    assert matches(spec, {"geo.point": {"lat": 37.48, "lon": -122.15}}, PLACES)


def test_cities_by_population_are_refused() -> None:
    pin = {"custom_type": "multi_city", "min_population": 500_000, "country": "BR"}
    fault = refusal({"geo_locations": {"custom_locations": [pin]}})
    assert fault.path == "geo_locations.custom_locations[0].custom_type"


def test_location_types_say_whose_presence_counts() -> None:
    def spec(*types: str) -> Json:
        return {"geo_locations": {"countries": ["US"], "location_types": list(types)}}

    at_home = {"geo.country": "US", "geo.location_type": "home"}
    travelling = {"geo.country": "US", "geo.location_type": ["recent", "travel_in"]}
    for everyone in (spec(), spec("recent", "home"), spec("home", "recent", "travel_in")):
        assert matches(everyone, at_home)
        assert matches(everyone, travelling)
        assert matches(everyone, {"geo.country": "US"})
    assert matches(spec("home"), at_home)
    assert not matches(spec("home"), travelling)
    assert not matches(spec("home"), {"geo.country": "US"})
    assert not matches(spec("home"), at_home | {"geo.country": "CA"})
    assert matches(spec("travel_in"), travelling)
    assert not matches(spec("travel_in"), at_home)
    excluded = {"excluded_geo_locations": spec("home")["geo_locations"]}
    assert not matches(excluded, at_home)
    assert matches(excluded, travelling)
