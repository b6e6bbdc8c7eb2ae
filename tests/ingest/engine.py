"""An engine that only remembers what it was given, and events to give it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from gpu_index.events import AdEvent, Batch, EventKind, Outcome
from gpu_index.schema import Schema
from ingest.config import IngestConfig
from ingest.decode import Decoder
from ingest.source import Ingest
from tests.kafka import Broker, Record, until

SCHEMA = Schema.load()
NOW_US = 1_700_000_000_000_000  # 2023-11-14T22:13:20Z; brokers refuse records from the future


def decoder(**settings: int) -> Decoder:
    return Decoder(SCHEMA, dim=4, gate_dim=2, compile_meta=lambda spec: {"all": []}, **settings)


def create(ad_id: str, partition: int = 0, timestamp_ms: int = 0, **more: object) -> Record:
    event = {"type": "create", "ad_id": ad_id, "ad": {"bid": 1.0}} | more
    return Record(ad_id.encode(), msgspec.json.encode(event), partition, timestamp_ms)


def bad(ad_id: str, partition: int = 0, timestamp_ms: int = 0, **more: object) -> Record:
    return create(ad_id, partition, timestamp_ms, ad={"bid": -1}, **more)


class Engine:
    """Applies what it is offered at once, on the consumer's thread, while it is not blocked."""

    def __init__(self, outcome: Callable[[AdEvent], Outcome] | None = None) -> None:
        self.events: list[AdEvent] = []
        self.positions: dict[int, int] = {}
        self.batches: list[Batch] = []
        self.offers = 0
        self.blocked = threading.Event()
        self.keeps = threading.Event()  # takes batches and does not apply them
        self._kept: list[Batch] = []
        self._outcome = outcome or self._default

    @staticmethod
    def _default(event: AdEvent) -> Outcome:
        return Outcome.BAD if event.kind is EventKind.BAD else Outcome.APPLIED

    def offer(self, batch: Batch, timeout_s: float) -> bool:
        self.offers += 1
        if self.blocked.is_set():
            threading.Event().wait(timeout_s)
            return False
        self._kept.append(batch)
        if not self.keeps.is_set():
            self.apply()
        return True

    def apply(self) -> None:
        kept, self._kept = self._kept, []
        for batch in kept:
            self.batches.append(batch)
            self.events += batch.events
            self.positions |= batch.positions
            batch.applied([self._outcome(event) for event in batch.events], NOW_US)

    @property
    def kept_events(self) -> int:
        return sum(len(batch.events) for batch in self._kept)

    @property
    def ad_ids(self) -> list[str | None]:
        return [event.ad_id for event in self.events]

    def offsets(self, partition: int) -> list[int]:
        return [event.offset for event in self.events if event.partition == partition]


def config(broker: Broker, topic: str, **more: object) -> IngestConfig:
    settings = {"dlq_topic": f"{topic}-dlq", "group_id": f"group-of-{topic}", "watch_interval_s": 0.2}
    return IngestConfig(
        bootstrap_servers=broker.address,
        topic=topic,
        **(settings | {"commit_interval_s": 0.1} | more),  # type: ignore[arg-type]
    )


@contextmanager
def running(
    settings: IngestConfig,
    engine: Engine,
    start_offsets: dict[int, int] | None = None,
    *,
    ready: bool = True,
    stop_s: float = 10.0,
) -> Iterator[Ingest]:
    """Ingest at work; by default it has caught up when the block begins."""
    ingest = Ingest(settings, SCHEMA, decoder(), engine.offer)
    ingest.start(start_offsets)
    try:
        if ready:
            until(lambda: ingest.ready or ingest.failure, "ready")
            assert ingest.failure is None
        yield ingest
    finally:
        ingest.stop(stop_s)


def headers(message: object) -> dict[str, str]:
    found: Sequence[tuple[str, bytes]] = message.headers()  # type: ignore[attr-defined]
    return {name: value.decode() for name, value in found}
