"""Requests to answers. A backend matches, filters and scores a batch of them; what is left is to walk down the ranked
ads of each pathway: pathways in their order, no ad twice, caps and earlier pathways passed over. Slots never leave this
room: answers name ads.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns

from gpu_index.index import Index
from scoring.host import Host
from scoring.request import Answer, Request, Result
from scoring.seam import Backend, Lane, TooMuchAtOnce

WIDEN = 4  # how many times more are ranked where caps left too few
_HOST = Host()


def retrieve(index: Index, requests: Sequence[Request]) -> list[Answer]:
    """Answers in the order of the requests, all of the same state of the index. Runs on the index's thread."""
    backend = _backend(index)
    answers: list[Answer] = []
    for start in range(0, len(requests), backend.batch_max):
        batch = requests[start : start + backend.batch_max]
        try:
            answers += _batch(backend, index, batch)
        except TooMuchAtOnce:
            if len(batch) == 1:
                raise
            for request in batch:
                answers += _batch(backend, index, [request])
    return answers


def _backend(index: Index) -> Backend:
    """Where the index has its copy is where its requests are answered."""
    if index.copy is None:
        return _HOST
    from scoring.device import OnDevice  # late: it needs numba-cuda

    return OnDevice()


def _batch(backend: Backend, index: Index, requests: Sequence[Request]) -> list[Answer]:
    survivors = backend.survivors(index, requests)
    began = perf_counter_ns()
    results = [_fill(index, request, lanes) for request, lanes in zip(requests, survivors.lanes, strict=True)]
    timings = survivors.timings_ms | {"rank": (perf_counter_ns() - began) / 1e6}
    offsets = {partition: position - 1 for partition, position in index.positions.items()}
    return [
        Answer(given, survivors.eligible[r], index.count, offsets, timings, index.model)
        for r, given in enumerate(results)
    ]  # the batch's timings, which each of its requests waited for


def _fill(index: Index, request: Request, lanes: Sequence[Lane]) -> list[Result]:
    """Fills the pathways in their order: no ad twice, no group beyond its cap."""
    results: list[Result] = []
    given: set[int] = set()
    groups: dict[tuple[str, str], int] = {}
    for pathway, lane in zip(request.pathways, lanes, strict=True):
        wanted = pathway.k + len(given)
        while True:
            ranked = lane.best(wanted)
            chosen = _walk(index, request, pathway.k, ranked.slots, given, groups)
            if len(chosen) >= pathway.k or ranked.whole:
                break
            wanted *= WIDEN
        for place, slot, advertiser, campaign in chosen:
            given.add(slot)
            for group in _groups(request, advertiser, campaign):
                groups[group] = groups.get(group, 0) + 1
            score, value = float(ranked.scores[place]), float(ranked.values[place])
            results.append(Result(index.ad_id(slot), advertiser, campaign, score, value, pathway.name))
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
