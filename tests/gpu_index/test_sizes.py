"""Around the sizes where something changes: words and blocks of rows, segments of slots, extents, lists and rows.

Each history goes up, down again, and ends empty, held against the plain index on the way.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest

from gpu_index import index as index_
from gpu_index.events import AdEvent, AdPatch, EventKind, Outcome
from gpu_index.index import Index
from kernels import extents as extents_
from kernels import rows as rows_
from kernels import targetings as targetings_
from tests import random_cases as cases
from tests.consistent import assert_consistent, assert_empty
from tests.twins import LIMITS, START_US, Twins, parsed, whole_patch

BATCH = 2000
EXTENT_SLOTS = 1 << extents_.CLASS_MAX


def send(twins: Twins, kind: EventKind, ads: Iterable[tuple[str, AdPatch | None]]) -> None:
    """All of them, in batches of BATCH, each applied."""
    events = []
    for ad_id, patch in ads:
        events.append(AdEvent(kind, ad_id, None, 0, twins.offset[0], START_US // 1000, patch=patch))
        twins.offset[0] += 1
        if len(events) == BATCH:
            assert set(twins.send(events)) == {Outcome.APPLIED}
            events = []
    if events:
        assert set(twins.send(events)) == {Outcome.APPLIED}


def test_targetings_around_a_word_and_a_block_of_rows() -> None:
    r = random.Random(1)
    twins = Twins(r, ids=10, partitions=1)
    own = [{"not": {"attr": "audience", "in": [f"own {i}"]}} for i in range(8193)]  # makes each targeting the only one
    made = [(str(i), parsed({"all": [own[i], cases.targeting(r, 3)]})) for i in range(8193)]
    held = 0
    for count in (63, 64, 65, 8191, 8192, 8193):
        send(
            twins, EventKind.CREATE, ((name, whole_patch(targeting=targeting)) for name, targeting in made[held:count])
        )
        held = count
        assert twins.index.targetings.state[targetings_.LIVE] == count
        assert len(twins.ask([twins.request(r) for _ in range(6)])) == 6
        twins.check()
    order = [name for name, _ in made]
    r.shuffle(order)
    for count in (8192, 8191, 65, 64, 63, 1):
        send(twins, EventKind.EXPIRE, ((name, None) for name in order[count:held]))
        held = count
        twins.ask([twins.request(r) for _ in range(6)])
        twins.check()
    send(twins, EventKind.EXPIRE, [(order[0], None)])
    assert_empty(twins.index)
    send(twins, EventKind.CREATE, ((name, whole_patch(targeting=targeting)) for name, targeting in made[:200]))
    assert twins.index.targetings.state[targetings_.FRONTIER] == 8193, "free slots serve again"
    twins.ask([twins.request(r) for _ in range(6)])
    twins.check()


def test_ads_around_extents_and_segments() -> None:
    """Two broad targetings and many narrow ones, to 20,000 ads in four segments, with starts and ends that pass."""
    r = random.Random(2)
    twins = Twins(r, ids=10, partitions=1)
    broad = [None, parsed({"attr": "country", "in": ["C0", "C1", "C2"]})]
    made = []
    for i in range(20_000):
        start, end = twins.times(r)
        shared = broad[r.random() < 0.7] if r.random() < 0.9 else parsed(r.choice(twins.raws))
        made.append(
            (f"ad {i}", whole_patch(targeting=shared, start_us=start, end_us=end, bid=r.choice([0.5, 1.0, 2.0])))
        )
    held = 0
    for count in (4095, 4096, 4097, 8191, 8192, 8193, 20_000):
        send(twins, EventKind.CREATE, made[held:count])
        held = count
        twins.advance(r.choice([3, 8, -2]) * 1_000_000)
        twins.ask([twins.request(r) for _ in range(2)])
        assert_consistent(twins.index)
    twins.check()
    sizes = np.bincount(twins.index.ads.extents.kind & extents_.CLASS_BITS)
    assert sizes[extents_.CLASS_MAX] >= 2, "no targeting has come to its largest extents"
    order = list(range(20_000))
    r.shuffle(order)
    moved = order[:3000]  # from one targeting to the other
    send(twins, EventKind.MODIFY, ((f"ad {i}", AdPatch(targeting=r.choice(broad))) for i in moved))
    for count in (12_000, 8193, 8191, 4097, 4095, 100, 0):
        send(twins, EventKind.EXPIRE, ((f"ad {i}", None) for i in order[count:held]))
        held = count
        twins.advance(r.choice([3, 8, -2]) * 1_000_000)
        twins.ask([twins.request(r) for _ in range(2)])
        assert_consistent(twins.index)
    assert_empty(twins.index)
    assert twins.index.ads.extents.state[extents_.FRONTIER] < 1.5 * 20_000


def in_row(index: Index, value: str, *, excluded: bool = False) -> bool:
    term = index.terms.vocabulary.terms_of[cases.SCHEMA.attributes["audience"].index][value]
    return bool(index.targetings.rows.row[2 * term + excluded])


def some(value: str, numbers: Iterable[int], *, excluded: bool = False) -> list[tuple[str, AdPatch | None]]:
    """Ads whose targetings, each another, ask for a value or exclude it."""
    made: list[tuple[str, AdPatch | None]] = []
    for i in numbers:
        part: dict[str, object] = {"attr": "audience", "in": [value]}
        other = {"attr": "level", "in": [i]}
        made.append(
            (f"{value} {i}", whole_patch(targeting=parsed({"all": [{"not": part} if excluded else part, other]})))
        )
    return made


@pytest.mark.parametrize("excluded", [False, True])
def test_a_value_from_list_to_row_and_back(excluded: bool) -> None:
    r = random.Random(3)
    twins = Twins(r, ids=10, partitions=1)
    send(twins, EventKind.CREATE, some("other", range(300)))
    limit = int(rows_.common(300 + 65))
    assert limit == 65

    def ask() -> None:
        requests = [twins.request(r) for _ in range(4)]
        twins.ask(requests)
        assert_consistent(twins.index)

    send(twins, EventKind.CREATE, some("v", range(limit), excluded=excluded))
    assert not in_row(twins.index, "v", excluded=excluded)
    ask()
    send(twins, EventKind.CREATE, some("v", [limit], excluded=excluded))
    assert in_row(twins.index, "v", excluded=excluded)
    ask()
    for count in (limit, limit // 2, limit // 2 - 1):
        send(
            twins, EventKind.EXPIRE, ((f"v {i}", None) for i in range(count, limit + 1) if f"v {i}" in twins.plain.ads)
        )
        assert in_row(twins.index, "v", excluded=excluded) == (count >= limit // 2), count
        ask()
    for _ in range(3):  # to and fro around the same place
        send(twins, EventKind.CREATE, some("v", range(limit // 2 - 1, limit + 1), excluded=excluded))
        assert in_row(twins.index, "v", excluded=excluded)
        send(twins, EventKind.EXPIRE, ((f"v {i}", None) for i in range(limit // 2 - 1, limit + 1)))
        assert not in_row(twins.index, "v", excluded=excluded)
        ask()
    send(twins, EventKind.EXPIRE, ((name, None) for name in list(twins.plain.ads)))
    assert_empty(twins.index)
    assert twins.index.targetings.rows.state[rows_.ROWS_FRONTIER] < 20, "rows that are free serve again"


def test_rows_that_become_rare_as_the_index_grows_are_lists_again() -> None:
    r = random.Random(4)
    twins = Twins(r, ids=10, partitions=1)
    for value in "abcdef":
        send(twins, EventKind.CREATE, some(value, range(70)))
        assert in_row(twins.index, value)
    send(twins, EventKind.CREATE, some("many", range(20_000)))
    assert int(rows_.common(20_000)) // 2 > 70
    assert_consistent(twins.index)
    for _ in range(3):  # a few rows are looked at with each batch
        send(twins, EventKind.MODIFY, [("many 0", AdPatch(bid=2.0))])
    assert not any(in_row(twins.index, value) for value in "abcdef")
    assert in_row(twins.index, "many")
    twins.ask([twins.request(r) for _ in range(3)])
    assert_consistent(twins.index)


def test_more_common_values_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists serve as well, however long; a row that comes free is taken by the next value that grows."""
    monkeypatch.setattr(index_, "ROWS_MAX", 3)
    r = random.Random(5)
    twins = Twins(r, ids=10, partitions=1)
    for turn in range(2):
        for value in "abcdef":
            send(twins, EventKind.CREATE, some(value, range(300), excluded=value in "be"))
        kinds = [in_row(twins.index, value, excluded=value in "be") for value in "abcdef"]
        assert sum(kinds) == 3
        twins.ask([twins.request(r) for _ in range(5)])
        assert_consistent(twins.index)
        gone = "abcdef"[kinds.index(True)]
        send(twins, EventKind.EXPIRE, ((f"{gone} {i}", None) for i in range(300)))
        listed = "abcdef"[kinds.index(False)]
        send(twins, EventKind.CREATE, some(listed, [300], excluded=listed in "be"))
        assert in_row(twins.index, listed, excluded=listed in "be")
        assert_consistent(twins.index)
        send(twins, EventKind.EXPIRE, ((name, None) for name in list(twins.plain.ads)))
        assert_empty(twins.index)
        assert turn >= 0


def test_the_limits_of_these_tests_are_roomy() -> None:
    assert min(LIMITS.ads, LIMITS.targetings, LIMITS.terms) > 20_000
