"""Meta Marketing API targeting specs, compiled to the targeting language over the default schema's attributes.

    compile_meta({"age_min": 21, "geo_locations": {"countries": ["US"]}})
    → {"all": [{"attr": "geo.country", "in": ["US"]}, {"attr": "age", "between": [21, null]}]}

Every field is honoured exactly or the spec is refused by the field's name (tables: meta_fields.py and meta_geo.py).
Each part below compiles the fields of one subject to one condition, or to none; a spec is all of its conditions. Meta's
defaults are part of it: without `age_min` it is 18, so that a user of unknown age is never matched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_index.invalid_input import shown, step
from ingest import meta_delivery
from ingest.meta_fields import AUDIENCES, FIELDS, FLEXIBLE, REFUSED, SEGMENTS, SWITCHES
from ingest.meta_geo import compile_places
from ingest.meta_read import (
    Json,
    any_of,
    elements,
    identifiers,
    integer,
    integers,
    is_off,
    listed,
    object_,
    refused,
    says_nothing,
)
from ingest.places import Places

__all__ = ["compile_meta"]

AGE_MIN, AGE_MIN_DEFAULT, AGE_MAX = 13, 18, 65
GENDERS = {1: "male", 2: "female"}
AUTOMATION = (
    "advantage_audience",
    "creative_audience_pairing",
    "individual_setting",
    "shared_audiences",
    "value_expression",
)
RELAXATION = ("custom_audience", "lookalike")


def compile_meta(spec: object, places: Places | None = None) -> dict[str, Any]:
    """The expression of a targeting spec. `places`: coordinates of places that the spec names by key alone.
    Raises InvalidInput with code targeting_meta and the path inside the spec."""
    spec = object_(spec, "", FIELDS)
    for name, raw in spec.items():
        if name in REFUSED and not says_nothing(raw):
            raise refused(name, f"{name} cannot be honoured: {REFUSED[name]}")
        if name in SWITCHES and not _switched_off(name, raw):
            raise refused(name, f"{name} = {shown(raw)} cannot be honoured: {SWITCHES[name]}")
    conditions: list[Json] = []
    for condition in (
        compile_places(spec.get("geo_locations"), "geo_locations", places),
        _negated(compile_places(spec.get("excluded_geo_locations"), "excluded_geo_locations", places)),
        *(part(spec) for part in PARTS),
    ):
        if condition is not None:
            conditions += condition.get("all", [condition])
    return {"all": conditions}


def _switched_off(name: str, raw: object) -> bool:
    match name:
        case "targeting_optimization":
            return says_nothing(raw) or raw == "none"
        case "targeting_automation" | "targeting_relaxation_types" if not says_nothing(raw):
            settings = object_(raw, name, AUTOMATION if name == "targeting_automation" else RELAXATION)
            individual = settings.get("individual_setting")
            off = individual.values() if isinstance(individual, dict) else [individual]
            return all(is_off(value) for key, value in settings.items() if key != "individual_setting") and all(
                map(is_off, off)
            )
    return is_off(raw)


def _age(spec: Json) -> Json:
    low, high = _age_of(spec, "age_min", AGE_MIN_DEFAULT), _age_of(spec, "age_max", AGE_MAX)
    bounds = [integer(element, path) for element, path in elements(spec, "age_range", "age_range")]
    if bounds:
        if len(bounds) != 2 or not all(AGE_MIN <= bound <= AGE_MAX for bound in bounds):
            raise refused("age_range", f"two ages from {AGE_MIN} to {AGE_MAX} are needed, not {shown(bounds)}")
        low = bounds[0] if says_nothing(spec.get("age_min")) else max(low, bounds[0])
        high = min(high, bounds[1])
    if low > high:
        name = next(name for name in ("age_range", "age_max", "age_min") if not says_nothing(spec.get(name)))
        raise refused(name, f"the lowest age is {low} (18 where none is given) and the highest {high}: that is nobody")
    return {"attr": "age", "between": [low, None if high == AGE_MAX else high]}


def _age_of(spec: Json, name: str, default: int) -> int:
    if says_nothing(spec.get(name)):
        return default
    age = integer(spec[name], name)
    if not AGE_MIN <= age <= AGE_MAX:
        raise refused(name, f"Meta takes ages from {AGE_MIN} to {AGE_MAX}, not {age}")
    return age


def _genders(spec: Json) -> Json | None:
    names = []
    for element, path in elements(spec, "genders", "genders"):
        number = integer(element, path)
        if number not in GENDERS:
            raise refused(path, f"1 is male and 2 is female; {number} is no gender that Meta documents")
        names.append(GENDERS[number])
    return listed("gender", names) if names else None


def _locales(spec: Json) -> Json | None:
    numbers = integers(spec, "locales", "locales")
    return listed("user.locales", numbers) if numbers else None


def _segments(spec: Json) -> Json | None:
    """Detailed targeting at the top level: its kinds are ORed."""
    clauses = _listed_kinds(spec, "", tuple(SEGMENTS))
    return any_of(clauses) if clauses else None


def _flexible(spec: Json) -> Json | None:
    """Every element holds; of an element one id of one kind."""
    conditions = []
    for element, path in elements(spec, "flexible_spec", "flexible_spec"):
        clauses = _listed_kinds(object_(element, path, FLEXIBLE), f"{path}.", tuple(FLEXIBLE))
        if not clauses:
            raise refused(path, "an element of flexible_spec names at least one id; this one asks for nothing")
        conditions.append(any_of(clauses))
    return {"all": conditions} if conditions else None


def _exclusions(spec: Json) -> Json | None:
    raw = spec.get("exclusions")
    if says_nothing(raw):
        return None
    clauses = _listed_kinds(object_(raw, "exclusions", FLEXIBLE), "exclusions.", tuple(FLEXIBLE))
    return _negated(any_of(clauses)) if clauses else None


def _listed_kinds(spec: Json, prefix: str, kinds: tuple[str, ...]) -> list[Json]:
    """One leaf for each of the kinds that an object names ids of, in the order of the object; kinds that share an
    attribute share a leaf."""
    values: dict[str, list[Any]] = {}
    for kind in spec:
        if kind not in kinds:
            continue
        segment = FLEXIBLE[kind]
        path = prefix + step(kind)
        if segment.is_number:
            found: list[Any] = list(integers(spec, kind, path))
        else:
            found = [segment.value(kind, key) for key in identifiers(spec, kind, path)]
        if found:
            values.setdefault(segment.attribute, []).extend(found)
    return [listed(attribute, found) for attribute, found in values.items()]


def _audience(kind: str) -> Callable[[Json], Json | None]:
    def part(spec: Json) -> Json | None:
        ids = identifiers(spec, kind, kind)
        return listed(AUDIENCES[kind].attribute, ids) if ids else None

    return part


def _excluded_audience(field: str, kind: str) -> Callable[[Json], Json | None]:
    def part(spec: Json) -> Json | None:
        ids = identifiers(spec, field, field)
        return _negated(listed(AUDIENCES[kind].attribute, ids)) if ids else None

    return part


def _negated(clause: Json | None) -> Json | None:
    return None if clause is None else {"not": clause}


PARTS: tuple[Callable[[Json], Json | None], ...] = (
    _age,
    _genders,
    _locales,
    _segments,
    _audience("custom_audiences"),
    _audience("connections"),
    _audience("friends_of_connections"),
    _flexible,
    _exclusions,
    _excluded_audience("excluded_custom_audiences", "custom_audiences"),
    _excluded_audience("excluded_connections", "connections"),
    meta_delivery.compile_placements,
    lambda spec: meta_delivery.compile_placements(spec, "effective_"),
    meta_delivery.compile_device_platforms,
    lambda spec: meta_delivery.compile_device_platforms(spec, "effective_"),
    meta_delivery.compile_systems,
    lambda spec: meta_delivery.compile_models(spec, "user_device"),
    lambda spec: _negated(meta_delivery.compile_models(spec, "excluded_user_device")),
    meta_delivery.compile_carriers,
)
