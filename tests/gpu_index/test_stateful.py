"""Random histories of events, clocks and requests: the index and the plain index say the same at every step.

Two drivers of one machine: hypothesis, which shrinks what it finds, and seeded runs, which go further in less time.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpu_index.events import AdEvent, EventKind, Outcome
from kernels.precision import Precision
from tests.consistent import assert_empty, slots_in_use
from tests.twins import EXPIRED_VERSIONS_S, OUTCOMES_REFUSED, START_US, Twins, whole_patch

RANDOM = st.randoms(use_true_random=False)


class Histories(RuleBasedStateMachine):
    twins: Twins

    @initialize(r=RANDOM)
    def begin(self, r: random.Random) -> None:
        self.twins = Twins(r, ids=6, partitions=2, targetings=4, depth=3)

    @rule(r=RANDOM, count=st.integers(1, 4))
    def events(self, r: random.Random, count: int) -> None:
        self.twins.send([self.twins.event(r) for _ in range(count)])

    @rule(r=RANDOM, kind=st.sampled_from(EventKind))
    def one_event(self, r: random.Random, kind: EventKind) -> None:
        self.twins.send([self.twins.event(r, kind)])

    @rule(seconds=st.sampled_from([-30, -1, 0, 1, 5, 40, 3600, 86_400]))
    def clock(self, seconds: int) -> None:
        self.twins.advance(seconds * 1_000_000)

    @rule(r=RANDOM, partition=st.integers(0, 1))
    def time_passes_in_a_partition(self, r: random.Random, partition: int) -> None:
        self.twins.clock_ms[partition] += EXPIRED_VERSIONS_S * 1000

    @rule(r=RANDOM, count=st.integers(1, 3))
    def requests(self, r: random.Random, count: int) -> None:
        self.twins.ask([self.twins.request(r) for _ in range(count)])

    @invariant()
    def whole_and_equal(self) -> None:
        if hasattr(self, "twins"):
            self.twins.check()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    deadline=None, max_examples=100, stateful_step_count=25, derandomize=os.environ.get("CI") == "true", print_blob=True
)


@pytest.mark.parametrize(
    ("seed", "ids", "steps", "batch", "precision"),
    [
        (1, 40, 60, 12, Precision.INT8),
        (2, 40, 60, 12, Precision.FLOAT32),
        (3, 400, 40, 150, Precision.INT8),
        (4, 3000, 14, 1500, Precision.INT8),
    ],
)
def test_seeded_histories(seed: int, ids: int, steps: int, batch: int, precision: Precision) -> None:
    r = random.Random(seed)
    twins = Twins(r, ids=ids, precision=precision, targetings=max(20, ids // 8))
    for _ in range(steps):
        twins.send([twins.event(r) for _ in range(r.randrange(1, batch))])
        twins.advance(r.choice([0, 1_000_000, 30_000_000, -15_000_000, 3_600_000_000]))
        twins.ask([twins.request(r) for _ in range(r.choice([1, 2, 5]))])
        twins.check()
    assert all(twins.outcomes[outcome] for outcome in Outcome if outcome is not Outcome.INDEX_FULL), twins.outcomes
    while twins.plain.ads:
        twins.send([twins.event(r, EventKind.EXPIRE, ad_id) for ad_id in list(twins.plain.ads)])
        twins.ask([twins.request(r)])
    twins.check()
    assert_empty(twins.index)


def test_a_refused_event_changes_nothing() -> None:
    """Also of an ad that many events have touched before."""
    r = random.Random(7)
    twins = Twins(r, ids=12)
    for _ in range(600):
        event = twins.event(r)
        before = arrays(twins)
        [outcome] = twins.send([event])
        if outcome in OUTCOMES_REFUSED:
            assert arrays(twins) == before, event
    assert all(twins.outcomes[outcome] for outcome in OUTCOMES_REFUSED - {Outcome.INDEX_FULL})


def arrays(twins: Twins) -> list[object]:
    """What an ad is made of, by slot, of the slots in use."""
    a, slots = twins.index.ads, slots_in_use(twins.index)
    columns = (
        a.id_at, a.features_at, a.fields_at, a.targeting, a.advertiser, a.campaign, a.version, a.offset, a.created_ms,
        a.bid, a.start_us, a.end_us, a.flags, a.embedding, a.gate,
    )  # fmt: skip
    return [slots.tobytes(), *(column[slots].tobytes() for column in columns)]


def test_a_version_is_forgotten_just_after_its_time() -> None:
    """By the record timestamps of the partition of its expire, to the millisecond, with no event of the ad's own."""
    twins = Twins(random.Random(8), ids=3, partitions=2)
    limit_ms = EXPIRED_VERSIONS_S * 1000

    def outcome(kind: EventKind, ad_id: str, version: int | None, partition: int, timestamp_ms: int) -> Outcome:
        patch = whole_patch() if kind is EventKind.CREATE else None
        offset = twins.offset[partition]
        twins.offset[partition] += 1
        [got] = twins.send(
            [AdEvent(kind, ad_id, version, partition, offset, START_US // 1000 + timestamp_ms, patch=patch)]
        )
        twins.check()
        return got

    one, other, third = twins.ids
    assert outcome(EventKind.CREATE, one, 5, 0, 0) is Outcome.APPLIED
    assert outcome(EventKind.EXPIRE, one, None, 0, 7) is Outcome.APPLIED
    assert outcome(EventKind.EXPIRE, other, 9, 0, 3) is Outcome.EXPIRE_UNKNOWN  # at 7 by the newest timestamp so far
    assert outcome(EventKind.CREATE, one, 5, 1, 9 * limit_ms) is Outcome.STALE  # another partition's time
    assert outcome(EventKind.CREATE, third, None, 0, 7 + limit_ms) is Outcome.APPLIED
    assert outcome(EventKind.CREATE, other, 9, 0, 0) is Outcome.STALE
    assert outcome(EventKind.CREATE, one, 5, 0, 7 + limit_ms) is Outcome.STALE
    assert outcome(EventKind.CREATE, one, 5, 0, 8 + limit_ms) is Outcome.APPLIED
    assert outcome(EventKind.CREATE, other, 1, 1, 0) is Outcome.APPLIED
