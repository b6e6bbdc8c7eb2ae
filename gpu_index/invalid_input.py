"""The one exception of a user's bad input: where the fault is, what to do about it, and a code for programs.

Parsers raise it with the path that they know and each caller puts its own place in front (`under`), so that nothing
is spent on paths while the input is good.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import msgspec

SHOWN_CHARACTERS_MAX = 60


class InvalidInput(Exception):
    """`path` names the place as `attributes."geo.country"[1]` or `targeting.all[0].in[2]` (empty: the whole input),
    `detail` is a sentence for a person, `code` is stable."""

    def __init__(self, path: str, detail: str, code: str) -> None:
        super().__init__(path, detail, code)
        self.path = path
        self.detail = detail
        self.code = code

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}" if self.path else self.detail

    def under(self, place: str) -> InvalidInput:
        """This exception, its path from now on seen from outside of `place`."""
        if not place or not self.path:
            self.path = place or self.path
        else:
            self.path = place + self.path if self.path[0] == "[" else f"{place}.{self.path}"
        return self


def step(name: str) -> str:
    """A name as one step of a path: quoted unless it is a plain word."""
    if name.isascii() and name.isidentifier():
        return name
    return msgspec.json.encode(name.encode("utf-8", "backslashreplace").decode()).decode()


def shown(value: object) -> str:
    """A value as JSON, cut to a length that fits into a sentence."""
    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        text = "something nested too deeply"
    except (TypeError, ValueError, OverflowError):  # no JSON: half a surrogate pair, an endless integer, an object
        text = ascii(value)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 1] + "…"


def nearest(name: str, names: Iterable[str]) -> str:
    """`, did you mean "…"?` with the right name nearest to a wrong one, or nothing if none is near."""
    folded = {known.casefold(): known for known in names}
    found = difflib.get_close_matches(name[:200].casefold(), folded, n=1)
    return f", did you mean {shown(folded[found[0]])}?" if found else ""
