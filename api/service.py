"""The running service as the routes see it: what they may ask of the engine and of ingest, and when they may not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from api.backend import CPU, Backend
from api.config import Loaded
from api.engine import Engine, IndexBehind, QueueFull, Stopped
from api.metrics import RequestMetrics
from api.problems import INDEX_BEHIND, NOT_READY, OVERLOADED, Problem
from api.requests import RequestParser
from api.snapshots import Snapshots
from gpu_index.index import Index
from gpu_index.inspection import describe
from gpu_index.schema import Schema
from ingest.statistics import Progress, Statistics
from ingest.watch import TopicView
from scoring.request import Answer, Request

T = TypeVar("T")

READY_BELIEVED_S = 0.1
ENGINE_FAILED = "the engine has failed, its log says why; the service is to be started again"
LOOK_WAIT_S = 1.0  # at least, for a look at the topic


@dataclass(slots=True)
class Service:
    """Wired once by server.py; the routes read it."""

    loaded: Loaded
    schema: Schema
    parser: RequestParser
    engine: Engine
    statistics: Statistics
    snapshots: Snapshots
    look_again: Callable[[], Future[TopicView | None]]  # Ingest.look_again
    backend: Backend = CPU
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    loading: bool = False  # the kernels: not ready
    stopping: bool = False  # at SIGTERM: not ready, but what comes in is still answered
    _ready_until: float = 0.0

    def check_ready(self) -> None:
        """Raises the problem `not-ready`, with how far the index is, until it has caught up. On the hot path, so that
        it was ready is believed for READY_BELIEVED_S."""
        now = monotonic()
        if now < self._ready_until:
            return
        progress = self.progress()
        if not progress.ready:
            raise Problem(NOT_READY, progress.detail, more={"progress": progress.partitions})
        self._ready_until = now + READY_BELIEVED_S

    def progress(self) -> Progress:
        """How far it is from being ready, in its words."""
        if self.engine.failed:
            return Progress(False, ENGINE_FAILED, {})
        if self.loading:
            return Progress(False, "loading the kernels, which the first start on a machine compiles", {})
        if self.snapshots.restoring is not None:
            return Progress(False, self.snapshots.restoring, {})
        return self.statistics.progress()

    async def partitions(self, requests: Sequence[Request]) -> Collection[int]:
        """Those that the topic has. Where `min_offsets` names one more, the topic is looked at again: it may have been
        added just now. Raises the problem `index-behind` where that cannot be seen within `wait_ms` or LOOK_WAIT_S."""
        known = self.statistics.partitions()
        asking = [request for request in requests if not known.issuperset(request.min_offsets)]
        if not asking:
            return known
        wait_s = max(LOOK_WAIT_S, min(request.wait_ms for request in asking) / 1000)
        try:
            view = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self.look_again())), wait_s)
        except TimeoutError:
            view = None
        if view is None:
            raise Problem(
                INDEX_BEHIND,
                "min_offsets names a partition that the index does not know, and the topic could not be looked at "
                "in time; try again",
            )
        return known | set(range(view.partitions))

    async def answer(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers in the requests' order. Raises the problems `overloaded` and `index-behind`."""
        try:
            answers = await asyncio.wrap_future(self.engine.submit(requests))
        except QueueFull:
            limit = self.loaded.settings.request_queue_max
            raise Problem(OVERLOADED, f"{limit} requests may wait (setting request_queue_max); try again") from None
        except IndexBehind as behind:
            raise Problem(
                INDEX_BEHIND,
                "the index did not reach min_offsets within wait_ms; try again, or wait longer",
                more={"offsets": {each: position - 1 for each, position in behind.positions.items() if position}},
            ) from None
        except Stopped:
            raise Problem(NOT_READY, ENGINE_FAILED if self.engine.failed else "the service is stopping") from None
        for answer in answers:
            self.metrics.eligible.observe(answer.eligible)
        return answers

    async def on_engine(self, call: Callable[[Index], T]) -> T:
        """The result of a call that runs on the engine's thread, between two batches. Raises the problem `not-ready`
        while that thread loads the kernels: nobody waits for a compiler."""
        if self.loading:
            raise Problem(NOT_READY, self.progress().detail)
        try:
            return await asyncio.wrap_future(self.engine.call(call))
        except Stopped:
            raise Problem(NOT_READY, ENGINE_FAILED if self.engine.failed else "the service is stopping") from None

    async def index_figures(self) -> dict[str, Any]:
        """What the index holds and the engine has done, as JSON types."""
        figures = await self.on_engine(describe)
        return {**figures, **self.backend.figures(), "engine": self.engine_figures()}

    def engine_figures(self) -> dict[str, Any]:
        counts = self.engine.statistics
        return {
            "queued": self.engine.queued,
            "requests": counts.requests,
            "passes": counts.passes,
            "requests_behind": counts.behind,
            "events": counts.events,
            "batches": counts.batches,
            "apply_s": round(counts.apply_s, 6),
            "answer_s": round(counts.answer_s, 6),
        }
