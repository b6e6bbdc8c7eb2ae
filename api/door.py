"""The outermost layer of the HTTP service: request ids, counts, and the last word on errors.

Plain ASGI, since every request passes it: one closure around `send`, nothing else.
"""

from __future__ import annotations

import logging
import re
import secrets
from time import perf_counter

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.bodies import HOLDING, IN_FLIGHT_MAX, Holding
from api.problems import INTERNAL_ERROR, MEDIA_TYPE, OVERLOADED, Problem
from api.service import Service

REQUEST_ID = "mirach.request_id"  # its key in the ASGI scope
REQUEST_ID_HEADER = b"x-request-id"
REQUEST_ID_CHARACTERS_MAX = 128
REQUEST_ID_GOOD = re.compile(rb"[ -~]{1,%d}" % REQUEST_ID_CHARACTERS_MAX)  # printable ASCII
CLIENT_WENT_AWAY = 499  # nginx's word for it, in metrics only
ALWAYS_TAKEN = ("/healthz", "/readyz", "/metrics")
UNMATCHED_ROUTE = "other"  # addresses that do not exist must not become label values

log = logging.getLogger("mirach.http")


class Door:
    """Wraps an app. An id of the caller's own that is too long or not printable is replaced, not refused."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = perf_counter()
        metrics = self.service.metrics
        metrics.begun += 1
        metrics.in_flight += 1
        request_id = request_id_of(scope)
        scope = {**scope}  # the server keeps its own: it leaves the body out where its method is HEAD
        if scope["method"] == "HEAD":
            scope["method"] = "GET"
        scope[REQUEST_ID] = request_id.decode()
        holding = scope[HOLDING] = Holding(self.service.bodies)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER, request_id)]
                if self.service.stopping:  # the client is to go elsewhere
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            if metrics.in_flight > IN_FLIGHT_MAX and scope["path"] not in ALWAYS_TAKEN:
                refusal = Problem(OVERLOADED, f"{IN_FLIGHT_MAX} requests are being answered already; try again")
                await send_problem(refusal, scope[REQUEST_ID], send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = CLIENT_WENT_AWAY
        except Exception:
            log.exception("request %s: %s %s failed", request_id.decode(), scope["method"], scope["path"])
            if status:
                raise  # half an answer is out: only breaking the connection tells the client
            fault = Problem(INTERNAL_ERROR, "this is a fault of the service; its log has the request id")
            await send_problem(fault, scope[REQUEST_ID], send_with_id)
        finally:
            holding.release()
            metrics.in_flight -= 1
        route = scope.get("route")
        label = UNMATCHED_ROUTE if route is None else route.path_format
        metrics.observe(label, status, perf_counter() - started)


def request_id_of(scope: Scope) -> bytes:
    """The caller's id if it is one, else a new one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER:
            if REQUEST_ID_GOOD.fullmatch(value):
                return bytes(value)
            break
    return secrets.token_hex(8).encode()


async def send_problem(problem: Problem, request_id: str, send: Send) -> None:
    body = problem.document(request_id)
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in problem.response_headers().items()]
    await send({"type": "http.response.start", "status": problem.kind.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
