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

from api.ad_stage import AdStage
from api.app import create_app
from api.config import Loaded, Settings, load
from api.engine import Engine
from api.models import Models
from api.requests import RequestParser
from api.service import Service
from api.shared_model import LoadModel, SharedModel, of_model
from api.snapshots import Snapshots
from api.towers import UserTowers
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
from scoring.model.served import Model, load_model

SCHEMA = Schema.load()
LIMITS = Limits(ads=8192, targetings=4096, terms=2**16, expired=1024)
PARTITION = 0
COMPILE_S = 300  # on a machine that has not compiled the kernels yet


class Running:
    def __init__(
        self, *, ready: bool = True, started: bool = True, model: Model | None = None,
        load_model: LoadModel = load_model, memory_left: int | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        """`ready`: the topic was caught up with. `started`: the engine runs; else requests wait for `start`. `model`:
        in use; `load_model`: finds others; `memory_left`: for a switch to one."""
        self.loaded = Loaded(replace(Settings(), **settings), load({}, [], {}, None).sources)
        self.model = None if model is None else SharedModel(model)
        if self.model is not None:
            self.loaded = of_model(self.loaded, self.model, "model of the test")
        given = self.loaded.settings
        self.statistics = Statistics(given.topic)
        index = new_index(given, self.model)
        self.engine = Engine(index, clock_us=clock_us, requests_max=given.request_queue_max)
        self.stage = AdStage(self.engine)
        self.models = Models(
            self.engine, self.stage, SCHEMA, self.model, given.model, bytes_max=given.model_switch_bytes_max,
            clock_us=clock_us, load=load_model, left=lambda: memory_left,
        )  # fmt: skip
        self._folder = TemporaryDirectory()
        self.safe = True  # whether all dead letters were sent
        self.snapshots = Snapshots(
            Folder(Path(self._folder.name)), self.engine, lambda _offsets, _timeout_s: self.safe,
            interval_s=given.snapshot_interval_s, kept=given.snapshots_kept, clock_us=clock_us,
        )  # fmt: skip
        self.topic_partitions: int | None = 1  # that a look sees; None: a look sees nothing
        self.looks = 0
        self.service = Service(
            self.loaded, SCHEMA, RequestParser.of(SCHEMA, given, self.model), self.engine, self.statistics,
            self.snapshots, self._look_again, UserTowers(given.request_queue_max), self.models,
        )  # fmt: skip
        self._loop = asyncio.Runner()
        self.app = create_app(self.service)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self._decoder = Decoder(SCHEMA, dim=given.dim, gate_dim=given.gate_dim, compile_meta=compile_meta)
        self.models.on_switch, self.models.set_widths = self.service.take_model, self._decoder.set_widths
        self._offset = 0
        self.statistics.topic_seen("an-id", 1)
        if ready:
            self.take_up(0)
        self.stage.start()
        self.service.towers.start()
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
        model = None if self.model is None else self.model.fingerprint
        identity = Identity("t", "i", "c", SCHEMA.fingerprint, model, given.dim, given.gate_dim, given.precision)
        self.snapshots.restore(identity, lambda: new_index(given, self.model))
        self.snapshots.start()

    def take_up(self, end_at_start: int) -> None:
        """The topic's one partition is read from its beginning; it ended there."""
        self.statistics.partition_taken_up(PARTITION, PartitionState(0, 0, end_at_start, 0, 0, end_at_start, 0))

    def take(self, *events: dict[str, Any]) -> list[Outcome]:
        """Applies events, and waits until they are."""
        return self.offer(*events).result(COMPILE_S)

    def offer(self, *events: dict[str, Any]) -> Future[list[Outcome]]:
        """Hands on events, as the reader does. -> what will have become of them"""
        decoded: list[AdEvent] = []
        for event in events:
            raw = json.dumps(event).encode()
            now_ms = clock_us() // 1000
            decoded.append(self._decoder.decode(event["ad_id"].encode(), raw, PARTITION, self._offset, now_ms))
            self._offset += 1
        done: Future[list[Outcome]] = Future()
        position = self._offset

        def applied(outcomes: Any, now_us: int) -> None:
            faults = [event.fault.code for event in decoded if event.fault is not None]
            self.statistics.applied(decoded, outcomes, faults, {PARTITION: position}, now_us)
            done.set_result(list(outcomes))

        assert self.stage.offer(Batch(decoded, {PARTITION: position}, applied), COMPILE_S)
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
        self.models.stop()
        self.service.towers.stop()
        self.snapshots.stop()
        self.stage.stop()
        self.engine.stop()
        self._folder.cleanup()


def new_index(given: Settings, model: SharedModel | None = None) -> Index:
    return Index(
        SCHEMA, dim=given.dim, gate_dim=given.gate_dim, precision=Precision(given.precision),
        limits=LIMITS._replace(held_bytes=given.index_bytes_max),
        model=None if model is None else model.title,
    )  # fmt: skip


def clock_us() -> int:
    return time.time_ns() // 1000
