"""The CPU's pass: one match for each request, its ads scored once for each of its users.

(1) `select` matches all requests and gives the slots of their eligible ads; (2) filters and exclusions take out what
may not be given; (3) all that is left is scored in one pass, each ad once for each distinct user of its request.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from gpu_index.index import Index
from kernels.match import BATCH_MAX
from kernels.score import score
from kernels.top_k import top_k
from scoring.request import Pathway, Request
from scoring.seam import Ranked, Survivors
from scoring.user import User, UserFeatures, pack

UNSCORED = 0.5  # the score where a request has no user


class _Job:
    """The ads of one request that are to be scored for one of its users."""

    def __init__(self, user: User | None, slots: NDArray[np.uint32]) -> None:
        self.user, self.slots = user, slots
        self.scores: NDArray[np.float64] = np.full(len(slots), UNSCORED)


class _Lane:
    """One pathway: its job and which of the job's ads it may give (None: all)."""

    def __init__(self, index: Index, pathway: Pathway, job: _Job, mine: NDArray[np.bool_] | None) -> None:
        self.job = job
        self._index, self._pathway, self._mine = index, pathway, mine
        self._ranked: tuple[NDArray[np.uint32], NDArray[np.float64], NDArray[np.float64]] | None = None

    def best(self, wanted: int) -> Ranked:
        if self._ranked is None:
            slots = self.job.slots if self._mine is None else self.job.slots[self._mine]
            scores = self.job.scores if self._mine is None else self.job.scores[self._mine]
            self._ranked = slots, scores, scores * self._index.bids(slots)
        slots, scores, values = self._ranked
        order = values if self._pathway.rank_by == "value" else scores
        ranked = top_k(order, self._index.ties(slots), wanted)
        return Ranked(slots[ranked].tolist(), scores[ranked], values[ranked], wanted >= len(slots))


class Host:
    batch_max = BATCH_MAX

    def survivors(self, index: Index, requests: Sequence[Request]) -> Survivors:
        clock = [perf_counter_ns()]
        selection = index.select([(request.attributes, request.now_us) for request in requests])
        clock.append(perf_counter_ns())
        lanes = [
            _lanes(index, request, selection.slots[selection.first[r] : selection.first[r + 1]])
            for r, request in enumerate(requests)
        ]
        clock.append(perf_counter_ns())
        _score(index, [job for each in lanes for job in {id(lane.job): lane.job for lane in each}.values()])
        clock.append(perf_counter_ns())
        steps = ("match", "filter", "score")
        timings_ms = {step: (clock[i + 1] - clock[i]) / 1e6 for i, step in enumerate(steps)}
        return Survivors(np.diff(selection.first).tolist(), lanes, timings_ms)


def _lanes(index: Index, request: Request, slots: NDArray[np.uint32]) -> list[_Lane]:
    """The request's pathways, those of one user on one job."""
    kept = index.keep(slots, request.filter, request.exclude_ads, request.now_us)
    slots = slots if kept is None else slots[kept]
    own = [index.keep(slots, pathway.filter, (), request.now_us) for pathway in request.pathways]
    jobs: dict[int, _Job] = {}
    needed: dict[int, NDArray[np.bool_] | None] = {}
    for pathway, mine in zip(request.pathways, own, strict=True):
        key = id(pathway.user)
        held = needed.get(key, False)
        needed[key] = mine if held is False else None if held is None or mine is None else held | mine
    for pathway in request.pathways:
        key = id(pathway.user)
        if key not in jobs:
            wanted = needed[key]
            assert not isinstance(pathway.user, UserFeatures), "the towers come before the engine"
            jobs[key] = _Job(pathway.user, slots if wanted is None else slots[wanted])
    lanes = []
    for pathway, mine in zip(request.pathways, own, strict=True):
        wanted = needed[id(pathway.user)]
        mine = mine if mine is None or wanted is None else mine[wanted]
        lanes.append(_Lane(index, pathway, jobs[id(pathway.user)], mine))
    return lanes


def _score(index: Index, jobs: list[_Job]) -> None:
    """Scores all jobs that have a user in one pass."""
    scored = [job for job in jobs if job.user is not None and len(job.slots)]
    if not scored:
        return
    start = np.zeros(len(scored) + 1, np.int64)
    np.cumsum([len(job.slots) for job in scored], out=start[1:])
    users = pack([job.user for job in scored if job.user is not None], index.precision)
    out = np.empty(start[-1], np.float64)
    score(index.score_columns, np.concatenate([job.slots for job in scored]), start, users, out)
    for i, job in enumerate(scored):
        job.scores = out[start[i] : start[i + 1]]
