"""The index against the plain evaluator: random nested targetings, random requests, identical sets."""

from __future__ import annotations

import random

import pytest

from gpu_index.evaluate import evaluate
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
from gpu_index.targeting import parse_expression
from gpu_index.values import parse_attributes, request_values
from gpu_index.zones import Schedule, hour_of_week
from kernels.precision import Precision
from tests import random_cases as cases

NOW_US = 1_796_000_000_000_000
LIMITS = Limits(ads=2**17, targetings=2**17, terms=2**17, expired=2**12)
QUIET = lambda outcomes, now_us: None  # noqa: E731


def create(ad_id: str, offset: int, targeting: object, schedule: Schedule | None = None, **fields: object) -> AdEvent:
    parsed = ParsedTargeting(repr(targeting).encode(), parse_expression(targeting, cases.SCHEMA.attributes))
    patch = AdPatch(
        advertiser_id=None, campaign_id=None, bid=1.0, paused=False, start_us=ALWAYS_FROM_US, end_us=ALWAYS_UNTIL_US,
        schedule=schedule, targeting=parsed, features=b"", embedding=None, gate=None, fields={},
    )  # fmt: skip
    return AdEvent(EventKind.CREATE, ad_id, None, 0, offset, NOW_US // 1000, patch=patch)


def index() -> Index:
    return Index(cases.SCHEMA, dim=8, gate_dim=4, precision=Precision.INT8, limits=LIMITS)


@pytest.mark.parametrize("seed", range(2))
def test_equal_sets(seed: int) -> None:
    r = random.Random(seed)
    built, raws = index(), [cases.targeting(r) for _ in range(2000)]
    schedules = [
        Schedule(r.choice(cases.ZONES), tuple(sorted(r.sample(range(168), 60)))) if r.random() < 0.2 else None
        for _ in raws
    ]
    events = [create(str(i), i, raw, schedule) for i, (raw, schedule) in enumerate(zip(raws, schedules, strict=True))]
    assert set(built.apply(Batch(events, {0: len(events)}, QUIET), NOW_US)) == {Outcome.APPLIED}
    expressions = [parse_expression(raw, cases.SCHEMA.attributes) for raw in raws]
    for start in range(0, 250, 10):
        requests = []
        for _ in range(10):
            zone = r.choice([*cases.ZONES, None])
            own = r.choice([None, NOW_US + r.randrange(-(10**14), 10**14)])
            requests.append((parse_attributes(cases.SCHEMA, cases.attributes(r), zone), own))
        selection = built.select(requests)
        for i, (attributes, own) in enumerate(requests):
            now_us = NOW_US if own is None else own
            values = request_values(cases.SCHEMA, attributes, now_us)
            want = {
                str(n)
                for n, (each, schedule) in enumerate(zip(expressions, schedules, strict=True))
                if evaluate(each, values)
                and (schedule is None or hour_of_week(schedule.timezone, now_us) in schedule.hours)
            }
            slots = selection.slots[selection.first[i] : selection.first[i + 1]]
            got = [built.ad_id(int(slot)) for slot in slots]
            assert len(got) == len(set(got))
            assert set(got) == want, (seed, start, i)


