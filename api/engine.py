"""The engine: one thread that owns the index, applies batches of events and answers requests between them.

Each turn: (1) calls of the admin side, (2) events, a batch at a time until requests wait or the queue is empty,
(3) the requests that wait and whose offsets are reached, as one batch. So an answer sees whole batches of whole events,
with no lock, and has an exact position in every partition. A request that asks for offsets not applied yet waits in
line until they are, or until its time is over. Clock and thread are arguments: tests/simulation takes the turns itself.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Any, TypeVar

from gpu_index.events import Batch
from gpu_index.index import Index
from kernels.cuda.types import DeviceFault
from scoring.request import Answer, Request
from scoring.retrieve import retrieve

T = TypeVar("T")
TICK_S = 0.25  # how often the clock is looked at with nothing else to do: starts and ends are due within a second
ANSWERED_MAX = 16  # requests of one turn, as many as the CPU takes in one pass; more wait for the next
log = logging.getLogger("mirach.engine")


class QueueFull(Exception):
    """As many requests wait as may; come again."""


class Stopped(Exception):
    """The engine answers no more."""


class ModelChanged(Exception):
    """The request was made for another model than the one that the index has now: it is to be made again."""


class IndexBehind(Exception):
    """The offsets asked for were not reached in time."""

    def __init__(self, positions: dict[int, int]) -> None:
        super().__init__(f"the index stands at {positions}")
        self.positions = positions  # partition -> next offset


_Call = tuple[Callable[[Index], Any], Future[Any]]


@dataclass
class _Waiting:
    requests: Sequence[Request]
    future: Future[list[Answer]]
    deadline: float
    offsets: dict[int, int]  # partition -> last offset that the answers must include
    arrived: float
    model: str | None  # fingerprint of the one that the requests' users are of


@dataclass
class EngineStatistics:
    """Counts since the start; written by the engine's thread, read by anyone."""

    events: int = 0
    batches: int = 0
    requests: int = 0
    passes: int = 0
    behind: int = 0
    apply_s: float = 0.0
    answer_s: float = 0.0
    last_pass: int = 0  # requests of the newest pass
    extra: dict[str, float] = field(default_factory=dict)


