"""The HTTP application: the routers put together, and every error made a problem document."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from api.admin import admin_router
from api.door import REQUEST_ID, Door
from api.openapi import document
from api.pages import page_router
from api.probes import probe_router
from api.problems import MEDIA_TYPE, METHOD_NOT_ALLOWED, NOT_FOUND, Problem, ProblemKind, of_invalid_input
from api.replies import encode
from api.retrieval import retrieval_routes
from api.service import Service
from gpu_index.invalid_input import InvalidInput


def create_app(service: Service) -> FastAPI:
    """The application over a wired service. Its OpenAPI document is ours, not FastAPI's."""
    untold: Any = {"tracing": False, "metrics": False, "logs": False}  # 10 µs a request to find that nobody listens
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, telemetry=untold)
    pages = page_router(Document(service), service.loaded.settings.console)
    app.router.routes.extend(retrieval_routes(service))  # one flat list, the hot routes first
    for router in (admin_router(service), probe_router(service), pages):
        app.router.routes.extend(router.routes)
    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(InvalidInput, on_invalid_input)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(Door, service=service)
    return app


class Document:
    """The OpenAPI document, made again for another model: its widths are another's."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._made = service.parser, self._make()

    def __call__(self) -> bytes:
        parser = self._service.parser
        if parser is not self._made[0]:
            self._made = parser, self._make()
        return self._made[1]

    def _make(self) -> bytes:
        service = self._service
        return encode(document(service.schema, service.loaded.settings, service.parser.model is not None))


def rendered(problem: Problem, request: Request) -> Response:
    body = problem.document(request.scope[REQUEST_ID])
    return Response(body, problem.kind.status, problem.response_headers(), media_type=MEDIA_TYPE)


async def on_problem(request: Request, error: Exception) -> Response:
    return rendered(cast(Problem, error), request)


async def on_invalid_input(request: Request, error: Exception) -> Response:
    return rendered(of_invalid_input(cast(InvalidInput, error)), request)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the router raises: no such address, or not this method."""
    raised = cast(HTTPException, error)
    path = request.url.path
    if raised.status_code == 404:
        problem = Problem(NOT_FOUND, f"there is no {path}; /docs lists the addresses")
    elif raised.status_code == 405:
        allowed = methods(request)
        detail = f"{path} takes {allowed}, not {request.method}"
        problem = Problem(METHOD_NOT_ALLOWED, detail, headers={"Allow": allowed})
    else:
        title = HTTPStatus(raised.status_code).phrase
        problem = Problem(ProblemKind(title.lower().replace(" ", "-"), raised.status_code, title), str(raised.detail))
    return rendered(problem, request)


def methods(request: Request) -> str:
    """All that the address takes, whichever of its routes."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    here = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in here for method in route.methods or ()}))
