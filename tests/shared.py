"""Real requests, targetings and a real broker may lie beside the checkout; tests that need them skip without."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(path: str) -> Path:
    """The path below the shared folder; skips the calling test where it is absent."""
    place = SHARED / path
    if not place.exists():
        pytest.skip(f"no shared/{path} beside this checkout")
    return place
