"""`mirach demo`: everything on this machine with nothing installed beside it.

An embedded Kafka, the service, sample ads through the topic into the index, one request answered, and then a live
stream of creates, modifies and expires until Ctrl-C. The model beside scoring/model was trained on a click log of the
same sample ads, so its scores mean something; where it cannot be used, ads and users bring random vectors, and the demo
says so.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec
from rich.markup import escape

from api.commands import answer_table, answer_text, err, out
from api.config import Loaded, UserError
from api.logs import set_up_logs
from api.server import Process, Run, ingest_config, listen, runner, wire
from api.shared_model import WIDTHS, load_shared
from api.user_errors import as_user_errors
from bench.ads import requests, stream
from bench.clicks import click_log
from ingest.embedded import EmbeddedBroker
from ingest.produce import ProduceError, produce
from scoring.model.served import ModelError

SEED = 20_261_130
PARTITIONS = 4
EVENTS_PER_S = 50
REQUESTS_TRIED = 50  # to show one that many ads compete for
K = 10
WAIT_MS = 60_000
READY_POLL_S = 0.05
READY_S = 900.0  # the first start of a machine compiles the kernels
STATUS_S = 1.0
STOP_S = 10.0
SHOWN_VALUES = 3
MODEL = Path(__file__).resolve().parent.parent / "scoring" / "model" / "demo"
CONTEXT = {"placement": "feed", "device": "mobile"}


class SampleEvents:
    """Lines of the sample stream: first the ads, as fast as they are taken; then a live stream at a steady pace."""

    def __init__(self, ads: int, vectors: tuple[int, int] | None) -> None:
        """`vectors`: widths of those that the ads bring; None: a model makes them."""
        self.stopped = threading.Event()
        self._events = stream(SEED, live=ads, vectors=vectors)
        self._ads = ads

    def first(self) -> Iterator[bytes]:
        return map(msgspec.json.encode, islice(self._events, self._ads))

    def live(self) -> Iterator[bytes]:
        for event in self._events:
            if self.stopped.wait(1 / EVENTS_PER_S):
                return
            yield msgspec.json.encode(event)


def demo(loaded: Loaded, *, ads: int, once: bool) -> int:
    """Runs until Ctrl-C, or with `once` until the one answer is printed. -> exit code. Raises UserError."""
    if ads < 1:
        raise UserError(f"--ads must be at least 1, not {ads}")
    loaded, without = with_demo_model(loaded)
    settings = replace(loaded.settings, log_level="warning", wait_ms_max=max(loaded.settings.wait_ms_max, WAIT_MS))
    set_up_logs(settings)
    topics = {settings.topic: PARTITIONS, settings.dlq_topic: 1}
    with as_user_errors(), TemporaryDirectory() as folder, EmbeddedBroker(topics) as broker:
        settings = replace(
            settings, kafka_bootstrap_servers=broker.bootstrap_servers, kafka={}, data_dir=Path(folder),
            snapshot_interval_s=0,
        )  # fmt: skip
        if loaded.sources["port"] == "default" and not is_free(settings.host, settings.port):
            settings = replace(settings, port=0)
        process = wire(Loaded(settings, loaded.sources))
        show = Show(process, ads, once, without)
        with runner() as running:
            try:
                code = running.run(Run(process).serve(show.run))
            finally:
                show.end()
        return code


def with_demo_model(loaded: Loaded) -> tuple[Loaded, str | None]:
    """The settings with the demo's own model where none is set, and why there is none, where it cannot be used."""
    if loaded.settings.model is not None:
        return loaded, None
    given = [name for name in WIDTHS if loaded.sources[name] != "default"]
    if given:
        return loaded, f"{given[0]} is set"
    try:
        load_shared(MODEL)
    except ModelError as error:
        return loaded, str(error)
    return Loaded(replace(loaded.settings, model=MODEL), loaded.sources | {"model": "the demo"}), None


def is_free(host: str, port: int) -> bool:
    try:
        listen(host, port).close()
    except UserError:
        return False
    return True


