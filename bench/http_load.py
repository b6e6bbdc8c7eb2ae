"""An HTTP client that is quicker than what it measures: bodies made beforehand, raw sockets, one process of its own.

Each connection sends its next request when it has the answer to the last (a closed loop): what is measured is the
time from the last byte sent to the last byte received, and how many answers all of them get in a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Load(NamedTuple):
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    requests: int
    refused: int  # answers other than 200


def http_request(port: int, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def drive(port: int, bodies: Sequence[bytes], *, connections: int, seconds: float, path: str = "/v1/retrieve") -> Load:
    """Sends the bodies round and round on so many connections for so long."""
    messages = [http_request(port, path, body) for body in bodies]
    return asyncio.run(_drive(port, messages, connections, seconds))


async def _drive(port: int, messages: Sequence[bytes], connections: int, seconds: float) -> Load:
    latencies: list[float] = []
    refused = 0
    start = time.perf_counter()
    deadline = start + seconds

    async def connection(number: int) -> None:
        nonlocal refused
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        position = number * 7919 % len(messages)
        try:
            while (sent := time.perf_counter()) < deadline:
                writer.write(messages[position])
                status = await _read_answer(reader)
                latencies.append(time.perf_counter() - sent)
                refused += status != 200
                position = (position + 1) % len(messages)
        finally:
            writer.close()

    await asyncio.gather(*(connection(number) for number in range(connections)))
    elapsed = time.perf_counter() - start
    milliseconds = np.array(latencies) * 1e3
    p50, p99 = np.percentile(milliseconds, (50, 99)).tolist()
    return Load(len(latencies) / elapsed, p50, p99, float(milliseconds.max()), len(latencies), refused)


async def _read_answer(reader: asyncio.StreamReader) -> int:
    """Reads one answer with a Content-Length; its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line[:15].lower() == b"content-length:")
    await reader.readexactly(length)
    return int(lines[0].split()[1])
