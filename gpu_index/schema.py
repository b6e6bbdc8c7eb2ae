"""The attribute schema: which attributes a request may carry and an ad may target, and which fields an ad may have.

Read once from TOML (contract, section 1). Attributes and fields are numbered in the order of the file, and everything
behind the parsers knows them by number; the fingerprint therefore covers the order too.
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import msgspec

from gpu_index.invalid_input import nearest, shown
from gpu_index.json_input import INTEGER_MAX, INTEGER_MIN

ATTRIBUTES_MAX = 1024  # attributes, and fields, that one schema may declare


class SchemaError(Exception):
    """The schema file cannot be used; the message says why and where."""


class Kind(enum.StrEnum):
    CATEGORY = "category"
    INTEGER = "integer"
    NUMBER = "number"
    VERSION = "version"
    BOOLEAN = "boolean"
    GEO_POINT = "geo_point"
    HOUR_OF_WEEK = "hour_of_week"


class Attribute(msgspec.Struct, frozen=True):
    """One declared attribute of a request, or one declared field of an ad."""

    name: str
    kind: Kind
    index: int
    minimum: int | None = None  # integers: bounds of a request's values, not of an ad's
    maximum: int | None = None
    clamp: bool = False
    high_cardinality: bool = False


ADVERTISER_ID, CAMPAIGN_ID, BID, AGE_S = range(4)  # indices of the fields that every schema has
BUILT_IN_FIELDS = (
    Attribute("advertiser_id", Kind.CATEGORY, ADVERTISER_ID, high_cardinality=True),
    Attribute("campaign_id", Kind.CATEGORY, CAMPAIGN_ID, high_cardinality=True),
    Attribute("bid", Kind.NUMBER, BID),
    Attribute("age_s", Kind.NUMBER, AGE_S),
)
NOT_FOR_FIELDS = (Kind.GEO_POINT, Kind.HOUR_OF_WEEK)


class Schema:
    """`attributes` and `fields` by name, `attribute_list` and `field_list` by index."""

    def __init__(self, attributes: tuple[Attribute, ...], fields: tuple[Attribute, ...]) -> None:
        """`fields`: with the built-in ones in front. Indices are positions."""
        assert fields[: len(BUILT_IN_FIELDS)] == BUILT_IN_FIELDS
        for declared in (attributes, fields):
            assert [attribute.index for attribute in declared] == list(range(len(declared)))
        self.attribute_list = attributes
        self.field_list = fields
        self.attributes: Mapping[str, Attribute] = MappingProxyType({each.name: each for each in attributes})
        self.fields: Mapping[str, Attribute] = MappingProxyType({each.name: each for each in fields})
        self.hour_of_week_attributes = tuple(each.index for each in attributes if each.kind is Kind.HOUR_OF_WEEK)
        canonical = msgspec.json.encode({"attributes": attributes, "fields": fields})
        self.fingerprint = blake2b(canonical, digest_size=16).hexdigest()

    @staticmethod
    def load(path: Path | None = None) -> Schema:
        """The schema of a file; None: the default one of this package. Raises SchemaError."""
        if path is None:
            return Schema.parse(resources.files("gpu_index").joinpath("default_schema.toml").read_text("utf-8"))
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise SchemaError(f"the schema {path} cannot be read: {error}") from error
        try:
            return Schema.parse(text)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from error

    @staticmethod
    def parse(text: str) -> Schema:
        """The schema of a TOML text. Raises SchemaError."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SchemaError(f"not TOML: {error}") from error
        for key in document:
            if key not in ("attributes", "fields"):
                raise SchemaError(f"unknown key {shown(key)}; a schema has the tables [attributes] and [fields]")
        attributes = _parse_section(document.get("attributes", {}), "attributes", ())
        return Schema(attributes, _parse_section(document.get("fields", {}), "fields", BUILT_IN_FIELDS))


def _parse_section(section: object, name: str, built_in: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
    """The attributes of one table of the document, numbered after the built-in ones."""
    if not isinstance(section, dict):
        raise SchemaError(f"{name} must be tables such as [{name}.language]")
    if len(section) + len(built_in) > ATTRIBUTES_MAX:
        raise SchemaError(f"{len(section)} {name} are declared; the limit is {ATTRIBUTES_MAX - len(built_in)}")
    parsed = list(built_in)
    for key, declaration in section.items():
        place = f"[{name}.{shown(key)}]"
        if not key:
            raise SchemaError(f"{place} has an empty name")
        if any(key == each.name for each in built_in):
            raise SchemaError(f"{place} is always declared, take it out of the file")
        try:
            parsed.append(_parse_declaration(key, declaration, len(parsed), is_field=name == "fields"))
        except SchemaError as error:
            raise SchemaError(f"{place}: {error}") from error
    return tuple(parsed)


def _parse_declaration(name: str, declaration: object, index: int, *, is_field: bool) -> Attribute:
    if not isinstance(declaration, dict) or "type" not in declaration:
        if isinstance(declaration, dict) and any(isinstance(inner, dict) for inner in declaration.values()):
            inner = next(key for key, inner in declaration.items() if isinstance(inner, dict))
            raise SchemaError(f'a name with a dot is written in quotes: "{name}.{inner}"')
        raise SchemaError('needs a type, such as type = "category"')
    kind = _parse_kind(declaration["type"], is_field=is_field)
    allowed = {"type"}
    if kind is Kind.INTEGER and not is_field:
        allowed |= {"min", "max", "clamp"}
    if kind is Kind.CATEGORY:
        allowed |= {"cardinality"}
    for key in declaration:
        if key not in allowed:
            what = "field" if is_field else "attribute"
            raise SchemaError(f"{shown(key)} is not a setting of a {kind} {what}{nearest(key, allowed)}")
    minimum, maximum = (_parse_bound(declaration, key) for key in ("min", "max"))
    if minimum is not None and maximum is not None and minimum > maximum:
        raise SchemaError(f"min {minimum} is greater than max {maximum}")
    clamp = declaration.get("clamp", False)
    if not isinstance(clamp, bool):
        raise SchemaError("clamp must be true or false")
    if clamp and minimum is None and maximum is None:
        raise SchemaError("clamp needs a min or a max")
    cardinality = declaration.get("cardinality", "low")
    if cardinality not in ("low", "high"):
        raise SchemaError('cardinality must be "low" or "high"')
    return Attribute(name, kind, index, minimum, maximum, clamp, cardinality == "high")


def _parse_kind(raw: object, *, is_field: bool) -> Kind:
    kinds = [kind.value for kind in Kind if not (is_field and kind in NOT_FOR_FIELDS)]
    if not isinstance(raw, str) or raw not in kinds:
        raise SchemaError(f"unknown type {shown(raw)}{nearest(str(raw), kinds)} (types: {', '.join(kinds)})")
    return Kind(raw)


def _parse_bound(declaration: dict[str, object], key: str) -> int | None:
    bound = declaration.get(key)
    if bound is None:
        return None
    if not isinstance(bound, int) or isinstance(bound, bool) or not INTEGER_MIN <= bound <= INTEGER_MAX:
        raise SchemaError(f"{key} must be an integer from -2^63 to 2^63-1")
    return bound
