"""What ingest holds at most, each reached."""

from __future__ import annotations

import threading

import pytest

from gpu_index.events import AdEvent, Outcome
from ingest import accounting, consumer
from ingest.accounting import BATCHES_MAX
from ingest.source import Ingest
from ingest.statistics import GAPS_MAX, Gap, PartitionState, Statistics
from tests.ingest.engine import Engine, bad, config, create, decoder, running
from tests.kafka import Broker, EmbeddedKafka, until

GIVES_UP_S = 60.0


def in_use(ingest: Ingest) -> dict[str, tuple[int, int]]:
    return {name: tuple(each) for name, each in ingest.statistics.limits().items()}  # type: ignore[misc]


def test_reading_pauses_where_accounting_does_not_keep_up(
    embedded_kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is quick, what follows from its batches is not: they do not pile up."""
    topic = embedded_kafka.topic()
    go_on = threading.Event()
    take = accounting.Accounting._take

    def slow(self: accounting.Accounting, done: accounting._HandedOn) -> None:
        assert go_on.wait(GIVES_UP_S)
        take(self, done)

    monkeypatch.setattr(accounting.Accounting, "_take", slow)
    embedded_kafka.send(topic, [create(f"ad-{number}") for number in range(3000)])
    engine = Engine()
    settings = config(embedded_kafka, topic, batch_events_max=10, buffer_events_max=100)
    with running(settings, engine, ready=False) as ingest:
        until(lambda: ingest._reader._lanes and ingest._reader._lanes[0].paused, "reading pauses")
        until(lambda: in_use(ingest)["batches"] == (BATCHES_MAX, BATCHES_MAX))
        assert len(engine.batches) == BATCHES_MAX
        found = in_use(ingest)
        assert all(0 <= used <= limit for used, limit in found.values()), found
        assert found["lane_events"][0] > 100
        go_on.set()
        until(lambda: ingest.ready)
        assert engine.offsets(0) == list(range(3000))
        until(lambda: in_use(ingest)["batches"][0] == 0)


def test_a_lane_that_is_full_of_bytes_is_paused(any_kafka: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = any_kafka.topic()
    monkeypatch.setattr(consumer, "BUFFER_BYTES_MIN", 1)
    any_kafka.send(topic, [create(f"ad-{number}", filler="x" * 20_000) for number in range(100)])
    engine = Engine()
    engine.blocked.set()
    settings = config(any_kafka, topic, buffer_bytes_max=100_000, batch_bytes_max=50_000)
    with running(settings, engine, ready=False) as ingest:
        until(lambda: ingest._reader._lanes and ingest._reader._lanes[0].paused, "it is paused, far below its events")
        used, limit = in_use(ingest)["lane_bytes"]
        assert 100_000 - 50_000 <= used <= limit
        engine.blocked.clear()
        until(lambda: len(engine.events) == 100)
        until(lambda: in_use(ingest)["lane_bytes"][0] == 0)


def test_dead_letters_are_bounded_in_bytes(embedded_kafka: EmbeddedKafka) -> None:
    topic = embedded_kafka.topic()
    dlq = embedded_kafka.topic(name=f"{topic}-dlq")
    embedded_kafka.broker.fail_topic(dlq, 3)
    wrong = [bad(f"wrong-{number}", filler="x" * 10_000) for number in range(60)]
    engine = Engine()
    settings = config(embedded_kafka, topic, dead_letter_bytes_max=100_000, batch_events_max=5, buffer_events_max=20)
    embedded_kafka.send(topic, wrong)
    with running(settings, engine, ready=False) as ingest:
        until(lambda: in_use(ingest)["dead_letter_bytes"][0] >= 100_000)
        until(lambda: ingest._reader._lanes[0].paused, "reading pauses")
        used, limit = in_use(ingest)["dead_letter_bytes"]
        assert used <= 100_000 + 5 * 11_000 <= limit
        embedded_kafka.broker.fail_topic(dlq, 0)
        until(lambda: ingest.safe_positions() == {0: 60}, "all are sent")
        assert in_use(ingest)["dead_letter_bytes"][0] == in_use(ingest)["dead_letters"][0] == 0


def test_only_the_newest_gaps_are_kept() -> None:
    """Those that were refused stay, since they are why the service is not ready; all are counted."""
    statistics = Statistics("ads")
    for partition in (0, 1):
        statistics.partition_taken_up(partition, PartitionState(0, 0, 0, 0, 0, 0, 0))
    statistics.gap_found(Gap(1, "ahead", 5, None, True, "refused"))
    for first in range(GAPS_MAX + 50):
        statistics.gap_found(Gap(0, "removed", first, first + 1, False, "accepted"))
    snapshot = statistics.snapshot(0)
    assert snapshot["gap_count"] == GAPS_MAX + 51
    assert [gap["first"] for gap in snapshot["gaps"]] == [5, *range(50, GAPS_MAX + 50)]
    assert not statistics.progress().ready


def test_outcomes_and_faults_are_kinds_not_values() -> None:
    """However many different ads and texts are bad, what is counted by stays small."""
    statistics, decode = Statistics("ads"), decoder().decode
    statistics.partition_taken_up(0, PartitionState(0, 0, 0, 0, 0, 0, 0))
    for number in range(2000):
        value = f'{{"type": "create", "ad_id": "{number}", "ad": {{"bid": 1, "field {number}": 1}}}}'
        event: AdEvent = decode(str(number).encode(), value.encode(), 0, number, 0)
        assert event.fault is not None
        statistics.applied([event], [Outcome.BAD], [event.fault.code], {0: number + 1}, 0)
    snapshot = statistics.snapshot(0)
    assert snapshot["faults"] == {"unknown_field": 2000}
