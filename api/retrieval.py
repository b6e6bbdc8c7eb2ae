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
from api.requests import RequestParser
from api.service import Parse, Place, Service
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

    async def answered(request: Request, parse: Parse, started: float, place: Place, size: int) -> Response:
        answers, parsed = await service.answer(parse, place, size)
        return json_response(reply(answers[0], request.scope[REQUEST_ID], started, parsed))

    async def retrieve(request: Request) -> Response:
        started = perf_counter()
        service.check_ready()
        body = await read_json_body(request, body_bytes_max)
        return await answered(request, lambda parser: (parser.parse(body),), started, lambda _, path: path, len(body))

    async def retrieve_batch(request: Request) -> Response:
        started = perf_counter()
        service.check_ready()
        body = await read_json_body(request, body_bytes_max)
        answers, parsed = await service.answer(
            lambda parser: parser.parse_batch(body), lambda number, path: f"[{number}].{path}", len(body)
        )
        request_id = request.scope[REQUEST_ID]
        return json_response([reply(answer, request_id, started, parsed) for answer in answers])

    async def retrieve_openrtb(request: Request) -> Response:
        started = perf_counter()
        service.check_ready()
        body = await read_json_body(request, body_bytes_max)
        bid_request = decode_json(body)
        if not isinstance(bid_request, dict):
            raise InvalidInput("", f"a BidRequest is an object, not {shown(bid_request)}", "wrong_type")
        mapped = map_request(bid_request, service.schema, service.loaded.settings)

        def parse(parser: RequestParser) -> tuple[RetrievalRequest]:
            try:
                return (parser.parse_object(mapped),)
            except InvalidInput as fault:
                fault.path = in_bid_request(fault.path)
                raise

        return await answered(request, parse, started, lambda _, path: in_bid_request(path), len(body))

    return [
        HotRoute("/v1/retrieve", retrieve, methods=["POST"]),
        HotRoute("/v1/retrieve/batch", retrieve_batch, methods=["POST"]),
        HotRoute("/v1/retrieve/openrtb", retrieve_openrtb, methods=["POST"]),
    ]
