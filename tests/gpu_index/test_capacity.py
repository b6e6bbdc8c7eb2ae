"""At its limits an index refuses whole events, says so, goes on with the rest, and takes new ones once it has room."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpu_index import footprint, packing
from gpu_index import index as index_
from gpu_index.events import AdEvent, AdPatch, Batch, EventKind, Outcome
from gpu_index.index import Index, Limits
from gpu_index.schema import Schema
from gpu_index.values import RequestAttributes, parse_attributes
from gpu_index.zones import Schedule
from kernels import pool as pool_
from kernels.precision import Precision
from tests import random_cases as cases
from tests.consistent import assert_consistent, assert_empty
from tests.twins import EXPIRED_VERSIONS_S, START_US, Twins, new_index, parsed, recalled, whole_patch

APPLIED, FULL = Outcome.APPLIED, Outcome.INDEX_FULL
ROOMY = Limits(ads=2**14, targetings=2**12, terms=2**12, expired=2**10)
OWN_TERMS = 1 + len(range(13, 66)) + 2 + 168  # term 0 and the attributes whose values all have a term from the start
ANYONE = RequestAttributes({})


class Feed:
    """Events of one partition, given out in order."""

    def __init__(self, index: Index) -> None:
        self.index, self.offset, self.timestamp_ms = index, 0, START_US // 1000

    def send(self, *events: tuple[EventKind, str, AdPatch | None], version: int | None = None) -> list[Outcome]:
        """One batch of (kind, ad, patch); the index is whole after it."""
        batch = []
        for kind, ad_id, patch in events:
            batch.append(AdEvent(kind, ad_id, version, 0, self.offset, self.timestamp_ms, patch=patch))
            self.offset += 1
        outcomes = self.index.apply(Batch(batch, {0: self.offset}, lambda *_: None), START_US)
        assert_consistent(self.index)
        return outcomes

    def eligible(self, attributes: RequestAttributes = ANYONE) -> set[str]:
        return {self.index.ad_id(slot) for slot in self.index.select([(attributes, None)]).slots.tolist()}


def create(ad_id: str, **fields: object) -> tuple[EventKind, str, AdPatch | None]:
    return EventKind.CREATE, ad_id, whole_patch(**fields)


def modify(ad_id: str, **fields: object) -> tuple[EventKind, str, AdPatch | None]:
    return EventKind.MODIFY, ad_id, AdPatch(**fields)  # type: ignore[arg-type]


def expire(ad_id: str) -> tuple[EventKind, str, AdPatch | None]:
    return EventKind.EXPIRE, ad_id, None


def audience(*values: object) -> object:
    return parsed({"attr": "audience", "in": [str(value) for value in values]})


def belongs_to(*values: object) -> RequestAttributes:
    return parse_attributes(cases.SCHEMA, {"audience": [str(value) for value in values]})


def test_ads() -> None:
    feed = Feed(new_index(limits=ROOMY._replace(ads=8192)))
    assert set(feed.send(*(create(str(i)) for i in range(8192)))) == {APPLIED}
    outcomes = feed.send(create("new"), create("7", bid=3.0), modify("8", bid=3.0), modify("9", targeting=audience(0)))
    assert outcomes == [FULL, APPLIED, APPLIED, FULL]
    assert feed.eligible() == {str(i) for i in range(8192)}
    assert feed.send(expire("5"), create("new", targeting=audience("x")), create("newer"), expire("6")) == [
        APPLIED, FULL, APPLIED, APPLIED,
    ]  # fmt: skip  # the slot lies amid those of one targeting: it serves that targeting
    assert feed.eligible() == {str(i) for i in range(8192)} - {"5", "6"} | {"newer"}
    assert set(feed.send(*(expire(str(i)) for i in range(8192)), expire("newer"))) == {APPLIED, Outcome.EXPIRE_UNKNOWN}
    assert_empty(feed.index)
    assert set(feed.send(*(create(f"again {i}", targeting=audience(i)) for i in range(3000)))) == {APPLIED}


def test_targetings() -> None:
    feed = Feed(new_index(limits=ROOMY._replace(targetings=100)))
    outcomes = feed.send(*(create(str(i), targeting=audience(i)) for i in range(110)))
    assert outcomes == [APPLIED] * 100 + [FULL] * 10
    more = create("a", targeting=audience(3)), modify("4", targeting=audience(4, 5)), modify("4", bid=2.0)
    assert feed.send(*more) == [APPLIED, FULL, APPLIED]
    assert feed.eligible(belongs_to(*range(110))) == {str(i) for i in range(100)} | {"a"}
    assert feed.send(expire("3"), create("b", targeting=audience("b"))) == [APPLIED, FULL], "ad a has it still"
    assert feed.send(expire("a"), create("b", targeting=audience("b"))) == [APPLIED, APPLIED]
    assert feed.send(*(expire(str(i)) for i in range(100))) == [
        Outcome.EXPIRE_UNKNOWN if i == 3 else APPLIED for i in range(100)
    ]
    assert feed.send(*(create(str(i), targeting=audience(-i)) for i in range(99))) == [APPLIED] * 99


def test_terms_of_targetings() -> None:
    feed = Feed(new_index(limits=ROOMY._replace(terms=OWN_TERMS + 20)))
    assert feed.send(*(create(str(i), targeting=audience(i)) for i in range(22))) == [APPLIED] * 20 + [FULL] * 2
    assert feed.send(create("a", targeting=audience(*range(20))), create("b", targeting=audience(1, 99))) == [
        APPLIED,
        FULL,
    ]
    assert feed.send(expire("7"), create("b", targeting=audience(1, 99))) == [APPLIED, FULL], "ad a names 7 still"
    assert feed.send(expire("a"), create("b", targeting=audience(1, 99))) == [APPLIED, APPLIED], "within one batch"
    assert feed.eligible(belongs_to(99)) == {"b"}
    assert feed.send(create("c", schedule=Schedule("UTC", (1, 2)))) == [FULL]


def test_terms_that_only_a_cache_holds_make_room() -> None:
    """A targeting that was met often is cached with its terms; they are no reason to refuse another."""
    feed = Feed(new_index(limits=ROOMY._replace(terms=OWN_TERMS + 20)))
    for turn in range(10):
        ads = [(str(i), audience(turn, i)) for i in range(100, 110)]
        for _ in range(3):
            assert set(feed.send(*(create(name, targeting=targeting) for name, targeting in ads))) == {APPLIED}
        assert feed.index.packer._records
        assert set(feed.send(*(expire(name) for name, _ in ads))) == {APPLIED}
        assert set(feed.send(*(create(str(i), targeting=audience(f"{turn} {i}")) for i in range(20)))) == {APPLIED}
        assert set(feed.send(*(expire(str(i)) for i in range(20)))) == {APPLIED}


def test_the_cache_of_targetings_takes_turns_and_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CACHED_TARGETINGS_MAX", 10)
    monkeypatch.setattr(packing, "SEEN_MAX", 30)
    feed = Feed(new_index(limits=ROOMY))
    for turn in range(4):
        for _ in range(2):
            assert set(feed.send(*(create(str(i), targeting=audience(turn, i)) for i in range(25)))) == {APPLIED}
            assert len(feed.index.packer._records) <= 10
            assert len(feed.index.packer._seen) <= 30
    large = audience(*range(4000))
    assert feed.send(*[create("large", targeting=large)] * 3, expire("large")) == [FULL] * 3 + [Outcome.EXPIRE_UNKNOWN]
    large = audience(*("x" * 50 + str(i) for i in range(400)))
    assert feed.send(*[create("large", targeting=large)] * 3, expire("large")) == [APPLIED] * 4
    assert all(len(source) <= packing.CACHED_SOURCE_BYTES_MAX for source, _ in feed.index.packer._records)


def test_terms_of_fields() -> None:
    feed = Feed(new_index(limits=ROOMY._replace(terms=OWN_TERMS + 20)))  # as many field terms
    free = OWN_TERMS + 19
    assert feed.send(*(create(str(i), advertiser_id=str(i)) for i in range(free + 2))) == [APPLIED] * free + [FULL] * 2
    assert feed.send(modify("0", campaign_id="new"), modify("0", advertiser_id="1"), create("a", campaign_id="c")) == [
        FULL, APPLIED, APPLIED,
    ]  # fmt: skip
    slot = feed.index.slot_of("0")
    assert slot is not None
    assert (feed.index.advertiser(slot), feed.index.campaign(slot)) == ("1", None)


def test_terms_may_come_and_go_any_number_of_times_in_one_batch() -> None:
    """Each time an ad leaves a value its term is noted, to be given back after the batch; once is enough."""
    feed = Feed(new_index(limits=ROOMY._replace(terms=OWN_TERMS + 20)))
    assert feed.send(create("ad", targeting=audience(0), advertiser_id="0")) == [APPLIED]
    for _ in range(2):
        flips = [modify("ad", targeting=audience(i % 2), advertiser_id=str(i % 2)) for i in range(3000)]
        assert set(feed.send(*flips)) == {APPLIED}
    assert feed.send(expire("ad")) == [APPLIED]


def test_an_expire_takes_the_ad_out_though_no_version_more_can_be_remembered(caplog: pytest.LogCaptureFixture) -> None:
    """The oldest remembered one is forgotten for it; that is counted, and said once a minute at most."""
    feed = Feed(new_index(limits=ROOMY._replace(expired=10)))
    assert set(feed.send(*(create(str(i)) for i in range(12)), version=1)) == {APPLIED}
    assert feed.send(*(expire(str(i)) for i in range(11)), version=2) == [APPLIED] * 11
    assert feed.eligible() == {"11"}
    assert feed.index.expired.evicted[0] == 1
    assert feed.send(create("3"), version=2) == [Outcome.STALE]
    assert feed.send(create("0"), version=1) == [APPLIED], "forgotten"
    assert feed.send(create("x"), expire("x"), expire("no such ad")) == [APPLIED, APPLIED, Outcome.EXPIRE_UNKNOWN]
    assert feed.send(expire("0"), expire("11"), version=7) == [APPLIED, APPLIED]
    assert feed.send(create("3"), version=2) == [Outcome.STALE], "1 and 2 were older"
    assert feed.send(create("2"), version=2) == [APPLIED]
    assert feed.index.expired.evicted[0] == 3
    assert caplog.text.count("were forgotten early") == 1
    feed.timestamp_ms += EXPIRED_VERSIONS_S * 1000 + 1
    assert feed.send(create("3"), version=1) == [APPLIED]
    assert feed.send(expire("2"), expire("3"), version=3) == [APPLIED] * 2
    assert feed.eligible() == set()
    assert feed.index.expired.evicted[0] == 3


def test_with_no_room_for_versions_at_all_ads_still_expire() -> None:
    feed = Feed(new_index(limits=ROOMY._replace(expired=0)))
    assert feed.send(create("a"), expire("a"), create("a"), version=None) == [APPLIED] * 3
    assert feed.send(expire("a"), version=5) == [APPLIED]
    assert feed.send(create("a"), version=1) == [APPLIED]


def test_which_versions_stay_does_not_hang_on_how_partitions_were_interleaved() -> None:
    """Replicas read partitions at different speeds, and remember the same: the newest by record timestamps."""
    r = random.Random(5)
    by_partition: list[list[AdEvent]] = [[], [], []]
    for number in range(300):
        partition = number % 3
        events = by_partition[partition]
        timestamp_ms = START_US // 1000 + (number // 3) * 10 + r.randrange(3) * 5
        events.append(AdEvent(EventKind.EXPIRE, f"{partition} {number}", 9, partition, len(events), timestamp_ms))
    remembered = []
    for seed in range(4):
        order = random.Random(seed)
        index, next_offset = new_index(limits=ROOMY._replace(expired=40)), [0, 0, 0]
        while left := [partition for partition in range(3) if next_offset[partition] < 100]:
            partition = order.choice(left[:1] if seed == 0 else left)
            first, last = next_offset[partition], min(100, next_offset[partition] + order.randrange(1, 20))
            index.apply(Batch(by_partition[partition][first:last], {partition: last}, lambda *_: None), START_US)
            next_offset[partition] = last
            assert_consistent(index)
        ids = [str(event.ad_id) for events in by_partition for event in events]
        remembered.append({ad_id for ad_id in ids if recalled(index, ad_id) is not None})
        assert index.expired.evicted[0] == 260
    assert len(remembered[0]) == 40
    assert remembered[0] == remembered[1] == remembered[2] == remembered[3]


def test_new_ads_are_refused_beyond_the_memory_that_may_be_held_and_the_rest_goes_on() -> None:
    """What an ad takes is counted before it is taken, and taken again once others are gone."""
    limit = footprint.held(new_index(limits=ROOMY).parts) + 400_000
    feed = Feed(new_index(limits=ROOMY._replace(held_bytes=limit)))
    outcomes: list[Outcome] = []
    for first in range(0, 1000, 5):
        ads = (create(str(i), targeting=audience(i), features=b"x" * 100) for i in range(first, first + 5))
        outcomes += feed.send(*ads)
        assert footprint.held(feed.index.parts) <= limit
    taken = outcomes.count(APPLIED)
    assert outcomes[:200] == [APPLIED] * 200
    assert outcomes[-200:] == [FULL] * 200
    held = footprint.held(feed.index.parts)
    assert held > limit - 10_000
    assert feed.send(create("0", bid=9.0), modify("1", targeting=audience("new"))) == [APPLIED, APPLIED]
    assert feed.send(create("no", features=b"x" * 10_000)) == [FULL]
    assert feed.send(*(expire(str(i)) for i in range(taken)))[:taken] == [APPLIED] * taken
    assert footprint.held(feed.index.parts) < held - 200_000
    assert feed.send(create("again", features=b"x" * 10_000)) == [APPLIED]


@pytest.mark.parametrize("lengths", [(64, 1), (1, 64), (64, 20, 5, 40, 1)])
def test_ids_of_any_length_are_remembered_up_to_the_limit(lengths: tuple[int, ...]) -> None:
    feed = Feed(new_index(limits=ROOMY._replace(expired=200)))
    for length in lengths * 2:
        names = [f"{i:0{length}}" if length > 2 else chr(256 + i)[:length] for i in range(200)]
        assert set(feed.send(*(expire(name) for name in names), version=5)) == {Outcome.EXPIRE_UNKNOWN}
        assert feed.send(create(names[0]), version=5) == [Outcome.STALE]
        assert feed.send(expire("one more"), version=5) == [Outcome.EXPIRE_UNKNOWN]
        assert feed.send(create(names[0]), expire(names[0]), version=5) == [APPLIED, Outcome.STALE], "the oldest went"
        assert feed.send(expire(names[0])) == [APPLIED]
        feed.timestamp_ms += EXPIRED_VERSIONS_S * 1000 + 1


def test_words_of_ids_and_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pool of words by itself: two blocks that only together are too large, and free blocks once it is full."""
    monkeypatch.setattr(index_, "WORDS_MAX", 300)
    feed = Feed(new_index(limits=ROOMY))
    features = b"x" * 4 * 64  # 65 words, of which 96 are taken
    outcomes = feed.send(*(create(f"{i:064}", features=features) for i in range(4)))
    assert outcomes == [APPLIED, APPLIED, FULL, FULL]
    third, first = f"{3:064}", f"{0:064}"
    assert feed.send(create(third), modify(third, features=features)) == [APPLIED, FULL]
    assert feed.send(modify(first, features=features)) == [FULL], "the old ones are given back once there is room"
    assert (
        feed.send(expire(f"{0:064}"), create(f"{1:064}", features=b""), create("a", features=features)) == [APPLIED] * 3
    )
    assert feed.index.ads.texts.state[pool_.FRONTIER] <= 300


