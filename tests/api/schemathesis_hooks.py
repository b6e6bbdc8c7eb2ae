"""Loaded by schemathesis (SCHEMATHESIS_HOOKS): puts right, in requests that keep to the document, what a JSON Schema
has no words for. What breaks the document is left as it is."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis.generation import GenerationMode


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    for body in retrievals(case.body):
        body.pop("min_offsets", None)  # partitions are those of the topic, and their offsets have to come
        for position, pathway in enumerate(body.get("pathways") or []):
            pathway["name"] = f"{position}{pathway['name']}"[:256]  # names differ
        for position, imp in enumerate(body.get("imp") or []):
            imp["id"] = f"{position}{imp['id']}"[:256]


def retrievals(body: Any) -> list[dict[str, Any]]:
    """Those in a body of any route."""
    if isinstance(body, list):
        return body
    if not isinstance(body, dict):
        return []
    inner = [body.get("request"), (body.get("ext") or {}).get("mirach")]
    return [each for each in (body, *inner) if isinstance(each, dict)]
