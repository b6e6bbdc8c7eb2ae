"""The targeting language: expressions as a tree of frozen nodes, read from decoded JSON and written back.

One pass over the JSON checks shape, names, types and limits, and turns values into what values.py says; after it an
expression is right by construction. Filters on ad fields are the same language with `field` in place of `attr`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NoReturn, TypeAlias

import msgspec

from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from gpu_index.schema import Attribute, Kind
from gpu_index.values import (
    Value,
    parse_each,
    parse_value,
    parse_within,
    plain_texts,
    unknown_attribute,
    value_to_json,
)

LEAVES_MAX = 1000
DEPTH_MAX = 32  # a leaf, or an all or any of nothing, is 1

NameKey: TypeAlias = Literal["attr", "field"]
Bound: TypeAlias = int | float | tuple[int, ...] | None


class All(msgspec.Struct, frozen=True, gc=False):
    children: tuple[Expression, ...]  # none: true


class Any_(msgspec.Struct, frozen=True, gc=False):  # noqa: N801 — typing.Any has the name
    children: tuple[Expression, ...]  # none: false


class Not(msgspec.Struct, frozen=True, gc=False):
    child: Expression


class In(msgspec.Struct, frozen=True, gc=False):
    """One of the request's values is listed. A boolean's `is` is the list of its one value."""

    attribute: int
    values: tuple[Value, ...]  # each once, in order of first appearance; none: false


class Between(msgspec.Struct, frozen=True, gc=False):
    """One of the request's values lies between the bounds, both inclusive; None is open. With low above high, as in a
    search engine's range, none does. With both open it says that the attribute is carried."""

    attribute: int
    low: Bound
    high: Bound


class Within(msgspec.Struct, frozen=True, gc=False):
    """The request's point is at most `radius_km` from the centre, which is in degrees."""

    attribute: int
    lat: float
    lon: float
    radius_km: float


Expression: TypeAlias = All | Any_ | Not | In | Between | Within
Leaf: TypeAlias = In | Between | Within


def parse_expression(
    raw: object, names: Mapping[str, Attribute], key: NameKey = "attr", path: str = "targeting"
) -> Expression:
    """An expression from its decoded JSON. `names` are the schema's attributes, or with key="field" its fields.
    Raises InvalidInput; beyond LEAVES_MAX or DEPTH_MAX with code too_large."""
    parser = _Parser(names, key)
    try:
        return parser.node(raw, DEPTH_MAX)
    except InvalidInput as fault:
        fault.under(path)
        raise


class _Parser:
    """Reads one expression. Faults carry a path from the node where they are raised; each level adds its step."""

    __slots__ = ("key", "leaves", "names")

    def __init__(self, names: Mapping[str, Attribute], key: NameKey) -> None:
        self.names = names
        self.key = key
        self.leaves = 0

    def node(self, raw: object, depth_left: int) -> Expression:
        if type(raw) is not dict:
            raise InvalidInput("", f"an expression is an object, not {shown(raw)}", "bad_expression")
        if self.key in raw:
            return self.leaf(raw)
        if len(raw) != 1:
            self.refuse(raw)
        ((key, inner),) = raw.items()
        if key == "all":
            return All(self.children(inner, "all", depth_left - 1))
        if key == "any":
            return Any_(self.children(inner, "any", depth_left - 1))
        if key != "not":
            self.refuse(raw)
        if depth_left == 1:
            _too_deep()
        try:
            return Not(self.node(inner, depth_left - 1))
        except InvalidInput as fault:
            fault.under("not")
            raise

    def children(self, raw: object, key: str, depth_left: int) -> tuple[Expression, ...]:
        if type(raw) is not list:
            raise InvalidInput(key, f"{key} takes a list of expressions, not {shown(raw)}", "bad_expression")
        if raw and not depth_left:
            _too_deep()
        position = 0
        nodes = []
        try:
            for position, child in enumerate(raw):  # noqa: B007 — the place of a fault
                nodes.append(self.node(child, depth_left))
        except InvalidInput as fault:
            fault.under(f"[{position}]").under(key)
            raise
        return tuple(nodes)

    def leaf(self, raw: dict[str, object]) -> Leaf:
        name = raw[self.key]
        if type(name) is not str:
            raise InvalidInput(self.key, f"{self.key} takes a name, not {shown(name)}", "bad_expression")
        attribute = self.names.get(name)
        if attribute is None:
            raise unknown_attribute(name, self.names, "attribute" if self.key == "attr" else "field").under(self.key)
        self.leaves += 1
        if self.leaves > LEAVES_MAX:
            raise InvalidInput("", f"an expression has at most {LEAVES_MAX} leaves", "too_large")
        if len(raw) != 2:
            self.refuse(raw)
        predicate, other = raw
        if predicate == self.key:
            predicate = other
        parse = _PREDICATES.get((attribute.kind, predicate))
        if parse is None:
            self.refuse_predicate(raw, attribute, predicate)
        try:
            return parse(attribute, raw[predicate])
        except InvalidInput as fault:
            fault.under(predicate)
            raise

    def refuse(self, raw: dict[str, object]) -> NoReturn:
        """An object that is no node: says which key is wrong or missing."""
        known = ["all", "any", "not", self.key, *PREDICATE_NAMES]
        for key in raw:
            if key in ("attr", "field") and key != self.key:
                raise InvalidInput(key, f"here a name is given with {self.key}, not with {key}", "bad_expression")
            if key not in known:
                raise InvalidInput(step(key), f"unknown key {shown(key)}{nearest(key, known)}", "bad_expression")
        shape = f"one of all, any, not, or {self.key} with one predicate ({', '.join(PREDICATE_NAMES)})"
        held = ", ".join(raw) if raw else "nothing"
        raise InvalidInput("", f"an expression has {shape}; this one has {held}", "bad_expression")

    def refuse_predicate(self, raw: dict[str, object], attribute: Attribute, predicate: str) -> NoReturn:
        if predicate not in PREDICATE_NAMES:
            self.refuse(raw)
        has = " and ".join(name for kind, name in _PREDICATES if kind is attribute.kind)
        detail = f"{shown(attribute.name)} is of type {attribute.kind}, which has {has}, not {predicate}"
        raise InvalidInput(predicate, detail, "wrong_predicate")


