"""docs/adapters.md has the code's tables."""

from __future__ import annotations

from tests.adapter_tables import DOCUMENT, with_tables


def test_the_tables_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert text == with_tables(text), "run: python -m tests.adapter_tables"
