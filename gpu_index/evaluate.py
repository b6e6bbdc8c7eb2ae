"""The plain evaluator of the targeting language: the truth that every index and kernel is held against.

Deliberately as the contract's sections 1 and 2 say it and no faster. An attribute that is not carried has no value, so
every predicate on it is false; with several values a predicate is true if it is true of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import asin, cos, radians, sin, sqrt
from typing import assert_never

from gpu_index.schema import Attribute
from gpu_index.targeting import All, Any_, Between, Expression, In, Leaf, NameKey, Not, Within, to_json
from gpu_index.values import Point, Value, Values, value_to_json

EARTH_RADIUS_KM = 6371.0088
SHOWN_VALUES_MAX = 20  # of a leaf's values in an explanation


def evaluate(expression: Expression, values: Values) -> bool:
    """Whether an expression is true of a request's values (derived ones included), or a filter of an ad's fields."""
    match expression:
        case All(children):
            return all(evaluate(child, values) for child in children)
        case Any_(children):
            return any(evaluate(child, values) for child in children)
        case Not(child):
            return not evaluate(child, values)
    return any(holds(expression, value) for value in values.get(expression.attribute, ()))


def holds(leaf: Leaf, value: Value) -> bool:
    """Whether a leaf is true of one value of its attribute, which is of the leaf's type."""
    match leaf:
        case In(_, listed):
            return value in listed
        case Between(_, low, high):
            # Bounds and value are of one kind: both integers, both float64, or both versions.
            return (low is None or low <= value) and (high is None or value <= high)  # type: ignore[operator]
        case Within(_, lat, lon, radius_km):
            assert isinstance(value, Point)
            return distance_km(value, Point(lat, lon)) <= radius_km
    assert_never(leaf)


def distance_km(one: Point, other: Point) -> float:
    """The great-circle distance on a sphere of EARTH_RADIUS_KM, by the haversine formula in float64."""
    north = sin(radians(other.lat - one.lat) / 2)
    east = sin(radians(other.lon - one.lon) / 2)
    half_chord = north * north + cos(radians(one.lat)) * cos(radians(other.lat)) * east * east
    return 2 * EARTH_RADIUS_KM * asin(min(1.0, sqrt(half_chord)))


def explain(
    expression: Expression, values: Values, attributes: Sequence[Attribute], key: NameKey = "attr"
) -> dict[str, object]:
    """The expression's JSON with a `result` on every node, and on every leaf the `value` that it was asked of: null if
    none is carried, a list if there are several, of more than SHOWN_VALUES_MAX only so many (those that make the leaf
    true first) and their number as `value_count`."""
    result: dict[str, object] = {"result": evaluate(expression, values)}
    match expression:
        case All(children):
            return {"all": [explain(child, values, attributes, key) for child in children]} | result
        case Any_(children):
            return {"any": [explain(child, values, attributes, key) for child in children]} | result
        case Not(child):
            return {"not": explain(child, values, attributes, key)} | result
    carried = values.get(expression.attribute, ())
    return to_json(expression, attributes, key) | _shown_values(expression, carried) | result


def _shown_values(leaf: Leaf, carried: tuple[Value, ...]) -> dict[str, object]:
    if len(carried) <= 1:
        return {"value": value_to_json(carried[0]) if carried else None}
    if len(carried) <= SHOWN_VALUES_MAX:
        return {"value": [value_to_json(value) for value in carried]}
    first = sorted(carried, key=lambda value: not holds(leaf, value))[:SHOWN_VALUES_MAX]
    return {"value": [value_to_json(value) for value in first], "value_count": len(carried)}
