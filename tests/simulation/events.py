"""Random records for the log: events of every kind as producers send them, good, stale and bad, from small ranges."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tests import random_cases as cases
from tests.simulation.broker import Record
from tests.twins import DIM, EXPIRED_VERSIONS_S, GATE_DIM

EVENT_BYTES_MAX = 6000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Json = dict[str, Any]


class Events:
    def __init__(self, r: random.Random, ids: list[str], raws: list[Json]) -> None:
        """`raws`: targetings that ads share."""
        self._r = r
        self._ids = ids
        self._raws = raws
        self._versions: dict[str, int] = {}
        self._ahead_ms = 0  # of the clock: producers' clocks go wrong, and events come late
        self._sent: list[Record] = []

    def record(self, now_us: int) -> Record:
        r = self._r
        if self._sent and r.random() < 0.08:
            return r.choice(self._sent)  # a producer tries again what had arrived
        if r.random() < 0.06:
            self._ahead_ms += r.choice([EXPIRED_VERSIONS_S * 600, 20_000])
        key, value = self._event(now_us)
        record = Record(key, value, now_us // 1000 + self._ahead_ms - (r.randrange(5000) if r.random() < 0.3 else 0))
        self._sent = [*self._sent[-30:], record]
        return record

    def _event(self, now_us: int) -> tuple[bytes | None, bytes | None]:
        r = self._r
        ad_id = r.choice(self._ids)
        kind = r.choices(["create", "modify", "expire", "tombstone", "bad"], [40, 28, 14, 5, 9])[0]
        if kind == "tombstone":
            return ad_id.encode(), None
        if kind == "bad" and r.random() < 0.3:
            return r.choice([(None, None), (ad_id.encode(), b"{"), (b"\xff", b"\xfe"), (None, b"{}"), (b"", None)])
        event: Json = {"type": kind, "ad_id": ad_id}
        version = self._version(ad_id)
        if version is not None:
            event["version"] = version
        if kind == "bad":
            event |= {"type": r.choice(["create", "modify"]), "ad": self._bad_ad()}
        elif kind == "create":
            event["ad"] = self._ad(now_us)
        elif kind == "modify":
            event["ad"] = self._patch(now_us)
        if r.random() < 0.3:
            event["event_time"] = moment(now_us)
        return ad_id.encode(), msgspec.json.encode(event)

    def _version(self, ad_id: str) -> int | None:
        newest = self._versions.get(ad_id, 0)
        version = self._r.choice(
            [None, None, newest, newest + 1, newest + 1, newest + 1, newest + 7, max(newest - 1, 0)]
        )
        if version is not None:
            self._versions[ad_id] = max(version, newest)
        return version

    def _bad_ad(self) -> Json:
        return self._r.choice([
            {"bid": -1.0}, {"bid": 1.0, "targetting": {}}, {"bid": 1.0, "targeting": {"attr": "colour", "in": ["red"]}},
            {"bid": 1.0, "targeting": {"all": []}, "targeting_meta": {"all": []}}, {"embedding": [1.0], "bid": 2.0},
            {"bid": 1.0, "start_time": "yesterday"}, {"bid": 1.0, "features": {"x": "y" * EVENT_BYTES_MAX}},
            {"bid": "1"}, {"bid": None}, {"status": "gone", "bid": 1.0},
        ])  # fmt: skip

    def _ad(self, now_us: int) -> Json:
        r = self._r
        ad: Json = {"bid": r.choice([1.0, 2.0, 0.1])}
        choices: Json = {
            "advertiser_id": r.choice(["0", "1", "2"]), "campaign_id": r.choice(["4", "5", "ü"]),
            "status": r.choice(["active", "active", "paused"]), "start_time": moment(self._near(now_us)),
            "end_time": moment(self._near(now_us)), "features": r.choice([{}, {"title": "t"}]),
            "embedding": self._vector(DIM), "gate": self._vector(GATE_DIM), "fields": cases.fields(r),
        }  # fmt: skip
        for name, value in choices.items():
            if r.random() < (0.3 if name.endswith("time") else 0.5):
                ad[name] = value
        if r.random() < 0.15:
            hours = sorted(r.sample(range(168), r.choice([1, 60, 167])))
            ad["schedule"] = {"timezone": r.choice(cases.ZONES), "hours": hours}
        if r.random() < 0.85:
            ad["targeting" if r.random() < 0.85 else "targeting_meta"] = self._targeting()
        return ad

    def _targeting(self) -> Json:
        return self._r.choice(self._raws) if self._r.random() < 0.7 else cases.targeting(self._r, 3)

    def _patch(self, now_us: int) -> Json:
        """Some of the fields of a create, and nulls."""
        r = self._r
        ad = self._ad(now_us)
        patch = {name: ad[name] for name in r.sample(sorted(ad), r.randrange(1, min(4, len(ad)) + 1))}
        nullable = ["advertiser_id", "campaign_id", "start_time", "end_time", "schedule", "embedding", "gate", "fields"]
        if r.random() < 0.2:
            patch[r.choice(nullable)] = None
        if r.random() < 0.1 and not patch.keys() & {"targeting", "targeting_meta"}:
            patch[r.choice(["targeting", "targeting_meta"])] = None
        return patch

    def _near(self, now_us: int) -> int:
        return now_us + self._r.randrange(-40, 40) * 1_000_000

    def _vector(self, width: int) -> list[float]:
        return [self._r.choice([-1.0, 0.0, 0.5, 1.0]) for _ in range(width)]


def moment(us: int) -> str:
    return (EPOCH + timedelta(microseconds=us)).isoformat()