class Show:
    """What the demo does beside the running service."""

    def __init__(self, process: Process, ads: int, once: bool, without: str | None) -> None:
        """`without`: why there is no model."""
        settings = process.service.loaded.settings
        self.process = process
        self.once = once
        self._without = without
        self._model = process.service.models.active
        self.events = SampleEvents(ads, (settings.dim, settings.gate_dim) if self._model is None else None)
        self._settings = settings
        self._ads = ads
        self._failure: str | None = None
        self._producer = threading.Thread(target=self._produce, name="mirach-demo-stream", daemon=True)

    def end(self) -> None:
        """Ends the live stream while the broker still is there."""
        self.events.stopped.set()
        if self._producer.ident is not None:
            self._producer.join(STOP_S)

    async def run(self, run: Run) -> None:
        """The show, from the first line to the live stream. Ends the service where that is the end of it."""
        settings = self._settings
        try:
            out.print(f"[bold]Mirach[/] on this machine: embedded Kafka at {settings.kafka_bootstrap_servers}, "
                      f"service at {self.process.address}", soft_wrap=True)  # fmt: skip
            self.print_model()
            starting = "starting (the first time on a machine, kernels are compiled: a minute or more)"
            if not err.is_terminal:
                err.print(starting)
            with err.status(starting):
                await self.wait_ready()
            began = time.perf_counter()
            with err.status(f"{self._ads:,} sample ads into topic {settings.topic}"):
                offsets = await asyncio.to_thread(produce, self.events.first(), ingest_config(settings))
            request, answer = await self.ask(offsets)
            spent_s = time.perf_counter() - began
            out.print(f"{self._ads:,} sample ads went through the topic into the index in {spent_s:.1f} s. "
                      "One request, and its answer:\n", soft_wrap=True)  # fmt: skip
            out.print_json(msgspec.json.encode(shortened(request)).decode(), indent=None)
            out.print(answer_table(answer))
            out.print(answer_text(answer) + "\n")
        except (ProduceError, httpx.HTTPError) as error:
            raise UserError(str(error) or f"no answer: {type(error).__name__}") from error
        if self.once:
            run.stop()
            return
        self.print_addresses()
        await self.stream_live()

    def print_model(self) -> None:
        if self._model is None:
            out.print("[bold yellow]No model:[/] ads and users bring random vectors, so that scores mean nothing "
                      f"({escape(str(self._without))})", soft_wrap=True)  # fmt: skip
        else:
            out.print(f"Model {self._model.name} makes the vectors of ads and users: a score is the probability of a "
                      "click", soft_wrap=True)  # fmt: skip

    async def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not (progress := self.process.service.progress()).ready:
            if time.monotonic() > deadline:
                raise UserError(f"not ready: {progress.detail}")
            await asyncio.sleep(READY_POLL_S)

    async def ask(self, offsets: dict[int, int]) -> tuple[dict[str, Any], dict[str, Any]]:
        """A request that several ads compete for, and its answer, which includes every event up to the offsets."""
        settings = self._settings
        if self._model is None:
            widths = settings.dim, settings.gate_dim, settings.experts
            tried = list(requests(SEED, REQUESTS_TRIED, k=K, vectors=widths))
        else:
            asked = zip(requests(SEED, REQUESTS_TRIED, k=K), sample_users(), strict=True)
            tried = [with_features(request, user) for request, user in asked]
        min_offsets = {str(partition): offset for partition, offset in offsets.items()}
        batch = [{**request, "min_offsets": min_offsets, "wait_ms": WAIT_MS} for request in tried]
        async with httpx.AsyncClient(base_url=self.process.address, timeout=WAIT_MS / 1000 + 30) as client:
            response = await client.post("/v1/retrieve/batch", json=batch)
            answers = response.json()
            if response.status_code != 200:
                raise UserError(f"the service answers {answers.get('type')}: {answers.get('detail')}")
            best = max(range(len(tried)), key=lambda position: answers[position]["eligible"])
            answer = (await client.post("/v1/retrieve", json=batch[best])).json()
        return tried[best], answer

    def print_addresses(self) -> None:
        address = self.process.address
        out.print(f"[bold]Console[/]  {address}/console\n[bold]API[/]      {address}/docs")
        out.print(f"[bold]Folder[/]   {self._settings.data_dir}, removed at the end\n")
        out.print("A live stream of creates, modifies and expires runs until Ctrl-C. Ask yourself:")
        body: dict[str, Any] = {"attributes": {"geo.country": "US", "age": 34}, "k": 3}
        if self._model is not None:
            body["user"] = {"features": {"cohort": {"age": 34, "gender": "female"}}}
        out.print(f"  curl -s {address}/v1/retrieve -H 'content-type: application/json' "
                  f"-d '{msgspec.json.encode(body).decode()}'\n", markup=False, soft_wrap=True)  # fmt: skip

    async def stream_live(self) -> None:
        """Events at a steady pace from a thread of their own, and a line that says how it stands."""
        self._producer.start()
        with err.status("") as status:
            while self._producer.is_alive() and not self.process.service.stopping:
                status.update(self.standing())
                await asyncio.sleep(STATUS_S)
        if self._failure is not None and not self.process.service.stopping:
            raise UserError(self._failure)

    def standing(self) -> str:
        service = self.process.service
        snapshot = service.statistics.snapshot(time.time_ns() // 1000)
        p50_ms, p99_ms = (snapshot["freshness"]["produce_time"][name] for name in ("p50_ms", "p99_ms"))
        fresh = "" if p50_ms is None else f", searchable after {p50_ms:.0f} ms (p99 {p99_ms:.0f} ms)"
        return (
            f"{service.engine.index.count:,} ads, {snapshot['events']:,} events{fresh}, "
            f"{service.engine.statistics.requests:,} requests"
        )

    def _produce(self) -> None:
        try:
            produce(self.events.live(), ingest_config(self._settings))
        except ProduceError as error:
            self._failure = str(error)


def sample_users() -> Iterator[dict[str, Any]]:
    """Features of users of the click log that the demo's model was trained on: what they clicked, who they are, what
    they looked at in the shop."""
    log = click_log(SEED, user_count=REQUESTS_TRIED)
    for user in log.users:
        mine = [row for row in log.interactions if row["user_id"] == user["user_id"] and row["label"]]
        yield {
            "history": [{"ad_id": row["item_id"]} for row in mine if row["surface"] is None],
            "cohort": {"age": user["age"], "gender": user["gender"]},
            "surfaces": {"shop": [{"ad_id": row["item_id"]} for row in mine if row["surface"] == "shop"]},
        }


def with_features(request: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    """The request of this user, who is as old as the request says."""
    known = {name: request["attributes"][name] for name in ("age", "gender") if name in request["attributes"]}
    return {**request, "user": {"features": user | {"cohort": user["cohort"] | known}}, "context": CONTEXT}


def shortened(value: Any) -> Any:
    """A request as a person may want to read it: of long lists the beginning and their length."""
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    if not isinstance(value, list) or len(value) <= SHOWN_VALUES + 1:
        return value
    if isinstance(value[0], dict):
        return [value[0], f"… {len(value)}"]
    if isinstance(value[0], list):
        return [f"… {len(value)} vectors of {len(value[0])}"]
    return [*value[:SHOWN_VALUES], f"… {len(value)}"]
