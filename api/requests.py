"""The JSON body of a retrieval to scoring's Request: every rule of the contract's section 5, and where a fault is.

A body is first split into its top-level fields, each left as raw JSON, and then each field is read by whoever knows
it: attributes and filters exactly (`decode_json`), vectors fast. null stands for a field that is not given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from api.config import Settings
from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from gpu_index.json_input import FLOAT_EXACT_MAX, InexactFloat, decode_json
from gpu_index.schema import Schema
from gpu_index.targeting import Expression, parse_expression
from gpu_index.values import parse_attributes
from gpu_index.zones import parse_time
from scoring.model.served import Model
from scoring.request import K_MAX, PATHWAYS_MAX, CapField, Pathway, RankBy, Request
from scoring.user import User, UserFeatures, parse_user

T = TypeVar("T")

K_DEFAULT = 100
WAIT_MS_DEFAULT = 500
PATHWAY_NAME_CHARACTERS_MAX = 256  # the name comes back with every result
OFFSET_MAX = 2**63 - 1
PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
PARTITION_MAX = 2**31 - 1

REQUEST_FIELDS = (
    "attributes", "timezone", "user", "context", "k", "rank_by", "max_per", "exclude_ads", "filter", "pathways",
    "now", "min_offsets", "wait_ms",
)  # fmt: skip
PATHWAY_FIELDS = ("name", "k", "rank_by", "user", "filter")
RANKINGS: tuple[RankBy, ...] = ("value", "score")
CAP_FIELDS: tuple[CapField, ...] = ("advertiser_id", "campaign_id")

split_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
split_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_fast = msgspec.json.Decoder().decode  # for vectors: numbers come as float64, however they are written


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Reads requests for one schema, one configuration and one model. Every method raises InvalidInput."""

    schema: Schema
    dim: int
    gate_dim: int
    experts_max: int
    allow_now: bool
    wait_ms_max: int
    batch_max: int
    results_max: int
    model: Model | None  # whose widths these are

    @staticmethod
    def of(schema: Schema, settings: Settings, model: Model | None = None) -> RequestParser:
        widths = settings if model is None else model
        return RequestParser(
            schema,
            widths.dim,
            widths.gate_dim,
            widths.experts,
            settings.allow_now,
            settings.wait_ms_max,
            settings.batch_max,
            settings.results_max,
            model,
        )

    def parse(self, raw: bytes | msgspec.Raw) -> Request:
        """One request from its JSON text."""
        return self.parse_object(split(raw, split_object, 'a request is an object such as {"attributes": {}}'))

    def parse_batch(self, raw: bytes) -> list[Request]:
        """A list of requests; a fault's path begins with the member's place, as `[3].k`."""
        members = split(raw, split_list, "a batch is a list of requests")
        if len(members) > self.batch_max:
            raise InvalidInput("", f"a batch has at most {self.batch_max} requests, not {len(members)}", "too_many")
        requests = []
        results = 0
        for position, member in enumerate(members):
            try:
                requests.append(self.parse(member))
            except InvalidInput as fault:
                raise fault.under(f"[{position}]") from None
            results += sum(pathway.k for pathway in requests[-1].pathways)
        if results > self.results_max:
            raise InvalidInput(
                "", f"a batch asks for at most {self.results_max} results in all, this one for {results}", "too_many"
            )
        return requests

    def parse_object(self, body: Mapping[str, object]) -> Request:
        """One request from its fields, each decoded or still msgspec.Raw."""
        check_names(body, REQUEST_FIELDS, "a request")
        take = _Fields(body)
        timezone = take("timezone", _text)
        attributes = take("attributes", lambda raw: parse_attributes(self.schema, raw, timezone, ""))
        if attributes is None:
            attributes = parse_attributes(self.schema, {}, timezone, "")
        main = self._pathway(take, Pathway("main", K_DEFAULT))
        pathways = take("pathways", lambda raw: self._pathways(raw, main))
        return Request(
            attributes=attributes,
            pathways=pathways or (main,),
            max_per=take("max_per", _max_per) or {},
            exclude_ads=take("exclude_ads", _exclude_ads) or (),
            filter=take("filter", self._filter),
            now_us=take("now", self._now),
            min_offsets=take("min_offsets", _min_offsets) or {},
            context=take("context", _context),
            wait_ms=_or(take("wait_ms", lambda raw: _integer(raw, 0, self.wait_ms_max)), WAIT_MS_DEFAULT),
        )

    def _pathway(
        self, take: _Fields, default: Pathway, *, name: str | None = None, own_filter: bool = False
    ) -> Pathway:
        """The fields that a request and its pathways share; what is not given is the default's."""
        return Pathway(
            name=default.name if name is None else name,
            k=_or(take("k", lambda raw: _integer(raw, 1, K_MAX)), default.k),
            rank_by=_or(take("rank_by", _rank_by), default.rank_by),
            user=_or(take("user", self._user, fast=True), default.user),
            filter=take("filter", self._filter) if own_filter else None,
        )

    def _pathways(self, raw: object, main: Pathway) -> tuple[Pathway, ...]:
        if type(raw) is not list or not raw:
            raise InvalidInput("", f"pathways are a list of at least one, not {shown(raw)}", "wrong_type")
        if len(raw) > PATHWAYS_MAX:
            raise InvalidInput("", f"there are at most {PATHWAYS_MAX} pathways, not {len(raw)}", "too_many")
        pathways: dict[str, Pathway] = {}
        for position, member in enumerate(raw):
            try:
                pathway = self._named_pathway(member, main)
                if pathway.name in pathways:
                    raise InvalidInput("name", f"{shown(pathway.name)} names an earlier pathway too", "not_distinct")
            except InvalidInput as fault:
                raise fault.under(f"[{position}]") from None
            if isinstance(pathway.user, UserFeatures) and pathway.user is not main.user:
                own = msgspec.structs.replace(pathway.user, place=f"pathways[{position}].user")
                pathway = msgspec.structs.replace(pathway, user=own)
            pathways[pathway.name] = pathway
        return tuple(pathways.values())

    def _named_pathway(self, raw: object, main: Pathway) -> Pathway:
        if type(raw) is not dict:
            raise InvalidInput("", f"a pathway is an object, not {shown(raw)}", "wrong_type")
        check_names(raw, PATHWAY_FIELDS, "a pathway")
        take = _Fields(raw)
        name = take("name", _pathway_name)
        if name is None:
            raise InvalidInput("name", "a pathway needs a name", "missing")
        return self._pathway(take, main, name=name, own_filter=True)

    def _filter(self, raw: object) -> Expression:
        return parse_expression(raw, self.schema.fields, "field", "")

    def _user(self, raw: object) -> User | UserFeatures:
        return parse_user(
            raw, self.dim, self.gate_dim, self.experts_max, "", with_model=self.model is not None
        )

    def _now(self, raw: object) -> int:
        if not self.allow_now:
            raise InvalidInput("", "this service does not let a request set now (setting allow_now)", "not_allowed")
        return parse_time(raw, "")


