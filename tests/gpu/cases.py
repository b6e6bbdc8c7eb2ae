"""What is checked on any device: functions of a device, run with the emulated one by pytest and with a GPU by
`python -m tests.gpu.on_device`, which needs no pytest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CASES: dict[str, Callable[[Any], None]] = {}


def case(function: Callable[[Any], None]) -> Callable[[Any], None]:
    assert function.__name__ not in CASES, function.__name__
    CASES[function.__name__] = function
    return function


def cases_of(name: str, arguments: list[tuple[Any, ...]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A case for each tuple of arguments after the device."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for each in arguments:
            label = f"{name}[{'-'.join(map(str, each))}]"
            assert label not in CASES, label
            CASES[label] = lambda device, each=each: function(device, *each)  # type: ignore[misc]
        return function

    return register
