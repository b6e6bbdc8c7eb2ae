"""Conversions of OpenRTB's values to those of attributes. None, "" and [] are no value, a wrong type is a fault."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from api.countries import alpha_2
from api.openrtb_read import Json, integer, number, objects, text, texts

AGE_YEARS_MAX = 120
VERSION = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18}){0,15}")
REGION = re.compile(r"[A-Z]{2}-[A-Z0-9]{1,3}")
SEGMENT_TAXONOMY = "segtax"  # in the ext of Data: the taxonomy of its segments, numbered as AdCOM does

PLATFORM_BY_DEVICE_TYPE = {1: "mobile", 2: "desktop", 3: "connected_tv", 4: "mobile", 5: "mobile", 7: "connected_tv"}
DEVICE_TYPES = range(1, 9)  # of AdCOM
CONNECTION_TYPES = range(1, 8)  # of AdCOM
GENDERS = {"M": "male", "F": "female", "O": "other"}
SYSTEMS = {
    "os x": "macos",
    "osx": "macos",
    "mac os": "macos",
    "mac os x": "macos",
    "iphone os": "ios",
    "ipados": "ios",
    "chrome os": "chromeos",
    "chromium os": "chromeos",
}


class Context(NamedTuple):
    """What some conversions need beside the value."""

    parent: Json  # the object that has the field
    year: int  # in which the request is made


def text_or_texts(value: object, path: str) -> str | list[str]:
    return texts(value, path) if type(value) is list else text(value, path)


def words(value: object, path: str) -> list[str]:
    return [word for word in map(str.strip, text(value, path).split(",")) if word]


def lower(value: object, path: str) -> str:
    return text(value, path).lower()


def flag(value: object, path: str) -> bool | None:
    return {0: False, 1: True}.get(integer(value, path))


def country(value: object, path: str) -> str | None:
    return alpha_2(text(value, path))


def region(value: object, path: str, context: Context) -> str | None:
    code = text(value, path).upper()
    if REGION.fullmatch(code):
        return code
    of = _country_of(context)
    return f"{of}-{code}" if of and code else None


def postal_code(value: object, path: str, context: Context) -> str | None:
    code = text(value, path)
    of = _country_of(context)
    return f"{of}:{code}" if of and code else None


def _country_of(context: Context) -> str | None:
    raw = context.parent.get("country")
    return alpha_2(raw) if type(raw) is str else None


def point(value: object, path: str, context: Context) -> dict[str, float] | None:
    lat = number(value, path)
    if context.parent.get("lon") is None:
        return None
    lon = number(context.parent["lon"], path.removesuffix("lat") + "lon")
    return {"lat": lat, "lon": lon} if abs(lat) <= 90 and abs(lon) <= 180 else None


def device_type(value: object, path: str) -> int | None:
    number_of = integer(value, path)
    return number_of if number_of in DEVICE_TYPES else None


def device_platform(value: object, path: str) -> str | None:
    return PLATFORM_BY_DEVICE_TYPE.get(integer(value, path))


def mobile_platform(value: object, path: str) -> str | None:
    return "mobile" if flag(value, path) else None


def connection_type(value: object, path: str) -> int | None:
    number_of = integer(value, path)
    return number_of if number_of in CONNECTION_TYPES else None


def system(value: object, path: str) -> str:
    name = text(value, path).strip().lower()
    return SYSTEMS.get(name, name)


def version(value: object, path: str) -> str | None:
    written = text(value, path).strip()
    return written if VERSION.fullmatch(written) else None


def version_of_parts(value: object, path: str) -> str | None:
    written = ".".join(texts(value, path))
    return written if VERSION.fullmatch(written) else None


def language(value: object, path: str) -> str | None:
    primary = re.split("[-_]", text(value, path).strip().lower())[0]
    return primary if 2 <= len(primary) <= 3 and primary.isascii() and primary.isalpha() else None


def host(value: object, path: str) -> str | None:
    try:
        return urlsplit(text(value, path)).hostname
    except ValueError:
        return None


def brands(value: object, path: str) -> list[str]:
    found = objects(value, path)
    return [text(each["brand"], f"{place}.brand") for each, place in found if each.get("brand") not in (None, "")]


def age(value: object, path: str, context: Context) -> int | None:
    years = context.year - integer(value, path)
    return years if 0 <= years <= AGE_YEARS_MAX else None


def gender(value: object, path: str) -> str | None:
    return GENDERS.get(text(value, path).upper())


def segments(value: object, path: str) -> list[str]:
    """Ids of the segments of data that names no taxonomy."""
    return [identifier for taxonomy, identifier in _segments(value, path) if taxonomy is None]


def taxonomy_segments(value: object, path: str) -> list[str]:
    """Ids of the segments of data that names a taxonomy, each with the taxonomy's number in front."""
    return [f"{taxonomy}:{identifier}" for taxonomy, identifier in _segments(value, path) if type(taxonomy) is int]


def _segments(value: object, path: str) -> list[tuple[Any, str]]:
    """The taxonomy as it is given, and the id, of each segment. One that is no integer is known to nobody."""
    found = []
    for data, place in objects(value, path):
        extension = data.get("ext")
        taxonomy = extension.get(SEGMENT_TAXONOMY) if type(extension) is dict else None
        for segment, at in objects(data.get("segment"), f"{place}.segment"):
            if segment.get("id") not in (None, ""):
                found.append((taxonomy, text(segment["id"], f"{at}.id")))
    return found
