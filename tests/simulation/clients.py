"""Kafka's three clients as the product uses them, in place of librdkafka's: answers come late, twice, or never."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from tests.simulation.broker import Broker, Letter, Record
from tests.simulation.threads import Clock, Threads

NO_OFFSET = -1001
FETCHED_MAX = 40  # records of a partition on their way


class Message:
    """Of a partition: a record, the end, or an error; without a partition an error of the client."""

    def __init__(self, partition: int | None, offset: int | None, record: Record | None, error: int | None) -> None:
        self._partition, self._offset = partition, offset
        self._record = record
        self._error = None if error is None else KafkaError(error)

    def partition(self) -> int | None:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        assert self._record is not None
        return self._record.key

    def value(self) -> bytes | None:
        assert self._record is not None
        return self._record.value

    def timestamp(self) -> tuple[int, int]:
        assert self._record is not None
        return 1, self._record.timestamp_ms


class Link(NamedTuple):
    """What every client has."""

    broker: Broker
    threads: Threads
    clock: Clock
    r: random.Random


class Fetcher:
    """One assigned partition."""

    def __init__(self, offset: int) -> None:
        self.fetched = offset  # the next offset to ask for
        self.given = offset  # the next offset to hand over
        self.messages: deque[Message] = deque()
        self.paused = False
        self.failed = False  # its offset is not there; it waits to be assigned again
        self.end_told: int | None = None
        self.bounds: tuple[int, int] | None = None

    def drop(self) -> None:
        self.messages.clear()
        self.fetched = self.given
        self.end_told = None


class Consumer:
    def __init__(
        self, link: Link, on_commit: Callable[..., None], committing: Callable[[dict[int, int], str], None]
    ) -> None:
        """`committing` is told what the product wants to be committed, before it is."""
        self._link = link
        self._on_commit = on_commit
        self._committing = committing
        self._fetchers: dict[int, Fetcher] = {}
        self._commits: deque[list[TopicPartition]] = deque()
        self._closed = False

    # reading

    def poll(self, timeout: float) -> Message | None:
        link = self._link
        link.threads.seam()
        self._answer_commits()
        self._fetch()
        if link.r.random() < link.broker.loss / 4:
            return Message(None, None, None, KafkaError._TRANSPORT)
        message = self._next()
        if message is None:
            link.clock.pass_(timeout * (0.1 + 0.9 * link.r.random()))
        return message

    def consume(self, count: int, timeout: float) -> list[Message]:
        found: list[Message] = []
        while len(found) < count and (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> Message | None:
        ready = [number for number, fetcher in self._fetchers.items() if fetcher.messages and not fetcher.paused]
        if not ready:
            return None
        fetcher = self._fetchers[self._link.r.choice(ready)]
        message = fetcher.messages.popleft()
        if message.error() is None:
            fetcher.given = message.offset() + 1  # type: ignore[operator]
        return message

    def _fetch(self) -> None:
        """Each partition's leader answers, or does not."""
        broker, r = self._link.broker, self._link.r
        for number, fetcher in self._fetchers.items():
            if fetcher.paused or fetcher.failed or len(fetcher.messages) >= FETCHED_MAX:
                continue
            if number in broker.slow or r.random() < broker.loss:
                continue
            if broker.topic is None or number >= len(broker.topic.partitions):
                continue
            partition = broker.topic.partitions[number]
            fetcher.bounds = partition.begins_at, partition.end
            if not partition.begins_at <= fetcher.fetched <= len(partition.entries):
                fetcher.failed = True
                fetcher.messages.append(Message(number, None, None, KafkaError._AUTO_OFFSET_RESET))
                continue
            stop = min(partition.end, fetcher.fetched + r.choice([1, 3, 10, 40]))
            for offset in range(fetcher.fetched, stop):
                record = partition.entries[offset]
                if record is not None:
                    fetcher.messages.append(Message(number, offset, record, None))
            fetcher.fetched = max(fetcher.fetched, stop)
            if fetcher.fetched >= partition.end and fetcher.end_told != fetcher.fetched:
                fetcher.end_told = fetcher.fetched
                fetcher.messages.append(Message(number, fetcher.fetched, None, KafkaError._PARTITION_EOF))

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            assert each.partition not in self._fetchers, f"partition {each.partition} is assigned twice"
            self._fetchers[each.partition] = Fetcher(each.offset)

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            del self._fetchers[each.partition]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._fetchers[each.partition].paused = True
            self._fetchers[each.partition].drop()

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._fetchers[each.partition].paused = False

    def get_watermark_offsets(self, partition: TopicPartition, cached: bool) -> tuple[int, int] | None:
        fetcher = self._fetchers.get(partition.partition)
        return None if fetcher is None else fetcher.bounds

    # commits

    def committed(self, partitions: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._link.threads.seam()
        if self._link.r.random() < self._link.broker.loss:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        found = []
        for each in partitions:
            offset, metadata = self._link.broker.committed.get(each.partition, (NO_OFFSET, ""))
            found.append(TopicPartition(each.topic, each.partition, offset, metadata=metadata))
        return found

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        self._link.threads.seam()
        if self._link.r.random() < self._link.broker.loss:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        [identity] = {each.metadata for each in offsets}
        assert identity is not None
        self._committing({each.partition: each.offset for each in offsets}, identity)
        self._commits.append(offsets)

    def _answer_commits(self) -> None:
        while self._commits and self._link.r.random() < 0.6:
            offsets = self._commits.popleft()
            what = self._link.r.random()
            if what < 0.9:  # else the request is lost
                self._store(offsets)
            lost = what > 0.8  # or its answer
            self._on_commit(KafkaError(KafkaError._TIMED_OUT) if lost else None, offsets)

    def _store(self, offsets: list[TopicPartition]) -> None:
        for each in offsets:
            self._link.broker.committed[each.partition] = each.offset, each.metadata or ""

    def close(self) -> None:
        self._closed = True

    def crash(self) -> None:
        """What was on its way may arrive."""
        for offsets in self._commits:
            if self._link.r.random() < 0.5:
                self._store(offsets)


class Producer:
    def __init__(self, link: Link, written: Callable[[Letter], None]) -> None:
        self._link = link
        self._written = written
        self._waiting: list[tuple[Letter, Callable[..., None]]] = []
        self._purged = False

    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]],
        on_delivery: Callable[..., None],
    ) -> None:  # fmt: skip
        self._link.threads.seam()
        if not self._link.broker.writable and self._link.r.random() < 0.2:
            raise BufferError
        if not self._link.broker.writable and self._link.r.random() < 0.2:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
        about = dict(headers)
        letter = Letter(int(about["mirach-partition"]), int(about["mirach-offset"]), key, value)
        assert topic == "events-dlq"
        assert about["mirach-error"]
        self._waiting.append((letter, on_delivery))

    def poll(self, timeout: float) -> None:
        self._link.threads.seam()
        waiting, self._waiting = self._waiting, []
        for letter, on_delivery in waiting:
            what = self._link.r.random()
            if self._purged:
                on_delivery(KafkaError(KafkaError._PURGE_QUEUE), None)
            elif self._link.broker.writable and what < 0.75:
                self._write(letter)
                on_delivery(None, None)
            elif self._link.broker.writable and what < 0.8:  # written, and the answer is lost
                self._write(letter)
                on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)
            elif not self._link.broker.writable and what < 0.5:
                on_delivery(KafkaError(KafkaError._MSG_TIMED_OUT), None)
            else:
                self._waiting.append((letter, on_delivery))

    def _write(self, letter: Letter) -> None:
        self._written(letter)
        self._link.broker.letters.append(letter)

    def purge(self) -> None:
        self._purged = True

    def crash(self) -> None:
        for letter, _ in self._waiting:
            if self._link.broker.writable and self._link.r.random() < 0.5:
                self._write(letter)


