"""JSON texts in which every key of every object comes twice."""

from __future__ import annotations

import json


def twice(first: object, last: object) -> str:
    """`last` as JSON, each of its keys preceded by the same key with what `first` has there."""
    if not isinstance(last, dict):
        return json.dumps(last)
    pairs = []
    for key, value in last.items():
        other = first.get(key) if isinstance(first, dict) else None
        pairs += [f"{json.dumps(key)}: {json.dumps(other)}", f"{json.dumps(key)}: {twice(other, value)}"]
    return "{" + ", ".join(pairs) + "}"
