"""Between the reader and the engine: ads that bring no vectors get the model's before the engine sees their events.

A thread with a bounded queue, which keeps the order. While it asks the model about one batch, the engine applies the
one before and answers requests, and the reader decodes the next. An event is changed before it is applied, so no query
ever sees an ad's new features with its old vectors.

A create says all that the ad tower is told. A modify of a part of it needs the ad as it is: the thread then waits
until the engine has applied what came before, and reads the ad (`depends_on_ad`). Where an earlier event of the same
batch may change that ad, the batch is handed on in parts. Vectors that an event gives are used as they are.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from api.ad_tower import AdTower, Vectors
from api.engine import Engine, Stopped
from api.worker import Worker
from gpu_index.ad_inputs import AdInputs, after, depends_on_ad, inputs_of
from gpu_index.events import AdEvent, Batch, EventKind, Fault, Outcome
from ingest.decode import wrong_length

T = TypeVar("T")

BATCHES_MAX = 4  # that wait for the model
READ_ADS = 64  # read by the engine at once, between its requests
OFFER_S = 0.25  # between looks at whether the engine has ended
MODEL_FAILED = Fault("internal", "the model failed on the ad; the service's log has the details")
log = logging.getLogger("mirach.model")


class AdStage(Worker):
    def __init__(self, engine: Engine, thread: Callable[..., threading.Thread] = threading.Thread) -> None:
        super().__init__("mirach-ad-tower", thread)
        self.tower: AdTower | None = None  # None: all is handed on as it is. Changed by the stage's thread alone
        self.failure: str | None = None  # a fault of our own, which has ended the thread
        self._engine = engine
        self._queue: deque[Batch | tuple[Callable[[], Any], Future[Any]]] = deque()
        self._positions: dict[int, int] = {}  # partition -> next offset after what was handed on

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def offer(self, batch: Batch, timeout_s: float) -> bool:
        """As Engine.offer: takes a batch, or says after so long that there is no room."""
        with self._changed:
            ready = self._changed.wait_for(lambda: self._stopping or len(self._queue) < BATCHES_MAX, timeout_s)
            if not ready or self._stopping:
                return False
            self._queue.append(batch)
            self._changed.notify_all()
        return True

    def between(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the stage's thread, between two batches: no event goes on meanwhile. Raises Stopped."""
        future: Future[T] = Future()
        with self._changed:
            if self._stopping:
                raise Stopped
            self._queue.append((function, future))
            self._changed.notify_all()
        return future

    # -- the thread

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                if isinstance(work, Batch):
                    self._hand_on(work)
                else:
                    _settle(*work)
        except Stopped:
            pass
        except Exception as error:
            log.exception("the stage of the ad tower stopped on a fault of its own")
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._refuse_all()

    def _next(self) -> Batch | tuple[Callable[[], Any], Future[Any]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._queue)
            work = self._queue.popleft() if self._queue else None
            self._changed.notify_all()
        return work

    def _refuse_all(self) -> None:
        with self._changed:
            self._stopping = True
            left, self._queue = self._queue, deque()
            self._changed.notify_all()
        for work in left:
            if not isinstance(work, Batch) and work[1].set_running_or_notify_cancel():
                work[1].set_exception(Stopped())

    def _hand_on(self, batch: Batch) -> None:
        """Raises Stopped."""
        if self.tower is None or not batch.events:
            self._offer(batch)
            return
        outcomes: list[Outcome] = []
        done = 0
        for events in parts(batch.events):
            ready = self._with_vectors(self.tower, events)
            done += len(events)
            if done == len(batch.events):

                def applied(last: Sequence[Outcome], now_us: int) -> None:
                    batch.applied([*outcomes, *last], now_us)

                self._offer(Batch(ready, batch.positions, applied))
            else:
                positions = {event.partition: self._positions.get(event.partition, 0) for event in events}
                for event in events:  # an offset that comes again moves nothing
                    positions[event.partition] = max(positions[event.partition], event.offset + 1)
                self._offer(Batch(ready, positions, lambda some, _: outcomes.extend(some)))

    def _offer(self, batch: Batch) -> None:
        self._positions |= batch.positions
        while not self._engine.offer(batch, OFFER_S):
            if self._engine.stopping:
                raise Stopped

    def _with_vectors(self, tower: AdTower, events: list[AdEvent]) -> list[AdEvent]:
        """The events as the engine is to have them."""
        ready = [_of_right_width(event, tower.model.dim, tower.model.gate_dim) for event in events]
        asked = [event.ad_id for event in ready if event.ad_id is not None and depends_on_ad(event)]
        before: dict[str, AdInputs] = {}
        for first in range(0, len(asked), READ_ADS):
            some = asked[first : first + READ_ADS]
            before |= self._engine.call_after(lambda index, some=some: inputs_of(index, some)).result()  # type: ignore[misc]
        wanted: list[tuple[int, AdInputs]] = []
        for place, event in enumerate(ready):
            if event.kind is EventKind.CREATE:
                ad = after(event, None)
            elif depends_on_ad(event) and event.ad_id in before:
                ad = after(event, before[event.ad_id])
            else:
                continue
            if not (ad.given_embedding and ad.given_gate):
                wanted.append((place, ad))
        for (place, ad), vectors in zip(wanted, tower.embed_each([ad for _, ad in wanted]), strict=True):
            if vectors is None:
                events[place].fault = MODEL_FAILED
                ready[place] = _bad(events[place])
            else:
                ready[place] = _completed(ready[place], ad, vectors)
        return ready


def parts(events: list[AdEvent]) -> Iterator[list[AdEvent]]:
    """Cuts a batch before each event whose ad an earlier one of the same part may change."""
    first = 0
    changed: set[str | None] = set()
    for place, event in enumerate(events):
        depends = depends_on_ad(event)
        if depends and event.ad_id in changed:
            yield events[first:place]
            first, changed = place, set()
        if depends or event.kind in (EventKind.CREATE, EventKind.EXPIRE):
            changed.add(event.ad_id)
    yield events[first:]


def _completed(event: AdEvent, ad: AdInputs, vectors: Vectors) -> AdEvent:
    """The event with the model's vectors where the ad has none of its own."""
    assert event.patch is not None
    changes = {}
    if not ad.given_embedding:
        changes["embedding"] = vectors[0]
    if not ad.given_gate:
        changes["gate"] = vectors[1]
    patch = msgspec.structs.replace(event.patch, **changes)
    return msgspec.structs.replace(
        event, patch=patch, derives_embedding=not ad.given_embedding, derives_gate=not ad.given_gate
    )


def _of_right_width(event: AdEvent, dim: int, gate_dim: int) -> AdEvent:
    """The event, or, where it was decoded before a switch and gives vectors of the old widths, the bad event it is now.
    Whoever writes the dead letter looks for the fault at the event that was decoded."""
    patch = event.patch
    if patch is None:
        return event
    for name, vector, width in (("ad.embedding", patch.embedding, dim), ("ad.gate", patch.gate, gate_dim)):
        given = None if vector is None else getattr(vector, "shape", None)
        if given is not None and given != (width,):
            detail, code = wrong_length(width, given[0])
            event.fault = Fault(code, f"{name}: {detail}")
            return _bad(event)
    return event


def _bad(event: AdEvent) -> AdEvent:
    return msgspec.structs.replace(event, kind=EventKind.BAD, patch=None)


def _settle(function: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
