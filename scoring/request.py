"""A retrieval request as scoring takes it, and its answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from gpu_index.index import ModelName
from gpu_index.targeting import Expression
from gpu_index.values import RequestAttributes
from scoring.user import User, UserFeatures

RankBy = Literal["value", "score"]
CapField = Literal["advertiser_id", "campaign_id"]

K_MAX = 10_000
PATHWAYS_MAX = 64


class Pathway(msgspec.Struct, frozen=True):
    """One ranked list of a request. What the request gives for all (user, rank_by) is already filled in."""

    name: str
    k: int
    rank_by: RankBy = "value"
    user: User | UserFeatures | None = None  # None: every score is 0.5; features become a User before the engine
    filter: Expression | None = None  # its own; the request's comes on top


class Request(msgspec.Struct, frozen=True):
    attributes: RequestAttributes
    pathways: tuple[Pathway, ...]
    max_per: dict[CapField, int] = {}
    exclude_ads: tuple[str, ...] = ()
    filter: Expression | None = None
    now_us: int | None = None  # a `now` of the request's own
    min_offsets: dict[int, int] = {}  # partition -> last offset that the answer must include
    wait_ms: int = 500
    context: dict[str, Any] | None = None  # the serving context, for a model


class Result(msgspec.Struct, frozen=True):
    ad_id: str
    advertiser_id: str | None
    campaign_id: str | None
    score: float
    value: float
    pathway: str


class Answer(msgspec.Struct):
    results: list[Result]
    eligible: int
    indexed: int
    offsets: dict[int, int]  # partition -> last offset included
    timings_ms: dict[str, float]
    model: ModelName | None = None  # whose all the scores are