def test_words_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_, "WORDS_MAX", 64)
    feed = Feed(new_index(limits=ROOMY))
    size = cases.SCHEMA.fields["size"].index
    wide = {size: tuple(f"{i}x1" for i in range(28))}  # 32 words
    assert feed.send(create("a", fields=wide), create("b", fields=wide), create("c"), modify("c", fields=wide)) == [
        APPLIED, FULL, APPLIED, FULL,
    ]  # fmt: skip
    assert feed.send(modify("a", fields={}), modify("c", fields=wide)) == [APPLIED, APPLIED]


def test_words_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_, "WORDS_MAX", 300)
    feed = Feed(new_index(limits=ROOMY))
    for turn in range(3):
        prices = [parsed({"attr": "price", "between": [turn, i]}) for i in range(30)]
        outcomes = feed.send(*(create(str(i), targeting=prices[i]) for i in range(30)))
        full = outcomes.index(FULL)
        assert outcomes == [APPLIED] * full + [FULL] * (30 - full)
        assert full > 20
        assert set(feed.send(*(expire(str(i)) for i in range(full)))) == {APPLIED}
        assert_empty(feed.index)


def test_words_of_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is asked for every value of the targeting, as if each of its lists had to grow."""
    monkeypatch.setattr(index_, "WORDS_MAX", 20_000)
    feed = Feed(new_index(limits=ROOMY))
    outcomes = feed.send(*(create(str(i), targeting=audience(*range(40 * i, 40 * i + 90))) for i in range(40)))
    full = outcomes.index(FULL)
    assert full > 5
    assert set(outcomes[full:]) == {FULL}
    assert feed.eligible(belongs_to(*range(4000))) == {str(i) for i in range(full)}
    assert feed.send(create("small", targeting=audience(1)), *(expire(str(i)) for i in range(full))) == [APPLIED] * (
        full + 1
    )


@pytest.mark.parametrize(
    "limits",
    [
        Limits(ads=8192, targetings=60, terms=2000, expired=100),
        Limits(ads=8192, targetings=2000, terms=OWN_TERMS + 5 * 168 + 120, expired=1000),
        Limits(ads=8192, targetings=2000, terms=OWN_TERMS + 5 * 168 + 60, expired=30),
        Limits(ads=8192, targetings=2000, terms=4000, expired=50, held_bytes=400_000),
    ],
)
def test_random_histories_at_the_limits(limits: Limits) -> None:
    """What is refused for want of room is, to all that comes after, a bad event."""
    r = random.Random(limits.terms)
    twins = Twins(r, ids=200, limits=limits, targetings=30)
    for _ in range(40):
        twins.send([twins.event(r) for _ in range(r.randrange(1, 100))])
        twins.ask([twins.request(r) for _ in range(2)])
        twins.check()
    assert twins.outcomes[FULL] > 40, twins.outcomes
    assert twins.outcomes[APPLIED] > 200, twins.outcomes
    assert twins.index.expired.evicted[0] == twins.plain.evicted


def test_a_schema_without_attributes() -> None:
    """Only the schedule and the ad's own state decide, for any number of requests at once."""
    index = Index(Schema.parse("[attributes]"), dim=8, gate_dim=4, precision=Precision.INT8, limits=ROOMY)
    feed = Feed(index)
    monday = tuple(range(24))
    feed.send(create("always"), create("mondays", schedule=Schedule("UTC", monday)), create("paused", paused=True))
    feed.send(create("but mondays", schedule=Schedule("UTC", tuple(range(24, 168)))))
    hours_us = [(4 * 24 + hour) * 3_600_000_000 for hour in range(-8, 8)]  # 1970-01-05 was a Monday
    selection = index.select([(RequestAttributes({}, "UTC"), now_us) for now_us in hours_us])
    for i, now_us in enumerate(hours_us):
        slots: list[int] = selection.slots[selection.first[i] : selection.first[i + 1]].tolist()
        on_monday = now_us >= hours_us[8]
        assert {index.ad_id(slot) for slot in slots} == {"always", "mondays" if on_monday else "but mondays"}
    assert np.diff(selection.first).tolist() == [2] * 16