class _Fields:
    """Reads one field after another of an object; a fault gets the field's name in front."""

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = fields

    def __call__(self, name: str, read: Callable[[object], T], *, fast: bool = False) -> T | None:
        raw = self.fields.get(name)
        if raw is None:
            return None
        try:
            if type(raw) is msgspec.Raw:
                raw = _decode_vectors(raw) if fast else decode_json(raw)
                if raw is None:
                    return None
            return read(raw)
        except InvalidInput as fault:
            raise fault.under(name) from None


def split(raw: bytes | msgspec.Raw, decode: Callable[[bytes | msgspec.Raw], T], expected: str) -> T:
    """One level of a JSON text. What is wrong with a text that cannot be split is said by decoding all of it."""
    try:
        return decode(raw)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput("", f"{expected}, not {shown(decode_json(raw))}", "wrong_type") from None


def _decode_vectors(raw: msgspec.Raw) -> object:
    try:
        return _decode_fast(raw)
    except (msgspec.DecodeError, RecursionError):
        return decode_json(raw)  # says what is wrong


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def check_names(fields: Mapping[str, object], allowed: Collection[str], what: str) -> None:
    for name in fields:
        if name not in allowed:
            raise InvalidInput(
                step(name), f"{what} has no field {shown(name)}{nearest(name, allowed)}", "unknown_field"
            )


