"""A service without Kafka and sockets: the real index, engine and application; events are decoded and handed over."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from api.app import create_app
from api.config import Loaded, Settings, load
from api.engine import Engine
from api.requests import RequestParser
from api.service import Service
from api.snapshots import Snapshots
from gpu_index.disk import Folder
from gpu_index.events import AdEvent, Batch, Outcome
from gpu_index.index import Index, Limits
from gpu_index.manifest import Identity
from gpu_index.schema import Schema
from ingest.decode import Decoder
from ingest.meta import compile_meta
from ingest.statistics import PartitionState, Statistics
from ingest.watch import TopicView
from kernels.precision import Precision

SCHEMA = Schema.load()
LIMITS = Limits(ads=8192, targetings=4096, terms=2**16, expired=1024)
PARTITION = 0
COMPILE_S = 300  # on a machine that has not compiled the kernels yet


class Running:
    def __init__(self, *, ready: bool = True, started: bool = True, **settings: Any) -> None:
        """`ready`: the topic was caught up with. `started`: the engine runs; else requests wait for `start`."""
        self.loaded = Loaded(replace(Settings(), **settings), load({}, [], {}, None).sources)
        given = self.loaded.settings
        self.statistics = Statistics(given.topic)
        self.engine = Engine(new_index(given), clock_us=clock_us, requests_max=given.request_queue_max)
        self._folder = TemporaryDirectory()
        self.safe = True  # whether all dead letters were sent
        self.snapshots = Snapshots(
            Folder(Path(self._folder.name)), self.engine, lambda _offsets, _timeout_s: self.safe,
            interval_s=given.snapshot_interval_s, kept=given.snapshots_kept, clock_us=clock_us,
        )  # fmt: skip
        self.topic_partitions: int | None = 1  # that a look sees; None: a look sees nothing
        self.looks = 0
        self.service = Service(
            self.loaded, SCHEMA, RequestParser.of(SCHEMA, given), self.engine, self.statistics, self.snapshots,
            self._look_again,
        )  # fmt: skip
        self._loop = asyncio.Runner()
        self.app = create_app(self.service)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self._decoder = Decoder(SCHEMA, dim=given.dim, gate_dim=given.gate_dim, compile_meta=compile_meta)
        self._offset = 0
        self.statistics.topic_seen("an-id", 1)
        if ready:
            self.take_up(0)
        if started:
            self.engine.start()
            self.take()

    def _look_again(self) -> Future[TopicView | None]:
        self.looks += 1
        seen: Future[TopicView | None] = Future()
        partitions = self.topic_partitions
        seen.set_result(None if partitions is None else TopicView(self.looks, 0, "an-id", None, partitions, {}))
        return seen

    def begin(self) -> None:
        """Restores what is there, and writes snapshots from now on."""
        given = self.loaded.settings
        identity = Identity("t", "i", "c", SCHEMA.fingerprint, None, given.dim, given.gate_dim, given.precision)
        self.snapshots.restore(identity, lambda: new_index(given))
        self.snapshots.start()

    def take_up(self, end_at_start: int) -> None:
        """The topic's one partition is read from its beginning; it ended there."""
        self.statistics.partition_taken_up(PARTITION, PartitionState(0, 0, end_at_start, 0, 0, end_at_start, 0))

    def take(self, *events: dict[str, Any]) -> list[Outcome]:
        """Applies events, and waits until they are."""
        decoded: list[AdEvent] = []
        for event in events:
            raw = json.dumps(event).encode()
            now_ms = clock_us() // 1000
            decoded.append(self._decoder.decode(event["ad_id"].encode(), raw, PARTITION, self._offset, now_ms))
            self._offset += 1
        done: list[Outcome] = []

        def applied(outcomes: Any, now_us: int) -> None:
            done.extend(outcomes)
            faults = [event.fault.code for event in decoded if event.fault is not None]
            self.statistics.applied(decoded, outcomes, faults, {PARTITION: self._offset}, now_us)

        assert self.engine.offer(Batch(decoded, {PARTITION: self._offset}, applied), COMPILE_S)
        self.engine.call(lambda index: None).result(COMPILE_S)
        self.engine.call(lambda index: None).result(COMPILE_S)  # calls of a turn come before its events
        return done

    def request(self, method: str, address: str, **more: Any) -> httpx.Response:
        return self._loop.run(self._client.request(method, address, **more))

    def get(self, address: str, **more: Any) -> httpx.Response:
        return self.request("GET", address, **more)

    def post(self, address: str, body: Any = None, **more: Any) -> httpx.Response:
        """`body`: sent as JSON, or bytes (or an asynchronous iterator of them) as they are."""
        if body is None or isinstance(body, bytes) or hasattr(body, "__aiter__"):
            more = {"content": body, **more}
        else:
            more = {"json": body, **more}
        return self.request("POST", address, **more)

    def together(self, *bodies: Any) -> list[httpx.Response]:
        """Retrievals that are on their way at the same time."""

        async def all_of_them() -> list[httpx.Response]:
            return await asyncio.gather(*(self._client.post("/v1/retrieve", json=body) for body in bodies))

        return self._loop.run(all_of_them())

    def close(self) -> None:
        self._loop.run(self._client.aclose())
        self._loop.close()
        self.snapshots.stop()
        self.engine.stop()
        self._folder.cleanup()


def new_index(given: Settings) -> Index:
    return Index(SCHEMA, dim=given.dim, gate_dim=given.gate_dim, precision=Precision(given.precision), limits=LIMITS)


def clock_us() -> int:
    return time.time_ns() // 1000
