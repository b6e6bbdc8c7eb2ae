"""BidRequests for tests, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from api.config import Settings
from api.openrtb import map_request
from api.requests import RequestParser
from gpu_index.evaluate import evaluate
from gpu_index.schema import BID, Schema
from gpu_index.targeting import parse_expression
from gpu_index.values import InvalidInput, parse_fields
from gpu_index.zones import parse_time

Json = dict[str, Any]

SCHEMA = Schema.load()
SETTINGS = Settings()
PARSER = RequestParser.of(SCHEMA, SETTINGS)
NOW_US = parse_time("2026-11-30T12:00:00Z", "now")
BANNER = {"id": "1", "banner": {}}


def request(**fields: Any) -> Json:
    return {"id": "request", "imp": [BANNER], **fields}


def body_of(bid_request: Json, **settings: Any) -> Json:
    body = map_request(bid_request, SCHEMA, Settings(**settings), NOW_US)
    RequestParser.of(SCHEMA, Settings(**settings)).parse_object(body)
    return body


def attributes_of(**fields: Any) -> Json:
    attributes: Json = body_of(request(**fields))["attributes"]
    return attributes


def refusal(bid_request: Json, **settings: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        map_request(bid_request, SCHEMA, Settings(**settings), NOW_US)
    assert caught.value.detail
    return caught.value


def fits(bid_request: Json, *, bid: float = 5.0, pathway: str | None = None, **fields: Any) -> bool:
    """Whether an ad with these fields passes the filters of the request and of its first, or the named, imp."""
    body = body_of(bid_request)
    values = parse_fields(SCHEMA, fields) | {BID: (bid,)}
    own = next(each["filter"] for each in body["pathways"] if pathway in (None, each["name"]))
    filters = [own, body["filter"]] if "filter" in body else [own]
    return all(evaluate(parse_expression(each, SCHEMA.fields, "field"), values) for each in filters)
