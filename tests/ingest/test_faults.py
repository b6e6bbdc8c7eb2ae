"""A network and brokers that misbehave: events arrive once and in order all the same, and ingest recovers by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from bench.soak.proxy import Proxy
from gpu_index.events import Batch
from ingest.embedded import EmbeddedBroker
from ingest.statistics import PartitionState, Statistics
from ingest.watch import TopicWatcher
from tests.ingest.engine import Engine, bad, config, create, running
from tests.kafka import EmbeddedKafka, until

EVENTS = 3000
QUICK = {"socket.timeout.ms": "1000", "reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "200"}


class BehindProxy(EmbeddedKafka):
    """All clients, those that produce too, are told the proxy's address."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        super().__init__(broker)
        host, _, port = broker.bootstrap_servers.partition(":")
        self.proxy = Proxy(int(port))
        broker.advertise(host, self.proxy.port)
        self.address = f"{host}:{self.proxy.port}"


@pytest.fixture
def kafka() -> Iterator[BehindProxy]:
    with EmbeddedBroker({}) as broker:
        behind = BehindProxy(broker)
        yield behind
        behind.proxy.heal()
        behind.proxy.close()


def send_in_background(kafka: EmbeddedKafka, topic: str, count: int = EVENTS) -> threading.Thread:
    """To one partition, in small batches, so that it takes a while."""
    records = [create(f"ad-{number}") for number in range(count)]
    more = {"enable.idempotence": True, "batch.num.messages": 20, **QUICK}
    thread = threading.Thread(target=lambda: kafka.send(topic, records, **more))
    thread.start()
    return thread


def assert_all_read(kafka: EmbeddedKafka, topic: str, engine: Engine) -> None:
    """Every record of partition 0 once and in order. The embedded broker may hold one twice: it takes a retry whose
    first try it has taken too."""
    end = kafka.end(topic)
    assert end >= EVENTS
    until(lambda: len(engine.events) >= end)
    assert engine.offsets(0) == list(range(end))
    assert {event.ad_id for event in engine.events} == {f"ad-{number}" for number in range(EVENTS)}


def test_connections_that_break_again_and_again_lose_nothing(kafka: BehindProxy) -> None:
    topic = kafka.topic()
    engine = Engine()
    with running(config(kafka, topic, properties=QUICK), engine) as ingest:
        sending = send_in_background(kafka, topic)
        for number in range(6):
            until(lambda number=number: len(engine.events) >= number * 400)  # type: ignore[misc]
            kafka.proxy.cut()
            until(lambda: not kafka.proxy._connections, "all are closed")
            kafka.proxy.heal()
        sending.join()
        assert_all_read(kafka, topic, engine)
        until(lambda: not ingest.statistics.snapshot(0)["problems"])
        assert ingest.ready
        assert ingest.statistics.snapshot(0)["gaps"] == []


def test_a_broker_that_stalls_is_waited_for(kafka: BehindProxy) -> None:
    """Connections stay, nothing comes: requests time out, what is indexed is served, and then it goes on."""
    topic = kafka.topic()
    kafka.topic(name=f"{topic}-dlq")
    kafka.send(topic, [create("before")])
    engine = Engine()
    with running(config(kafka, topic, properties=QUICK), engine) as ingest:
        kafka.proxy.stall()
        until(lambda: ingest.statistics.snapshot(0)["problems"], "it is noticed")
        assert ingest.ready
        sending = send_in_background(kafka, topic, 500)
        kafka.proxy.heal()
        sending.join()
        kafka.send(topic, [bad("wrong")])
        until(lambda: ingest.safe_positions() == {0: 502}, "all is read, and the dead letter is sent")
        assert engine.offsets(0) == list(range(502))
        until(lambda: not ingest.statistics.snapshot(0)["problems"])


def test_a_broker_whose_bytes_trickle_is_read_slowly(kafka: BehindProxy) -> None:
    topic = kafka.topic()
    engine = Engine()
    with running(config(kafka, topic), engine) as ingest:
        kafka.proxy.trickle()
        kafka.send(topic, [create(f"ad-{number}", filler=f"{number}" * 20) for number in range(100)])
        until(lambda: len(engine.events) == 100)
        assert engine.offsets(0) == list(range(100))
        assert not ingest.failure


def test_a_slow_round_trip_is_only_slow() -> None:
    with EmbeddedBroker({}) as broker:
        kafka = EmbeddedKafka(broker)
        topic = kafka.topic()
        broker.set_round_trip(1, 150)
        kafka.send(topic, [create(f"ad-{number}") for number in range(50)])
        engine = Engine()
        with running(config(kafka, topic), engine):
            assert engine.offsets(0) == list(range(50))


