"""Values of attributes and fields, from decoded JSON to the exact Python values that the targeting language compares.

category: str · integer and hour_of_week: int · number: float · boolean: bool · version: a tuple of its numbers without
the zeros at its end, so that "17" and "17.0.0" are one value and tuples compare as versions do · geo_point: Point.
Which kind a value has is known from its attribute alone; types never mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn, TypeAlias, TypeGuard

import msgspec

from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from gpu_index.json_input import INTEGER_MAX, INTEGER_MIN, decode_json, finite, parse_integer
from gpu_index.schema import BUILT_IN_FIELDS, Attribute, Kind, Schema
from gpu_index.zones import check_timezone, hour_of_week, parse_hour

__all__ = ["InvalidInput", "Point", "RequestAttributes", "Value", "Values", "decode_json", "parse_attributes"]
__all__ += ["parse_fields", "parse_value", "parse_values", "parse_within", "request_values", "value_to_json"]

VERSION_PARTS_MAX = 16
_CATEGORY = Kind.CATEGORY  # an enum's members are slow to look up


class Point(NamedTuple):
    """Degrees north and east."""

    lat: float
    lon: float


Value: TypeAlias = str | int | float | bool | tuple[int, ...] | Point
Values: TypeAlias = dict[int, tuple[Value, ...]]
"""By attribute or field index; an attribute that is not carried is absent, an empty tuple means the same."""


class RequestAttributes(msgspec.Struct, frozen=True):
    """What a request says of its user: sent values by attribute index, and the IANA zone that derived ones need."""

    values: Values
    timezone: str | None = None


def parse_attributes(
    schema: Schema, raw: object, timezone: str | None = None, path: str = "attributes"
) -> RequestAttributes:
    """The attributes of a request from its JSON object. Raises InvalidInput; that of `timezone` has just this path."""
    if type(raw) is not dict:
        raise InvalidInput(path, f"attributes are an object of names and values, not {shown(raw)}", "wrong_type")
    if timezone is not None:
        check_timezone(timezone, "timezone")
    values: Values = {}
    declared = schema.attributes
    for name, given in raw.items():
        try:
            attribute = declared.get(name)
            if attribute is None:
                raise unknown_attribute(name, declared, "attribute")
            parsed = parse_values(attribute, given)
        except InvalidInput as fault:
            fault.under(step(str(name))).under(path)
            raise
        if parsed:
            values[attribute.index] = parsed
    return RequestAttributes(values, timezone)


def request_values(schema: Schema, attributes: RequestAttributes, now_us: int) -> Values:
    """The values of a request with the derived ones: hour_of_week attributes at `now_us` (microseconds since 1970)."""
    if attributes.timezone is None or not schema.hour_of_week_attributes:
        return attributes.values
    hour = (hour_of_week(attributes.timezone, now_us),)
    return attributes.values | dict.fromkeys(schema.hour_of_week_attributes, hour)


def parse_fields(schema: Schema, raw: object, path: str = "fields") -> Values:
    """The `fields` of an ad from their JSON object: one value or a list for each. Raises InvalidInput."""
    if type(raw) is not dict:
        raise InvalidInput(path, f"fields are an object of names and values, not {shown(raw)}", "wrong_type")
    values: Values = {}
    for name, given in raw.items():
        try:
            field = schema.fields.get(name)
            if field is None:
                raise unknown_attribute(name, schema.fields, "field")
            if field.index < len(BUILT_IN_FIELDS):
                raise InvalidInput("", f"{shown(name)} comes from the ad itself, leave it out of fields", "derived")
            parsed = _parse_list(field, given) if type(given) is list else _parse_one(field, given)
        except InvalidInput as fault:
            fault.under(step(str(name))).under(path)
            raise
        if parsed:
            values[field.index] = parsed
    return values


def parse_values(attribute: Attribute, raw: object, path: str = "") -> tuple[Value, ...]:
    """The values that a request sends for one attribute, clamped where the schema says so; () if it carries none
    (null or an empty list). Each value once, in order of first appearance. Raises InvalidInput."""
    kind = attribute.kind
    if kind is _CATEGORY and type(raw) is str and raw.isascii():
        return (raw,)  # nearly all there is
    try:
        if raw is None or raw == []:
            return ()
        if kind is Kind.HOUR_OF_WEEK:
            detail = f'{shown(attribute.name)} is derived: send "timezone" (and "now") in its place'
            raise InvalidInput("", detail, "derived")
        if type(raw) is not list:
            values = _parse_one(attribute, raw)
        elif kind is Kind.CATEGORY or kind is Kind.INTEGER:
            values = _parse_list(attribute, raw)
        else:
            _wrong_type(attribute, raw)
        if attribute.minimum is not None or attribute.maximum is not None:
            values = _within_bounds(attribute, values, raw)
    except InvalidInput as fault:
        fault.under(path)
        raise
    return values


def parse_value(attribute: Attribute, raw: object) -> Value:
    """One value of an attribute or field, without the declared bounds, which hold for requests only.
    Raises InvalidInput."""
    return _PARSERS[attribute.kind](attribute, raw)


def _parse_one(attribute: Attribute, raw: object) -> tuple[Value, ...]:
    return () if raw is None else (_PARSERS[attribute.kind](attribute, raw),)


def _parse_list(attribute: Attribute, raw: list[object]) -> tuple[Value, ...]:
    if attribute.kind is Kind.CATEGORY and plain_texts(raw):
        return tuple(dict.fromkeys(raw))
    return parse_each(attribute, raw)


def plain_texts(raw: list[object]) -> TypeGuard[list[str]]:
    """Whether a list holds ASCII strings only: what nearly every list does, told in one pass in C."""
    try:
        return "".join(raw).isascii()  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return False


def parse_each(attribute: Attribute, raw: list[object]) -> tuple[Value, ...]:
    """The values of a list, each once, in order of first appearance."""
    parse = _PARSERS[attribute.kind]
    values: dict[Value, None] = {}
    position = 0
    try:
        for position, item in enumerate(raw):  # noqa: B007 — the place of a fault
            values[parse(attribute, item)] = None
    except InvalidInput as fault:
        fault.under(f"[{position}]")
        raise
    return tuple(values)


def _within_bounds(attribute: Attribute, values: tuple[Value, ...], raw: object) -> tuple[Value, ...]:
    """A request's integers between the declared bounds: clamped, or refused."""
    low = INTEGER_MIN if attribute.minimum is None else attribute.minimum
    high = INTEGER_MAX if attribute.maximum is None else attribute.maximum
    inside: dict[Value, None] = {}
    for value in values:
        assert isinstance(value, int)
        if not low <= value <= high and not attribute.clamp:
            place = f"[{[_integer(attribute, item) for item in raw].index(value)}]" if isinstance(raw, list) else ""
            bounds = f"at least {low}" if attribute.maximum is None else f"at most {high}"
            if attribute.minimum is not None and attribute.maximum is not None:
                bounds = f"from {low} to {high}"
            raise InvalidInput(place, f"{shown(attribute.name)} is {bounds}, not {value}", "out_of_range")
        inside[min(max(value, low), high)] = None
    return tuple(inside)


