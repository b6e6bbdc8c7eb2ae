"""Answers as they go over the wire. OpenAPI's response schemas are made from these very types."""

from __future__ import annotations

from time import perf_counter
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from gpu_index.index import ModelName
from scoring.request import Answer, Result

JSON = "application/json"

encode = msgspec.json.Encoder().encode


class Reply(msgspec.Struct, frozen=True):
    """The answer to one retrieval. `results` has the pathways in their order, each in its own result order."""

    request_id: str
    results: list[Result]
    eligible: Annotated[int, Meta(ge=0, description="Ads that matched, before filters, exclusions and caps.")]
    indexed: Annotated[int, Meta(ge=0, description="Ads in the index, paused ones too.")]
    offsets: Annotated[dict[int, int], Meta(description="By partition, the last offset that the answer includes.")]
    model: Annotated[ModelName | None, Meta(description="The model that the whole answer is of.")]
    timings_ms: dict[str, float]


def reply(answer: Answer, request_id: str, started: float, parsed: float) -> Reply:
    """`started`, `parsed`: perf_counter() when the request came and when it was understood."""
    timings_ms = {"parse": (parsed - started) * 1e3, **answer.timings_ms, "total": (perf_counter() - started) * 1e3}
    timings_ms = {step: round(spent_ms, 3) for step, spent_ms in timings_ms.items()}
    return Reply(request_id, answer.results, answer.eligible, answer.indexed, answer.offsets, answer.model, timings_ms)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type=JSON)