def test_a_leader_that_moves_is_followed() -> None:
    with EmbeddedBroker({}, brokers=2) as broker:
        kafka = EmbeddedKafka(broker)
        topic = kafka.topic(2)
        engine = Engine()
        properties = {**QUICK, "topic.metadata.refresh.fast.interval.ms": "50"}
        with running(config(kafka, topic, properties=properties), engine) as ingest:
            sending = send_in_background(kafka, topic)
            for number in range(6):
                until(lambda number=number: len(engine.events) >= number * 400)  # type: ignore[misc]
                for partition in (0, 1):
                    broker.move_leader(topic, partition, 1 + (number + partition) % 2)
            sending.join()
            assert_all_read(kafka, topic, engine)
            assert ingest.ready
            assert ingest.statistics.snapshot(0)["gaps"] == []


def test_a_broker_that_goes_down_and_comes_back_with_its_log() -> None:
    with EmbeddedBroker({}) as broker:
        kafka = EmbeddedKafka(broker)
        topic = kafka.topic()
        kafka.send(topic, [create("before")])
        engine = Engine()
        with running(config(kafka, topic, properties=QUICK), engine) as ingest:
            broker.set_down(1, True)
            until(lambda: "kafka" in ingest.statistics.snapshot(0)["problems"])
            assert ingest.ready
            broker.set_down(1, False)
            kafka.send(topic, [create("after")])
            until(lambda: engine.ad_ids == ["before", "after"])


def test_a_poll_interval_that_was_exceeded_is_made_good(caplog: pytest.LogCaptureFixture) -> None:
    """Something held the reading thread up for longer than max.poll.interval.ms. No group decides what is read, so
    nothing is taken away: it reads on, and commits."""

    class Stalling(Engine):
        def offer(self, batch: Batch, timeout_s: float) -> bool:
            if batch.events and batch.events[0].ad_id == "stall":
                threading.Event().wait(2.5)
            return super().offer(batch, timeout_s)

    with EmbeddedBroker({}) as broker:
        kafka = EmbeddedKafka(broker)
        topic = kafka.topic()
        engine = Stalling()
        properties = {"max.poll.interval.ms": "1000", "session.timeout.ms": "1000"}
        with running(config(kafka, topic, properties=properties), engine) as ingest:
            kafka.send(topic, [create("stall")])
            until(lambda: engine.ad_ids == ["stall"])
            until(lambda: "max.poll.interval.ms" in caplog.text, "it was exceeded")
            kafka.send(topic, [create("after")])
            until(lambda: engine.ad_ids == ["stall", "after"])
            until(lambda: kafka.committed(topic, group=f"group-of-{topic}").offset == 2)
            assert ingest.ready
            assert ingest.failure is None


# Looks at the topic, on demand.


def test_those_who_ask_for_a_look_share_it() -> None:
    with EmbeddedBroker({"ads": 1}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        watcher = TopicWatcher(config(EmbeddedKafka(broker), "ads"), admin, lambda _: None)
        asked = [watcher.look_again() for _ in range(100)]
        assert len({id(each) for each in asked}) == 1
        assert watcher.turn()
        view = asked[0].result(0)
        assert view is not None
        assert (view.look, view.partitions) == (1, 1)
        absent = TopicWatcher(config(EmbeddedKafka(broker), "absent"), admin, lambda _: None)
        asked = [absent.look_again()]
        broker.fail_topic("absent", KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert absent.turn()
        assert asked[0].result(0) is None


def test_looks_on_demand_keep_apart_and_end_with_the_watcher() -> None:
    with EmbeddedBroker({"ads": 1}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        watcher = TopicWatcher(config(EmbeddedKafka(broker), "ads", watch_interval_s=15), admin, lambda _: None)
        watcher.start()
        first, second = watcher.look_again().result(30), watcher.look_again().result(30)
        assert first is not None
        assert second is not None
        assert second.look > first.look
        left = watcher.look_again()
        watcher.stop()
        left.result(30)  # of a last look, or None: nobody waits for ever


def test_an_end_is_never_below_its_position() -> None:
    """What the last fetch said of the end may be older than what has been applied since."""
    statistics = Statistics("ads")
    statistics.topic_seen("id", 1)
    statistics.partition_taken_up(0, PartitionState(0, 0, 10, 0, 0, 10, 0))
    statistics.applied([], [], [], {0: 25}, 0)
    statistics.ended({0: 20})
    partition = statistics.snapshot(0)["partitions"]["0"]
    assert (partition["position"], partition["end"], partition["lag"]) == (25, 25, 0)
