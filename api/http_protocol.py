"""HTTP/1.1 as uvicorn reads it, within bounds: how large a request's head may be, and how many connections there are.

Uvicorn's own reader of the wire takes heads of any size and connections until the process has no handles left, which
snapshots and Kafka need too.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 65_536  # address and headers; a larger one is answered 400 and its connection closed
CONNECTIONS_MAX = 8192  # more are closed at once
HANDLES_KEPT = 200  # for snapshots, Kafka and the log, where a process may have few


class HeadTooLarge(ValueError):
    """The parser makes a parser's error of it, which uvicorn answers 400."""


def connections_max() -> int:
    """How many connections there may be, by the process's limit on handles."""
    handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if handles == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(16, min(CONNECTIONS_MAX, handles - HANDLES_KEPT))


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > connections_max():
            transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise HeadTooLarge
