from __future__ import annotations

from typing import Any

import pytest

from gpu_index.invalid_input import SHOWN_CHARACTERS_MAX, InvalidInput, nearest, shown, step


def test_each_caller_puts_its_place_in_front() -> None:
    fault = InvalidInput("", "too bad", "bad")
    assert str(fault) == "too bad"
    assert fault.under("[2]").path == "[2]"
    assert fault.under("in").path == "in[2]"
    assert fault.under("[0]").under("all").path == "all[0].in[2]"
    assert str(fault.under("").under("targeting")) == "targeting.all[0].in[2]: too bad"


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("age", "age"),
        ("geo.country", '"geo.country"'),
        ("", '""'),
        ('a"b', '"a\\"b"'),
        ("größe", '"größe"'),
        ("a\nb", '"a\\nb"'),
        ("\ud800", '"\\\\ud800"'),
    ],
)
def test_names_in_paths_are_quoted_where_they_must_be(name: str, quoted: str) -> None:
    assert step(name) == quoted


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        10**400,
        1e300,
        "x" * 500,
        "\ud800",
        {"a": [1]},
        object(),
        nested(100_000),
        {"a": "\udc00"},
        float("nan"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_can_be_shown_briefly(value: Any) -> None:
    text = shown(value)
    assert text.encode()
    assert len(text) <= SHOWN_CHARACTERS_MAX


def test_the_nearest_name_whatever_the_case() -> None:
    names = ["geo.country", "geo.region", "age"]
    assert nearest("geo.contry", names) == ', did you mean "geo.country"?'
    assert nearest("AGE", names) == ', did you mean "age"?'
    assert nearest("zzz", names) == nearest("", names) == ""
    assert nearest("g" * 1_000_000, names) == ""
