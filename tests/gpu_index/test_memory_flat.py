"""Memory follows what is in the index now, not what has passed through it.

FLAT=full (`make flat`) sends ten times as many modifies and values, and prints the resident memory at each tenth."""

from __future__ import annotations

import os
import random

from bench.machine import resident_bytes
from gpu_index.events import AdEvent, AdPatch, Batch, EventKind, Outcome
from gpu_index.index import Index, Limits
from kernels import ads as ads_
from kernels import expired as expired_
from kernels import extents as extents_
from kernels import pool as pool_
from kernels import rows as rows_
from kernels import targetings as targetings_
from tests import random_cases as cases
from tests.consistent import assert_consistent
from tests.twins import EXPIRED_VERSIONS_S, START_US, new_index, parsed, whole_patch

FULL = os.environ.get("FLAT") == "full"
ADS, MODIFIES, VALUES = (10_000, 2_000_000, 1_000_000) if FULL else (2000, 200_000, 100_000)
BATCH = 2000
LIMITS = Limits(ads=2**17 if FULL else 2**14, targetings=2**17 if FULL else 2**14, terms=2**18, expired=2**14)
GROWTH_BYTES_MAX = 48_000_000  # from the first tenth on, of full size: caches of Python's and ours fill


def pools(index: Index) -> dict[str, pool_.Pool]:
    a, t = index.ads, index.targetings
    return {"texts": a.texts, "fields": a.fields, "records": t.records, "lists": t.rows.postings}


def in_use(index: Index) -> dict[str, int]:
    """What is held, without what the cache of targetings keeps."""
    index.packer.forget()
    index._give_back()
    assert_consistent(index)
    used = {name: int(pool.state[pool_.USED]) for name, pool in pools(index).items()}
    counts = {
        "ads": int(index.ads.state[ads_.ADS]),
        "targetings": int(index.targetings.state[targetings_.LIVE]),
        "terms": len(index.terms.vocabulary),
        "field terms": len(index.fields.vocabulary),
    }
    return used | counts


def frontiers(index: Index) -> dict[str, int]:
    """How far each array has ever been in use."""
    found = {name: int(pool.state[pool_.FRONTIER]) for name, pool in pools(index).items()}
    return found | {
        "slots": int(index.ads.extents.state[extents_.FRONTIER]),
        "targetings": int(index.targetings.state[targetings_.FRONTIER]),
        "rows": int(index.targetings.rows.state[rows_.ROWS_FRONTIER]),
        "terms": index.terms.vocabulary.highest,
        "field terms": index.fields.vocabulary.highest,
        "expired": int(index.expired.state[expired_.FRONTIER]),
    }


class Passing:
    """Modifies that bring ever new values and take the old ones away."""

    def __init__(self, r: random.Random) -> None:
        self.r, self.offset, self.value = r, 0, 0
        self.shared = [parsed(cases.targeting(r, 4)) for _ in range(500)]
        self.features = [b"", b'{"title":"' + b"t" * 40 + b'"}', b'{"title":"' + b"t" * 200 + b'"}']
        self.size = cases.SCHEMA.fields["size"].index

    def send(self, index: Index, patches: list[tuple[EventKind, str, AdPatch | None]]) -> None:
        events = []
        for kind, ad_id, patch in patches:
            events.append(AdEvent(kind, ad_id, None, 0, self.offset, START_US // 1000, patch=patch))
            self.offset += 1
        outcomes = index.apply(Batch(events, {0: self.offset}, lambda *_: None), START_US)
        assert set(outcomes) == {Outcome.APPLIED}

    def patch(self) -> AdPatch:
        r = self.r
        self.value += 1
        if self.value % 2:  # so half of all bring a value that has not been before
            name = f"value {self.value}"
            return AdPatch(targeting=parsed({"attr": "audience", "in": [name, f"a{r.randrange(50)}"]}))
        return r.choice(
            [
                AdPatch(targeting=r.choice(self.shared), bid=2.0),
                AdPatch(features=r.choice(self.features)),
                AdPatch(fields={self.size: (f"{self.value}x1", f"{r.randrange(9)}x2")}),
                AdPatch(advertiser_id=str(self.value), paused=r.random() < 0.5),
                AdPatch(campaign_id=r.choice([None, str(r.randrange(9))])),
            ]
        )


def said_resident(modifies: int) -> int:
    resident = resident_bytes()
    print(f"{modifies:9,} modifies, {modifies // 2:9,} new values: {resident / 1e6:.1f} MB resident")
    return resident


def test_modifies_and_new_values_leave_nothing_behind() -> None:
    r = random.Random(1)
    index, passing = new_index(limits=LIMITS), Passing(r)
    first = [
        (EventKind.CREATE, str(i), whole_patch(targeting=r.choice(passing.shared), features=r.choice(passing.features)))
        for i in range(ADS)
    ]
    passing.send(index, first)
    before = in_use(index)
    reached: dict[str, int] = {}
    resident: list[int] = []  # at each tenth
    for batch in range(MODIFIES // BATCH):
        if batch % (MODIFIES // BATCH // 10) == 0:
            resident.append(said_resident(batch * BATCH))
        passing.send(index, [(EventKind.MODIFY, str(r.randrange(ADS)), passing.patch()) for _ in range(BATCH)])
        if batch == MODIFIES // BATCH // 4:
            reached = frontiers(index)
    resident.append(said_resident(MODIFIES))
    assert passing.value == MODIFIES == 2 * VALUES
    if FULL:
        assert resident[-1] - resident[1] < GROWTH_BYTES_MAX
    assert_consistent(index)
    for name, size in frontiers(index).items():
        assert size <= 1.25 * reached[name] + 64, (name, size, reached[name])
    held = len(index.packer._records), len(index.packer._seen)
    assert held <= (8192, 65_536)
    passing.send(index, first)
    after = in_use(index)
    lists = after.pop("lists"), before.pop("lists")  # a list keeps some room, by how long it has been
    assert lists[0] <= 1.25 * lists[1]
    assert after == before


def test_ads_that_come_and_go_leave_nothing_behind() -> None:
    """With versions, which are remembered for a while and then are not."""
    r = random.Random(2)
    index, passing = new_index(limits=LIMITS), Passing(r)
    empty, reached, version = in_use(index), {}, 0
    for turn in range(24):
        timestamp_ms = START_US // 1000 + turn * EXPIRED_VERSIONS_S * 400  # a version is remembered for three turns
        events, names = [], [f"{turn:02} {i:03}" * (1 + i % 4) for i in range(1000)]
        for kind in (EventKind.CREATE, EventKind.EXPIRE):
            for name in names:
                patch = whole_patch(targeting=parsed({"attr": "audience", "in": [name, "all"]}), advertiser_id=name)
                version += 1
                events.append(
                    AdEvent(kind, name, version, 0, passing.offset, timestamp_ms,
                            patch=patch if kind is EventKind.CREATE else None)
                )  # fmt: skip
                passing.offset += 1
        outcomes = index.apply(Batch(events, {0: passing.offset}, lambda *_: None), START_US)
        assert set(outcomes) == {Outcome.APPLIED}
        assert index.expired.state[expired_.HELD] <= 3000
        assert in_use(index) == empty
        if turn == 5:
            reached = frontiers(index)
    for name, size in frontiers(index).items():
        assert size <= 1.25 * reached[name] + 64, (name, size, reached[name])