# One parser for each kind.


def _category(attribute: Attribute, raw: object) -> str:
    if type(raw) is not str:
        _wrong_type(attribute, raw)
    if not raw.isascii():
        try:
            raw.encode()
        except UnicodeEncodeError:
            raise InvalidInput("", "a text has half of a surrogate pair", "lone_surrogate") from None
    return raw


def _integer(attribute: Attribute, raw: object) -> int:
    return parse_integer(raw, attribute.name)


def _hour_of_week(_attribute: Attribute, raw: object) -> int:
    return parse_hour(raw)


def _number(attribute: Attribute, raw: object) -> float:
    if type(raw) is bool or not isinstance(raw, int | float):
        _wrong_type(attribute, raw)
    return finite(raw, attribute.name)


def _version(attribute: Attribute, raw: object) -> tuple[int, ...]:
    if type(raw) is not str:
        _wrong_type(attribute, raw)
    parts = raw.split(".")
    if not all(part.isascii() and part.isdigit() for part in parts):
        detail = f'a version is numbers with dots between them, such as "17.0.1", not {shown(raw)}'
        raise InvalidInput("", detail, "wrong_type")
    if len(parts) > VERSION_PARTS_MAX:
        raise InvalidInput("", f"a version has at most {VERSION_PARTS_MAX} numbers, not {len(parts)}", "out_of_range")
    numbers = [int(part) if len(part) < 20 else int(part.lstrip("0")[:20] or "0") for part in parts]
    if max(numbers) > INTEGER_MAX:
        raise InvalidInput("", f"the numbers of a version are at most 2^63-1, not {shown(raw)}", "out_of_range")
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _boolean(attribute: Attribute, raw: object) -> bool:
    if type(raw) is not bool:
        _wrong_type(attribute, raw)
    return raw


