"""The first thing that a process does: see to it that the rooms it is about to import are Mirach's.

`kernels` is also the name of a public package, and the other rooms have plain names too. Each room carries a line that
says whose it is; here that line is looked for, without importing anything, so that a foreign package is never run.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOMS = ("kernels", "gpu_index", "scoring", "ingest", "bench")
OURS = Path(__file__).resolve().parent.parent


class WrongPackage(Exception):
    """A package that is not ours would be imported; the message says which and what to do."""


def marker(room: str) -> str:
    """The line in a room's __init__.py."""
    return f'MIRACH_ROOM = "{room}"'


def check_rooms() -> None:
    """Raises WrongPackage unless every room lies beside this package and says that it is Mirach's."""
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        origin = None if spec is None else spec.origin
        if origin is None:
            raise WrongPackage(f"the package {room} of Mirach is missing beside {OURS / 'api'}: install mirach again")
        file = Path(origin).resolve()
        if file.parent.parent != OURS or marker(room) not in file.read_text(encoding="utf-8", errors="replace"):
            raise WrongPackage(
                f"{file} is another package that is called {room} too: uninstall it, or install mirach into a virtual "
                f"environment of its own (Mirach's lies in {OURS})"
            )
