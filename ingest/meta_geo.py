"""Places of a Meta targeting spec: `geo_locations` and `excluded_geo_locations`.

The kinds of one object are ORed: a user in Texas or in Japan or near a pin is in. A place named by key alone is the key
among the values of its kind's attribute; with a radius it is a circle around the point that the table of places has
for it. `location_types` says whose presence counts: home and recent together, which is Meta's default, is everyone
there and needs no condition.
"""

from __future__ import annotations

from typing import NamedTuple

from gpu_index.invalid_input import shown, step
from ingest.meta_read import (
    Json,
    all_of,
    any_of,
    elements,
    identifier,
    is_off,
    listed,
    number,
    object_,
    refused,
    says_nothing,
    word,
    words,
)
from ingest.places import Places

KM_PER_MILE = 1.609344
KM_BY_UNIT = {"mile": KM_PER_MILE, "kilometer": 1.0}
RADIUS_MAX = 20_037.0  # km or miles: beyond it every place on the sphere is inside
LOCATION_TYPES = ("home", "recent", "travel_in")
EVERYONE = frozenset(("home", "recent"))
WORLDWIDE = "worldwide"


class Kind(NamedTuple):
    """One field of TargetingGeoLocation whose elements are named by key."""

    field: str
    name: str  # its kind in the table of places, and before the key in `geo.place`
    attribute: str
    takes_radius: bool = False

    def value(self, key: str) -> str:
        return f"{self.name}:{key}" if self.attribute == "geo.place" else key


KINDS = (
    Kind("countries", "country", "geo.country"),
    Kind("country_groups", "country_group", "geo.place"),
    Kind("regions", "region", "geo.region"),
    Kind("cities", "city", "geo.city", takes_radius=True),
    Kind("zips", "zip", "geo.zip", takes_radius=True),
    Kind("geo_markets", "geo_market", "geo.metro", takes_radius=True),
    Kind("metro_areas", "metro_area", "geo.place", takes_radius=True),
    Kind("places", "place", "geo.place", takes_radius=True),
    Kind("neighborhoods", "neighborhood", "geo.place", takes_radius=True),
    Kind("subneighborhoods", "subneighborhood", "geo.place", takes_radius=True),
    Kind("subcities", "subcity", "geo.place", takes_radius=True),
    Kind("electoral_districts", "electoral_district", "geo.place"),
    Kind("political_districts", "political_district", "geo.place"),
    Kind("small_geo_areas", "small_geo_area", "geo.place"),
    Kind("medium_geo_areas", "medium_geo_area", "geo.place"),
    Kind("large_geo_areas", "large_geo_area", "geo.place"),
    Kind("location_cluster_ids", "location_cluster", "geo.place"),
)
FIELDS = (*(kind.field for kind in KINDS), "custom_locations", "location_types")
DESCRIBED_BY = ("name", "country", "region", "region_id", "primary_city_id", "market_type", "address_string")
CIRCLE = ("latitude", "longitude", "radius", "distance_unit")
PIN = (*CIRCLE, *DESCRIBED_BY, "key", "custom_type", "country_group", "min_population", "max_population")


def compile_places(raw: object, path: str, places: Places | None) -> Json | None:
    """Whether the user is in one of the places of a TargetingGeoLocation; None if it names none."""
    if says_nothing(raw):
        return None
    spec = object_(raw, path, FIELDS)
    clauses: list[Json] = []
    for kind in KINDS:
        clauses += _compile_kind(kind, spec, f"{path}.{kind.field}", places)
    for element, place in elements(spec, "custom_locations", f"{path}.custom_locations"):
        clauses.append(_compile_pin(element, place, places))
    types = set(words(spec, "location_types", f"{path}.location_types", LOCATION_TYPES)) or EVERYONE
    if not clauses:
        if types >= EVERYONE:
            return None
        raise refused(f"{path}.location_types", "location_types say how a user is somewhere, but no place is named")
    inside = any_of(clauses)
    if types >= EVERYONE:
        return inside
    return all_of([inside, listed("geo.location_type", [name for name in LOCATION_TYPES if name in types])])


def _compile_kind(kind: Kind, spec: Json, path: str, places: Places | None) -> list[Json]:
    keys: list[str] = []
    clauses: list[Json] = []
    for element, place in elements(spec, kind.field, path):
        key = identifier(element, place, (*DESCRIBED_BY, *CIRCLE) if kind.takes_radius else DESCRIBED_BY)
        if kind.field == "country_groups" and key == WORLDWIDE:
            clauses.append({"all": []})
        elif isinstance(element, dict) and not is_off(element.get("radius")):
            clauses.append(_circle(element, place, kind.name, key, places))
        else:
            keys.append(kind.value(key))
    return ([listed(kind.attribute, keys)] if keys else []) + clauses


def _compile_pin(element: object, path: str, places: Places | None) -> Json:
    """An element of custom_locations: a point, or an address that the table of places knows, and a radius."""
    spec = object_(element, path, PIN)
    for name in ("custom_type", "country_group", "min_population", "max_population"):
        if not says_nothing(spec.get(name)):
            raise refused(
                f"{path}.{name}", f"{name} chooses cities by what Meta knows of them; name the cities instead"
            )
    if is_off(spec.get("radius")):
        raise refused(f"{path}.radius", "a pin needs a radius; Meta documents no default for it")
    address = spec.get("address_string")
    if isinstance(address, str) and address:
        return _circle(spec, path, "address", address, places)
    if says_nothing(spec.get("latitude")) and says_nothing(spec.get("longitude")):
        raise refused(path, f"a pin needs latitude and longitude, not {shown(element)}")
    return _circle(spec, path, "", "", places)


def _circle(spec: Json, path: str, kind: str, key: str, places: Places | None) -> Json:
    """The circle of an element with a radius, around its own coordinates or else those of the table of places."""
    unit = "mile" if says_nothing(spec.get("distance_unit")) else spec["distance_unit"]
    km = KM_BY_UNIT[word(unit, f"{path}.distance_unit", tuple(KM_BY_UNIT))]
    radius_km = round(number(spec["radius"], f"{path}.radius", 0.0, RADIUS_MAX) * km, 9)  # to the micrometre
    if says_nothing(spec.get("latitude")) and says_nothing(spec.get("longitude")):
        lat, lon = _look_up(path, kind, key, places)
    else:
        lat = number(spec.get("latitude"), f"{path}.latitude", -90.0, 90.0)
        lon = number(spec.get("longitude"), f"{path}.longitude", -180.0, 180.0)
    return {"attr": "geo.point", "within": {"lat": lat, "lon": lon, "radius_km": radius_km}}


def _look_up(path: str, kind: str, key: str, places: Places | None) -> tuple[float, float]:
    named = f"the {kind} {shown(key)} has a radius but no coordinates"
    if places is None:
        raise refused(path, f"{named}: name a table of places with MIRACH_PLACES, or give latitude and longitude")
    point = places.find(kind, key)
    if point is None:
        raise refused(path, f"{named}, and the table of places has no row {step(kind)},{step(key)}")
    return point
