"""The process as an operator meets it: started, asked, and stopped by a signal, over the embedded broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kafka import Broker, Record, until

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0  # the first start of a machine compiles the kernels
CLIENTS = 8


class Served:
    """`mirach serve` in a process of its own."""

    def __init__(self, broker: Broker, *flags: str) -> None:
        self.topic, self.dlq_topic = broker.topic(partitions=2), broker.topic()
        self._broker = broker
        self._folder = tempfile.mkdtemp()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MIRACH_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", "serve", "--port", "0", "--topic", self.topic, "--dlq-topic",
             self.dlq_topic, "--kafka-bootstrap-servers", broker.address, "--ads-max", "8192",
             "--data-dir", self._folder, *flags],
            cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.asked = 0
        self._listening = threading.Event()  # or its end
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._listening.wait(START_S), self.lines
        self.address = re.findall(r"listening on (\S+),", "".join(self.lines))[0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if "listening on" in line:
                self._listening.set()
        self._listening.set()

    def get(self, route: str, **more: Any) -> httpx.Response:
        self.asked += 1
        return httpx.get(self.address + route, timeout=60, **more)

    def wait_ready(self) -> None:
        until(lambda: self.get("/readyz").status_code == 200, "ready", START_S)

    def produce(self, *events: dict[str, Any]) -> dict[str, int]:
        """The last offsets, as a request's min_offsets takes them."""
        records = [Record(event["ad_id"].encode(), json.dumps(event).encode(), 0) for event in events]
        return {str(partition): offset for partition, offset in self._broker.send(self.topic, records).items()}

    def end(self) -> int:
        """The exit code."""
        code = self.process.wait(60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # the fixture ends it again
        return code


@pytest.fixture
def serve(embedded_kafka: Broker) -> Iterator[Callable[..., Served]]:
    running: list[Served] = []

    def start(*flags: str) -> Served:
        running.append(Served(embedded_kafka, *flags))
        running[-1].wait_ready()
        return running[-1]

    yield start
    for served in running:
        served.process.kill()
        served.end()


def create(number: int) -> dict[str, Any]:
    return {"type": "create", "ad_id": str(number), "ad": {"bid": number + 1}}


def hold(served: Served, offsets: dict[str, int], wait_ms: int) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request that waits in the engine for events that have not come."""
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"min_offsets": offsets, "wait_ms": wait_ms}
        with suppress(httpx.HTTPError):  # its connection was broken
            answers.append(httpx.post(served.address + "/v1/retrieve", json=body, timeout=wait_ms / 1000 + 30))

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: served.get("/v1/admin/index").json()["engine"]["queued"] == 1, "it waits")
    return thread, answers


class Client(threading.Thread):
    """Sends one request after the other on one connection for as long as it is let."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.answered = 0
        self.wrong: list[str] = []
        self.start()

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=60) as session:
            while True:
                try:
                    response = session.post("/v1/retrieve", json={"k": 5})
                except httpx.TransportError:
                    return  # the service had closed the connection; that it began none of this, its count says
                self.answered += 1
                if response.status_code != 200 or response.json()["eligible"] not in (20, 21):
                    self.wrong.append(response.text)


def test_sigterm_under_load_loses_no_answer(serve: Callable[..., Served]) -> None:
    """Every request that the service began is answered, and the answer arrives; also that of a request which waits for
    an event that comes only after the signal. Then the process exits 0."""
    served = serve()
    offsets = served.produce(*map(create, range(20)))
    late = {partition: offset + 1 for partition, offset in offsets.items()}
    first = {"min_offsets": offsets, "wait_ms": 30_000}
    assert httpx.post(served.address + "/v1/retrieve", json=first, timeout=60).json()["eligible"] == 20
    thread, waiting = hold(served, late, wait_ms=30_000)
    clients = [Client(served.address) for _ in range(CLIENTS)]
    until(lambda: min(client.answered for client in clients) >= 5)
    served.process.send_signal(signal.SIGTERM)
    until(lambda: any("SIGTERM" in line for line in served.lines))
    served.produce(create(20))
    for each in [*clients, thread]:
        each.join(60)
    assert waiting[0].status_code == 200
    assert waiting[0].json()["eligible"] == 21
    assert served.end() == 0, "".join(served.lines)
    log = "".join(served.lines)
    assert "Traceback" not in log
    assert [client.wrong for client in clients] == [[]] * CLIENTS
    begun, lost = map(int, re.findall(r"stopped: (\d+) requests answered, (\d+) not", log)[0])
    others = served.asked  # /readyz, /metrics and the like
    assert (begun, lost) == (sum(client.answered for client in clients) + 2 + others, 0)


def test_while_it_drains_it_is_not_ready_and_answers(serve: Callable[..., Served]) -> None:
    served = serve("--drain-s", "60")
    served.process.send_signal(signal.SIGTERM)
    until(lambda: served.get("/readyz").status_code == 503, "not ready")
    assert served.get("/readyz").json()["type"] == "not-ready"
    response = httpx.post(served.address + "/v1/retrieve", json={}, timeout=60)
    assert response.status_code == 200
    assert response.headers["connection"] == "close"
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 128 + signal.SIGTERM


def test_a_second_signal_exits_at_once(serve: Callable[..., Served]) -> None:
    served = serve()
    thread, waiting = hold(served, {"1": 1000}, wait_ms=60_000)
    served.process.send_signal(signal.SIGINT)
    until(lambda: any("SIGINT" in line for line in served.lines))
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 128 + signal.SIGTERM
    thread.join(60)
    assert waiting == []


def test_bad_events_are_dead_letters_and_the_log_can_be_json(
    serve: Callable[..., Served], embedded_kafka: Broker
) -> None:
    served = serve("--log-format", "json", "--admin-token", "t0ken")
    served.produce({"type": "create", "ad_id": "1", "ad": {"bid": 1, "targetting": {}}}, create(2))
    (letter,) = embedded_kafka.records(served.dlq_topic, 1)
    assert dict(letter.headers() or [])["mirach-error"] == b"unknown_field"
    assert served.get("/v1/admin/ingest").status_code == 401
    headers = {"authorization": "Bearer t0ken"}
    assert served.get("/v1/admin/ingest", headers=headers).json()["faults"] == {"unknown_field": 1}
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 0
    parsed = [json.loads(line) for line in served.lines]
    assert {"time", "level", "logger", "message"} <= set(parsed[0])
    assert "t0ken" not in "".join(served.lines)
