"""Loads every kernel before the first event and request, so that these wait for no compiler.

The first start on a machine compiles the kernels, which takes a minute or so, and keeps them on disk; later starts
read them back in a second. What compiles keeps some hundreds of megabytes for it, so a process of its own does it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from msgspec import structs

from api.backend import CPU, Backend
from gpu_index.events import (
    ALWAYS_FROM_US,
    ALWAYS_UNTIL_US,
    AdEvent,
    AdPatch,
    Batch,
    EventKind,
    Outcome,
    ParsedTargeting,
)
from gpu_index.index import Index, Limits
from gpu_index.inspection import describe
from gpu_index.schema import ADVERTISER_ID, Kind, Schema
from gpu_index.targeting import All, Any_, Expression, In, Not
from gpu_index.values import RequestAttributes
from kernels import compiled_mark
from kernels.precision import Precision
from kernels.score import EXPERTS_MAX
from scoring.explain import explain
from scoring.request import Pathway, Request
from scoring.retrieve import retrieve
from scoring.user import User

VALUE = "value"
SMALL = Limits(ads=8192, targetings=8192, terms=8192, expired=64)
log = logging.getLogger("mirach.warm_up")


def compile_apart(precision: Precision, is_wanted: Callable[[], bool] = lambda: True) -> bool:
    """Has the kernels compiled by a process of its own where no start has done so yet. -> whether to go on: should that
    fail, `warm_up` compiles them here, unless a signal that ended it was meant for this process too."""
    mark = compiled_mark(precision)
    if mark is None or mark.exists():
        return True
    log.info("compiling the kernels for %s, once on this machine: about a minute", precision)
    command = [sys.executable, "-m", "api.warm_up", precision]
    child = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)  # noqa: S603 — our own words
    if child.returncode < 0 and not is_wanted():
        log.info("the compiling process was ended; the kernels are compiled at the next start")
        return False
    if child.returncode:
        log.warning("the compiling process ended with exit code %d; compiling here", child.returncode)
    else:
        mark.touch()
    return True


def warm_up(schema: Schema, dim: int, gate_dim: int, precision: Precision, backend: Backend = CPU) -> None:
    """Runs events, requests and an operator's questions of every kind through a small index of the same shape."""
    index = Index(
        schema, dim=dim, gate_dim=gate_dim, precision=precision, limits=SMALL, touched_max=backend.touched_max
    )
    backend.attach(index)
    patch = AdPatch(
        advertiser_id="1", campaign_id="1", bid=1.0, paused=False, start_us=ALWAYS_FROM_US, end_us=ALWAYS_UNTIL_US,
        schedule=None, targeting=ParsedTargeting(b"", All(())), features=b"{}", fields={},
        embedding=np.ones(dim, np.float32), gate=np.ones(gate_dim, np.float32),
    )  # fmt: skip
    events = [
        AdEvent(EventKind.CREATE, "1", 1, 0, 0, 0, patch=patch),
        AdEvent(EventKind.MODIFY, "1", 2, 0, 1, 0, patch=AdPatch(bid=2.0)),
        AdEvent(EventKind.CREATE, "2", 1, 0, 2, 0, patch=patch),
        AdEvent(EventKind.EXPIRE, "2", 2, 0, 3, 0),
        AdEvent(EventKind.CREATE, "3", 1, 0, 4, 0, patch=structs.replace(patch, targeting=_with_a_program(schema))),
    ]
    outcomes = index.apply(Batch(events, {0: 5}, lambda *_: None), 0)
    assert set(outcomes) == {Outcome.APPLIED}, outcomes
    attributes = RequestAttributes(dict.fromkeys(_categories(schema), (VALUE,)))
    for experts in (1, EXPERTS_MAX):
        user = User(
            np.ones((experts, dim), np.float32), np.ones((experts, gate_dim), np.float32),
            np.zeros(experts, np.float32), 1.0, 0.0, experts,
        )  # fmt: skip
        pathway = Pathway("main", 10, "value", user, In(ADVERTISER_ID, ("1",)))
        requests = [Request(attributes, (pathway,), exclude_ads=("2", "3"), now_us=now_us) for now_us in (None, 0)]
        answers = retrieve(index, requests)
        assert [len(answer.results) for answer in answers] == [1, 1], answers
    assert explain(index, "1", requests[0]) is not None
    describe(index)


def _categories(schema: Schema) -> list[int]:
    """The first attribute that is a category, if there is one."""
    return [number for number, each in enumerate(schema.attribute_list) if each.kind is Kind.CATEGORY][:1]


def _with_a_program(schema: Schema) -> ParsedTargeting:
    """A value in a list, and what rows do not decide."""
    parts: list[Expression] = []
    for attribute in _categories(schema):
        known = In(attribute, (VALUE,))
        parts += [known, Any_((known, Not(In(attribute, ("other",)))))]
    return ParsedTargeting(b"program", All(tuple(parts)))


if __name__ == "__main__":
    warm_up(Schema.load(), 64, 16, Precision(sys.argv[1]))
