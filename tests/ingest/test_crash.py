"""A broker that is killed and comes back."""

from __future__ import annotations

from pathlib import Path

from tests.ingest.engine import Engine, bad, config, create, running
from tests.kafka import start_apache_kafka, until


def test_reading_goes_on_when_the_broker_is_back(tmp_path: Path) -> None:
    broker = start_apache_kafka(tmp_path)
    engine = Engine()
    try:
        topic = broker.topic(2)
        broker.topic(name=f"{topic}-dlq")
        broker.send(topic, [create("before", 0)])
        with running(config(broker, topic), engine) as ingest:
            broker.stop(kill=True)
            until(lambda: "kafka" in ingest.statistics.snapshot(0)["problems"])
            assert ingest.ready, "what was indexed is still served"
            broker.start()
            broker.send(topic, [create("after", 0), bad("wrong", 1)])
            until(lambda: engine.ad_ids.count("after") == 1)
            until(lambda: ingest.safe_positions() == {0: 2, 1: 1}, "the dead letter is sent")
            until(lambda: not ingest.statistics.snapshot(0)["problems"])
            assert ingest.statistics.snapshot(0)["gaps"] == []
            assert len(engine.events) == 3
            broker.stop(kill=True)
        assert ingest.failure is None, "stopping without a broker is quick and clean"
    finally:
        if broker.runs:
            broker.stop()
