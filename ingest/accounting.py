"""What follows from applied batches, on a thread of its own so that the engine's never waits: dead letters are sent
and events counted, and from both follows which offsets are safe.

An offset is safe when its event is in the index or its dead letter in the dead-letter topic, and so are all those
before it in the partition. Only safe offsets are committed, and a snapshot may not pass them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import Message

from gpu_index.events import AdEvent, Batch, EventKind, Outcome
from ingest.dead_letters import DeadLetters, letter_bytes
from ingest.faults import OUTCOME_FAULTS
from ingest.statistics import Statistics

BUSY_WAIT_S = 0.02  # while dead letters wait for their delivery reports
IDLE_WAIT_S = 0.25
BATCHES_MAX = 64  # with the engine, or applied and not accounted for; then reading pauses

_LOG = logging.getLogger("mirach.ingest")

Offsets = Mapping[int, int]


class _HandedOn:
    """One batch with the engine. Its records are kept until the outcomes are known: any may become a dead letter."""

    __slots__ = ("_queue", "bad_bytes", "events", "now_us", "outcomes", "positions", "records")

    def __init__(
        self,
        records: list[Message],
        events: list[AdEvent],
        positions: Offsets,
        applied_queue: queue.SimpleQueue[_HandedOn],
    ) -> None:
        self.records = records
        self.events = events
        self.positions = positions
        self.outcomes: Sequence[Outcome] = ()
        self.now_us = 0
        self.bad_bytes = sum(
            letter_bytes(record) for record, event in zip(records, events, strict=True) if event.kind is EventKind.BAD
        )
        self._queue = applied_queue

    def applied(self, outcomes: Sequence[Outcome], now_us: int) -> None:
        """On the engine's thread."""
        assert len(outcomes) == len(self.events), (len(outcomes), len(self.events))
        self.outcomes, self.now_us = outcomes, now_us
        self._queue.put(self)


class Accounting:
    def __init__(
        self,
        dead_letters: DeadLetters,
        statistics: Statistics,
        clock: Callable[[], float] = time.monotonic,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        self._dead_letters = dead_letters
        self._statistics = statistics
        self._clock = clock
        self._queue: queue.SimpleQueue[_HandedOn] = queue.SimpleQueue()
        self._handed_on = 0  # batches; counted by the consumer's thread
        self._accounted = 0  # batches; counted by this one
        self._bad_handed_on = 0  # events known to be bad, likewise
        self._bad_accounted = 0
        self._bad_bytes_handed_on = 0
        self._bad_bytes_accounted = 0
        self._bad_bytes_made = 0  # of the newest batch, which may not be handed on yet
        self._applied: dict[int, int] = {}
        self._safe: dict[int, int] = {}  # replaced, never changed: any thread may read it
        self._moved = threading.Condition()
        self._stop_at: float | None = None
        self._thread = thread(target=self._run, name="mirach-accounting", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Waits until the batches with the engine are accounted for and their dead letters sent, at most this long."""
        self._stop_at = self._clock() + timeout_s
        if self._thread.ident is not None:
            self._thread.join()

    def batch(self, records: list[Message], events: list[AdEvent], positions: dict[int, int]) -> Batch:
        """A batch for the engine that comes back here when it is applied. Once it was taken: `handed_on`."""
        made = _HandedOn(records, events, positions, self._queue)
        self._bad_bytes_made = made.bad_bytes
        return Batch(events, positions, made.applied)

    def handed_on(self, batch: Batch) -> None:
        self._handed_on += 1
        self._bad_handed_on += _bad_count(batch.events)
        self._bad_bytes_handed_on += self._bad_bytes_made

    @property
    def batches(self) -> int:
        """With the engine, or applied and not accounted for."""
        return self._handed_on - self._accounted

    @property
    def full(self) -> bool:
        """As many dead letters as may be, those that the engine has yet to decide included, or as many batches: reading
        must pause."""
        return self.batches >= BATCHES_MAX or self._dead_letters.full(
            self._bad_handed_on - self._bad_accounted, self._bad_bytes_handed_on - self._bad_bytes_accounted
        )

    def taken_up(self, partition: int, offset: int) -> None:
        """The partition is read from this offset on."""
        with self._moved:
            self._applied[partition] = offset
            self._safe = self._safe | {partition: offset}

    def safe_positions(self) -> dict[int, int]:
        """Partition -> the offset that commits and snapshots may go up to (the next one to read). Any thread."""
        return self._safe

    def wait_safe(self, positions: Offsets, timeout_s: float) -> bool:
        """Whether all before the positions is safe, waiting for it at most this long. Any thread but ingest's."""
        with self._moved:
            return self._moved.wait_for(
                lambda: all(self._safe.get(partition, 0) >= offset for partition, offset in positions.items()),
                timeout_s,
            )

    def _run(self) -> None:
        try:
            while self.turn(BUSY_WAIT_S if self._dead_letters.pending else IDLE_WAIT_S):
                pass
        except Exception as error:
            _LOG.exception("accounting of events failed")
            self._statistics.failed(f"{type(error).__name__}: {error}")

    def turn(self, wait_s: float = 0.0) -> bool:
        """One round of the loop, which waits so long for a batch that was applied; False once it is to end."""
        if self._finished():
            return False
        self._account(wait_s if self._stop_at is None else min(wait_s, BUSY_WAIT_S))
        self._dead_letters.serve(0)
        self._publish()
        return True

    def _finished(self) -> bool:
        if self._stop_at is None:
            return False
        drained = self._accounted == self._handed_on and not self._dead_letters.pending
        return drained or self._clock() >= self._stop_at

    def _account(self, timeout_s: float) -> None:
        """Takes what was applied: waits for one batch, then takes those that are there."""
        try:
            self._take(self._queue.get(timeout=timeout_s))
            for _ in range(self._queue.qsize()):
                self._take(self._queue.get_nowait())
        except queue.Empty:
            return

    def _take(self, done: _HandedOn) -> None:
        faults = []
        for record, event, outcome in zip(done.records, done.events, done.outcomes, strict=True):
            fault = event.fault if outcome is Outcome.BAD else OUTCOME_FAULTS.get(outcome)
            if fault is not None:
                self._dead_letters.add(record, fault)
                faults.append(fault.code)
        self._statistics.applied(done.events, done.outcomes, faults, done.positions, done.now_us)
        self._applied.update(done.positions)
        self._accounted += 1
        self._bad_accounted += _bad_count(done.events)
        self._bad_bytes_accounted += done.bad_bytes

    def _publish(self) -> None:
        """Makes known how far it is safe to go."""
        safe = {}
        for partition, applied in list(self._applied.items()):
            first = self._dead_letters.first_pending(partition)
            safe[partition] = applied if first is None else min(first, applied)
        if safe != self._safe:
            with self._moved:
                self._safe = safe
                self._moved.notify_all()
        letters = self._dead_letters
        self._statistics.dead_letters(safe, letters.sent, letters.pending, letters.already_sent, letters.problem)


def _bad_count(events: Sequence[AdEvent]) -> int:
    return sum(event.kind is EventKind.BAD for event in events)
