"""An OpenRTB 2.6 BidRequest as the body of a retrieval (contract, section 5).

What it says of user, device and medium becomes attributes (openrtb_attributes.py), what the exchange forbids becomes
filters (openrtb_filters.py), each imp is a pathway, and `ext.mirach` holds the retrieval's own parameters. Unknown
fields and values are passed over; a wrong JSON type where a value is read, or a broken rule of the specification, is a
fault with its path.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from api.config import Settings
from api.openrtb_attributes import CHANNEL_ROWS, attributes_of
from api.openrtb_filters import Filters
from api.openrtb_read import Json, integer, object_at, objects, text
from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from gpu_index.schema import Schema
from gpu_index.zones import parse_time
from scoring.request import PATHWAYS_MAX

__all__ = ["in_bid_request", "map_request"]

PARAMETERS = ("user", "k", "rank_by", "max_per", "exclude_ads", "filter", "min_offsets", "wait_ms", "now")
LAST_SECOND_S = 253_402_300_799  # of the year 9999, the last that datetime has


def map_request(bid_request: Json, schema: Schema, settings: Settings, now_us: int | None = None) -> Json:
    """The body of POST /v1/retrieve for a BidRequest. `now_us`: the service's time, which tells a user's age from the
    year of birth where the request has no `now`; None: the machine's clock. Raises InvalidInput."""
    channel = _check(bid_request)
    parameters = _parameters(bid_request)
    attributes, timezone = attributes_of(bid_request, channel, _year(parameters, settings, now_us), schema)
    filters = Filters(schema, settings.currency)
    forbidden = filters.of_request(bid_request)
    asked = parameters.get("filter")
    if asked is None and forbidden:
        parameters["filter"], forbidden = {"all": forbidden}, []
    # With a filter of the request's own, the exchange's go to the pathways, so that its limits are not theirs too.
    pathways = [
        {"name": imp["id"], "filter": {"all": forbidden + filters.of_imp(imp, path)}}
        for imp, path in _imps(bid_request)
    ]
    body: Json = {"attributes": attributes, "pathways": pathways, **parameters}
    if attributes:
        body["context"] = context_of(attributes)
    if timezone is not None:
        body["timezone"] = timezone
    return body


def context_of(attributes: Json) -> Json:
    """The serving context that a model is told of: the attributes of one value."""
    context: Json = {}
    for name, value in attributes.items():
        one = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(one, str | int | float):
            context[name] = one
    return context


def in_bid_request(path: str) -> str:
    """A path inside the body that map_request made, as a path inside the BidRequest where that has the place."""
    if path.split(".")[0].split("[")[0] in PARAMETERS:
        return f"ext.mirach.{path}"
    pathway = re.match(r"pathways\[([0-9]+)\](?:\.name\b)?", path)
    if pathway:
        return f"imp[{pathway[1]}]" + (".id" if pathway[0].endswith("name") else "")
    return path


def _check(request: Json) -> str | None:
    """The specification's own rules. Returns which of site, app and dooh there is."""
    _identifier(request, "")
    channels = [name for name in CHANNEL_ROWS if request.get(name) is not None]
    if len(channels) > 1:
        detail = f"a request has at most one of {', '.join(CHANNEL_ROWS)}, not {' and '.join(channels)}"
        raise InvalidInput(channels[1], detail, "openrtb")
    regulations = object_at(request, "regs", "regs")
    if regulations.get("gdpr") is not None and integer(regulations["gdpr"], "regs.gdpr") not in (0, 1):
        raise InvalidInput("regs.gdpr", f"gdpr is 0 or 1, not {shown(regulations['gdpr'])}", "openrtb")
    return channels[0] if channels else None


def _imps(request: Json) -> list[tuple[Json, str]]:
    """The imps, which have ids, each its own."""
    imps = objects(request.get("imp"), "imp")
    if not imps:
        raise InvalidInput("imp", "a request has at least one imp", "missing")
    if len(imps) > PATHWAYS_MAX:
        raise InvalidInput("imp", f"a request has at most {PATHWAYS_MAX} imps here, not {len(imps)}", "too_many")
    ids: set[str] = set()
    for imp, path in imps:
        identifier = _identifier(imp, path)
        if identifier in ids:
            raise InvalidInput(f"{path}.id", f"{shown(identifier)} is the id of an earlier imp too", "not_distinct")
        ids.add(identifier)
    return imps


def _identifier(of: Json, path: str) -> str:
    place = f"{path}.id" if path else "id"
    identifier = "" if of.get("id") is None else text(of["id"], place)
    if not identifier:
        raise InvalidInput(place, "an id is needed, a text that is not empty", "missing")
    return identifier


def _parameters(request: Json) -> Json:
    """The retrieval's own parameters, as far as they are given."""
    given = object_at(object_at(request, "ext", "ext"), "mirach", "ext.mirach")
    for name in given:
        if name not in PARAMETERS:
            detail = f"unknown parameter {shown(name)}{nearest(str(name), PARAMETERS)}"
            raise InvalidInput(f"ext.mirach.{step(str(name))}", detail, "unknown_field")
    return {name: value for name, value in given.items() if value is not None}


def _year(parameters: Json, settings: Settings, now_us: int | None) -> int:
    """The year, in UTC, of the request's time."""
    if settings.allow_now and "now" in parameters:
        now_us = parse_time(parameters["now"], "ext.mirach.now")
    elif now_us is None:
        now_us = time.time_ns() // 1000
    return datetime.fromtimestamp(min(max(now_us // 1_000_000, 0), LAST_SECOND_S), UTC).year
