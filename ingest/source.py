"""Ingest as a whole: what the service starts, asks and stops. Three threads (the consumer, the accounting, the topic
watcher) and librdkafka's own lie behind it; the engine is reached through `sink` alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from confluent_kafka import KafkaError

from gpu_index.schema import Schema
from ingest.accounting import BATCHES_MAX, Accounting
from ingest.clients import Clients, OnCommit, OnError, connect
from ingest.commits import Commits
from ingest.config import IngestConfig
from ingest.consumer import CONSUME_MAX, RECEIVED_BYTES_MAX, Reader, Sink
from ingest.dead_letters import DeadLetters
from ingest.decode import Decoder
from ingest.statistics import GAPS_MAX, InUse, Progress, Statistics
from ingest.watch import TopicView, TopicWatcher

COMMIT_WAIT_S = 2.0  # at the end, for the last commit
CLOSE_WAIT_S = 3.0
POLL_S = 0.05

_LOG = logging.getLogger("mirach.ingest")


class Ingest:
    def __init__(
        self,
        config: IngestConfig,
        schema: Schema,
        decoder: Decoder,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
        *,
        connect: Callable[[IngestConfig, OnError, OnCommit], Clients] = connect,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """`sink(batch, timeout_s) -> bool` takes a batch for the engine; False: no room within that time, it is offered
        again. Batches without events move positions. `connect` and `thread` make the clients and the threads: others
        in tests/simulation. Raises IngestConfigError."""
        self._config = config
        self.statistics = Statistics(config.topic)
        clients = connect(config, self._on_error, lambda error, partitions: self._commits.on_commit(error, partitions))
        self._consumer = clients.consumer
        self._commits = Commits(config, clients.consumer, self.statistics, clock)
        self._dead_letters = DeadLetters(config, clients.producer, clock)
        self._watcher = TopicWatcher(config, clients.admin, self._on_topic_problem, clock, thread)
        self._accounting = Accounting(self._dead_letters, self.statistics, clock, thread)
        self._reader = Reader(
            config,
            clients.consumer,
            self._watcher,
            decoder,
            self._commits,
            self._accounting,
            self._dead_letters,
            self.statistics,
            sink,
            schema.fingerprint,
            thread,
        )
        self.statistics.limits = self.limits
        self._clock, self._new_thread = clock, thread
        self._watching = False

    def look(self, timeout_s: float) -> TopicView | None:
        """The topic as it is now; None if it was not there within this time. To compare a snapshot's topic id and
        offsets with before `start`."""
        if not self._watching:
            self._watching = True
            self._watcher.start()
        return self._watcher.wait(timeout_s)

    def look_again(self) -> Future[TopicView | None]:
        """The topic as a look sees it that begins after this call; None where it sees nothing. Not to be cancelled."""
        return self._watcher.look_again()

    def limits(self) -> dict[str, InUse]:
        """What ingest holds at most, and holds now, by the names of docs/operations.md."""
        config, letters = self._config, self._dead_letters
        lane_events, lane_bytes = self._reader.waiting()
        return {
            "lane_events": InUse(lane_events, config.buffer_events_max + CONSUME_MAX),
            "lane_bytes": InUse(lane_bytes, self._reader.bytes_max + RECEIVED_BYTES_MAX),
            "batches": InUse(self._accounting.batches, BATCHES_MAX),
            "dead_letters": InUse(letters.pending, config.dead_letters_max + config.batch_events_max),
            "dead_letter_bytes": InUse(letters.pending_bytes, config.dead_letter_bytes_max + config.batch_bytes_max),
            "gaps": InUse(self.statistics.gaps_kept, GAPS_MAX),
        }

    def start(self, start_offsets: Mapping[int, int] | None = None, topic_id: str | None = None) -> None:
        """Reads on from these offsets (partition -> the next one to read); partitions not named, and all without,
        from their beginning. Waits for nothing: a topic that is not there yet is waited for in the background.
        `topic_id`: of the topic that the offsets are of; one with another id is not read."""
        self.look(0)
        self._accounting.start()
        self._reader.start(start_offsets or {}, topic_id)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Reads no more; then, for at most this long, waits for the engine to apply what it has (so it must still be
        running), sends the dead letters and commits. What is left is read again by the next start."""
        self._reader.stop()
        self._accounting.stop(timeout_s)
        self._watcher.stop()
        self._commit_finally()
        self._dead_letters.close()
        self._close_consumer()

    def _commit_finally(self) -> None:
        safe = self.safe_positions()
        self._commits.commit(safe, self._reader.identity)
        deadline = self._clock() + COMMIT_WAIT_S
        while not self._commits.confirmed(safe) and self._clock() < deadline:
            self._consumer.poll(POLL_S)

    def _close_consumer(self) -> None:
        """Without a broker, closing waits a minute for commits that nobody will answer: the process need not."""
        closing = self._new_thread(target=self._consumer.close, name="mirach-consumer-close", daemon=True)
        closing.start()
        closing.join(CLOSE_WAIT_S)
        if closing.is_alive():
            _LOG.warning("the Kafka consumer does not close, no broker answers; left to the end of the process")

    @property
    def ready(self) -> bool:
        """Caught up with where the topic ended at start, with no offsets lost that were not accepted."""
        return self.progress().ready

    @property
    def failure(self) -> str | None:
        """Why reading has ended by itself: a fault of ours or a fatal one of the client. The process should end."""
        return self.statistics.failure

    def progress(self) -> Progress:
        return self.statistics.progress()

    def partitions(self) -> set[int]:
        """Those that the topic has, as far as is known."""
        return self.statistics.partitions()

    def safe_positions(self) -> dict[int, int]:
        """Partition -> the offset that a snapshot may go up to: all before it is in the index or in the dead-letter
        topic."""
        return self._accounting.safe_positions()

    def wait_safe(self, positions: Mapping[int, int], timeout_s: float) -> bool:
        """Whether a snapshot at these positions may be written, waiting for it at most this long."""
        return self._accounting.wait_safe(positions, timeout_s)

    def _on_error(self, error: KafkaError) -> None:
        self.statistics.problem("kafka", error.str())

    def _on_topic_problem(self, problem: str | None) -> None:
        self.statistics.problem("topic", problem)
        if problem is None:
            self.statistics.problem("kafka", None)
