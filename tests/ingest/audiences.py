"""Users of Meta targeting specs for tests: who is in the audience of a spec, and which spec is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_index.evaluate import evaluate
from gpu_index.schema import Schema
from gpu_index.targeting import parse_expression
from gpu_index.values import InvalidInput, parse_attributes
from ingest.meta import compile_meta
from ingest.places import Places

Json = dict[str, Any]

SCHEMA = Schema.load()
MENLO_PARK = {"lat": 37.4530, "lon": -122.1817}
NINE_MILES_AWAY = {"lat": 37.4530 + 9 / 69.09, "lon": -122.1817}
ELEVEN_MILES_AWAY = {"lat": 37.4530 + 11 / 69.09, "lon": -122.1817}
PLACES = Places.parse(
    [
        "kind,key,name,latitude,longitude",
        "city,2420605,Menlo Park,37.4530,-122.1817",
        "city,777934,Dallas,32.7767,-96.7970",
        "zip,US:94304,,37.3970,-122.1650",
        "geo_market,DMA:501,,40.7128,-74.0060",
        'address,"1601 Willow Road, Menlo Park, CA",,37.4852,-122.1483',
    ]
)


def matches(spec: Json, user: Json, places: Places | None = None) -> bool:
    """Whether a user, who is 30 unless it says otherwise, is in a spec's audience."""
    expression = parse_expression(compile_meta(spec, places), SCHEMA.attributes)
    return evaluate(expression, parse_attributes(SCHEMA, {"age": 30} | user).values)


def refusal(spec: object, places: Places | None = None) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        compile_meta(spec, places)
    assert caught.value.code == "targeting_meta"
    assert caught.value.detail
    return caught.value
