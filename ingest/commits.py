"""Committed offsets: they make the lag visible in Kafka's tools, and remember which dead letters were sent.

Only the thread that polls the consumer may call these: newer clients let one call in at a time, and a thread beside
one that polls all the while may wait for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.config import IngestConfig
from ingest.statistics import Statistics

ANSWER_S = 2.0  # for the broker's answer about committed offsets
TRIES_MAX = 15
RETRY_S = 0.2

REFUSED = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.INVALID_GROUP_ID)

_LOG = logging.getLogger("mirach.ingest")

Offsets = Mapping[int, int]


class Commits:
    def __init__(
        self,
        config: IngestConfig,
        consumer: Consumer,
        statistics: Statistics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._statistics = statistics
        self._clock = clock
        self._committed: dict[int, int] = {}  # under the present topic and schema, as the broker confirmed
        self._due = 0.0

    def ask(self, partitions: list[int], identity: str, stopping: threading.Event) -> dict[int, int]:
        """What this service, or one before it with the same identity (of topic and schema), committed."""
        asked = [TopicPartition(self._config.topic, partition) for partition in partitions]
        problem = ""
        for _ in range(TRIES_MAX):
            try:
                answer = self._consumer.committed(asked, timeout=ANSWER_S)
            except KafkaException as error:
                problem = error.args[0].str()
                if error.args[0].code() in REFUSED or stopping.wait(RETRY_S):
                    break
            else:
                ours = {each.partition: each.offset for each in answer if each.metadata == identity}
                self._committed |= ours
                return ours
        _LOG.warning("committed offsets of group %s are not known: %s", self._config.group_id, problem)
        self._statistics.problem("commit", problem)
        return {}

    def commit_when_due(self, safe: Offsets, identity: str) -> bool:
        """Commits once per interval; whether it was time to."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + self._config.commit_interval_s
        self.commit(safe, identity)
        return True

    def commit(self, safe: Offsets, identity: str) -> None:
        """Asks for it and returns. Never back: what was committed says which dead letters were sent. What the broker
        does not confirm is committed again with the next."""
        news = {each: offset for each, offset in safe.items() if offset > self._committed.get(each, -1)}
        if not news:
            return
        offsets = [
            TopicPartition(self._config.topic, partition, offset, metadata=identity)
            for partition, offset in news.items()
        ]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._statistics.problem("commit", error.args[0].str())

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The broker's answer, called by poll."""
        failed = error or next((each.error for each in partitions if each.error), None)
        self._statistics.problem("commit", None if failed is None else failed.str())
        self._committed |= {each.partition: each.offset for each in partitions if not (error or each.error)}

    def confirmed(self, safe: Offsets) -> bool:
        return all(self._committed.get(each, -1) >= offset for each, offset in safe.items())
