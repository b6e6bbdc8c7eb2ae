"""Reading a Meta targeting spec: its elements in each form that Meta takes, and the one way of refusing.

An element is 123, "123", {"id": 123} or {"key": "123"}; a number may be given as text. Null, and an empty list, object
or text, say nothing: such a field is as good as absent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from gpu_index.json_input import FLOAT_EXACT_MAX, INTEGER_MAX, INTEGER_MIN

Json: TypeAlias = dict[str, Any]

CODE = "targeting_meta"
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


def refused(path: str, detail: str) -> InvalidInput:
    """The fault of a spec that cannot be honoured exactly."""
    return InvalidInput(path, detail, CODE)


def says_nothing(raw: object) -> bool:
    return raw is None or raw == [] or raw == {} or raw == ""


def is_off(raw: object) -> bool:
    """Whether a flag is off or absent: false, 0, "0", null."""
    return says_nothing(raw) or raw is False or (type(raw) is int and raw == 0) or raw == "0"


def object_(raw: object, path: str, known: Collection[str]) -> Json:
    """An object that has only known fields."""
    if not isinstance(raw, dict):
        raise refused(path, f"an object is needed, not {shown(raw)}")
    for name in raw:
        if name not in known:
            inside = f"{path}.{step(str(name))}" if path else step(str(name))
            raise refused(inside, f"unknown field {shown(name)}{nearest(str(name), known)}")
    return raw


def elements(spec: Json, name: str, path: str) -> Iterator[tuple[object, str]]:
    """The elements of the list in `spec` that `path` names, each with its own path."""
    raw = spec.get(name)
    if says_nothing(raw):
        return
    if not isinstance(raw, list):
        raise refused(path, f"a list is needed, not {shown(raw)}")
    for position, element in enumerate(raw):
        yield element, f"{path}[{position}]"


def identifier(element: object, path: str, described_by: Collection[str] = ("name",)) -> str:
    """The id or key of an element as text. `described_by`: further fields that it may have, which only describe it."""
    if isinstance(element, dict):
        named_by = [name for name in ("id", "key") if element.get(name) is not None]
        object_(element, path, {"id", "key", *described_by})
        if len(named_by) != 1:
            raise refused(path, f"an element is named by its id or its key, one of them, not {shown(element)}")
        return identifier(element[named_by[0]], f"{path}.{named_by[0]}")
    if isinstance(element, str) and element:
        return element
    whole = _whole(element)
    if whole is None:
        raise refused(path, f'an element is 123, "123", {{"id": …}} or {{"key": …}}, not {shown(element)}')
    return str(whole)


def identifiers(spec: Json, name: str, path: str) -> list[str]:
    return [identifier(element, place) for element, place in elements(spec, name, path)]


def integer(element: object, path: str) -> int:
    """A whole number, given as such, as text, or as an element with an id or key."""
    if isinstance(element, dict):
        element = identifier(element, path)
    whole = int(element) if isinstance(element, str) and _INTEGER.fullmatch(element) else _whole(element)
    if whole is None or not INTEGER_MIN <= whole <= INTEGER_MAX:
        raise refused(path, f"a whole number of 64 bits is needed, not {shown(element)}")
    return whole


def integers(spec: Json, name: str, path: str) -> list[int]:
    return [integer(element, place) for element, place in elements(spec, name, path)]


def number(raw: object, path: str, low: float, high: float) -> float:
    """A number between two bounds, given as such or as text."""
    value = None
    if isinstance(raw, str) and _NUMBER.fullmatch(raw.strip()):
        value = float(raw)
    elif isinstance(raw, int | float) and not isinstance(raw, bool):
        value = float(raw) if abs(raw) < 2**53 else None
    if value is None or not low <= value <= high:
        raise refused(path, f"a number from {low:g} to {high:g} is needed, not {shown(raw)}")
    return value


def word(raw: object, path: str, known: Collection[str]) -> str:
    """One of a few texts."""
    if not isinstance(raw, str) or raw not in known:
        raise refused(path, f"unknown value {shown(raw)}{nearest(str(raw), known)} (values: {', '.join(known)})")
    return raw


def words(spec: Json, name: str, path: str, known: Collection[str]) -> list[str]:
    return [word(element, place, known) for element, place in elements(spec, name, path)]


def texts(spec: Json, name: str, path: str) -> list[str]:
    """The texts of a list, none of them empty."""
    found = []
    for element, place in elements(spec, name, path):
        if not isinstance(element, str) or not element:
            raise refused(place, f"a text is needed, not {shown(element)}")
        found.append(element)
    return found


def listed(attribute: str, values: Collection[str] | Collection[int]) -> Json:
    return {"attr": attribute, "in": list(dict.fromkeys(values))}


def any_of(clauses: list[Json]) -> Json:
    return clauses[0] if len(clauses) == 1 else {"any": clauses}


def all_of(clauses: list[Json]) -> Json:
    return clauses[0] if len(clauses) == 1 else {"all": clauses}


def _whole(raw: object) -> int | None:
    """An integer, or a float that is one for certain."""
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if type(raw) is float and raw.is_integer() and abs(raw) <= FLOAT_EXACT_MAX:
        return int(raw)
    return None
