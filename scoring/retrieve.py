"""Requests to answers: one match for each request, its ads scored once for each of its users, ranked for each pathway.

A batch goes through in steps: (1) `select` matches all requests in one pass and gives the slots of their eligible ads;
(2) filters and exclusions take out what may not be given; (3) all that is left is scored in one pass, each ad once for
each distinct user of its request; (4) pathway by pathway, the best are taken in order, caps and earlier pathways
passed over. Slots never leave this module: answers name ads.
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
from scoring.request import Answer, Pathway, Request, Result
from scoring.user import User, UserFeatures, pack

UNSCORED = 0.5  # the score where a request has no user
WIDEN = 4  # how many times more are ranked where caps left too few


class _Job:
    """The ads of one request that are to be scored for one of its users."""

    def __init__(self, user: User | None, slots: NDArray[np.uint32]) -> None:
        self.user, self.slots = user, slots
        self.scores: NDArray[np.float64] = np.full(len(slots), UNSCORED)


class _Lane:
    """One pathway: its job and which of the job's ads it may give (None: all)."""

    def __init__(self, pathway: Pathway, job: _Job, mine: NDArray[np.bool_] | None) -> None:
        self.pathway, self.job, self.mine = pathway, job, mine


def retrieve(index: Index, requests: Sequence[Request]) -> list[Answer]:
    """Answers in the order of the requests, all of the same state of the index. Runs on the index's thread."""
    answers: list[Answer] = []
    for start in range(0, len(requests), BATCH_MAX):
        answers += _batch(index, requests[start : start + BATCH_MAX])
    return answers


def _batch(index: Index, requests: Sequence[Request]) -> list[Answer]:
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
    results = [_fill(index, request, each) for request, each in zip(requests, lanes, strict=True)]
    clock.append(perf_counter_ns())
    steps = ("match", "filter", "score", "rank")
    timings = {step: (clock[i + 1] - clock[i]) / 1e6 for i, step in enumerate(steps)}
    offsets = {partition: position - 1 for partition, position in index.positions.items()}
    eligible = np.diff(selection.first).tolist()
    return [
        Answer(given, eligible[r], index.count, offsets, timings, index.model) for r, given in enumerate(results)
    ]  # the batch's timings, which each of its requests waited for


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
        lanes.append(_Lane(pathway, jobs[id(pathway.user)], mine if mine is None or wanted is None else mine[wanted]))
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


def _fill(index: Index, request: Request, lanes: list[_Lane]) -> list[Result]:
    """Fills the pathways in their order: no ad twice, no group beyond its cap."""
    results: list[Result] = []
    given: set[int] = set()
    groups: dict[tuple[str, str], int] = {}
    for lane in lanes:
        pathway, job = lane.pathway, lane.job
        slots = job.slots if lane.mine is None else job.slots[lane.mine]
        scores = job.scores if lane.mine is None else job.scores[lane.mine]
        values = scores * index.bids(slots)
        order = values if pathway.rank_by == "value" else scores
        ties = index.ties(slots)
        wanted = min(pathway.k + len(given), len(slots))
        while True:
            ranked = top_k(order, ties, wanted)
            chosen = _walk(index, request, pathway.k, slots[ranked].tolist(), given, groups)
            if len(chosen) >= pathway.k or wanted == len(slots):
                break
            wanted = min(wanted * WIDEN, len(slots))
        for place, slot, advertiser, campaign in chosen:
            given.add(slot)
            for group in _groups(request, advertiser, campaign):
                groups[group] = groups.get(group, 0) + 1
            at = ranked[place]
            results.append(
                Result(index.ad_id(slot), advertiser, campaign, float(scores[at]), float(values[at]), pathway.name)
            )
    return results


def _groups(request: Request, advertiser: str | None, campaign: str | None) -> list[tuple[str, str]]:
    """The capped groups that an ad belongs to."""
    owners = {"advertiser_id": advertiser, "campaign_id": campaign}
    return [(field, owner) for field in request.max_per if (owner := owners[field]) is not None]


def _walk(
    index: Index, request: Request, k: int, slots: list[int], given: set[int], groups: dict[tuple[str, str], int]
) -> list[tuple[int, int, str | None, str | None]]:
    """The first k of the ranked slots that are not given yet and whose groups are not full.
    -> place, slot, advertiser, campaign of each"""
    held = dict(groups) if request.max_per else {}
    chosen: list[tuple[int, int, str | None, str | None]] = []
    for place, slot in enumerate(slots):
        if len(chosen) == k:
            break
        if slot in given:
            continue
        advertiser, campaign = index.advertiser(slot), index.campaign(slot)
        if request.max_per:
            mine = _groups(request, advertiser, campaign)
            if any(held.get(group, 0) >= request.max_per[group[0]] for group in mine):  # type: ignore[index]
                continue
            for group in mine:
                held[group] = held.get(group, 0) + 1
        chosen.append((place, slot, advertiser, campaign))
    return chosen
