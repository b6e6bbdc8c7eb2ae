"""Users' features to users: the model's towers, in batches, on a thread of their own before the engine.

Whoever waits when the thread is free is asked for at once, up to USERS_MAX users, all of one model. A request that the
model refuses is asked for alone, so that its neighbours do not share its fault. The queue is bounded.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from api.engine import QueueFull, Stopped
from api.metrics import LATENCY_BUCKETS_S, Histogram
from api.worker import Worker
from gpu_index.invalid_input import InvalidInput
from scoring.model.served import Model
from scoring.request import Request
from scoring.user import TOLD, User, UserFeatures

USERS_MAX = 64  # asked at once
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
log = logging.getLogger("mirach.model")

PLACE = re.compile(r"\[([0-9]+)\]\.(features|context)(.*)", re.DOTALL)  # of a fault, as Model.users has it

Told = tuple[dict[str, Any], dict[str, Any] | None]  # features, context


@dataclass(slots=True)
class TowerStatistics:
    """Since the start. Written by the towers' thread, read by anyone."""

    users: int = 0
    batches: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(LATENCY_BUCKETS_S))  # of a batch
    batch_users: Histogram = field(default_factory=lambda: Histogram(BATCH_BUCKETS))
    understood: NDArray[np.int64] = field(default_factory=lambda: np.zeros((len(TOLD), 2), np.int64))  # as User's


@dataclass(slots=True)
class _Job:
    model: Model
    users: Sequence[Told]
    future: Future[list[User]]


class UserTowers(Worker):
    def __init__(self, users_max: int, thread: Callable[..., threading.Thread] = threading.Thread) -> None:
        """At most `users_max` users wait."""
        super().__init__("mirach-user-towers", thread)
        self.statistics = TowerStatistics()
        self._users_max = users_max
        self._jobs: deque[_Job] = deque()
        self._waiting = 0  # users

    @property
    def waiting(self) -> int:
        """Users that wait."""
        return self._waiting

    def submit(self, model: Model, users: Sequence[Told]) -> Future[list[User]]:
        """Raises QueueFull or Stopped; the future raises InvalidInput, whose path is as Model.users has it."""
        future: Future[list[User]] = Future()
        with self._changed:
            if self._stopping:
                raise Stopped
            if self._waiting and self._waiting + len(users) > self._users_max:
                raise QueueFull
            self._waiting += len(users)
            self._jobs.append(_Job(model, users, future))
            self._changed.notify_all()
        return future

    # -- the thread

    def _run(self) -> None:
        while jobs := self._next():
            try:
                self._serve(jobs)
            except InvalidInput as fault:
                if len(jobs) == 1:
                    _fail(jobs[0], fault)
                    continue
                for job in jobs:
                    self._serve_alone(job)
            except Exception as error:
                log.exception("the user towers failed")
                for job in jobs:
                    _fail(job, error)

    def _next(self) -> list[_Job]:
        """Those that wait, as many as are asked for at once; none at the end."""
        jobs: list[_Job] = []
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._jobs)
            count = 0
            while self._jobs and (not jobs or count + len(self._jobs[0].users) <= USERS_MAX):
                if jobs and self._jobs[0].model is not jobs[0].model:
                    break
                jobs.append(self._jobs.popleft())
                count += len(jobs[-1].users)
            self._waiting -= count
        return jobs

    def _serve(self, jobs: list[_Job]) -> None:
        users = [user for job in jobs for user in job.users]
        began = time.monotonic()
        made = jobs[0].model.users([features for features, _ in users], [context for _, context in users])
        assert len(made) == len(users), (len(made), len(users))
        self.statistics.seconds.observe(time.monotonic() - began)
        self.statistics.batch_users.observe(len(users))
        self.statistics.users += len(users)
        self.statistics.batches += 1
        if understood := [user.understood for user in made if user.understood is not None]:
            self.statistics.understood = self.statistics.understood + np.sum(understood, 0)  # put in place whole
        at = 0
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(made[at : at + len(job.users)])
            at += len(job.users)

    def _serve_alone(self, job: _Job) -> None:
        try:
            self._serve([job])
        except Exception as error:
            if not isinstance(error, InvalidInput):
                log.exception("the user towers failed")
            _fail(job, error)


class Asked:
    """The users that requests only tell of, each once for all the pathways of its request that have it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.told: list[Told] = []
        self.requests = requests
        self._places: list[tuple[int, str]] = []  # of each: its request, its place there
        self._numbers: dict[tuple[int, int], int] = {}  # by request and id of the features
        self.asking: set[int] = set()  # requests that ask for any
        for number, request in enumerate(requests):
            for pathway in request.pathways:
                if isinstance(pathway.user, UserFeatures) and (number, id(pathway.user)) not in self._numbers:
                    self._numbers[number, id(pathway.user)] = len(self.told)
                    self.told.append((pathway.user.features, request.context))
                    self._places.append((number, pathway.user.place))
                    self.asking.add(number)

    def answered(self, users: list[User]) -> list[Request]:
        """The requests with the users that the model made."""
        requests = []
        for number, request in enumerate(self.requests):
            pathways = tuple(
                msgspec.structs.replace(pathway, user=users[self._numbers[number, id(pathway.user)]])
                if isinstance(pathway.user, UserFeatures)
                else pathway
                for pathway in request.pathways
            )
            requests.append(msgspec.structs.replace(request, pathways=pathways))
        return requests

    def place(self, path: str) -> tuple[int, str]:
        """Of a fault that the model found: the request and the path in it."""
        found = PLACE.fullmatch(path)
        assert found is not None, path
        number, place = self._places[int(found[1])]
        return number, f"context{found[3]}" if found[2] == "context" else f"{place}.features{found[3]}"


def _fail(job: _Job, error: Exception) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
