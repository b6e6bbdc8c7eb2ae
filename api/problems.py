"""Errors of the HTTP API: application/problem+json (RFC 9457) with a stable `type`.

`type` is a relative reference, one plain word such as `index-behind`: programs compare it, people search for it in
docs/api.md. `detail` is a sentence to act on, `path` the place of a fault in the body.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gpu_index.invalid_input import InvalidInput

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class ProblemKind(NamedTuple):
    type: str
    status: int
    title: str


INVALID_JSON = ProblemKind("invalid-json", 400, "The body is not JSON")
UNAUTHORIZED = ProblemKind("unauthorized", 401, "A bearer token is needed")
NOT_FOUND = ProblemKind("not-found", 404, "There is nothing at this address")
UNKNOWN_AD = ProblemKind("unknown-ad", 404, "The index has no such ad")
METHOD_NOT_ALLOWED = ProblemKind("method-not-allowed", 405, "This address does not take this method")
TOO_LARGE = ProblemKind("too-large", 413, "The body is too large")
UNSUPPORTED_MEDIA_TYPE = ProblemKind("unsupported-media-type", 415, "The body is not sent as plain JSON")
MODEL_REFUSED = ProblemKind("model-refused", 409, "There is no switch to this model, the one in use stays")
INVALID_REQUEST = ProblemKind("invalid-request", 422, "The request is not valid")
INTERNAL_ERROR = ProblemKind("internal-error", 500, "Something went wrong in the service")
NOT_READY = ProblemKind("not-ready", 503, "The index is not ready")
INDEX_BEHIND = ProblemKind("index-behind", 503, "The index has not reached the offsets asked for")
NO_SNAPSHOT = ProblemKind("no-snapshot", 503, "No snapshot was written, the last one stays")
OVERLOADED = ProblemKind("overloaded", 503, "Too many requests are waiting")


class Problem(Exception):
    """An answer that is an error. `more` are further members of the problem document."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        path: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        more: dict[str, object] | None = None,
    ) -> None:
        super().__init__(kind.type, detail)
        self.kind = kind
        self.detail = detail
        self.path = path
        self.code = code
        self.headers = headers or {}
        self.more = more or {}

    def document(self, request_id: str) -> bytes:
        members: dict[str, object] = {
            "type": self.kind.type,
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self.detail,
        }
        if self.path is not None:
            members["path"] = self.path
        if self.code is not None:
            members["code"] = self.code
        return msgspec.json.encode(members | self.more | {"request_id": request_id})

    def response_headers(self) -> dict[str, str]:
        if self.kind.status == 503:
            return {"retry-after": str(RETRY_AFTER_S), **self.headers}
        return self.headers


def of_invalid_input(fault: InvalidInput) -> Problem:
    """The problem of a body with a fault, or of one that is not JSON at all."""
    if fault.code in ("not_json", "not_utf8") and not fault.path:
        return Problem(INVALID_JSON, fault.detail, code=fault.code)
    return Problem(INVALID_REQUEST, fault.detail, path=fault.path, code=fault.code)
