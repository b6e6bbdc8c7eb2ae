"""Bad events on their way to the dead-letter topic, each sent at least once (contract, section 3).

One thread adds and serves. What cannot be sent waits here and is tried again for as long as it takes: the topic may
be absent, without a leader, or refuse large records until its operator raises max.message.bytes. Meanwhile `full`
tells the consumer to pause, and `first_pending` keeps commits and snapshots from passing what was not sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gpu_index.events import Fault
from ingest.config import IngestConfig

RETRY_S = 1.0
LOG_INTERVAL_S = 30.0

_LOG = logging.getLogger("mirach.ingest")


class _Letter(msgspec.Struct, gc=False):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]

    bytes: int


def letter_bytes(message: Message) -> int:
    """What a record counts for while it waits to be a dead letter."""
    return len(message.key() or b"") + len(message.value() or b"")


class DeadLetters:
    def __init__(self, config: IngestConfig, producer: Producer, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._producer = producer
        self._clock = clock
        self._already_sent: dict[int, int] = {}  # partition -> offset that they were sent up to before this start
        self._pending: dict[int, dict[int, _Letter]] = {}  # partition -> offset -> letter, offsets ascending
        self._retries: list[_Letter] = []
        self._retry_at = 0.0
        self._logged_at: float | None = None
        self._closing = False
        self.pending = 0
        self.pending_bytes = 0
        self.sent = 0
        self.already_sent = 0  # not sent again at a replay
        self.problem: str | None = None  # why the last one could not be sent; None once one could

    def already_sent_below(self, offsets: Mapping[int, int]) -> None:
        """Dead letters below these offsets (by partition) were sent before this start, and are not sent again."""
        self._already_sent.update(offsets)

    def full(self, coming: int, coming_bytes: int) -> bool:
        """With so many to come, no more may be taken on. Any thread may ask."""
        config = self._config
        return (
            self.pending + coming >= config.dead_letters_max
            or self.pending_bytes + coming_bytes >= config.dead_letter_bytes_max
        )

    def first_pending(self, partition: int) -> int | None:
        """The lowest offset whose dead letter was not sent yet."""
        return next(iter(self._pending.get(partition, ())), None)

    def add(self, message: Message, fault: Fault) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if offset < self._already_sent.get(partition, 0):
            self.already_sent += 1
            return
        headers: list[tuple[str, str | bytes | None]] = [
            ("mirach-error", fault.code.encode()),
            ("mirach-detail", fault.detail.encode("utf-8", "backslashreplace")),
            ("mirach-topic", self._config.topic.encode()),
            ("mirach-partition", str(partition).encode()),
            ("mirach-offset", str(offset).encode()),
        ]
        letter = _Letter(partition, offset, message.key(), message.value(), headers, letter_bytes(message))
        self._pending.setdefault(partition, {})[offset] = letter
        self.pending += 1
        self.pending_bytes += letter.bytes
        self._send(letter)

    def serve(self, timeout_s: float) -> None:
        """Takes delivery reports, and sends again what failed a while ago."""
        self._producer.poll(timeout_s)
        if self._retries and self._clock() >= self._retry_at:
            retries, self._retries = self._retries, []
            for letter in retries:
                self._send(letter)

    def close(self) -> None:
        """What was not sent is left: its offsets were not passed, so that the next start sends it."""
        self._closing = True
        self._producer.purge()
        self._producer.poll(0)

    def _send(self, letter: _Letter) -> None:
        try:
            self._producer.produce(
                self._config.dlq_topic,
                key=letter.key,
                value=letter.value,
                headers=letter.headers,
                on_delivery=partial(self._delivered, letter),
            )
        except BufferError:
            self._again(letter, "the producer's queue is full")
        except KafkaException as error:
            self._again(letter, error.args[0].str())

    def _delivered(self, letter: _Letter, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._again(letter, error.str())
            return
        del self._pending[letter.partition][letter.offset]
        self.pending -= 1
        self.pending_bytes -= letter.bytes
        self.sent += 1
        if self.problem is not None:
            _LOG.info("dead letters are sent to %s again", self._config.dlq_topic)
            self.problem = self._logged_at = None

    def _again(self, letter: _Letter, problem: str) -> None:
        now = self._clock()
        self._retries.append(letter)
        self._retry_at = now + RETRY_S
        if not self._closing and (self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S):
            _LOG.warning(
                "%d dead letters wait, topic %s cannot be written: %s; commits and snapshots stop short of them",
                self.pending,
                self._config.dlq_topic,
                problem,
            )
            self._logged_at = now
        if not self._closing:
            self.problem = problem
