"""Request bodies: plain JSON within the bound, whatever the client says about its length."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from api.problems import OVERLOADED, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, Problem

IN_FLIGHT_MAX = 4096  # requests being answered; more are refused, but for the probes
IN_FLIGHT_BYTES_MAX = 256 << 20  # of the bodies of all requests that are being answered; more are answered 503
HOLDING = "mirach.holding"  # the key of a request's Holding in its ASGI scope


class Bodies:
    """How many bytes of bodies are held by requests that are being answered. Touched by the event loop's thread."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


class Holding:
    """What one request holds of it."""

    __slots__ = ("_bodies", "_bytes")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self._bytes = bodies, 0

    def add(self, size: int) -> None:
        """Raises the problem `overloaded`."""
        if self._bodies.bytes + size > self._bodies.bytes_max:
            raise Problem(OVERLOADED, f"bodies of {self._bodies.bytes_max} bytes are being answered already; try again")
        self._bodies.bytes += size
        self._bytes += size

    def release(self) -> None:
        self._bodies.bytes -= self._bytes
        self._bytes = 0


async def read_json_body(request: Request, body_bytes_max: int) -> bytes:
    """The body of a request that says that it is JSON, or says nothing. Not decoded yet.

    Raises:
        Problem: 415 for another type, charset or a content encoding; 413 past the bound, also when sent in chunks;
            503 where other requests hold too much already.
        ClientDisconnect: the client went away.
    """
    check_media_type(request)
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdigit() and int(declared) > body_bytes_max:
        raise too_large(body_bytes_max)
    holding: Holding = request.scope[HOLDING]
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > body_bytes_max:
            raise too_large(body_bytes_max)
        holding.add(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def check_media_type(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise Problem(
            UNSUPPORTED_MEDIA_TYPE,
            f"the body has content-encoding {encoding!r}; send it without one",
            headers={"accept-encoding": "identity"},
        )
    given = request.headers.get("content-type")
    if given is None or given == "application/json":
        return
    media_type, _, parameters = given.lower().partition(";")
    media_type = media_type.strip()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Problem(
            UNSUPPORTED_MEDIA_TYPE,
            f"the body has content-type {given!r}; send JSON with content-type: application/json",
            headers={"accept": "application/json"},
        )
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name == "charset" and value.strip('" ') not in ("utf-8", "utf8"):
            raise Problem(UNSUPPORTED_MEDIA_TYPE, f"the body has charset {value!r}; JSON is sent in UTF-8")


def too_large(body_bytes_max: int) -> Problem:
    return Problem(
        TOO_LARGE,
        f"the body is larger than {body_bytes_max} bytes (setting body_bytes_max)",
        more={"limit": body_bytes_max},
    )
