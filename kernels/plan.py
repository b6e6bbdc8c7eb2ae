"""What a batch of requests asks of the rows: for each request and constrained attribute, most selective first, the rows
of its values and the posting lists that are to be scattered into scratch rows; then the same of excluded values.

Scratch rows are numbered through the batch. `steps` is the plan as one list of words for a device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kernels.compiled import IN_PLACE, prefetch
from kernels.rows import CONSTRAINED_ROW, USED_ROW

SERVICE_CLOCK = -(2**63)  # in place of a request's own now: the live bits decide

# a step is a row or scratch row, and what is done with it
STEP_ROW = (1 << 28) - 1
STEP_BEGINS = 1 << 28  # a group: what is not in the row is let through
STEP_ENDS = 1 << 29  # the group: after this, what it lets through is what is left
STEP_EXCLUDES = 1 << 30  # what is in the row is taken out
STEP_SCRATCH = 1 << 31  # a scratch row
STEP_GROUP = 4  # steps of a request are made a multiple of this by steps that do nothing


class Queries(NamedTuple):
    """A batch of requests as terms and numbers; attributes include the schedule's, last."""

    terms: NDArray[np.uint32]  # [start of request .. ] no term twice in a request
    attribute: NDArray[np.int64]  # [as terms]
    start: NDArray[np.int64]  # [request + 1] into terms
    numbers: NDArray[np.int64]  # as RequestFacts has them
    number_start: NDArray[np.int64]  # [request, attribute + 1] into numbers
    now_us: NDArray[np.int64]  # [request] its own now, or SERVICE_CLOCK


class Plan(NamedTuple):
    rows: NDArray[np.int64]  # rows of the groups, one request's after another's
    group: NDArray[np.int64]  # [request, group + 1] into rows
    constrained: NDArray[np.int64]  # [request, group] the row of targetings that constrain the attribute
    scratch: NDArray[np.int64]  # [request, group] scratch row, -1 for none
    groups: NDArray[np.int64]  # [request]
    excluded: NDArray[np.int64]  # rows of excluded values
    exclude_start: NDArray[np.int64]  # [request + 1] into excluded
    exclude_scratch: NDArray[np.int64]  # [request] scratch row, -1 for none
    place_start: NDArray[np.int64]  # [request + 1] scratch rows in use
    list_entry: NDArray[np.int64]  # lists that are scattered
    list_place: NDArray[np.int64]  # [as list_entry] into which scratch row
    list_start: NDArray[np.int64]  # [request + 1] into list_entry


@njit(nogil=True, cache=True)
def make_plan(x: Any, q: Any) -> Any:
    """The plan of a batch over Rows x."""
    requests, attributes = len(q.start) - 1, len(x.constrained)
    n = len(q.terms)
    plan = Plan(
        np.empty(n, np.int64), np.zeros((requests, attributes + 1), np.int64),
        np.empty((requests, attributes), np.int64), np.empty((requests, attributes), np.int64),
        np.zeros(requests, np.int64), np.empty(n, np.int64),
        np.zeros(requests + 1, np.int64), np.full(requests, -1, np.int64), np.zeros(requests + 1, np.int64),
        np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.zeros(requests + 1, np.int64),
    )  # fmt: skip
    for r in range(requests):
        plan.group[r, 0] = q.start[r]
        plan.place_start[r + 1], plan.list_start[r + 1] = plan.place_start[r], plan.list_start[r]
        _plan_request(x, q, plan, r)
    return plan


@njit(nogil=True, cache=True)
def _plan_request(x: Any, q: Any, plan: Any, r: int) -> None:
    attributes, lo, hi = len(x.constrained), q.start[r], q.start[r + 1]
    _fetch(x, q.terms[lo:hi])
    sums = np.zeros(attributes, np.int64)
    order = np.argsort(q.attribute[lo:hi], kind="mergesort") + lo
    for i in range(lo, hi):
        sums[q.attribute[i]] += np.int64(x.uses[2 * np.int64(q.terms[i])])
    first = np.zeros(attributes + 1, np.int64)
    for i in range(lo, hi):
        first[q.attribute[i] + 1] += 1
    for a in range(attributes):
        first[a + 1] += first[a]
    groups, n = 0, plan.group[r, 0]
    for a in np.argsort(sums - x.constrained, kind="mergesort"):  # ascending share of targetings let through
        if x.constrained[a] == 0:
            continue
        plan.constrained[r, groups], plan.scratch[r, groups] = CONSTRAINED_ROW + a, -1
        for i in order[first[a] : first[a + 1]]:
            entry = 2 * np.int64(q.terms[i])
            if x.row[entry] != 0:
                plan.rows[n] = x.row[entry]
                n += 1
            elif x.uses[entry] != 0:
                plan.scratch[r, groups] = _list(plan, r, plan.scratch[r, groups], entry)
        groups += 1
        plan.group[r, groups] = n
    plan.groups[r] = groups
    n = plan.exclude_start[r]
    for i in range(lo, hi):
        entry = 2 * np.int64(q.terms[i]) + 1
        if x.row[entry] != 0:
            plan.excluded[n] = x.row[entry]
            n += 1
        elif x.uses[entry] != 0:
            plan.exclude_scratch[r] = _list(plan, r, plan.exclude_scratch[r], entry)
    plan.exclude_start[r + 1] = n


@njit(**IN_PLACE)
def _fetch(x: Any, terms: Any) -> None:
    """Has what is to be known of the terms on its way, all at once: it lies anywhere in memory."""
    for term in terms:
        for column in (x.uses, x.row, x.offset):
            prefetch(column, 8 * np.int64(term))  # of both its entries


@njit(**IN_PLACE)
def _list(plan: Any, r: int, held: int, entry: int) -> int:
    """Has the entry's list scattered into the scratch row at hand, or the next one, which it returns."""
    if held < 0:
        held = plan.place_start[r + 1]
        plan.place_start[r + 1] += 1
    n = plan.list_start[r + 1]
    plan.list_entry[n], plan.list_place[n] = entry, held
    plan.list_start[r + 1] = n + 1
    return held


@njit(nogil=True, cache=True)
def steps(plan: Any) -> Any:
    """The plan as words. -> steps, and where each request's begin [request + 1]"""
    requests = len(plan.groups)
    room = len(plan.rows) + len(plan.excluded) + 2 * plan.scratch.size + requests * (STEP_GROUP + 1)
    out, start, n = np.empty(room, np.uint32), np.zeros(requests + 1, np.int64), 0
    for r in range(requests):
        for g in range(plan.groups[r]):
            out[n] = np.uint32(plan.constrained[r, g] | STEP_BEGINS)
            n += 1
            for i in range(plan.group[r, g], plan.group[r, g + 1]):
                out[n] = np.uint32(plan.rows[i])
                n += 1
            if plan.scratch[r, g] >= 0:
                out[n] = np.uint32(plan.scratch[r, g] | STEP_SCRATCH)
                n += 1
            out[n - 1] |= np.uint32(STEP_ENDS)
        for i in range(plan.exclude_start[r], plan.exclude_start[r + 1]):
            out[n] = np.uint32(plan.excluded[i] | STEP_EXCLUDES)
            n += 1
        if plan.exclude_scratch[r] >= 0:
            out[n] = np.uint32(plan.exclude_scratch[r] | STEP_SCRATCH | STEP_EXCLUDES)
            n += 1
        while n % STEP_GROUP:
            out[n] = np.uint32(USED_ROW)
            n += 1
        start[r + 1] = n
    return out[:n], start
