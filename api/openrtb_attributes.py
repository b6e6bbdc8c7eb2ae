"""What an OpenRTB BidRequest says of the user, as attributes: one table, row by row from path to attribute.

A row reads one field of one object and gives no value where the field is absent or says nothing usable (an unknown
country, a version that is none); a wrong JSON type is a fault. Where several rows give one attribute, the first that
has a value counts or, for lists, all of them together. docs/adapters.md shows the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from api import openrtb_conversions as convert
from api.countries import zone_of_country, zone_of_offset
from api.openrtb_conversions import Context
from api.openrtb_read import Json, integer, number, object_at, text, texts
from gpu_index.schema import Kind, Schema
from gpu_index.values import InvalidInput, parse_values

Conversion: TypeAlias = Callable[[Any, str], Any]  # value, path → what the attribute gets
InContext: TypeAlias = Callable[[Any, str, Context], Any]


class Row(NamedTuple):
    field: str  # inside the object that the table is for
    attribute: str
    convert: Conversion | None
    meaning: str
    joins: bool = False  # with the values of other rows of the same attribute
    in_context: InContext | None = None  # in place of `convert`


# The table, by the object that the fields are in.

GEO_ROWS = (
    Row(
        "country",
        "geo.country",
        convert.country,
        "alpha-3 (or alpha-2) to alpha-2, in any case; an unknown one is left out",
    ),
    Row(
        "region",
        "geo.region",
        None,
        "ISO 3166-2 with the country in front: `CO` in `USA` is `US-CO`",
        in_context=convert.region,
    ),
    Row("metro", "geo.metro", text, "as it is"),
    Row("city", "geo.city", text, "as it is"),
    Row(
        "zip",
        "geo.zip",
        None,
        "with the country in front: `US:94304`; left out where the country is unknown",
        in_context=convert.postal_code,
    ),
    Row(
        "lat",
        "geo.point",
        None,
        "with `lon`; left out where either is absent or beyond the poles or ±180°",
        in_context=convert.point,
    ),
)
SUA_ROWS = (
    Row("browsers", "device.browser", convert.brands, "each `brand`, as it is"),
    Row("mobile", "device.platform", convert.mobile_platform, "1 is `mobile`, where `devicetype` says nothing"),
    Row("model", "device.model", text, "as it is; before `device.model`"),
)
DEVICE_TYPE_ROWS = (
    Row("devicetype", "device.type", convert.device_type, "as AdCOM numbers them, 1 to 8"),
    Row(
        "devicetype",
        "device.platform",
        convert.device_platform,
        "1, 4, 5: `mobile`; 2: `desktop`; 3, 7: `connected_tv`",
    ),
)
DEVICE_ROWS = (
    Row("make", "device.make", text, "as it is"),
    Row("model", "device.model", text, "as it is"),
    Row("carrier", "device.carrier", text, "as it is"),
    Row("connectiontype", "device.connection_type", convert.connection_type, "as AdCOM numbers them, 1 to 7"),
    Row("language", "device.language", text, "as it is"),
    Row("langb", "device.language", text, "as it is, where there is no `language`"),
    Row("language", "language", convert.language, "its first part, in lower case"),
    Row("langb", "language", convert.language, "its first part, in lower case, where there is no `language`"),
    Row("pxratio", "device.pixel_ratio", number, "as it is"),
)
USER_ROWS = (
    Row(
        "yob",
        "age",
        None,
        "the year of the request's time (UTC) less `yob`; left out beyond 0 to 120",
        in_context=convert.age,
    ),
    Row("gender", "gender", convert.gender, "`M`: `male`, `F`: `female`, `O`: `other`, in any case"),
    Row("keywords", "user.keywords", convert.words, "split at commas", joins=True),
    Row("kwarray", "user.keywords", texts, "as they are", joins=True),
    Row("data", "audience", convert.segments, "`segment[].id` of data without `ext.segtax`, as it is"),
    Row(
        "data",
        "user.interests",
        convert.taxonomy_segments,
        "`segment[].id` with an integer `ext.segtax` in front: `4:243`",
    ),
)
CONTENT_ROWS = (
    Row("genre", "content.genre", text, "as it is"),
    Row("cat", "content.category", texts, "as they are"),
    Row("language", "content.language", convert.language, "its first part, in lower case"),
    Row("langb", "content.language", convert.language, "its first part, in lower case, where there is no `language`"),
    Row("contentrating", "content.rating", text, "as it is"),
    Row("livestream", "content.live", convert.flag, "1 is true, 0 is false"),
    Row("keywords", "keywords", convert.words, "split at commas", joins=True),
    Row("kwarray", "keywords", texts, "as they are", joins=True),
)
PUBLISHER_ROWS = (Row("id", "publisher.id", text, "as it is"),)
SITE_ROWS = (
    Row("domain", "site.domain", convert.lower, "in lower case"),
    Row("page", "site.domain", convert.host, "its host, where there is no `domain`"),
    Row("cat", "site.category", texts, "as they are", joins=True),
    Row("sectioncat", "site.category", texts, "as they are", joins=True),
    Row("pagecat", "site.category", texts, "as they are", joins=True),
    Row("mobile", "site.mobile", convert.flag, "1 is true, 0 is false"),
    Row("keywords", "keywords", convert.words, "split at commas", joins=True),
    Row("kwarray", "keywords", texts, "as they are", joins=True),
)
APP_ROWS = (
    Row("bundle", "app.bundle", text, "as it is"),
    Row("cat", "app.category", texts, "as they are", joins=True),
    Row("sectioncat", "app.category", texts, "as they are", joins=True),
    Row("pagecat", "app.category", texts, "as they are", joins=True),
    Row("keywords", "keywords", convert.words, "split at commas", joins=True),
    Row("kwarray", "keywords", texts, "as they are", joins=True),
)
DOOH_ROWS = (
    Row("venuetype", "dooh.venue_type", convert.text_or_texts, "as they are"),
    Row("keywords", "keywords", convert.words, "split at commas", joins=True),
    Row("kwarray", "keywords", texts, "as they are", joins=True),
)
CHANNEL_ROWS = {"site": SITE_ROWS, "app": APP_ROWS, "dooh": DOOH_ROWS}
SYSTEM_ROWS = (
    Row("os", "device.os", convert.system, "in lower case, with one name for one system (`OS X` is `macos`)"),
    Row("osv", "device.os_version", convert.version, "as it is; left out where it is no version"),
)
SUA_PLATFORM_ROWS = (
    Row("brand", "device.os", convert.system, "as `device.os`, and before it"),
    Row("version", "device.os_version", convert.version_of_parts, "its parts with dots between them"),
)


# Every row, by the path of the object that its field is in.
TABLES = (
    ("device.geo", GEO_ROWS),
    ("device", DEVICE_TYPE_ROWS),
    ("device.sua", SUA_ROWS),
    ("device.sua.platform", SUA_PLATFORM_ROWS),
    ("device", DEVICE_ROWS),
    ("device", SYSTEM_ROWS),
    ("user", USER_ROWS),
    *(
        table
        for channel, rows in CHANNEL_ROWS.items()
        for table in (
            (channel, rows),
            (f"{channel}.content", CONTENT_ROWS),
            (f"{channel}.publisher", PUBLISHER_ROWS),
        )
    ),
)


def attributes_of(request: Json, channel: str | None, year: int, schema: Schema) -> tuple[Json, str | None]:
    """The attributes of a BidRequest and its time zone. `channel`: which of site, app and dooh it has, `year`: of the
    request's time. Attributes that the schema does not have, or has as another kind, are left out."""
    found: Json = {}
    device, user = object_at(request, "device", "device"), object_at(request, "user", "user")
    timezone = _read_geo(found, device, user, year)
    _read_device(found, device, year)
    _read(found, USER_ROWS, user, "user", year)
    if channel is not None:
        medium = object_at(request, channel, channel)
        _read(found, CHANNEL_ROWS[channel], medium, channel, year)
        for name, rows in (("content", CONTENT_ROWS), ("publisher", PUBLISHER_ROWS)):
            path = f"{channel}.{name}"
            _read(found, rows, object_at(medium, name, path), path, year)
    return {name: value for name, value in found.items() if _is_declared(schema, name, value)}, timezone


