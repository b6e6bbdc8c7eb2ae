"""At its limits an index refuses whole events, says so, goes on with the rest, and takes new ones once there is room."""

from __future__ import annotations

import random

import pytest

from gpu_index import packing
from gpu_index.events import AdEvent, AdPatch, Batch, EventKind, Outcome
from gpu_index.index import Index, Limits
from gpu_index.zones import Schedule
from tests import random_cases as cases
from tests.consistent import assert_consistent, assert_empty
from tests.twins import START_US, Twins, new_index, parsed, whole_patch

APPLIED, FULL = Outcome.APPLIED, Outcome.INDEX_FULL
ROOMY = Limits(ads=2**14, targetings=2**12, terms=2**12, expired=2**10)
OWN_TERMS = 1 + len(range(13, 66)) + 2 + 168  # term 0 and the attributes whose values all have a term from the start


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


def create(ad_id: str, **fields: object) -> tuple[EventKind, str, AdPatch | None]:
    return EventKind.CREATE, ad_id, whole_patch(**fields)


def modify(ad_id: str, **fields: object) -> tuple[EventKind, str, AdPatch | None]:
    return EventKind.MODIFY, ad_id, AdPatch(**fields)  # type: ignore[arg-type]


def expire(ad_id: str) -> tuple[EventKind, str, AdPatch | None]:
    return EventKind.EXPIRE, ad_id, None


def audience(*values: object) -> object:
    return parsed({"attr": "audience", "in": [str(value) for value in values]})


def test_terms_may_come_and_go_any_number_of_times_in_one_batch() -> None:
    """Each time an ad leaves a value its term is noted, to be given back after the batch; once is enough."""
    feed = Feed(new_index(limits=ROOMY._replace(terms=OWN_TERMS + 20)))
    assert feed.send(create("ad", targeting=audience(0), advertiser_id="0")) == [APPLIED]
    for _ in range(2):
        flips = [modify("ad", targeting=audience(i % 2), advertiser_id=str(i % 2)) for i in range(3000)]
        assert set(feed.send(*flips)) == {APPLIED}
    assert feed.send(expire("ad")) == [APPLIED]
