"""Requests at a steady rate, bursts and bodies that are too large, over plain sockets on one thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple, Protocol

from bench.http_load import http_request
from bench.soak.stream import COUNTRIES

CONNECTIONS = 4
ANSWER_S = 30.0
DOWN = "down"  # the service is not there: it was killed, or no longer listens
BROKEN = "broken"  # a connection that it had answered on ended with no answer, though it was not killed
LATE = "no answer in time"


class Answer(NamedTuple):
    status: int  # 0: none
    kind: str  # the problem's type, or DOWN, BROKEN, LATE
    seconds: float


class Target(Protocol):
    """The service: where it listens now, None where it is not there; and whether it was told to stop."""

    port: int | None
    stopping: bool


class Load:
    """Runs from `start` to `stop`."""

    def __init__(self, per_s: float, target: Target) -> None:
        self._pause_s = CONNECTIONS / per_s
        self._target = target
        self._lock = threading.Lock()
        self._answers: list[Answer] = []  # since the last sample, which are few: a sample is due every few seconds
        self.kinds: Counter[str] = Counter()  # "200", "413 too-large", "503 not-ready" …
        self._stopping = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._drive()), name="soak-load", daemon=True)
        self._bodies = [json.dumps({"attributes": {"geo.country": country}, "k": 20}).encode() for country in COUNTRIES]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(ANSWER_S + 1)

    def taken(self) -> list[Answer]:
        """The steady requests' answers since the last call."""
        with self._lock:
            answers, self._answers = self._answers, []
        return answers

    def burst(self, connections: int, requests: int) -> Counter[str]:
        """So many at once, each connection so many one after the other. -> answers by kind"""
        return asyncio.run(self._burst(connections, requests))

    def send(self, body: bytes) -> Answer:
        """One request on a connection of its own."""
        return asyncio.run(self._single(body))

    # The thread's.

    async def _drive(self) -> None:
        await asyncio.gather(*(self._connection(number) for number in range(CONNECTIONS)))

    async def _connection(self, number: int) -> None:
        """One request after the other, each due at its time and timed from then."""
        due = time.monotonic() + self._pause_s * number / CONNECTIONS
        at = number
        session = Session(self._target)
        while not self._stopping:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            answer = await session.post(self._bodies[at % len(self._bodies)], due)
            with self._lock:
                self._answers.append(answer)
                self._count(answer)
            at += 1
            due = max(due + self._pause_s, time.monotonic() - 1.0)  # what a restart held up is not made up for
        session.close()

    async def _single(self, body: bytes) -> Answer:
        session = Session(self._target)
        answer = await session.post(body, time.monotonic())
        session.close()
        with self._lock:
            self._count(answer)
        return answer

    async def _burst(self, connections: int, requests: int) -> Counter[str]:
        found: Counter[str] = Counter()

        async def one(number: int) -> None:
            session = Session(self._target)
            for at in range(requests):
                answer = await session.post(self._bodies[(number + at) % len(self._bodies)], time.monotonic())
                found[kind_of(answer)] += 1
                with self._lock:
                    self._count(answer)
            session.close()

        await asyncio.gather(*(one(number) for number in range(connections)))
        return found

    def _count(self, answer: Answer) -> None:
        self.kinds[kind_of(answer)] += 1


def kind_of(answer: Answer) -> str:
    return str(answer.status) if answer.status == 200 else f"{answer.status or ''} {answer.kind}".strip()


class Session:
    """A connection that is made again when it is lost."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._connected: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._answered, self._port = False, 0  # of this connection

    async def post(self, body: bytes, due: float) -> Answer:
        port = self._target.port
        status, kind = 0, DOWN
        if port is not None:
            try:
                status, kind = await asyncio.wait_for(self._post(port, body), ANSWER_S)
            except TimeoutError:
                kind = LATE
                self.close()
            except (OSError, EOFError):
                taken = self._answered or not self._target.stopping
                kind = BROKEN if self._target.port == port and taken else DOWN
                self.close()
        return Answer(status, kind, time.monotonic() - due)

    async def _post(self, port: int, body: bytes) -> tuple[int, str]:
        if self._connected is None or port != self._port:
            self.close()
            self._answered, self._port = False, port
            self._connected = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        reader, writer = self._connected
        writer.write(http_request(port, "/v1/retrieve", body))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        length = next(int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:"))
        answer = await reader.readexactly(length)
        self._answered = True
        if "connection: close" in head:
            self.close()
        return status, "" if status == 200 else str(json.loads(answer)["type"])

    def close(self) -> None:
        if self._connected is not None:
            with suppress(OSError):
                self._connected[1].close()
            self._connected = None