class _Described(NamedTuple):
    id: int = 0
    partitions: Any = ()
    topic_id: str = ""
    cluster_id: str = "simulated"


class Admin:
    """Between its answers, which the product puts together to one view, the world goes on."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def _answer(self, value: object) -> Future[Any]:
        answer: Future[Any] = Future()
        if self._link.r.random() < self._link.broker.loss:
            answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        elif isinstance(value, KafkaError):
            answer.set_exception(KafkaException(value))
        else:
            answer.set_result(value)
        return answer

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        self._link.threads.seam()
        topic = self._link.broker.topic
        if topic is None:
            return {"events": self._answer(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))}
        partitions = [_Described(id=number) for number in range(len(topic.partitions))]
        return {"events": self._answer(_Described(partitions=partitions, topic_id=topic.id))}

    def describe_cluster(self, request_timeout: float) -> Future[Any]:
        return self._answer(_Described())

    def list_offsets(
        self, asked: dict[TopicPartition, OffsetSpec], isolation_level: object, request_timeout: float
    ) -> dict[TopicPartition, Future[Any]]:
        self._link.threads.seam()
        return {partition: self._answer(self._offset(partition.partition, spec)) for partition, spec in asked.items()}

    def _offset(self, number: int, spec: OffsetSpec) -> object:
        topic = self._link.broker.topic
        if topic is None or number >= len(topic.partitions):
            return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        if number in self._link.broker.leaderless:
            return KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        partition = topic.partitions[number]
        return _Offset(partition.begins_at if "Earliest" in type(spec).__name__ else partition.end)

    def poll(self, timeout: float) -> None:
        self._link.threads.seam()


class _Offset(NamedTuple):
    offset: int
