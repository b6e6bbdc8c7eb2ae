"""A thread that looks at the topic: which partitions it has, where they begin and end, and whether it is still the
same topic. The consumer reads what was seen last; nothing here waits for the consumer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TypeVar

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from ingest.config import IngestConfig

REQUEST_TIMEOUT_S = 5.0
ABSENT_INTERVAL_S = 1.0  # between looks for a topic that is not there yet
LOOKS_APART_S = 0.2  # at least, however many ask for one
LOG_INTERVAL_S = 30.0
STOP_CHECK_S = 0.1
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # what a broker older than topic ids answers

_LOG = logging.getLogger("mirach.ingest")
Result = TypeVar("Result")


class TopicView(msgspec.Struct, frozen=True):
    """The topic at one moment. A partition without a leader has no bounds."""

    look: int  # which look at the topic this was, the first is 1
    absences: int  # how many looks before it found no such topic
    topic_id: str | None  # None: the broker has no topic ids
    cluster_id: str | None  # None: the broker does not say
    partitions: int
    bounds: dict[int, tuple[int, int]]  # partition -> first offset, end (of what is committed)


class TopicWatcher:
    def __init__(
        self,
        config: IngestConfig,
        admin: AdminClient,
        on_problem: Callable[[str | None], None],
        clock: Callable[[], float] = time.monotonic,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """`on_problem` is told why a look saw nothing, and None after one that did."""
        self._config = config
        self._on_problem = on_problem
        self._admin = admin
        self._clock = clock
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._asked: Future[TopicView | None] | None = None  # by those who wait for the next look
        self._stopping = False
        self._logged_at: float | None = None
        self._view: TopicView | None = None
        self._problem: str | None = None  # why the last look saw nothing; None if it did
        self._cluster_id: str | None = None
        self.looks = 0  # how many have begun
        self.absences = 0  # how many found that there is no such topic
        self._thread = thread(target=self._run, name="mirach-topic-watcher", daemon=True)

    @property
    def view(self) -> TopicView | None:
        """What was seen last: a new object for each look. None until the topic was there."""
        return self._view

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._ended.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def look_soon(self) -> None:
        self._wake.set()

    def look_again(self) -> Future[TopicView | None]:
        """What the next look sees, which begins after this call; None where it sees nothing. All who ask meanwhile
        share it, so nobody may cancel it."""
        with self._changed:
            if self._asked is None:
                self._asked = Future()
            asked = self._asked
        self._wake.set()
        return asked

    def wait(self, timeout_s: float) -> TopicView | None:
        """The view, as soon as there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._view is not None or self._stopping, timeout_s)
        return self._view

    def _run(self) -> None:
        while self.turn():
            apart_s = min(LOOKS_APART_S, self._config.watch_interval_s)
            if not self._ended.wait(apart_s):
                interval_s = self._config.watch_interval_s if self._problem is None else ABSENT_INTERVAL_S
                self._wake.wait(interval_s - apart_s)
        with self._changed:
            self._changed.notify_all()
            asked, self._asked = self._asked, None
        if asked is not None:
            asked.set_result(None)

    def turn(self) -> bool:
        """One look; False once it is to end."""
        if self._stopping:
            return False
        self._wake.clear()
        with self._changed:
            asked, self._asked = self._asked, None
        view = None
        try:
            view = self._look()
        except (KafkaException, FutureTimeoutError) as error:
            self._say(error)
        else:
            self._problem, self._logged_at = None, None
            self._on_problem(None)
            with self._changed:
                self._view = view
                self._changed.notify_all()
        finally:
            if asked is not None:
                asked.set_result(view)
        self._admin.poll(0)  # librdkafka's log lines
        return True

    def _look(self) -> TopicView:
        self.looks += 1
        topic = self._config.topic
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_S)
        described = self._result(asked[topic])
        partitions = [partition.id for partition in described.partitions]
        firsts = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        topic_id = str(described.topic_id)
        return TopicView(
            look=self.looks,
            absences=self.absences,
            topic_id=None if topic_id == NO_TOPIC_ID else topic_id,
            cluster_id=self._look_at_cluster(),
            partitions=len(partitions),
            bounds={each: (firsts[each], ends[each]) for each in partitions if each in firsts and each in ends},
        )

    def _look_at_cluster(self) -> str | None:
        if self._cluster_id is None:
            with suppress(KafkaException):  # not every broker tells everyone
                cluster = self._result(self._admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S))
                self._cluster_id = cluster.cluster_id
        return self._cluster_id

    def _offsets(self, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        asked = self._admin.list_offsets(
            {TopicPartition(self._config.topic, partition): spec for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        found = {}
        for partition, future in asked.items():
            try:
                found[partition.partition] = self._result(future).offset
            except KafkaException as error:
                _LOG.warning("offsets of partition %d: %s", partition.partition, error.args[0].str())
        return found

    def _result(self, future: Future[Result]) -> Result:
        """The future's result; gives up when the watcher is stopped."""
        while not self._stopping:
            try:
                return future.result(STOP_CHECK_S)
            except FutureTimeoutError:
                if future.done():
                    raise
        raise FutureTimeoutError

    def _say(self, error: Exception) -> None:
        """Logs why the topic cannot be seen: at once, then now and then."""
        if self._stopping:
            return
        problem = error.args[0].str() if isinstance(error, KafkaException) else "timed out"
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self.absences += 1
        now = self._clock()
        if problem != self._problem or self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S:
            _LOG.warning("waiting for topic %s at %s: %s", self._config.topic, self._config.bootstrap_servers, problem)
            self._logged_at = now
        self._problem = problem
        self._on_problem(problem)