def _geo_point(attribute: Attribute, raw: object) -> Point:
    if type(raw) is not dict:
        _wrong_type(attribute, raw)
    lat, lon = _degrees(raw, ("lat", "lon"))
    return Point(lat, lon)


def parse_within(raw: object) -> tuple[float, float, float]:
    """The lat and lon of a circle's centre in degrees, and its radius in km. Raises InvalidInput."""
    if type(raw) is not dict:
        raise InvalidInput("", f'within takes {{"lat": …, "lon": …, "radius_km": …}}, not {shown(raw)}', "wrong_type")
    lat, lon, radius_km = _degrees(raw, ("lat", "lon", "radius_km"))
    return lat, lon, radius_km


def _degrees(raw: dict[str, object], keys: tuple[str, ...]) -> list[float]:
    """The numbers of a point or circle: exactly these keys, each within its range."""
    numbers = []
    for key in keys:
        number = raw.get(key)
        if type(number) is bool or not isinstance(number, int | float):
            missing = f"{shown(key)} is missing" if number is None else f"a number is needed, not {shown(number)}"
            raise InvalidInput(key, missing, "wrong_type")
        try:
            value = finite(number, key)
        except InvalidInput as fault:
            fault.under(key)
            raise
        low, high = _RANGES[key]
        if not low <= value <= high:
            bounds = "at least 0" if key == "radius_km" else f"from {low:g} to {high:g}"
            raise InvalidInput(key, f"{shown(key)} is {bounds}, not {shown(number)}", "out_of_range")
        numbers.append(value)
    if len(raw) > len(keys):
        extra = next(key for key in raw if key not in keys)
        raise InvalidInput(step(extra), f"unknown key {shown(extra)}{nearest(extra, keys)}", "unknown_key")
    return numbers


_RANGES = {"lat": (-90.0, 90.0), "lon": (-180.0, 180.0), "radius_km": (0.0, float("inf"))}
_PARSERS: dict[Kind, Callable[[Attribute, object], Value]] = {
    Kind.CATEGORY: _category,
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.VERSION: _version,
    Kind.BOOLEAN: _boolean,
    Kind.GEO_POINT: _geo_point,
    Kind.HOUR_OF_WEEK: _hour_of_week,
}
_TAKES = {
    Kind.CATEGORY: "a string",
    Kind.INTEGER: "an integer",
    Kind.NUMBER: "a finite number",
    Kind.VERSION: 'a version as a string, such as "17.0.1"',
    Kind.BOOLEAN: "true or false",
    Kind.GEO_POINT: '{"lat": degrees, "lon": degrees}',
    Kind.HOUR_OF_WEEK: "an hour of the week, 0 to 167",
}


def _wrong_type(attribute: Attribute, raw: object) -> NoReturn:
    detail = f"{shown(attribute.name)} takes {_TAKES[attribute.kind]}, not {shown(raw)}"
    raise InvalidInput("", detail, "wrong_type")


def unknown_attribute(name: object, names: Mapping[str, Attribute], what: str) -> InvalidInput:
    """The fault of a name that the schema does not have; `what` is "attribute" or "field"."""
    return InvalidInput("", f"unknown {what} {shown(name)}{nearest(str(name), names)}", f"unknown_{what}")


def value_to_json(value: Value) -> object:
    """A value as its attribute's JSON has it."""
    if isinstance(value, Point):
        return {"lat": value.lat, "lon": value.lon}
    if isinstance(value, tuple):
        return ".".join(map(str, value)) or "0"
    return value
