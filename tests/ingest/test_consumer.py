"""Reading the topic, against the real broker and the embedded one."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Producer

from gpu_index.events import EventKind, Outcome
from ingest.config import IngestConfig, IngestConfigError
from ingest.source import Ingest
from tests.ingest.engine import NOW_US, SCHEMA, Engine, config, create, decoder, running
from tests.kafka import ApacheKafka, Broker, Record, until


def test_every_event_arrives_once_and_in_order(any_kafka: Broker) -> None:
    topic = any_kafka.topic(3)
    any_kafka.send(topic, [create(f"ad-{i}", i % 3) for i in range(3000)])
    engine = Engine()
    with running(config(any_kafka, topic), engine) as ingest:
        assert [engine.offsets(partition) for partition in range(3)] == [list(range(1000))] * 3
        any_kafka.send(topic, [create("late", 1)])
        until(lambda: "late" in engine.ad_ids)
        until(lambda: ingest.safe_positions() == {0: 1000, 1: 1001, 2: 1000})
    assert engine.positions == {0: 1000, 1: 1001, 2: 1000}
    assert len(engine.events) == 3001
    snapshot = ingest.statistics.snapshot(0)
    assert snapshot["outcomes"]["applied"] == snapshot["events"] == 3001
    assert snapshot["lag"] == 0


def test_reading_goes_on_where_it_is_told_to(any_kafka: Broker) -> None:
    topic = any_kafka.topic(2)
    any_kafka.send(topic, [create(f"ad-{i}", i % 2) for i in range(20)])
    engine = Engine()
    with running(config(any_kafka, topic), engine, {0: 7}):
        assert engine.offsets(0) == [7, 8, 9]
        assert engine.offsets(1) == list(range(10))


def test_partitions_are_merged_by_timestamp_while_catching_up(any_kafka: Broker) -> None:
    topic = any_kafka.topic(3)
    times = {0: [10, 40, 70, 75], 1: [20, 50, 80], 2: [30, 60, 90]}
    for partition, moments in times.items():
        any_kafka.send(topic, [create(f"ad-{moment}", partition, moment) for moment in moments])
    engine = Engine()
    with running(config(any_kafka, topic, batch_events_max=2), engine):
        assert [event.timestamp_ms for event in engine.events] == [10, 20, 30, 40, 50, 60, 70, 75, 80, 90]


def test_a_topic_that_was_given_more_partitions_replays_in_order(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(1)
    apache_kafka.send(topic, [create("moved", 0, 1000, version=1), create("stays", 0, 2000)])
    apache_kafka.add_partitions(topic, 4)
    apache_kafka.send(topic, [create("moved", 3, 3000, version=2), create("stays", 0, 4000)])
    engine = Engine()
    with running(config(apache_kafka, topic), engine):
        assert [(event.ad_id, event.version) for event in engine.events] == [
            ("moved", 1),
            ("stays", None),
            ("moved", 2),
            ("stays", None),
        ]


def test_a_running_service_takes_up_new_partitions_from_their_beginning(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(1)
    engine = Engine()
    with running(config(apache_kafka, topic), engine) as ingest:
        apache_kafka.add_partitions(topic, 3)
        apache_kafka.send(topic, [create("new", 2)])
        until(lambda: engine.ad_ids == ["new"], "an event of the new partition")
        until(lambda: ingest.partitions() == {0, 1, 2})
        assert ingest.ready


def test_transaction_markers_and_aborted_events_at_the_end_are_passed(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(2)
    producer = Producer({"bootstrap.servers": apache_kafka.address, "transactional.id": topic})
    producer.init_transactions(60)
    for ad_id, commit in (("good", True), ("aborted", False)):
        producer.begin_transaction()
        producer.produce(topic, key=ad_id, value=create(ad_id).value, partition=0)
        assert producer.flush(60) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
    apache_kafka.send(topic, [create("plain", 1, 1)])
    engine = Engine()
    with running(config(apache_kafka, topic), engine) as ingest:
        assert engine.ad_ids == ["plain", "good"]
        until(lambda: ingest.safe_positions() == {0: 4, 1: 1}, "positions behind the markers")
        until(lambda: ingest.statistics.snapshot(0)["lag"] == 0)


def test_an_open_transaction_does_not_hold_up_readiness(apache_kafka: ApacheKafka) -> None:
    topic = apache_kafka.topic(1)
    apache_kafka.send(topic, [create("first")])
    producer = Producer({"bootstrap.servers": apache_kafka.address, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, key="open", value=create("open").value, partition=0)
    assert producer.flush(60) == 0
    apache_kafka.send(topic, [create("behind it")])
    engine = Engine()
    with running(config(apache_kafka, topic), engine):
        assert engine.ad_ids == ["first"]
        producer.commit_transaction(60)
        until(lambda: engine.ad_ids == ["first", "open", "behind it"])


def test_ready_although_events_keep_coming(any_kafka: Broker) -> None:
    topic = any_kafka.topic(2)
    any_kafka.send(topic, [create(f"ad-{i}", 1, 10**12) for i in range(1000)])
    engine = Engine()
    sent = 0
    with running(config(any_kafka, topic), engine, ready=False) as ingest:
        while not ingest.ready:
            any_kafka.send(topic, [create(f"more-{i}", 0, 1) for i in range(50)])
            sent += 50
            assert sent < 100_000
        until(lambda: len(engine.events) == 1000 + sent)


def test_a_topic_that_is_not_there_is_waited_for_and_not_created(
    apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = apache_kafka.new_name()
    engine = Engine()
    with caplog.at_level(logging.WARNING), running(config(apache_kafka, topic), engine, ready=False) as ingest:
        until(lambda: f"waiting for topic {topic}" in caplog.text)
        until(lambda: "topic" in ingest.statistics.snapshot(0)["problems"])
        assert not ingest.ready
        assert f"waiting for topic {topic}" in ingest.progress().detail
        apache_kafka.topic(2, name=topic)
        apache_kafka.send(topic, [create("first", 1)])
        until(lambda: engine.ad_ids == ["first"])
        until(lambda: ingest.ready)
        assert "topic" not in ingest.statistics.snapshot(0)["problems"]


def test_events_wait_at_the_broker_while_the_engine_is_full(any_kafka: Broker) -> None:
    topic = any_kafka.topic(2)
    any_kafka.send(topic, [create(f"ad-{i}", i % 2) for i in range(4000)])
    engine = Engine()
    engine.blocked.set()
    settings = config(any_kafka, topic, batch_events_max=10, buffer_events_max=100)
    with running(settings, engine, ready=False) as ingest:
        reader = ingest._reader
        until(lambda: [lane.paused for lane in reader._lanes.values()] == [True, True], "both partitions are paused")
        offers = engine.offers
        until(lambda: engine.offers > offers + 3, "the batch is offered again")
        assert not engine.events
        assert not ingest.ready
        received = sum(len(lane.records) for lane in reader._lanes.values())
        assert received <= 2 * 100 + 2 * 1000, "no more than the bound and what was received at once"
        engine.blocked.clear()
        until(lambda: ingest.ready)
        until(lambda: len(engine.events) == 4000)
        assert engine.offsets(0) == engine.offsets(1) == list(range(2000))


def test_nothing_is_lost_over_many_pauses(any_kafka: Broker) -> None:
    """One partition is far ahead of the other in time, so that its lane fills and empties again and again."""
    topic = any_kafka.topic(2)
    any_kafka.send(topic, [create(f"old-{i}", 0, 1 + i) for i in range(6000)])
    any_kafka.send(topic, [create(f"new-{i}", 1, 10_000 + i) for i in range(6000)])
    engine = Engine()
    settings = config(any_kafka, topic, batch_events_max=50, buffer_events_max=200)
    with running(settings, engine):
        until(lambda: len(engine.events) == 12_000)
    assert [event.timestamp_ms for event in engine.events] == [*range(1, 6001), *range(10_000, 16_000)]


def test_batches_are_bounded_in_events_and_bytes(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    large = [create(f"large-{i}", features={}, filler="x" * 60_000) for i in range(8)]
    any_kafka.send(topic, [create(f"ad-{i}") for i in range(100)] + large)
    engine = Engine()
    with running(config(any_kafka, topic, batch_events_max=30, batch_bytes_max=150_000), engine):
        assert engine.offsets(0) == list(range(108))
    assert max(len(batch.events) for batch in engine.batches) == 30
    sizes = [sum(1 for event in batch.events if event.ad_id.startswith("large")) for batch in engine.batches]  # type: ignore[union-attr]
    assert max(sizes) == 2


def test_a_null_value_and_an_empty_one_differ(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    any_kafka.topic(name=f"{topic}-dlq")
    any_kafka.send(topic, [Record(b"tombstone", None), Record(b"empty", b"")])
    engine = Engine()
    with running(config(any_kafka, topic), engine):
        assert [event.kind for event in engine.events] == [EventKind.EXPIRE, EventKind.BAD]
        assert engine.events[1].fault is not None
        assert engine.events[1].fault.code == "not_json"


def test_outcomes_and_freshness_are_counted(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    any_kafka.send(topic, [create("before", event_time="2020-01-01T00:00:00Z")])
    engine = Engine(lambda event: Outcome.STALE if event.ad_id == "stale" else Outcome.APPLIED)
    with running(config(any_kafka, topic), engine) as ingest:
        fresh = create("fresh", 0, 1_699_999_999_900, event_time="2023-11-14T22:13:19.700Z")  # 100 and 300 ms before
        any_kafka.send(topic, [fresh, create("stale", 0, 1)])
        until(lambda: ingest.statistics.snapshot(0)["events"] == 3)
        snapshot = ingest.statistics.snapshot(NOW_US)
    assert snapshot["outcomes"]["applied"] == 2
    assert snapshot["outcomes"]["stale"] == 1
    assert snapshot["bytes"] > 0
    freshness = snapshot["freshness"]
    assert freshness["event_time"]["count"] == freshness["produce_time"]["count"] == 1, "what waited is not fresh"
    assert 80 < freshness["produce_time"]["p50_ms"] < 120
    assert 250 < freshness["event_time"]["p99_ms"] < 360


def test_commits_show_a_lag_tool_how_far_it_is(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    any_kafka.send(topic, [create(f"ad-{i}") for i in range(10)])
    with running(config(any_kafka, topic), Engine()) as ingest:
        until(lambda: any_kafka.committed(topic, group=f"group-of-{topic}").offset == 10)
        assert any_kafka.committed(topic, group=f"group-of-{topic}").metadata.endswith(SCHEMA.fingerprint)
        any_kafka.send(topic, [create("last")])
        until(lambda: ingest.safe_positions() == {0: 11})
    assert any_kafka.committed(topic, group=f"group-of-{topic}").offset == 11, "committed at the stop"


def test_stop_waits_for_what_the_engine_still_has(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    any_kafka.send(topic, [create("ad")])
    engine = Engine()
    engine.keeps.set()
    ingest = Ingest(config(any_kafka, topic), SCHEMA, decoder(), engine.offer)
    ingest.start()
    until(lambda: engine.kept_events)
    assert not ingest.ready
    assert ingest.safe_positions() == {0: 0}
    assert not ingest.wait_safe({0: 1}, 0.01)
    engine.apply()
    assert ingest.wait_safe({0: 1}, 10)
    ingest.stop()
    assert any_kafka.committed(topic, group=f"group-of-{topic}").offset == 1


def test_stop_does_not_wait_for_ever(any_kafka: Broker) -> None:
    topic = any_kafka.topic()
    any_kafka.send(topic, [create("ad")])
    engine = Engine()
    engine.keeps.set()
    with running(config(any_kafka, topic), engine, ready=False, stop_s=0.1) as ingest:
        until(lambda: engine.kept_events)
    assert ingest.safe_positions() == {0: 0}


def test_stop_before_the_broker_was_ever_there() -> None:
    broker = Broker("127.0.0.1:1")
    with running(config(broker, "absent"), Engine(), ready=False) as ingest:
        until(lambda: "kafka" in ingest.statistics.snapshot(0)["problems"])
    assert ingest.failure is None


def test_an_engine_that_fails_is_told_and_ends_the_reading(any_kafka: Broker, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_batch: object, _timeout_s: float) -> bool:
        raise RuntimeError("no engine")

    topic = any_kafka.topic()
    any_kafka.send(topic, [create("ad")])
    ingest = Ingest(config(any_kafka, topic), SCHEMA, decoder(), broken)
    ingest.start()
    until(lambda: ingest.failure)
    assert ingest.failure == "RuntimeError: no engine"
    assert not ingest.ready
    assert "no engine" in ingest.progress().detail
    ingest.stop()


def test_settings_that_the_guarantees_rest_on_cannot_be_changed() -> None:
    with pytest.raises(IngestConfigError, match=r"isolation\.level"):
        IngestConfig(bootstrap_servers="", properties={"isolation.level": "read_uncommitted"})
    with pytest.raises(IngestConfigError, match="ad-events"):
        IngestConfig(bootstrap_servers="", dlq_topic="ad-events")
    wrong = IngestConfig(bootstrap_servers="127.0.0.1:1", properties={"no.such.thing": "1"})
    with pytest.raises(IngestConfigError, match=r"no\.such\.thing"):
        Ingest(wrong, SCHEMA, decoder(), Engine().offer)
