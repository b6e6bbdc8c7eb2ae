"""The events of a soak, and beside them what must follow: a fold of its own, simple enough to be believed.

An ad is for one country or for all, and has a bid; it brings no vector, so that its value is half of its bid. Values
of `audience` and texts that no ad had before pass through all the time. Of all events some are bad and some stale.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

Json = dict[str, Any]

COUNTRIES = ("US", "DE", "FR", "JP", "BR")
BAD_SHARE, STALE_SHARE, TOO_LARGE_SHARE = 0.02, 0.02, 0.002
EVENT_BYTES_MAX = 16_384  # a setting of the service


class Ad(NamedTuple):
    country: str | None  # None: for everyone
    bid: float
    paused: bool
    version: int


class Stream:
    def __init__(self, seed: int, live: int) -> None:
        """`live`: how many ads there are once it has run for a while."""
        self._r = random.Random(seed)  # noqa: S311
        self._live = live
        self._made = 0
        self._ids: list[str] = []
        self.ads: dict[str, Ad] = {}
        self.events = 0
        self.bad = 0

    def first(self) -> Iterator[bytes]:
        """Creates until as many ads live as shall."""
        while len(self.ads) < self._live:
            yield self._sent(self._create())

    def next(self) -> bytes:
        """One more event."""
        r, draw = self._r, self._r.random()
        if draw < BAD_SHARE:
            return self._bad()
        if draw < BAD_SHARE + STALE_SHARE and self._ids:
            return self._stale()
        if draw < 0.15 or not self._ids:
            return self._sent(self._create() if len(self.ads) <= self._live or not self._ids else self._expire())
        if draw < 0.3 and len(self.ads) > self._live // 2:
            return self._sent(self._expire() if len(self.ads) > self._live else self._create())
        return self._sent(self._modify(r.choice(self._ids)))

    def expected(self, country: str) -> dict[str, float]:
        """The value by ad of all that match a request from this country."""
        return {ad_id: ad.bid / 2 for ad_id, ad in self.ads.items() if not ad.paused and ad.country in (None, country)}

    def _sent(self, event: Json) -> bytes:
        self.events += 1
        return json.dumps(event).encode()

    def _create(self) -> Json:
        self._made += 1
        ad_id = f"soak-{self._made}"
        ad = Ad(self._country(), self._bid(), self._r.random() < 0.05, 1)
        self.ads[ad_id] = ad
        self._ids.append(ad_id)
        body: Json = {"bid": ad.bid, "status": "paused" if ad.paused else "active"}
        body["campaign_id"] = str(self._made // 20)
        body["features"] = {"title": "t" * self._r.randrange(1, 200)}
        return {"type": "create", "ad_id": ad_id, "version": 1, "ad": body | self._targeting(ad.country)}

    def _modify(self, ad_id: str) -> Json:
        r, ad = self._r, self.ads[ad_id]
        ad = ad._replace(version=ad.version + 1)
        body: Json = {}
        draw = r.random()
        if draw < 0.4:
            ad = ad._replace(bid=self._bid())
            body["bid"] = ad.bid
        elif draw < 0.5:
            ad = ad._replace(paused=not ad.paused)
            body["status"] = "paused" if ad.paused else "active"
        elif draw < 0.9:
            ad = ad._replace(country=self._country())
            body = self._targeting(ad.country)
        else:
            body["features"] = {"title": "t" * r.randrange(1, 200)}
        self.ads[ad_id] = ad
        return {"type": "modify", "ad_id": ad_id, "version": ad.version, "ad": body}

    def _expire(self) -> Json:
        place = self._r.randrange(len(self._ids))
        self._ids[place], self._ids[-1] = self._ids[-1], self._ids[place]
        ad_id = self._ids.pop()
        ad = self.ads.pop(ad_id)
        return {"type": "expire", "ad_id": ad_id, "version": ad.version + 1}

    def _bad(self) -> bytes:
        """Changes nothing, and becomes a dead letter."""
        self.bad += 1
        ad_id = self._r.choice(self._ids) if self._ids else "nobody"
        event: Json = {"type": "modify", "ad_id": ad_id, "version": 10**9, "ad": {"bit": 1.0}}
        if self._r.random() < TOO_LARGE_SHARE / BAD_SHARE:
            event["ad"] = {"features": {"title": "x" * EVENT_BYTES_MAX}}
        return self._sent(event)

    def _stale(self) -> bytes:
        ad_id = self._r.choice(self._ids)
        return self._sent({"type": "expire", "ad_id": ad_id, "version": self._r.randrange(self.ads[ad_id].version + 1)})

    def _country(self) -> str | None:
        return self._r.choice((*COUNTRIES, None))

    def _bid(self) -> float:
        return self._r.randrange(1, 1000) / 64  # its half is exact

    def _targeting(self, country: str | None) -> Json:
        """With an audience that no ad had before, in one of two."""
        leaves: list[Json] = [] if country is None else [{"attr": "geo.country", "in": [country]}]
        if self._r.random() < 0.5:
            leaves.append({"not": {"attr": "audience", "in": [f"passing-{self.events}"]}})
        return {"targeting": {"all": leaves} if leaves else None}
