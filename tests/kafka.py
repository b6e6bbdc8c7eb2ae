"""Brokers for tests: a real Apache Kafka, one for the whole run, and the embedded one. Fixtures are found everywhere.

`apache_kafka` and `embedded_kafka` are a Broker each, `any_kafka` is both in turn. Tests make topics of their own.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from ingest.embedded import EmbeddedBroker
from tests.shared import shared

DEADLINE_S = 60.0
START_S = 120.0
STOP_S = 20.0
_numbers = itertools.count(1)


def until(condition: Callable[[], object], what: str = "", deadline_s: float = DEADLINE_S) -> None:
    """Waits for a condition; fails where it does not come true."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        pause.wait(0.01)


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    partition: int = 0
    timestamp_ms: int = 0  # 0: now


class Broker:
    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address, "log.connection.close": "false"})

    def new_name(self) -> str:
        return f"topic-{next(_numbers)}"

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None, name: str = "") -> str:
        """A new topic's name. Its records may have any timestamp and stay."""
        name = name or self.new_name()
        settings = {"retention.ms": "-1", **(config or {})}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([new])[name].result(DEADLINE_S)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(DEADLINE_S)

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(DEADLINE_S)

    def delete_records(self, topic: str, below: Mapping[int, int]) -> None:
        asked = [TopicPartition(topic, partition, offset) for partition, offset in below.items()]
        for future in self.admin.delete_records(asked).values():
            future.result(DEADLINE_S)

    def send(self, topic: str, records: Iterable[Record], **properties: object) -> dict[int, int]:
        """Sends the records and waits for it. Returns the last offset by partition."""
        last: dict[int, int] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            last[message.partition()] = message.offset()

        producer = Producer({"bootstrap.servers": self.address, "log.connection.close": "false", **properties})
        for record in records:
            producer.produce(
                topic,
                key=record.key,
                value=record.value,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                on_delivery=delivered,
            )
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        return last

    def records(self, topic: str, count: int, partition: int = 0) -> list[Message]:
        """The first records of a partition, waited for."""
        consumer = self._consumer("reader")
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            found: list[Message] = []
            end = time.monotonic() + DEADLINE_S
            while len(found) < count:
                assert time.monotonic() < end, f"{len(found)} records of {count}"
                found += [message for message in consumer.consume(count - len(found), 0.1) if message.error() is None]
            return found
        finally:
            consumer.close()

    def end(self, topic: str, partition: int = 0) -> int:
        consumer = self._consumer("reader")
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)[1]
        finally:
            consumer.close()

    def committed(self, topic: str, partition: int = 0, group: str = "mirach") -> TopicPartition:
        consumer = self._consumer(group)
        try:
            return consumer.committed([TopicPartition(topic, partition)], timeout=DEADLINE_S)[0]
        finally:
            consumer.close()

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_uncommitted",
                "log.connection.close": "false",
            }
        )


class ApacheKafka(Broker):
    """A broker with its data in a folder, which outlives a crash."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._script = script
        self._folder = folder
        super().__init__(self.start())

    def start(self) -> str:
        """New, or from before, with the port and the data that it had. Returns its address."""
        command = [str(self._script), "start", str(self._folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_S).stdout.strip()

    @property
    def _pid(self) -> int:
        return int((self._folder / "pid").read_text())

    @property
    def runs(self) -> bool:
        return _runs(self._pid)

    def stop(self, kill: bool = False) -> None:
        pid = self._pid
        os.kill(pid, signal.SIGKILL if kill else signal.SIGTERM)
        until(lambda: not _runs(pid), "Apache Kafka ends", STOP_S)


class EmbeddedKafka(Broker):
    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        super().__init__(broker.bootstrap_servers)

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None, name: str = "") -> str:
        assert not config, "the embedded broker has no topic settings"
        name = name or self.new_name()
        self.broker.create_topic(name, partitions)
        return name


def _runs(pid: int) -> bool:
    """Whether a process is there and is not just a zombie that nobody waits for."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def start_apache_kafka(folder: Path) -> ApacheKafka:
    """A broker of a test's own, which it may kill; tests that only need one use the fixture. Skips where there is no
    Kafka or no java."""
    script = shared("kafka/kafka")
    if shutil.which("java") is None:
        pytest.skip("no java on this machine")
    return ApacheKafka(script, folder)


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    broker = start_apache_kafka(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.stop()


@pytest.fixture
def embedded_kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedBroker({}) as broker:
        yield EmbeddedKafka(broker)


@pytest.fixture(params=["apache_kafka", "embedded_kafka"])
def any_kafka(request: pytest.FixtureRequest) -> Broker:
    broker: Broker = request.getfixturevalue(request.param)
    return broker
