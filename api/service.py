"""The running service as the routes see it: what they may ask of the engine and of ingest, and when they may not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, TypeVar

from api.ad_stage import BATCHES_MAX
from api.backend import CPU, Backend
from api.bodies import IN_FLIGHT_BYTES_MAX, IN_FLIGHT_MAX, Bodies
from api.config import Loaded
from api.engine import Engine, IndexBehind, ModelChanged, QueueFull, Stopped
from api.metrics import RequestMetrics
from api.models import Models, SwitchRefused
from api.problems import INDEX_BEHIND, MODEL_REFUSED, NOT_READY, OVERLOADED, Problem
from api.requests import RequestParser, check_partitions
from api.shared_model import SharedModel, of_model
from api.snapshots import Snapshots
from api.towers import Asked, UserTowers
from gpu_index.index import Index
from gpu_index.inspection import describe
from gpu_index.invalid_input import InvalidInput
from gpu_index.schema import Schema
from ingest.statistics import Progress, Statistics
from ingest.watch import TopicView
from kernels.memory import AddressSpaceError
from scoring.explain import explain
from scoring.model.served import Model, ModelError
from scoring.request import Answer, Request
from scoring.user import understood_figures

T = TypeVar("T")
Parse = Callable[[RequestParser], Sequence[Request]]
Place = Callable[[int, str], str]  # from the path inside a request, and its number, to the path inside the body

READY_BELIEVED_S = 0.1
PARSED_AT_ONCE_BYTES = 65_536  # about five milliseconds
ENGINE_FAILED = "the engine has failed, its log says why; the service is to be started again"
LOOK_WAIT_S = 1.0  # at least, for a look at the topic
SWITCHES_MAX = 4  # of models, while one request is answered


@dataclass(slots=True)
class Service:
    """Wired once by server.py; the routes read it."""

    loaded: Loaded
    schema: Schema
    parser: RequestParser  # and with it the model in use: replaced as one at a switch
    engine: Engine
    statistics: Statistics
    snapshots: Snapshots
    look_again: Callable[[], Future[TopicView | None]]  # Ingest.look_again
    towers: UserTowers
    models: Models
    backend: Backend = CPU
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    bodies: Bodies = field(default_factory=lambda: Bodies(IN_FLIGHT_BYTES_MAX))
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

    async def answer(
        self, parse: Parse, place: Place = lambda _, path: path, size: int = 0
    ) -> tuple[list[Answer], float]:
        """The answers in the requests' order, all of one model, and perf_counter() when the requests were understood.
        They are made again where the model was switched meanwhile. `size`: bytes to be parsed; many are parsed on a
        thread, so that other requests go on. Raises InvalidInput and the problems `overloaded`, `index-behind` and
        `not-ready`."""
        for _ in range(SWITCHES_MAX):
            parser = self.parser
            requests = parse(parser) if size <= PARSED_AT_ONCE_BYTES else await asyncio.to_thread(parse, parser)
            if any(request.min_offsets for request in requests):
                await self._check_partitions(requests, place)
            parsed = perf_counter()
            if not requests:
                return [], parsed
            asked = Asked(requests)
            requests = await self._with_users(parser.model, asked, place)
            towers_ms = (perf_counter() - parsed) * 1e3
            try:
                answers = await self._from_engine(parser.model, requests)
            except ModelChanged:
                continue
            for number, answer in enumerate(answers):
                self.metrics.eligible.observe(answer.eligible)
                if number in asked.asking:
                    answer.timings_ms = {"towers": towers_ms} | answer.timings_ms
            return answers, parsed
        raise Problem(OVERLOADED, "the model was switched several times meanwhile; try again")

    async def explain(self, ad_id: str, parse: Parse, place: Place) -> dict[str, object] | None:
        """The one request against the ad; None where there is no such ad. Raises as `answer` does."""
        for _ in range(SWITCHES_MAX):
            parser = self.parser
            (request,) = await self._with_users(parser.model, Asked(parse(parser)), place)

            def of_one_model(
                index: Index, request: Request = request, wanted: Model | None = parser.model
            ) -> dict[str, object] | None:
                if fingerprint(wanted) != (None if index.model is None else index.model.fingerprint):
                    raise ModelChanged
                return explain(index, ad_id, request)

            try:
                return await self.on_engine(of_one_model)
            except ModelChanged:
                continue
        raise Problem(OVERLOADED, "the model was switched several times meanwhile; try again")

    async def _check_partitions(self, requests: Sequence[Request], place: Place) -> None:
        partitions = await self.partitions(requests)
        for number, request in enumerate(requests):
            try:
                check_partitions(request, partitions)
            except InvalidInput as fault:
                fault.path = place(number, fault.path)
                raise

    async def _with_users(self, model: Model | None, asked: Asked, place: Place) -> Sequence[Request]:
        """The requests, with users that the model's towers make of features."""
        if not asked.told:
            return asked.requests
        assert model is not None
        try:
            return asked.answered(await asyncio.wrap_future(self.towers.submit(model, asked.told)))
        except QueueFull:
            limit = self.loaded.settings.request_queue_max
            detail = f"{limit} users may wait for the model (setting request_queue_max); try again"
            raise Problem(OVERLOADED, detail) from None
        except InvalidInput as fault:
            fault.path = place(*asked.place(fault.path))
            raise
        except Stopped:
            raise Problem(NOT_READY, ENGINE_FAILED if self.engine.failed else "the service is stopping") from None

    async def _from_engine(self, model: Model | None, requests: Sequence[Request]) -> list[Answer]:
        """Raises ModelChanged too."""
        try:
            return await asyncio.wrap_future(self.engine.submit(requests, fingerprint(model)))
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

    def check_loaded(self) -> None:
        """Raises the problem `not-ready` while the engine's thread loads the kernels: nobody waits for a compiler."""
        if self.loading:
            raise Problem(NOT_READY, self.progress().detail)

    async def on_engine(self, call: Callable[[Index], T]) -> T:
        """The result of a call that runs on the engine's thread, between two batches. Raises as `check_loaded`."""
        self.check_loaded()
        try:
            return await asyncio.wrap_future(self.engine.call(call))
        except Stopped:
            raise Problem(NOT_READY, ENGINE_FAILED if self.engine.failed else "the service is stopping") from None

    async def switch_model(self, path: Path) -> None:
        """Begins a switch to the model in a folder. Raises InvalidInput, `model-refused` and `not-ready`."""
        try:
            await asyncio.to_thread(self.models.begin, path)
        except ModelError as error:
            raise InvalidInput("path", str(error), "bad_model") from None
        except SwitchRefused as refused:
            raise Problem(MODEL_REFUSED, str(refused), code=refused.code) from None
        except AddressSpaceError as error:
            raise Problem(MODEL_REFUSED, str(error), code="memory") from None
        except Stopped:
            raise Problem(NOT_READY, ENGINE_FAILED if self.engine.failed else "the service is stopping") from None

    def take_model(self, model: SharedModel, path: Path) -> None:
        """Requests are understood for this model from now on. On the engine's thread, which has just taken its
        vectors."""
        self.loaded = of_model(self.loaded, model, f"model {path}")
        self.parser = RequestParser.of(self.schema, self.loaded.settings, model)

    def model_figures(self) -> dict[str, Any]:
        """The model in use, a switch that is going on, and the towers, as JSON types."""
        counts = self.towers.statistics
        users = {
            "users": counts.users, "batches": counts.batches, "seconds": round(counts.seconds.total, 6),
            "understood": understood_figures(counts.understood),
        }  # fmt: skip
        return {**self.models.figures(), "user_towers": {"waiting": self.towers.waiting, **users}}

    async def index_figures(self) -> dict[str, Any]:
        """What the index holds and the engine has done, as JSON types."""
        figures: dict[str, Any] = dict(await self.on_engine(describe))
        figures["limits"] = self.limits(figures["limits"])
        return {**figures, **self.backend.figures(), "engine": self.engine_figures()}

    def limits(self, of_index: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, int]]:
        """Every bound of docs/operations.md that has a figure: what is in use, and the limit."""
        found = {
            **of_index,
            **self.statistics.limits(),
            "requests_waiting": (self.engine.queued, self.loaded.settings.request_queue_max),
            "batches_waiting": self.engine.batches,
            "users_waiting": (self.towers.waiting, self.loaded.settings.request_queue_max),
            "ad_tower_batches": (self.models.batches_waiting, BATCHES_MAX),
            "http_requests": (self.metrics.in_flight, IN_FLIGHT_MAX),
            "http_body_bytes": (self.bodies.bytes, self.bodies.bytes_max),
        }
        return {name: {"in_use": in_use, "limit": limit} for name, (in_use, limit) in found.items()}

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


def fingerprint(model: Model | None) -> str | None:
    return None if model is None else model.fingerprint