def _text(raw: object) -> str:
    if type(raw) is not str:
        raise InvalidInput("", f"a text is needed, not {shown(raw)}", "wrong_type")
    return raw


def _integer(raw: object, low: int, high: int) -> int:
    if type(raw) is float and not isinstance(raw, InexactFloat) and raw.is_integer() and abs(raw) <= FLOAT_EXACT_MAX:
        raw = int(raw)
    if type(raw) is not int:
        raise InvalidInput("", f"an integer is needed, not {shown(raw)}", "wrong_type")
    if not low <= raw <= high:
        raise InvalidInput("", f"must be from {low} to {high}, not {shown(raw)}", "out_of_range")
    return raw


def _context(raw: object) -> dict[str, Any]:
    """The serving context, which without a model changes nothing."""
    return _object(raw, "a context is an object")


def _rank_by(raw: object) -> RankBy:
    if raw not in RANKINGS:
        raise InvalidInput("", f'rank_by is "value" or "score", not {shown(raw)}', "unknown_value")
    return raw


def _pathway_name(raw: object) -> str:
    name = _text(raw)
    if not 1 <= len(name) <= PATHWAY_NAME_CHARACTERS_MAX:
        raise InvalidInput(
            "", f"a name has 1 to {PATHWAY_NAME_CHARACTERS_MAX} characters, not {len(name)}", "out_of_range"
        )
    return name


def _object(raw: object, what: str) -> dict[str, Any]:
    if type(raw) is not dict:
        raise InvalidInput("", f"{what}, not {shown(raw)}", "wrong_type")
    return raw


def _max_per(raw: object) -> dict[CapField, int]:
    caps: dict[CapField, int] = {}
    for name, cap in _object(raw, 'caps are an object such as {"advertiser_id": 3}').items():
        if name not in CAP_FIELDS:
            raise InvalidInput(
                step(name), f"there is no cap per {shown(name)}{nearest(name, CAP_FIELDS)}", "unknown_field"
            )
        if cap is not None:
            try:
                # No list is longer than K_MAX in one pathway, nor K_MAX * PATHWAYS_MAX in all: a higher cap is none.
                caps[name] = min(_integer(cap, 1, OFFSET_MAX), K_MAX * PATHWAYS_MAX)
            except InvalidInput as fault:
                raise fault.under(name) from None
    return caps


def _exclude_ads(raw: object) -> tuple[str, ...]:
    if type(raw) is not list:
        raise InvalidInput("", f"a list of ad ids is needed, not {shown(raw)}", "wrong_type")
    for position, ad_id in enumerate(raw):
        if type(ad_id) is not str:
            raise InvalidInput(f"[{position}]", f"an ad id is a text, not {shown(ad_id)}", "wrong_type")
    return tuple(raw)


def _min_offsets(raw: object) -> dict[int, int]:
    offsets: dict[int, int] = {}
    for partition, offset in _object(raw, 'offsets are an object such as {"0": 1234}').items():
        if not PARTITION.fullmatch(partition) or int(partition) > PARTITION_MAX:
            raise InvalidInput(
                step(partition), f"a partition is a number such as 0, not {shown(partition)}", "wrong_type"
            )
        if offset is not None:
            try:
                offsets[int(partition)] = _integer(offset, 0, OFFSET_MAX)
            except InvalidInput as fault:
                raise fault.under(step(partition)) from None
    return offsets


def check_partitions(request: Request, partitions: Collection[int]) -> None:
    """Raises InvalidInput where `min_offsets` names a partition that the topic does not have."""
    for partition in request.min_offsets:
        if partition not in partitions:
            known = f"{len(partitions)} partitions" if len(partitions) != 1 else "1 partition"
            raise InvalidInput(
                f'min_offsets."{partition}"',
                f"there is no partition {partition}: the topic has {known}",
                "unknown_partition",
            )
