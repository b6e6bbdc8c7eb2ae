"""Ad events from JSON lines to the topic, keyed by ad id: what `mirach produce` does.

A line is one event as the contract has it. Only its outer shape is checked here (a JSON object with type and ad_id);
the service says what else is wrong, in the dead-letter topic, and `mirach check` does so offline. There is no line for
a tombstone: an event of type expire does the same. The partitioner is that of Kafka's Java clients, so that an ad's
events stay together whoever sends them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from gpu_index.invalid_input import InvalidInput
from ingest.clients import new_producer
from ingest.config import IngestConfig
from ingest.envelope import check_ad_id, read_envelope

IN_FLIGHT_MAX = 10_000
FLUSH_S = 60.0  # without a single delivery report for this long, it has failed
POLL_S = 0.1

Clock = Callable[[], float]
OnProgress = Callable[[int], None]

PRODUCE_PROPERTIES = {
    "enable.idempotence": "true",  # a retry neither doubles an event nor lets a later one pass it
    "partitioner": "murmur2_random",
    "linger.ms": "20",
    "batch.size": "1000000",
}


class ProduceError(Exception):
    """A line is no event, or the topic did not take one; the message says which and what to do."""


def produce(
    lines: Iterable[bytes | str],
    config: IngestConfig,
    on_progress: OnProgress = lambda _count: None,
    clock: Clock = time.monotonic,
) -> dict[int, int]:
    """Sends every line that is not blank and waits until all are delivered. Returns the last offset of each partition
    that got one. `on_progress` is told how many are delivered. At the first bad line nothing further is sent, what
    went before is delivered, and ProduceError is raised."""
    sending = _Sending(config, on_progress, clock)
    try:
        for number, line in enumerate(lines, 1):
            raw = line.encode() if isinstance(line, str) else bytes(line)
            value = raw.strip()
            if value:
                sending.send(_key(value, number), value)
    finally:
        sending.finish()
    return sending.last_offsets


def _key(value: bytes, number: int) -> bytes:
    try:
        envelope = read_envelope(value)
        key = envelope.ad_id.encode()
        check_ad_id(envelope.ad_id, key)
    except InvalidInput as error:
        raise ProduceError(f"line {number}: {error}; the lines before it were sent") from None
    return key


class _Sending:
    """A producer with a bounded number of events on their way."""

    def __init__(self, config: IngestConfig, on_progress: OnProgress, clock: Clock) -> None:
        self._topic = config.topic
        self._on_progress = on_progress
        self._clock = clock
        self._in_flight = 0
        self._delivered_count = 0
        self._problem: str | None = None
        self.last_offsets: dict[int, int] = {}
        self._producer: Producer = new_producer(config, self._on_error, PRODUCE_PROPERTIES)

    def send(self, key: bytes, value: bytes) -> None:
        self._wait(IN_FLIGHT_MAX - 1)
        try:
            self._producer.produce(self._topic, key=key, value=value, on_delivery=self._delivered)
        except KafkaException as error:
            raise ProduceError(f"topic {self._topic}: {error.args[0].str()}") from None
        self._in_flight += 1
        self._producer.poll(0)

    def finish(self) -> None:
        self._wait(0)

    def _wait(self, in_flight_max: int) -> None:
        """Takes delivery reports until no more than this are on their way."""
        seen, deadline = self._delivered_count, self._clock() + FLUSH_S
        while self._in_flight > in_flight_max and self._problem is None:
            self._producer.poll(POLL_S)
            if self._delivered_count != seen:
                seen, deadline = self._delivered_count, self._clock() + FLUSH_S
            elif self._clock() >= deadline:
                self._problem = "no event was acknowledged for a minute"
        if self._problem is not None:
            self._producer.purge()
            self._producer.poll(0)
            raise ProduceError(f"topic {self._topic}: {self._problem}; {self._delivered_count} events were delivered")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._in_flight -= 1
        if error is not None:
            self._problem = self._problem or error.str()
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._delivered_count += 1
        self.last_offsets[partition] = max(offset, self.last_offsets.get(partition, -1))
        self._on_progress(self._delivered_count)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._problem = error.str()
