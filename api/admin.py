"""The operator's routes: what the index holds, how ingest and snapshots stand, and why an ad is not in an answer."""

from __future__ import annotations

import asyncio
import hmac
import time
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from starlette.convertors import Convertor, register_url_convertor

from api.bodies import read_json_body
from api.config import FIELDS, shown_value
from api.problems import NO_SNAPSHOT, UNAUTHORIZED, UNKNOWN_AD, Problem
from api.replies import json_response
from api.requests import RequestParser, check_names, split, split_object
from api.service import Service
from api.snapshots import NotWritten, Snapshots
from api.snapshots import shown as shown_snapshot
from gpu_index import inspection
from gpu_index.invalid_input import InvalidInput, shown
from gpu_index.json_input import decode_json
from scoring.request import Request as RetrievalRequest

EXPLAIN_FIELDS = ("ad_id", "request")
MODEL_FIELDS = ("path",)


class AnyText(Convertor[str]):
    """The rest of an address, whatever is in it. Starlette's own `path` stops at a line break, and one at the end is
    dropped, which would show another ad."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_text", AnyText())


def admin_router(service: Service) -> APIRouter:
    settings = service.loaded.settings

    async def check(request: Request) -> None:
        check_token(request, settings.admin_token)

    router = APIRouter(prefix="/v1/admin", dependencies=[Depends(check)])

    @router.get("/index")
    async def index() -> Response:
        return json_response(await service.index_figures())

    @router.get("/ads/{ad_id:any_text}")
    async def ad(request: Request) -> Response:
        ad_id = request.path_params["ad_id"]
        found = await service.on_engine(lambda index: inspection.ad(index, ad_id))
        if found is None:
            raise unknown_ad(ad_id)
        return json_response(found)

    @router.post("/explain")
    async def explain(request: Request) -> Response:
        ad_id, wanted = read_explain(await read_json_body(request, settings.body_bytes_max))

        def parse(parser: RequestParser) -> tuple[RetrievalRequest]:
            try:
                return (parser.parse(wanted),)
            except InvalidInput as fault:
                raise fault.under("request") from None

        explained = await service.explain(ad_id, parse, lambda _, path: f"request.{path}")
        if explained is None:
            raise unknown_ad(ad_id)
        return json_response(explained)

    @router.get("/ingest")
    async def ingest() -> Response:
        return json_response(service.statistics.snapshot(time.time_ns() // 1000))

    @router.get("/snapshots")
    async def snapshots() -> Response:
        return json_response(await asyncio.to_thread(snapshot_figures, service.snapshots))

    @router.post("/snapshots")
    async def write_snapshot() -> Response:
        service.check_loaded()
        try:
            done = await asyncio.shield(asyncio.wrap_future(service.snapshots.request()))
        except NotWritten as reason:
            raise Problem(NO_SNAPSHOT, str(reason)) from None
        return json_response(shown_snapshot(done))

    @router.get("/model")
    async def model() -> Response:
        return json_response(service.model_figures())

    @router.post("/model")
    async def switch_model(request: Request) -> Response:
        path = read_model(await read_json_body(request, settings.body_bytes_max))
        service.check_ready()
        await service.switch_model(path)
        return json_response(service.model_figures(), 202)

    @router.get("/config")
    async def config() -> Response:
        shown_settings = {
            name: {"value": shown_value(service.loaded.settings, name), "source": service.loaded.sources[name]}
            for name in FIELDS
        }
        return json_response({"settings": shown_settings})

    return router


def snapshot_figures(snapshots: Snapshots) -> dict[str, Any]:
    """How snapshots stand, and those on disk."""
    try:
        return {**snapshots.figures(), "snapshots": snapshots.list()}
    except OSError as error:
        return {**snapshots.figures(), "snapshots": None, "problem": f"{error}"}


def read_explain(raw: bytes) -> tuple[str, msgspec.Raw]:
    """The ad's id and the request of POST /v1/admin/explain. Raises InvalidInput."""
    fields = split(raw, split_object, 'an object such as {"ad_id": "1", "request": {}} is needed')
    check_names(fields, EXPLAIN_FIELDS, "this body")
    ad_id, request = fields.get("ad_id"), fields.get("request")
    if ad_id is None or request is None:
        missing = EXPLAIN_FIELDS[0 if ad_id is None else 1]
        raise InvalidInput(missing, "an ad's id and a request are needed", "missing")
    text = decode_json(ad_id)
    if not isinstance(text, str):
        raise InvalidInput("ad_id", f"an ad id is a text, not {shown(text)}", "wrong_type")
    return text, request


def read_model(raw: bytes) -> Path:
    """The folder of POST /v1/admin/model. Raises InvalidInput."""
    fields = split(raw, split_object, 'an object such as {"path": "/models/2"} is needed')
    check_names(fields, MODEL_FIELDS, "this body")
    path = decode_json(fields["path"]) if "path" in fields else None
    if not isinstance(path, str) or not path:
        raise InvalidInput("path", "the folder of a trained model is needed, on the service's machine", "missing")
    return Path(path)


def check_token(request: Request, token: str | None) -> None:
    """Raises the problem `unauthorized` unless no token is configured or the request bears it. Takes the same time
    wherever a wrong token differs."""
    if token is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise Problem(
            UNAUTHORIZED,
            "send the header authorization: Bearer, followed by the admin token (setting admin_token)",
            headers={"www-authenticate": 'Bearer realm="mirach admin"'},
        )


def unknown_ad(ad_id: str) -> Problem:
    return Problem(UNKNOWN_AD, f"the index has no ad {shown(ad_id)}: it never came, has expired, or was a bad event")
