"""The OpenAPI document: written here rather than inferred, since the hot routes take raw bodies.

Request bodies come from request_schema.py (this service's own attributes and limits), responses from the types that
are encoded (replies.py). A test holds the paths to the app's routes, and another drives them by this document.
"""

from __future__ import annotations

from typing import Any

import msgspec

from api import problems
from api.config import Settings
from api.door import REQUEST_ID_CHARACTERS_MAX
from api.openrtb_filters import FORMATS
from api.problems import ProblemKind
from api.replies import Reply
from api.request_schema import NULL, closed, one_of_these, reference, request_schemas, retrieval_fields, shared_fields
from api.version import VERSION
from gpu_index.schema import Schema
from scoring.request import PATHWAYS_MAX

Json = dict[str, Any]

JSON = "application/json"
DESCRIPTION = """\
From all live ads, the best for a request: one pass matches the advertisers' targeting, scores every eligible ad and
keeps the top K. The index follows a Kafka topic of ad events; `min_offsets` makes an answer include what was produced.

Errors are `application/problem+json` (RFC 9457) with a stable `type`, a `detail` to act on and, for a bad body, the
`path` of the fault. Every response carries `X-Request-ID`.
"""
TAGS = [
    {"name": "retrieval", "description": "Ads for a request."},
    {"name": "admin", "description": "What the index holds and why it answers as it does."},
    {"name": "probes", "description": "For orchestrators and Prometheus."},
]
BODY_PROBLEMS = (problems.INVALID_JSON, problems.TOO_LARGE, problems.UNSUPPORTED_MEDIA_TYPE, problems.INVALID_REQUEST)
RETRIEVAL_PROBLEMS = (*BODY_PROBLEMS, problems.NOT_READY, problems.INDEX_BEHIND, problems.OVERLOADED)

EXAMPLE = {
    "attributes": {"geo.country": "US", "age": 34, "audience": ["a1", "a2"]},
    "timezone": "America/New_York",
    "k": 10,
    "max_per": {"advertiser_id": 3},
}


def document(schema: Schema, settings: Settings, with_model: bool = False) -> Json:
    """For these settings, with the widths of the model in use if there is one."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mirach",
            "version": VERSION,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": TAGS,
        "paths": {**retrieval_paths(settings), **admin_paths(settings), **probe_paths()},
        "components": components(schema, settings, with_model),
    }


def components(schema: Schema, settings: Settings, with_model: bool) -> Json:
    _, replies = msgspec.json.schema_components([Reply], ref_template="#/components/schemas/{name}")
    offset_names = {"pattern": "^[0-9]+$"}
    replies["Reply"]["properties"]["offsets"]["propertyNames"] = offset_names
    schemas = {
        **request_schemas(schema, settings, with_model),
        "OpenRtbRequest": openrtb_request(settings),
        **replies,
        "Problem": {
            "type": "object",
            "properties": {
                "type": {"type": "string", "format": "uri-reference"},
                "title": {"type": "string"},
                "status": {"type": "integer", "minimum": 400, "maximum": 599},
                "detail": {"type": "string"},
                "path": {"type": "string", "description": "The place of the fault, such as `pathways[1].k`."},
                "code": {"type": "string", "description": "What kind of fault it is; stable."},
                "request_id": {"type": "string"},
            },
            "required": ["type", "title", "status", "detail", "request_id"],
        },
        "Open": {"type": "object", "additionalProperties": True},
    }
    token = {"token": {"type": "http", "scheme": "bearer", "description": "The setting admin_token."}}
    return {"schemas": schemas, **({"securitySchemes": token} if settings.admin_token is not None else {})}


def openrtb_request(settings: Settings) -> Json:
    """A BidRequest as far as Mirach is strict about it; anything else in it is OpenRTB's."""
    mirach = {name: field for name, field in retrieval_fields(settings).items() if name != "pathways"}
    identifier = {"type": "string", "minLength": 1}
    offers = [{"properties": {kind: {"type": "object"}}, "required": [kind]} for kind in FORMATS]
    imp = {"type": "object", "properties": {"id": identifier}, "required": ["id"], "anyOf": offers}
    return {
        "type": "object",
        "description": "An OpenRTB 2.6 BidRequest; docs/adapters.md says what becomes of each field.",
        "properties": {
            "id": identifier,
            "imp": {"type": "array", "minItems": 1, "maxItems": PATHWAYS_MAX, "items": imp},
            "ext": {
                "type": ["object", "null"],
                "properties": {"mirach": one_of_these(closed({**shared_fields(), **mirach}), NULL)},
            },
        },
        "required": ["id", "imp"],
        "examples": [
            {"id": "1", "imp": [{"id": "1", "banner": {"w": 300, "h": 250}}], "site": {"domain": "example.com"}}
        ],
    }


