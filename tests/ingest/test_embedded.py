"""The embedded broker, and the limits that its documentation names."""

from __future__ import annotations

import pytest

import ingest.embedded
from ingest.embedded import EmbeddedBroker, EmbeddedBrokerError
from tests.ingest.engine import Engine, config, create, running
from tests.kafka import EmbeddedKafka, until


def test_two_brokers_know_nothing_of_each_other() -> None:
    with EmbeddedBroker({"one": 1}) as first, EmbeddedBroker({"two": 2}) as second:
        assert first.bootstrap_servers != second.bootstrap_servers
        one, two = EmbeddedKafka(first), EmbeddedKafka(second)
        assert one.send("one", [create("ad")]) == {0: 0}
        assert two.send("two", [create("ad", 1), create("ad", 1)]) == {1: 1}


def test_a_topic_cannot_be_made_twice(embedded_kafka: EmbeddedKafka) -> None:
    topic = embedded_kafka.topic()
    with pytest.raises(EmbeddedBrokerError, match="exists"):
        embedded_kafka.topic(name=topic)


def test_closing_twice_is_closing_once() -> None:
    broker = EmbeddedBroker({})
    broker.close()
    broker.close()


def test_without_a_librdkafka_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ingest.embedded,
        "_places",
        lambda: iter(["no/such/librdkafka.so", ingest.embedded.ctypes.util.find_library("c") or ""]),
    )
    ingest.embedded._library.cache_clear()
    try:
        with pytest.raises(EmbeddedBrokerError, match="MIRACH_KAFKA_BOOTSTRAP_SERVERS"):
            EmbeddedBroker({})
    finally:
        ingest.embedded._library.cache_clear()


def test_every_place_that_may_hold_librdkafka_is_found() -> None:
    places = list(ingest.embedded._places())
    assert places[0].endswith((".so", ".pyd"))
    assert any("librdkafka" in place for place in places), "the wheel bundles it"


def test_a_partition_keeps_its_newest_5_mib_only(embedded_kafka: EmbeddedKafka) -> None:
    """The documented limit: a service that starts later finds the beginning gone, and says so."""
    topic = embedded_kafka.topic()
    embedded_kafka.send(
        topic, [create(f"ad-{i}", filler="x" * 100_000) for i in range(60)], **{"batch.num.messages": 1}
    )
    engine = Engine()
    with running(config(embedded_kafka, topic), engine) as ingest:
        begins_at = ingest.statistics.snapshot(0)["partitions"]["0"]["begins_at"]
        assert 0 < begins_at < 60
        assert engine.offsets(0) == list(range(begins_at, 60))


def test_a_broker_that_goes_away_is_waited_for() -> None:
    with EmbeddedBroker({}) as broker:
        kafka = EmbeddedKafka(broker)
        topic = kafka.topic()
        kafka.send(topic, [create("ad")])
        engine = Engine()
        with running(config(kafka, topic), engine) as ingest:
            broker.close()
            until(lambda: "kafka" in ingest.statistics.snapshot(0)["problems"])
            assert ingest.ready
            assert ingest.failure is None
