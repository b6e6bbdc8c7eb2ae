"""Offsets that the broker no longer has: never passed in silence."""

from __future__ import annotations

import logging

import pytest

from ingest.source import Ingest
from tests.ingest.engine import SCHEMA, Engine, config, create, decoder, running
from tests.kafka import ApacheKafka, until


def gaps(ingest: object) -> list[tuple[str, int, int | None, bool]]:
    found = ingest.statistics.snapshot(0)["gaps"]  # type: ignore[attr-defined]
    return [(gap["kind"], gap["first"], gap["next"], gap["refused"]) for gap in found]


@pytest.fixture
def cut_topic(apache_kafka: ApacheKafka) -> str:
    """Two partitions of ten events; the first six of partition 0 are gone."""
    topic = apache_kafka.topic(2)
    apache_kafka.send(topic, [create(f"ad-{i}", i % 2) for i in range(20)])
    apache_kafka.delete_records(topic, {0: 6})
    return topic


def test_a_gap_at_start_is_refused(apache_kafka: ApacheKafka, cut_topic: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine()
    with running(config(apache_kafka, cut_topic), engine, {0: 4, 1: 3}, ready=False) as ingest:
        until(lambda: gaps(ingest) == [("removed", 4, None, True)])
        until(lambda: engine.offsets(1) == list(range(3, 10)), "the other partition is read")
        until(lambda: ingest.safe_positions() == {0: 4, 1: 10})
        assert not engine.offsets(0)
        assert not ingest.ready
        assert "MIRACH_ON_GAP=continue" in ingest.progress().detail
        assert ingest.statistics.snapshot(0)["partitions"]["0"]["held"]
    assert "offsets 4 to 5 of partition 0 are gone" in caplog.text


def test_a_gap_at_start_is_read_on_from_where_that_is_allowed(apache_kafka: ApacheKafka, cut_topic: str) -> None:
    engine = Engine()
    with running(config(apache_kafka, cut_topic, on_gap="continue"), engine, {0: 4}) as ingest:
        assert gaps(ingest) == [("removed", 4, 6, False)]
        assert engine.offsets(0) == [6, 7, 8, 9]


def test_a_partition_that_begins_late_is_said_and_is_no_gap(
    apache_kafka: ApacheKafka, cut_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine()
    with caplog.at_level(logging.WARNING), running(config(apache_kafka, cut_topic), engine) as ingest:
        assert engine.offsets(0) == [6, 7, 8, 9]
        assert gaps(ingest) == []
        assert ingest.statistics.snapshot(0)["partitions"]["0"]["begins_at"] == 6
    assert "partition 0 begins at offset 6" in caplog.text


@pytest.mark.parametrize("on_gap", ["refuse", "continue"])
def test_offsets_lost_while_running_are_a_gap(apache_kafka: ApacheKafka, on_gap: str) -> None:
    topic = apache_kafka.topic(1)
    apache_kafka.send(topic, [create("first")])
    engine = Engine()
    settings = config(apache_kafka, topic, on_gap=on_gap, batch_events_max=1, buffer_events_max=1)
    with running(settings, engine) as ingest:
        engine.blocked.set()
        lane = ingest._reader._lanes[0]
        apache_kafka.send(topic, [create(f"ad-{i}") for i in range(10)])
        until(lambda: lane.paused)
        read = lane.read
        apache_kafka.send(topic, [create(f"more-{i}") for i in range(3000)])
        apache_kafka.delete_records(topic, {0: 3000})
        engine.blocked.clear()
        refused = on_gap == "refuse"
        until(lambda: gaps(ingest) == [("removed", read, None if refused else 3000, refused)])
        if refused:
            until(lambda: ingest.safe_positions() == {0: read})
            assert engine.offsets(0) == list(range(read))
        else:
            until(lambda: ingest.safe_positions() == {0: 3011})
            assert engine.offsets(0) == [*range(read), *range(3000, 3011)]
        assert ingest.ready is not refused


def test_a_partition_that_ends_before_the_offset_to_read_is_refused(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(1)
    apache_kafka.send(topic, [create("ad")])
    engine = Engine()
    with running(config(apache_kafka, topic, on_gap="continue"), engine, {0: 5}, ready=False) as ingest:
        until(lambda: gaps(ingest) == [("ahead", 5, None, True)])
        assert not ingest.ready
        assert "without a snapshot" in ingest.progress().detail


def test_a_topic_made_again_while_running_is_refused(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(1)
    apache_kafka.send(topic, [create(f"ad-{i}") for i in range(3)])
    engine = Engine()
    with running(config(apache_kafka, topic, on_gap="continue"), engine) as ingest:
        before = ingest.statistics.snapshot(0)["topic_id"]
        apache_kafka.delete_topic(topic)
        until(lambda: "topic" in ingest.statistics.snapshot(0)["problems"])
        assert ingest.ready, "what was indexed is still served"
        apache_kafka.topic(1, name=topic)
        apache_kafka.send(topic, [create(f"other-{i}") for i in range(9)])
        until(lambda: not ingest.ready)
        assert [kind for kind, *_ in gaps(ingest)] in (["replaced"], ["ahead"])
        assert ingest.statistics.snapshot(0)["topic_id"] != before
        assert ingest.safe_positions() == {0: 3}


def test_a_look_tells_a_topic_from_one_made_again(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(3)
    with running(config(apache_kafka, topic), Engine()) as ingest:
        view = ingest.look(0)
        assert view is not None
        assert view.topic_id == ingest.statistics.snapshot(0)["topic_id"]
        assert view.bounds == {0: (0, 0), 1: (0, 0), 2: (0, 0)}


def test_offsets_of_another_topic_are_not_read_on_from(apache_kafka: ApacheKafka) -> None:
    """The topic was made again between the look at it and the start: what was restored is of the other one."""
    topic = apache_kafka.topic(1)
    apache_kafka.send(topic, [create(f"ad-{i}") for i in range(3)])
    engine = Engine()
    ingest = Ingest(config(apache_kafka, topic), SCHEMA, decoder(), engine.offer)
    view = ingest.look(30)
    assert view is not None
    assert view.topic_id is not None
    assert view.cluster_id is not None
    ingest.start({0: 2}, "another")
    try:
        until(lambda: ingest.failure, "it is found out")
        assert "made again" in str(ingest.failure)
        assert not engine.events
    finally:
        ingest.stop()
