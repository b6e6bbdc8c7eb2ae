"""One life of the process: the real engine, ingest and snapshots, begun and ended as the service does it, by
api/parties.py, on simulated threads, clocks, Kafka and disk."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from api.engine import Engine
from api.parties import Parties
from api.snapshots import Done, Snapshots
from gpu_index.events import Batch
from gpu_index.index import Index, Limits
from gpu_index.manifest import Identity
from ingest.clients import Clients
from ingest.config import IngestConfig
from ingest.source import Ingest
from ingest.watch import TopicView
from kernels.precision import Precision
from scoring.request import Answer, Request
from tests import random_cases as cases
from tests.disks import MemoryDisk
from tests.simulation.broker import Broker, Letter
from tests.simulation.clients import Admin, Consumer, Link, Producer
from tests.simulation.disk import Forks, SimulatedDisk
from tests.simulation.shelf import Shelf
from tests.simulation.threads import Clock, Threads, Wrong
from tests.simulation.truth import Lane, Truth, decoder
from tests.twins import DIM, EXPIRED_VERSIONS_S, GATE_DIM

T = TypeVar("T")
LIMITS = Limits(ads=2**13, targetings=2**12, terms=2**12, expired=2**9)


@dataclass(frozen=True)
class Settings:
    """Of one seed."""

    on_gap: str
    batch_events_max: int
    buffer_events_max: int
    dead_letters_max: int
    interval_s: float
    kept: int
    switching: float
    limits: Limits


@dataclass
class Outside:
    """What outlives the process."""

    r: random.Random
    clock: Clock
    broker: Broker
    truth: Truth
    say: Callable[[str], None]
    meanwhile: Callable[[], None]
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    shelf: Shelf = field(default_factory=Shelf)
    child_dies: float = 0.0  # how often, at each operation of its own


def new_index(settings: Settings) -> Index:
    return Index(
        cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=Precision.INT8, limits=settings.limits,
        expired_versions_s=EXPIRED_VERSIONS_S,
    )  # fmt: skip


class TurnedEngine(Engine):
    """Waits in turns, and has every answer and every adopted index looked at where it is made."""

    service: Service

    def turn(self, *, wait: bool = False) -> bool:
        going = super().turn()
        self.service.turned()
        return going

    def offer(self, batch: Batch, timeout_s: float) -> bool:
        return super().offer(batch, 0.0)

    def call(self, function: Callable[[Index], T]) -> Future[T]:
        future = super().call(function)
        self.service.threads.until(future.done, "a call of the engine")
        return future

    def adopt(self, index: Index) -> Future[None]:
        if self.service.outside.disk.damage_read:
            raise Wrong("a damaged snapshot is restored")
        return super().adopt(index)


class Service:
    def __init__(self, outside: Outside, settings: Settings) -> None:
        self.outside, self.settings = outside, settings
        self.threads = Threads(outside.r, outside.clock, settings.switching, outside.meanwhile)
        self.engine = TurnedEngine(
            new_index(settings), clock_us=outside.clock.wall_us, batches_max=3, clock=outside.clock.monotonic,
            thread=self.threads.thread,  # type: ignore[arg-type]
        )  # fmt: skip
        self.engine.service = self
        self.config = IngestConfig(
            bootstrap_servers="simulated", topic="events", dlq_topic="events-dlq", on_gap=settings.on_gap,  # type: ignore[arg-type]
            batch_events_max=settings.batch_events_max, buffer_events_max=settings.buffer_events_max,
            dead_letters_max=settings.dead_letters_max,
        )  # fmt: skip
        self.ingest = Ingest(
            self.config, cases.SCHEMA, decoder(), self.take, outside.clock.monotonic, connect=self.connect,  # type: ignore[arg-type]
            thread=self.threads.thread,  # type: ignore[arg-type]
        )  # fmt: skip
        dies = lambda: outside.r.random() < outside.child_dies  # noqa: E731
        self.forks = Forks(outside.disk, self.threads, dies)
        self.snapshots = Snapshots(
            outside.disk, self.engine, self.safe, interval_s=settings.interval_s, kept=settings.kept,  # type: ignore[arg-type]
            clock_us=outside.clock.wall_us, clock=outside.clock.monotonic, thread=self.threads.thread,  # type: ignore[arg-type]
            fork=self.forks.fork, wait=self.forks.wait,  # type: ignore[arg-type]
        )  # fmt: skip
        self.parties = Parties(self.engine, self.ingest, self.snapshots)
        self.forks.swap = self._use_disk
        self.ingest._reader._thread.each_turn = self._reader_turn  # type: ignore[attr-defined]
        self.reading = False  # it has restored, and reads on
        self.requests: list[tuple[Sequence[Request], Future[list[Answer]]]] = []
        self.wanted: list[Future[Done]] = []
        self._lanes: Mapping[int, Lane] = {}
        self._composed_before = False
        outside.truth.twins.index = self.engine.index
        outside.truth.begin({}, [])

    def connect(self, config: IngestConfig, on_error: Any, on_commit: Any) -> Clients:
        outside = self.outside
        link = Link(outside.broker, self.threads, outside.clock, outside.r)
        self.consumer = Consumer(link, on_commit, self.check_commit)
        self.producer = Producer(link, self.check_letter)
        return Clients(self.consumer, self.producer, Admin(link))  # type: ignore[arg-type]

    def _use_disk(self, disk: MemoryDisk) -> Callable[[], None]:
        """For a child, which has a copy of what the store remembers."""
        store = self.snapshots.store
        before = store.disk, set(store._doubtful)
        store.disk = disk

        def undo() -> None:
            store.disk, store._doubtful = before

        return undo

    # Its life.

    def start(self) -> None:
        self.snapshots.lock()
        self.parties.start()
        self.ingest.look(0.0)

    def begin(self) -> bool:
        """Once the topic was seen: restores a snapshot of it, and reads on from there. -> whether it was"""
        view = self.ingest.look(0.0)
        if view is None:
            return False
        identity = Identity(
            "events", view.topic_id, view.cluster_id, cases.SCHEMA.fingerprint, None, DIM, GATE_DIM, "int8"
        )
        self.parties.begin(
            view, identity, lambda: new_index(self.settings), lambda offsets: self._restored(view, identity, offsets)
        )
        self.reading = True
        return True

    def _restored(self, view: TopicView, identity: Identity, offsets: dict[int, int]) -> None:
        truth, outside = self.outside.truth, self.outside
        truth.twins.index = self.engine.index
        sequence = self.snapshots._restored
        outside.say(f"restored {sequence} at {offsets}")
        history = outside.shelf.check_restored(outside.disk, sequence, identity, offsets)
        topic = outside.broker.topic
        if topic is not None and topic.id == view.topic_id:
            truth.begin(offsets, history)
        else:  # it was made again since it was looked at
            truth.lost = True

    def stop(self) -> None:
        """An orderly stop, as at SIGTERM."""
        self.parties.end()
        self.outside.disk.locks.clear()

    def crash(self) -> None:
        self.threads.dead = True
        self.forks.parent_gone()
        self.consumer.crash()
        self.producer.crash()
        for lock in self.outside.disk.locks:
            os.close(lock)
        self.outside.disk.locks.clear()

    # What its parts say to each other.

    def take(self, batch: Batch, timeout_s: float) -> bool:
        """The reader's sink."""
        if not self._composed_before:
            self._lanes = self.lanes()
        taken = self.engine.offer(batch, timeout_s)
        if taken:
            self.outside.truth.handed_on(batch, self.ingest.statistics._gaps, self._lanes)
            self._composed_before = False
        return taken

    def lanes(self) -> dict[int, Lane]:
        return {number: Lane(lane.end_at_start, lane.held) for number, lane in self.ingest._reader._lanes.items()}

    def _reader_turn(self) -> bool:
        """Notes which partitions the reader knows when it puts a batch together, which the engine may take later."""
        self._composed_before = self.ingest._reader._waiting is not None
        going = self.ingest._reader.turn()
        if not self._composed_before:
            self._lanes = self.lanes()
        return going

    def safe(self, positions: Mapping[int, int], timeout_s: float) -> bool:
        """Snapshots ask whether they may go so far."""
        self.threads.until(lambda: self.ingest.wait_safe(positions, 0.0), "dead letters", timeout_s)
        return self.ingest.wait_safe(positions, 0.0)

    def turned(self) -> None:
        """The engine had a turn: what it answered is held to the truth before anything else happens."""
        truth, clock = self.outside.truth, self.outside.clock
        left = []
        for requests, future in self.requests:
            if not future.done():
                left.append((requests, future))
                continue
            error = future.exception()
            self.outside.say(f"answered {'with ' + type(error).__name__ if error else len(future.result())}")
            if error is None and not truth.lost:
                if self.engine.index.now_us != clock.now_us:
                    raise Wrong("the engine's clock is not the wall's")
                for request, answer in zip(requests, future.result(), strict=True):
                    truth.check_answer(request, answer, self.engine.index)
                    for partition, offset in request.min_offsets.items():
                        if answer.offsets.get(partition, -1) < offset:
                            raise Wrong(f"an answer is behind the offsets {request.min_offsets} that it was to include")
        self.requests = left

    def check_commit(self, offsets: dict[int, int], identity: str) -> None:
        truth = self.outside.truth
        if truth.lost:
            return
        assert truth.topic is not None
        if identity != f"{truth.topic.id}:{cases.SCHEMA.fingerprint}":
            raise Wrong(f"offsets are committed as those of {identity}")
        self.check_passed(offsets, "a commit")

    def check_passed(self, offsets: Mapping[int, int], what: str) -> None:
        """Everything below these offsets is in the index or in the dead-letter topic."""
        truth = self.outside.truth
        truth.fold(self.engine.index)
        applied = self.engine.index.positions
        for partition, offset in offsets.items():
            start = self.ingest.statistics._partitions[partition].start if what == "a commit" else 0
            if offset > max(applied.get(partition, 0), start):
                raise Wrong(f"{what} at {offset} of partition {partition}, which is applied up to {applied}")
        missing = truth.missing_letters(offsets)
        if missing:
            raise Wrong(f"{what} at {dict(offsets)} passes the dead letters of {missing}, which are in no topic")

    def check_letter(self, letter: Letter) -> None:
        if not self.outside.truth.lost:
            self.outside.truth.check_letter(letter, self.engine.index)
