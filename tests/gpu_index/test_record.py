"""Targetings and schedules as stored: decoded they say what was sent, and a match against them says so too."""

from __future__ import annotations

import os
import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_index.evaluate import evaluate
from gpu_index.events import AdEvent, Batch, EventKind, Outcome, ParsedTargeting
from gpu_index.index import Index, Limits
from gpu_index.inspection import targeting_of
from gpu_index.targeting import Expression, parse_expression, to_json
from gpu_index.values import RequestAttributes, Values, parse_attributes, request_values
from gpu_index.zones import Schedule, hour_of_week
from kernels.precision import Precision
from tests import random_cases as cases
from tests.consistent import assert_consistent
from tests.strategies import ATTRIBUTES, SCHEMA, ZONES, Json, expressions
from tests.twins import START_US, new_index, parsed, sorted_lists, whole_patch

LIMITS = Limits(ads=8192, targetings=8192, terms=8192, expired=64)
SCHEDULES = st.builds(lambda zone, hours: Schedule(zone, tuple(sorted(hours))), ZONES, st.sets(st.integers(0, 167)))
OFTEN = settings(max_examples=400, deadline=None, derandomize=os.environ.get("CI") == "true", print_blob=True)


class One:
    """An index of one ad, whose targeting each example replaces."""

    def __init__(self) -> None:
        self.index = Index(SCHEMA, dim=4, gate_dim=2, precision=Precision.INT8, limits=LIMITS)
        self.offset = 0

    def stored(self, raw: Json, schedule: Schedule | None) -> tuple[Expression, Expression, Schedule | None]:
        """-> as sent, as stored, and the schedule as stored"""
        sent = parse_expression(raw, SCHEMA.attributes)
        targeting = ParsedTargeting(msgspec.json.encode(raw), sent)
        patch = whole_patch(targeting=targeting, schedule=schedule)
        event = AdEvent(EventKind.CREATE, "ad", None, 0, self.offset, START_US // 1000, patch=patch)
        self.offset += 1
        assert self.index.apply(Batch([event], {0: self.offset}, lambda *_: None), START_US) == [Outcome.APPLIED]
        slot = self.index.slot_of("ad")
        assert slot is not None
        decoded, held = targeting_of(self.index, slot)
        return sent, decoded, held


ONE = One()


@OFTEN
@given(
    expressions(), st.lists(st.tuples(ATTRIBUTES, st.none() | ZONES), min_size=1, max_size=4), st.none() | SCHEDULES,
    st.integers(0, 10**16),
)  # fmt: skip
def test_stored_targetings_say_what_was_sent(
    raw: Json, sent_attributes: list[tuple[dict[str, Json], str | None]], schedule: Schedule | None, now_us: int
) -> None:
    sent, decoded, held = ONE.stored(raw, schedule)
    assert held == schedule
    assert sorted_lists(decoded) == sorted_lists(sent)
    again = parse_expression(to_json(decoded, SCHEMA.attribute_list, "attr"), SCHEMA.attributes)
    requests = [parse_attributes(SCHEMA, attributes, zone) for attributes, zone in sent_attributes]
    selection = ONE.index.select([(attributes, now_us) for attributes in requests])
    on = schedule is None or hour_of_week(schedule.timezone, now_us) in schedule.hours
    for i, attributes in enumerate(requests):
        values: Values = request_values(SCHEMA, attributes, now_us)
        want = evaluate(sent, values)
        assert evaluate(decoded, values) == want
        assert evaluate(again, values) == want
        assert selection.first[i + 1] - selection.first[i] == (want and on)
    assert_consistent(ONE.index)


def test_large_stored_targetings_say_what_was_sent() -> None:
    r = random.Random(1)
    index = new_index()
    raws = [cases.targeting(r, depth) for depth in (1, 3, 6, 9) for _ in range(150)]
    targetings = [parsed(raw, from_meta=r.random() < 0.2) for raw in raws]
    schedules = [Schedule(r.choice(cases.ZONES), tuple(sorted(r.sample(range(168), r.randrange(168))))) for _ in raws]
    events = [
        AdEvent(EventKind.CREATE, str(i), None, 0, i, START_US // 1000, patch=whole_patch(targeting=t, schedule=s))
        for i, (t, s) in enumerate(zip(targetings, schedules, strict=True))
    ]
    assert set(index.apply(Batch(events, {0: len(events)}, lambda *_: None), START_US)) == {Outcome.APPLIED}
    asked = [request_values(cases.SCHEMA, parse_attributes(cases.SCHEMA, cases.attributes(r)), START_US) for _ in raws]
    true = 0
    for i, (targeting, schedule) in enumerate(zip(targetings, schedules, strict=True)):
        slot = index.slot_of(str(i))
        assert slot is not None
        decoded, held = targeting_of(index, slot)
        assert held == schedule
        assert sorted_lists(decoded) == sorted_lists(targeting.expression)
        for values in asked[:50]:
            want = evaluate(targeting.expression, values)
            assert evaluate(decoded, values) == want
            true += want
    assert 0.1 < true / (50 * len(raws)) < 0.9, "one answer for nearly all proves little"
    assert index.select([(RequestAttributes({}), None)]).slots.size < len(raws)
