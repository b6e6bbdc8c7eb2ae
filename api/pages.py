"""The web pages: /docs on the OpenAPI document, /console on the running service. All of it comes from this machine.

Swagger UI's files are those of the package fastapi-offline (MIT; Swagger UI itself is Apache-2.0). A strict content
security policy holds: no script or style but files of ours, and no connection but to this service.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Response

from api.replies import JSON

CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
OUR_FILES = ("console.css", "console.js", "dom.js", "explain.js", "figures.js", "panels.js", "docs.js", "icon.svg")
SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")


def page_router(openapi: Callable[[], bytes], with_pages: bool) -> APIRouter:
    """/openapi.json always; the pages where the operator wants them."""
    router = APIRouter()

    async def document() -> Response:
        return Response(openapi(), media_type=JSON)

    router.add_api_route("/openapi.json", document, methods=["GET"])
    if with_pages:
        ours = resources.files("api").joinpath("console")
        swagger = resources.files("fastapi_offline").joinpath("static")
        add_file(router, "/console", ours.joinpath("console.html"))
        add_file(router, "/docs", ours.joinpath("docs.html"))
        for name in OUR_FILES:
            add_file(router, f"/pages/{name}", ours.joinpath(name))
        for name in SWAGGER_FILES:
            add_file(router, f"/pages/{name}", swagger.joinpath(name))
    return router


def add_file(router: APIRouter, address: str, file: Traversable) -> None:
    """A route that answers a file of the package, read once."""
    content = file.read_bytes()
    content_type = CONTENT_TYPES[file.name.rpartition(".")[2]]

    async def page() -> Response:
        return Response(content, headers=SECURITY_HEADERS, media_type=content_type)

    router.add_api_route(address, page, methods=["GET"])