def _too_deep() -> NoReturn:
    raise InvalidInput("", f"an expression is at most {DEPTH_MAX} levels deep", "too_large")


def _in(attribute: Attribute, raw: object) -> In:
    if type(raw) is not list:
        raise InvalidInput("", f"in takes a list of values, not {shown(raw)}", "bad_expression")
    if attribute.kind is _CATEGORY and plain_texts(raw):
        return In(attribute.index, tuple(dict.fromkeys(raw)))
    return In(attribute.index, parse_each(attribute, raw))


def _between(attribute: Attribute, raw: object) -> Between:
    if type(raw) is not list or len(raw) != 2:
        raise InvalidInput("", f"between takes [low, high], null for an open end, not {shown(raw)}", "bad_expression")
    return Between(attribute.index, _bound(attribute, raw[0], 0), _bound(attribute, raw[1], 1))


def _bound(attribute: Attribute, raw: object, position: int) -> Bound:
    if raw is None:
        return None
    try:
        bound = parse_value(attribute, raw)
    except InvalidInput as fault:
        fault.under(f"[{position}]")
        raise
    return bound  # type: ignore[return-value]  # the kinds that have between have no texts and no points


def _within(attribute: Attribute, raw: object) -> Within:
    return Within(attribute.index, *parse_within(raw))


def _is(attribute: Attribute, raw: object) -> In:
    return In(attribute.index, (parse_value(attribute, raw),))


_CATEGORY = Kind.CATEGORY  # an enum's members are slow to look up
PREDICATE_NAMES = ("in", "between", "within", "is")
_PREDICATES: dict[tuple[Kind, str], Callable[[Attribute, object], Leaf]] = {
    (Kind.CATEGORY, "in"): _in,
    (Kind.INTEGER, "in"): _in,
    (Kind.INTEGER, "between"): _between,
    (Kind.NUMBER, "between"): _between,
    (Kind.VERSION, "between"): _between,
    (Kind.VERSION, "in"): _in,
    (Kind.BOOLEAN, "is"): _is,
    (Kind.GEO_POINT, "within"): _within,
    (Kind.HOUR_OF_WEEK, "in"): _in,
}


def to_json(expression: Expression, attributes: Sequence[Attribute], key: NameKey = "attr") -> dict[str, object]:
    """The JSON that `parse_expression` reads back as the same expression. `attributes` by index."""
    match expression:
        case All(children):
            return {"all": [to_json(child, attributes, key) for child in children]}
        case Any_(children):
            return {"any": [to_json(child, attributes, key) for child in children]}
        case Not(child):
            return {"not": to_json(child, attributes, key)}
    return {key: attributes[expression.attribute].name} | predicate_to_json(expression, attributes)


def predicate_to_json(leaf: Leaf, attributes: Sequence[Attribute]) -> dict[str, object]:
    """A leaf's predicate alone, such as {"between": [18, null]}."""
    match leaf:
        case In(attribute, values) if attributes[attribute].kind is Kind.BOOLEAN:
            assert len(values) == 1
            return {"is": values[0]}
        case In(_, values):
            return {"in": [value_to_json(value) for value in values]}
        case Between(_, low, high):
            return {"between": [None if bound is None else value_to_json(bound) for bound in (low, high)]}
        case Within(_, lat, lon, radius_km):
            return {"within": {"lat": lat, "lon": lon, "radius_km": radius_km}}