def _read(found: Json, rows: tuple[Row, ...], parent: Json, path: str, year: int) -> None:
    """Puts what the rows give of one object into `found`."""
    for row in rows:
        raw = parent.get(row.field)
        if raw is None or (row.attribute in found and not row.joins):
            continue
        place = f"{path}.{row.field}"
        if row.convert is not None:
            value = row.convert(raw, place)
        else:
            assert row.in_context is not None
            value = row.in_context(raw, place, Context(parent, year))
        if value is not None and value != "" and value != []:
            found[row.attribute] = found.get(row.attribute, []) + value if row.joins else value


def _read_geo(found: Json, device: Json, user: Json, year: int) -> str | None:
    """Where the device is or else, if that gives no attribute, the user's home; and the time zone there."""
    timezone = None
    for parent, parent_path, presence in ((device, "device", "recent"), (user, "user", "home")):
        path = f"{parent_path}.geo"
        geo = object_at(parent, "geo", path)
        _read(found, GEO_ROWS, geo, path, year)
        if timezone is None and geo.get("utcoffset") is not None:
            timezone = zone_of_offset(integer(geo["utcoffset"], f"{path}.utcoffset"))
        if timezone is None and "geo.country" in found:
            timezone = zone_of_country(found["geo.country"])
        if found:
            found["geo.location_type"] = presence
            break
    return timezone


def _read_device(found: Json, device: Json, year: int) -> None:
    """The device. What `sua` says comes first, but for the kind of device, which `devicetype` tells better."""
    sua = object_at(device, "sua", "device.sua")
    _read(found, DEVICE_TYPE_ROWS, device, "device", year)
    _read(found, SUA_ROWS, sua, "device.sua", year)
    _read(found, DEVICE_ROWS, device, "device", year)
    _read(found, SUA_PLATFORM_ROWS, object_at(sua, "platform", "device.sua.platform"), "device.sua.platform", year)
    own: Json = {}
    _read(own, SYSTEM_ROWS, device, "device", year)
    if found.get("device.os") in (None, own.get("device.os")):  # never the version of another system
        found.update({name: value for name, value in own.items() if name not in found})


def _is_declared(schema: Schema, name: str, value: Any) -> bool:
    """Whether the schema has the attribute, of a kind that takes the value."""
    attribute = schema.attributes.get(name)
    if attribute is None:
        return False
    if attribute.kind is Kind.CATEGORY:
        return type(value[0] if type(value) is list else value) is str
    try:
        return bool(parse_values(attribute, value))
    except InvalidInput:
        return False
