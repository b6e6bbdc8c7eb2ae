"""The hot routes: raw body in, encoded bytes out. Plain Starlette routes, which FastAPI's cost 30 µs a request more."""

from __future__ import annotations

from time import perf_counter

from fastapi import Request, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from api.bodies import read_json_body
from api.door import REQUEST_ID
from api.openrtb import in_bid_request, map_request
from api.replies import json_response, reply
from api.requests import check_partitions
from api.service import Service
from gpu_index.invalid_input import InvalidInput, shown
from gpu_index.json_input import decode_json
from scoring.request import Request as RetrievalRequest


class HotRoute(Route):
    """Tells the metrics which route it is, as FastAPI's do."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        child_scope["route"] = self
        return match, child_scope


def retrieval_routes(service: Service) -> list[Route]:
    body_bytes_max = service.loaded.settings.body_bytes_max

    async def answered(request: Request, wanted: RetrievalRequest, started: float) -> Response:
        parsed = perf_counter()
        (answer,) = await service.answer((wanted,))
        return json_response(reply(answer, request.scope[REQUEST_ID], started, parsed))

    async def retrieve(request: Request) -> Response:
        started = perf_counter()
        service.check_ready()
        wanted = service.parser.parse(await read_json_body(request, body_bytes_max))
        if wanted.min_offsets:
            check_partitions(wanted, await service.partitions((wanted,)))
        return await answered(request, wanted, started)

    async def retrieve_batch(request: Request) -> Response:
        started = perf_counter()
        service.check_ready()
        wanted = service.parser.parse_batch(await read_json_body(request, body_bytes_max))
        partitions = await service.partitions(wanted)
        for position, member in enumerate(wanted):
            try:
                check_partitions(member, partitions)
            except InvalidInput as fault:
                raise fault.under(f"[{position}]") from None
        parsed = perf_counter()
        answers = await service.answer(wanted) if wanted else []
        request_id = request.scope[REQUEST_ID]
        return json_response([reply(answer, request_id, started, parsed) for answer in answers])

    async def retrieve_openrtb(request: Request) -> Response:
        started = perf_counter()
        service.check_ready()
        bid_request = decode_json(await read_json_body(request, body_bytes_max))
        if not isinstance(bid_request, dict):
            raise InvalidInput("", f"a BidRequest is an object, not {shown(bid_request)}", "wrong_type")
        mapped = map_request(bid_request, service.schema, service.loaded.settings)
        try:
            wanted = service.parser.parse_object(mapped)
            check_partitions(wanted, await service.partitions((wanted,)))
        except InvalidInput as fault:
            fault.path = in_bid_request(fault.path)
            raise
        return await answered(request, wanted, started)

    return [
        HotRoute("/v1/retrieve", retrieve, methods=["POST"]),
        HotRoute("/v1/retrieve/batch", retrieve_batch, methods=["POST"]),
        HotRoute("/v1/retrieve/openrtb", retrieve_openrtb, methods=["POST"]),
    ]
