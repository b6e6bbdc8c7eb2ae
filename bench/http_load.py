"""An HTTP client that is quicker than what it measures: bodies made beforehand, raw sockets, one process of its own.

Each connection sends its next request when it has the answer to the last: how many answers they get in a second is
what the service can do. With a rate, a request is due at its time whatever became of the one before, and is timed from
then, so that a stall counts for every request that it held up.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec
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


def drive(
    port: int, bodies: Sequence[bytes], *, connections: int, seconds: float, rate: float | None = None,
    path: str = "/v1/retrieve",
) -> Load:  # fmt: skip
    """Sends the bodies round and round on so many connections for so long. `rate`: so many requests a second in all,
    each timed from when it was due; None: as many as are answered."""
    messages = [http_request(port, path, body) for body in bodies]
    pause_s = 0.0 if rate is None else connections / rate
    return asyncio.run(_drive(port, messages, connections, seconds, pause_s))


def in_a_process(arguments: tuple[int, Sequence[bytes]], options: dict[str, Any]) -> Callable[[], Load]:
    """Starts `drive` in a process of its own; the result waits for it."""
    here, there = multiprocessing.Pipe(duplex=False)
    client = multiprocessing.get_context("spawn").Process(target=_report, args=(there, arguments, options), daemon=True)
    client.start()
    there.close()
    here.recv_bytes()  # it has been imported: what follows is measured

    def result() -> Load:
        load = Load(*msgspec.json.decode(here.recv_bytes()))
        client.join()
        return load

    return result


def _report(pipe: Connection, arguments: tuple[int, Sequence[bytes]], options: dict[str, Any]) -> None:
    pipe.send_bytes(b"begun")
    pipe.send_bytes(msgspec.json.encode(drive(*arguments, **options)))


async def _drive(port: int, messages: Sequence[bytes], connections: int, seconds: float, pause_s: float) -> Load:
    latencies: list[float] = []
    refused = 0
    start = time.perf_counter()
    deadline = start + seconds

    async def connection(number: int) -> None:
        nonlocal refused
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        position = number * 7919 % len(messages)
        due = start + pause_s * number / connections
        try:
            while True:
                if pause_s:
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                sent = due if pause_s else time.perf_counter()
                if sent >= deadline:
                    return
                writer.write(messages[position])
                status, _ = await read_answer(reader)
                latencies.append(time.perf_counter() - sent)
                refused += status != 200
                position = (position + 1) % len(messages)
                due += pause_s
        finally:
            writer.close()

    await asyncio.gather(*(connection(number) for number in range(connections)))
    elapsed = time.perf_counter() - start
    milliseconds = np.array(latencies) * 1e3
    p50, p99 = np.percentile(milliseconds, (50, 99)).tolist()
    return Load(len(latencies) / elapsed, p50, p99, float(milliseconds.max()), len(latencies), refused)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Reads one answer with a Content-Length: its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line[:15].lower() == b"content-length:")
    body = await reader.readexactly(length)
    return int(lines[0].split()[1]), body
