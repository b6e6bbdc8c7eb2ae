"""Services over a real index and engine, with no Kafka and no sockets: what the HTTP tests ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.api.running import Running

Start = Callable[..., Running]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts services with the settings given; they are stopped after the test."""
    running: list[Running] = []

    def start_one(**settings: object) -> Running:
        running.append(Running(**settings))
        return running[-1]

    yield start_one
    for each in running:
        each.close()


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    """One service with a few ads, for tests that only ask."""
    running = Running(allow_now=True)
    running.take(
        *(
            {"type": "create", "ad_id": str(number), "version": 1,
             "ad": {"advertiser_id": str(number % 2), "campaign_id": "c", "bid": 1 + number,
                    "fields": {"format": "banner", "size": "300x250"},
                    "targeting": {"attr": "geo.country", "in": ["US", "DE"][: 1 + number % 2]}}}
            for number in range(6)
        )
    )  # fmt: skip
    yield running
    running.close()
