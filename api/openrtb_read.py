"""Reading an OpenRTB BidRequest: JSON types checked where a value is used, null as good as absent, paths for faults."""

from __future__ import annotations

from typing import Any, TypeAlias

from gpu_index.invalid_input import InvalidInput, shown
from gpu_index.json_input import finite, parse_integer

Json: TypeAlias = dict[str, Any]


def wrong_type(path: str, needed: str, raw: object) -> InvalidInput:
    name = path.rpartition(".")[2]
    return InvalidInput(path, f"{name} is {needed}, not {shown(raw)}", "wrong_type")


def object_at(parent: Json, name: str, path: str) -> Json:
    """An object inside another; {} if it is absent."""
    raw = parent.get(name)
    if raw is None:
        return {}
    if type(raw) is not dict:
        raise wrong_type(path, "an object", raw)
    return raw


def objects(raw: object, path: str) -> list[tuple[Json, str]]:
    """The objects of a list, each with its path; a null among them, or in the list's place, is passed over."""
    if raw is None:
        return []
    if type(raw) is not list:
        raise wrong_type(path, "a list of objects", raw)
    found = []
    for position, each in enumerate(raw):
        if each is None:
            continue
        if type(each) is not dict:
            raise wrong_type(f"{path}[{position}]", "an object", each)
        found.append((each, f"{path}[{position}]"))
    return found


def text(raw: object, path: str) -> str:
    """A text that UTF-8 can write."""
    if type(raw) is not str:
        raise wrong_type(path, "a text", raw)
    if not raw.isascii():
        try:
            raw.encode()
        except UnicodeEncodeError:
            raise InvalidInput(path, "a text has half of a surrogate pair", "lone_surrogate") from None
    return raw


def texts(raw: object, path: str) -> list[str]:
    """The texts of a list; null and "" among them are passed over."""
    if type(raw) is not list:
        raise wrong_type(path, "a list of texts", raw)
    return [text(each, f"{path}[{position}]") for position, each in enumerate(raw) if each is not None and each != ""]


def integer(raw: object, path: str) -> int:
    try:
        return parse_integer(raw, path.rpartition(".")[2])
    except InvalidInput as fault:
        raise fault.under(path) from None


def integers(raw: object, path: str) -> list[int]:
    if type(raw) is not list:
        raise wrong_type(path, "a list of integers", raw)
    return [integer(each, f"{path}[{position}]") for position, each in enumerate(raw) if each is not None]


def number(raw: object, path: str) -> float:
    if type(raw) is bool or not isinstance(raw, int | float):
        raise wrong_type(path, "a number", raw)
    try:
        return finite(raw, path.rpartition(".")[2])
    except InvalidInput as fault:
        raise fault.under(path) from None