def retrieval_paths(settings: Settings) -> Json:
    batch = {"type": "array", "items": reference("RetrievalRequest"), "maxItems": settings.batch_max}
    batch_reply = {"type": "array", "items": reference("Reply"), "maxItems": settings.batch_max}
    return {
        "/v1/retrieve": {
            "post": operation(
                "retrieve", "retrieval", "The best ads for a request", reference("Reply"), RETRIEVAL_PROBLEMS,
                body=reference("RetrievalRequest"), example=EXAMPLE,
            )
        },
        "/v1/retrieve/batch": {
            "post": operation(
                "retrieve_batch", "retrieval", "Several requests, answered in their order", batch_reply,
                RETRIEVAL_PROBLEMS, body=batch, example=[EXAMPLE],
                description="One bad member makes the whole 422, naming it; one behind its `min_offsets` makes it 503.",
            )
        },
        "/v1/retrieve/openrtb": {
            "post": operation(
                "retrieve_openrtb", "retrieval", "The best ads for each imp of a BidRequest", reference("Reply"),
                RETRIEVAL_PROBLEMS, body=reference("OpenRtbRequest"),
                description="Each `imp` is a pathway named by its id. Mirach's own parameters are in `ext.mirach`.",
            )
        },
    }  # fmt: skip


def admin_paths(settings: Settings) -> Json:
    explain = closed({"ad_id": {"type": "string"}, "request": reference("RetrievalRequest")}, ("ad_id", "request"))
    switch = closed({"path": {"type": "string", "pattern": r"^[^\x00]+$"}}, ("path",))
    ad_id = {"name": "ad_id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}

    def admin(name: str, summary: str, kinds: tuple[ProblemKind, ...] = (), **more: Any) -> Json:
        if settings.admin_token is not None:
            kinds, more = (problems.UNAUTHORIZED, *kinds), {**more, "security": [{"token": []}]}
        return operation(name, "admin", summary, reference("Open"), kinds, **more)

    return {
        "/v1/admin/index": {
            "get": admin("index", "Counts, capacity and memory of the index", (problems.NOT_READY,))
        },
        "/v1/admin/ads/{ad_id}": {
            "get": admin("ad", "An ad as it is indexed", (problems.UNKNOWN_AD, problems.NOT_READY), parameters=[ad_id])
        },
        "/v1/admin/explain": {
            "post": admin(
                "explain", "Why an ad is, or is not, in the answer to a request",
                (*BODY_PROBLEMS, problems.UNKNOWN_AD, problems.NOT_READY),
                body=explain, example={"ad_id": "1", "request": EXAMPLE},
            )
        },
        "/v1/admin/ingest": {"get": admin("ingest", "Positions, lag, outcomes and freshness of the ad events")},
        "/v1/admin/snapshots": {
            "get": admin("snapshots", "How snapshots stand, and those on disk"),
            "post": admin(
                "write_snapshot", "Writes a snapshot now, and answers when it is in place",
                (problems.NO_SNAPSHOT, problems.NOT_READY),
            ),
        },
        "/v1/admin/model": {
            "get": admin("model", "The model in use, a switch that is going on, and the towers"),
            "post": admin(
                "switch_model", "Switches to another model in the background",
                (*BODY_PROBLEMS, problems.MODEL_REFUSED, problems.NOT_READY), body=switch,
                example={"path": "/models/2"}, status=202,
                description="Answers once the model is loaded and its memory accounted for; the rest is seen by GET. "
                "A relative path is relative to the directory that the service was started in.",
            ),
        },
        "/v1/admin/config": {"get": admin("config", "The settings in force and where each came from")},
    }  # fmt: skip


def probe_paths() -> Json:
    metrics = operation("metrics", "probes", "Prometheus metrics", {"type": "string"}, media_type="text/plain")
    return {
        "/healthz": {"get": operation("health", "probes", "The process lives", reference("Open"))},
        "/readyz": {
            "get": operation("readiness", "probes", "The index has caught up", reference("Open"), (problems.NOT_READY,))
        },
        "/metrics": {"get": metrics},
    }


def operation(
    name: str,
    tag: str,
    summary: str,
    answer: Json,
    kinds: tuple[ProblemKind, ...] = (),
    *,
    body: Json | None = None,
    example: Any = None,
    media_type: str = JSON,
    status: int = 200,
    **more: Any,
) -> Json:
    responses: Json = {str(status): response("The answer", media_type, answer)}
    by_status: dict[int, list[ProblemKind]] = {}
    for kind in (*kinds, problems.INTERNAL_ERROR):
        by_status.setdefault(kind.status, []).append(kind)
    for number, alike in sorted(by_status.items()):
        described = "; ".join(f"`{kind.type}`: {kind.title}" for kind in alike)
        responses[str(number)] = response(described, problems.MEDIA_TYPE, reference("Problem"))
        if number == 503:
            responses["503"]["headers"]["Retry-After"] = {"schema": {"type": "string", "pattern": "^[0-9]+$"}}
        if number == 401:
            responses["401"]["headers"]["WWW-Authenticate"] = {"schema": {"type": "string"}}
    described_operation: Json = {"operationId": name, "tags": [tag], "summary": summary, "responses": responses, **more}
    if body is not None:
        content: Json = {"schema": body} if example is None else {"schema": body, "example": example}
        described_operation["requestBody"] = {"required": True, "content": {JSON: content}}
    return described_operation


def response(description: str, media_type: str, schema: Json) -> Json:
    request_id = {"schema": {"type": "string", "minLength": 1, "maxLength": REQUEST_ID_CHARACTERS_MAX}}
    return {
        "description": description,
        "headers": {"X-Request-ID": {"description": "The caller's, or a new one.", **request_id}},
        "content": {media_type: {"schema": schema}},
    }