class Engine:
    def __init__(
        self,
        index: Index,
        *,
        clock_us: Callable[[], int],
        requests_max: int = 1024,
        batches_max: int = 8,
        answered_max: int = ANSWERED_MAX,
        attach: Callable[[Index], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """`clock_us` gives microseconds since 1970. At most `requests_max` requests and `batches_max` batches wait; a
        turn answers `answered_max` requests at most, or one waiting party of more. `attach` is called with each index
        before the engine uses it, and gives it its copy on a GPU if there is one."""
        self.index = index
        self._attach = attach
        attach(index)
        self.statistics = EngineStatistics()
        self._clock_us, self._clock = clock_us, clock
        self._requests_max, self._batches_max, self._answered_max = requests_max, batches_max, answered_max
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._held: list[_Waiting] = []  # behind their offsets; the engine's own
        self._batches: deque[Batch | _Call] = deque()
        self._calls: deque[_Call] = deque()
        self._queued = 0  # requests in line or held
        self._stopping = False
        self.failed = False  # by a fault of its own: the index may be half changed
        self._thread = thread(target=self._run, name="mirach-engine", daemon=True)

    def start(self) -> None:
        self.index.release_thread()
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """Answers what waits, applies what was offered, and ends the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._refuse_all()  # of an engine that was never started
            self.index.release_thread()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it takes nothing more."""
        return self._stopping

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._queued

    @property
    def batches(self) -> tuple[int, int]:
        """Batches of events that wait, and how many may."""
        return len(self._batches), self._batches_max

    def submit(self, requests: Sequence[Request], model: str | None = None) -> Future[list[Answer]]:
        """Answers of one state of the index, in order. `model`: fingerprint of the one that the requests were made for.
        Raises QueueFull or Stopped; the future raises IndexBehind or ModelChanged."""
        now = self._clock()
        offsets: dict[int, int] = {}
        for request in requests:
            for partition, offset in request.min_offsets.items():
                offsets[partition] = max(offset, offsets.get(partition, 0))
        wait_s = min((request.wait_ms for request in requests if request.min_offsets), default=0) / 1000
        waiting = _Waiting(requests, Future(), now + wait_s, offsets, now, model)
        with self._changed:
            if self._stopping:
                raise Stopped
            if self._queued + len(requests) > self._requests_max:
                raise QueueFull
            self._queued += len(requests)
            self._waiting.append(waiting)
            self._changed.notify_all()
        return waiting.future

    def offer(self, batch: Batch, timeout_s: float) -> bool:
        """Hands over a batch of events; False where the queue stays full for so long, or the engine stops."""
        with self._changed:
            ready = self._changed.wait_for(lambda: self._stopping or len(self._batches) < self._batches_max, timeout_s)
            if not ready or self._stopping:
                return False
            self._batches.append(batch)
            self._changed.notify_all()
        return True

    def call(self, function: Callable[[Index], T]) -> Future[T]:
        """Runs a function of the index on the engine's thread, between batches. Raises Stopped."""
        future: Future[T] = Future()
        with self._changed:
            if self._stopping:
                raise Stopped
            self._calls.append((function, future))
            self._changed.notify_all()
        return future

    def call_after(self, function: Callable[[Index], T]) -> Future[T]:
        """Like `call`, once the batches offered so far are applied and before any that comes after. Raises Stopped."""
        future: Future[T] = Future()
        with self._changed:
            if self._stopping:
                raise Stopped
            self._batches.append((function, future))
            self._changed.notify_all()
        return future

    def adopt(self, index: Index) -> Future[None]:
        """From then on the engine has this index, which nobody else may use, in place of its own. Raises Stopped."""

        def take(old: Index) -> None:
            index.release_thread()
            old.copy = None  # gives its memory back first
            self._attach(index)
            self.index = index

        return self.call(take)

    def positions(self) -> dict[int, int]:
        """Partition -> next offset to be applied."""
        return dict(self.index.positions)

    # -- the engine's thread

    def _run(self) -> None:
        try:
            while self.turn(wait=True):
                pass
        except BaseException:
            self.failed = True
            log.exception("the engine stopped on a fault of its own")
            raise
        finally:
            self._refuse_all()

    def turn(self, *, wait: bool = False) -> bool:
        """One turn, with `wait` once something is due; False once all is done and the engine is to stop."""
        with self._changed:
            if wait:
                self._changed.wait_for(self._due, self._patience())
            calls, self._calls = self._calls, deque()
            if self._stopping and not (calls or self._batches or self._waiting or self._held):
                return False
        for function, future in calls:
            _settle(future, lambda function=function: function(self.index))  # type: ignore[misc]
        self._apply()
        self.index.advance_clock(self._clock_us())
        self._answer()
        return True

    def _due(self) -> bool:
        new = self._stopping or self._calls or self._batches or self._waiting
        return bool(new) or any(self._reached(waiting.offsets) for waiting in self._held)

    def _patience(self) -> float:
        """Seconds until something is due of itself: a tick of the clock, or the end of a held request's time."""
        ends = [waiting.deadline for waiting in self._held]
        return max(0.0, min([TICK_S] + [end - self._clock() for end in ends]))

    def _apply(self) -> None:
        """Batches of events, until somebody waits or a tick has passed: a catch-up must not keep calls or the clock."""
        until = self._clock() + TICK_S
        while True:
            with self._changed:
                if not self._batches:
                    return
                batch = self._batches.popleft()
                self._changed.notify_all()
            if isinstance(batch, tuple):
                function, future = batch
                _settle(future, lambda function=function: function(self.index))  # type: ignore[misc]
                continue
            began = self._clock()
            now_us = self._clock_us()
            outcomes = self.index.apply(batch, now_us)
            batch.applied(outcomes, now_us)
            self.statistics.events += len(batch.events)
            self.statistics.batches += 1
            self.statistics.apply_s += self._clock() - began
            if self._waiting or self._held or self._calls or self._clock() >= until:
                return

    def _answer(self) -> None:
        """The requests in line, or as many as one pass takes, all of them made for the model that the index has."""
        model = None if self.index.model is None else self.index.model.fingerprint
        ready = []
        for waiting in self._take_ready():
            if waiting.model == model:
                ready.append(waiting)
            else:
                self._finish(waiting, ModelChanged())
        if not ready:
            return
        began = self._clock()
        try:
            results = self._retrieve(ready)
        except DeviceFault:
            self.failed = True
            for waiting in ready:
                self._finish(waiting, Stopped())
            raise
        spent = self._clock() - began
        answered = 0
        for waiting, result in zip(ready, results, strict=True):
            if not isinstance(result, Exception):
                answered += len(result)
                for answer in result:
                    answer.timings_ms = answer.timings_ms | {"queue": (began - waiting.arrived) * 1000}
            self._finish(waiting, result)
        if answered:
            self.statistics.requests += answered
            self.statistics.passes += 1
            self.statistics.last_pass = answered
            self.statistics.answer_s += spent

    def _retrieve(self, ready: Sequence[_Waiting]) -> list[list[Answer] | Exception]:
        """What each gets, from one pass. Where that fails, from a pass of its own, so that whoever it failed for fails
        alone; all see the same state of the index. Raises DeviceFault."""
        try:
            answers = iter(retrieve(self.index, [request for waiting in ready for request in waiting.requests]))
        except DeviceFault:
            raise
        except Exception as error:
            if len(ready) == 1:
                log.exception("a pass failed")
                return [error]
            log.warning("a pass of %d failed, each is answered alone: %s", len(ready), type(error).__name__)
            return [result for waiting in ready for result in self._retrieve([waiting])]
        return [list(islice(answers, len(waiting.requests))) for waiting in ready]

    def _take_ready(self) -> list[_Waiting]:
        """What can be answered now, arrivals in order; what is behind its offsets is held until its time is over."""
        ready: list[_Waiting] = []
        count = 0
        still: list[_Waiting] = []
        for waiting in self._held:
            if self._reached(waiting.offsets) and (not ready or count + len(waiting.requests) <= self._answered_max):
                ready.append(waiting)
                count += len(waiting.requests)
            elif not self._reached(waiting.offsets) and (self._clock() >= waiting.deadline or self._is_last()):
                self.statistics.behind += 1
                self._finish(waiting, IndexBehind(self.positions()))
            else:
                still.append(waiting)
        self._held = still
        while not ready or count < self._answered_max:
            with self._changed:
                if not self._waiting:
                    break
                if ready and count + len(self._waiting[0].requests) > self._answered_max:
                    break
                waiting = self._waiting.popleft()
            if self._reached(waiting.offsets):
                ready.append(waiting)
                count += len(waiting.requests)
            else:
                self._held.append(waiting)
        return ready

    def _is_last(self) -> bool:
        """Whether no more events will come."""
        with self._changed:
            return self._stopping and not self._batches

    def _reached(self, offsets: dict[int, int]) -> bool:
        positions = self.index.positions
        return all(positions.get(partition, 0) > offset for partition, offset in offsets.items())

    def _finish(self, waiting: _Waiting, result: list[Answer] | Exception) -> None:
        with self._changed:
            self._queued -= len(waiting.requests)
        if not waiting.future.set_running_or_notify_cancel():
            return
        if isinstance(result, Exception):
            waiting.future.set_exception(result)
        else:
            waiting.future.set_result(result)

    def _refuse_all(self) -> None:
        """Leaves nobody waiting for an engine that has ended."""
        with self._changed:
            self._stopping = True
            left, self._waiting = [*self._held, *self._waiting], deque()
            self._held = []
            calls, self._calls = self._calls, deque()
            calls.extend(batch for batch in self._batches if isinstance(batch, tuple))
            self._batches.clear()
            self._changed.notify_all()
        for waiting in left:
            self._finish(waiting, Stopped())
        for _, future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(Stopped())


def _settle(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
        if isinstance(error, DeviceFault):
            raise
