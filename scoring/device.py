"""The pass on a GPU: match, filters, scores and top-K; what comes back are a few ranked ads for each pathway."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from gpu_index.index import Index
from kernels.cuda.ads import BATCH_MAX
from kernels.cuda.mirror import Mirror
from kernels.cuda.pipeline import Pass
from kernels.cuda.top_k import top_k
from kernels.cuda.types import TOP_K_MAX, DeviceArray, OutOfDeviceMemory, TopK, TopKJob, UserVectors
from scoring.request import Request
from scoring.seam import Ranked, Survivors, TooMuchAtOnce
from scoring.user import User, UserFeatures


class _Lane:
    """One pathway: its job, and what has been fetched of its ads so far."""

    def __init__(self, given: Pass, mirror: Mirror, job: TopKJob) -> None:
        self.job = job
        self._pass, self._mirror = given, mirror
        self._fetched = TopK(np.empty(0, np.uint32), np.empty(0, np.float32), np.empty(0, np.float64))
        self._whole = given.slots == 0

    def take(self, more: TopK, asked: int) -> None:
        """The next ads of the order, `asked` of them or all there are."""
        held = self._fetched
        self._fetched = TopK(
            np.concatenate((held.slots, more.slots)), np.concatenate((held.scores, more.scores)),
            np.concatenate((held.values, more.values)),
        )  # fmt: skip
        self._whole = len(more.slots) < asked

    def best(self, wanted: int) -> Ranked:
        """Raises TooMuchAtOnce."""
        try:
            while not self._whole and len(self._fetched.slots) < wanted:
                self._fetch(min(wanted - len(self._fetched.slots), TOP_K_MAX))
        except OutOfDeviceMemory as error:
            raise TooMuchAtOnce(str(error)) from error
        slots, scores, values = self._fetched
        return Ranked(slots.tolist(), scores, values, self._whole)

    def _fetch(self, k: int) -> None:
        job = self.job._replace(mask=self._pass.without(self.job.mask, self._fetched.slots), k=k)
        mirror = self._mirror
        self.take(top_k(mirror.device, mirror.score_columns, self._pass.slots, [job], mirror.buffers)[0], k)


class OnDevice:
    batch_max = BATCH_MAX

    def survivors(self, index: Index, requests: Sequence[Request]) -> Survivors:
        mirror = index.copy
        assert isinstance(mirror, Mirror), mirror
        try:
            return _survivors(index, mirror, requests)
        except OutOfDeviceMemory as error:
            mirror.buffers.give_back()
            raise TooMuchAtOnce(str(error)) from error


def _survivors(index: Index, mirror: Mirror, requests: Sequence[Request]) -> Survivors:
    began = perf_counter_ns()
    queries = index.queries([(request.attributes, request.now_us) for request in requests])
    made = Pass(mirror, mirror.buffers, queries)
    users: dict[int, UserVectors] = {}
    lanes = [_lanes(index, mirror, made, r, request, users) for r, request in enumerate(requests)]
    flat = [lane for each in lanes for lane in each]
    if made.slots:
        found = top_k(mirror.device, mirror.score_columns, made.slots, [lane.job for lane in flat], mirror.buffers)
        for lane, best in zip(flat, found, strict=True):
            lane.take(best, lane.job.k)
    eligible = made.counts().tolist()
    return Survivors(eligible, lanes, {"device": (perf_counter_ns() - began) / 1e6})


def _lanes(
    index: Index, mirror: Mirror, made: Pass, r: int, request: Request, users: dict[int, UserVectors]
) -> list[_Lane]:
    mask = made.eligible(r)
    now_us = index.now_us if request.now_us is None else request.now_us
    if made.slots and request.filter is not None:
        mask = made.filtered(mask, index.fields.filter(request.filter), now_us)
    excluded = index.slots_of(request.exclude_ads) if request.exclude_ads else ()
    if made.slots and len(excluded):
        mask = made.without(mask, np.asarray(excluded, np.uint32))
    lanes, before = [], 0
    for pathway in request.pathways:
        mine: DeviceArray = mask
        if made.slots and pathway.filter is not None:
            mine = made.filtered(mask, index.fields.filter(pathway.filter), now_us)
        assert not isinstance(pathway.user, UserFeatures), "the towers come before the engine"
        user = None if pathway.user is None else users.setdefault(id(pathway.user), _vectors(pathway.user))
        k = min(pathway.k + before, TOP_K_MAX)  # those before may take some of the best
        before += pathway.k
        lanes.append(_Lane(made, mirror, TopKJob(mine, user, k, pathway.rank_by == "value")))
    return lanes


def _vectors(user: User) -> UserVectors:
    return UserVectors(user.experts, user.gates, user.gate_bias, user.temperature, user.bias, user.route)
