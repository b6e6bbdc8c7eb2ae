"""librdkafka clients, configured: the user's properties, ours, and defaults that either may rest on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ingest.config import IngestConfig, IngestConfigError

REPEAT_S = 30.0  # a client that cannot connect says so many times a second

_LOG = logging.getLogger("mirach.kafka")

DEFAULTS = {
    "client.id": "mirach",
    "log.connection.close": "false",  # brokers close idle connections
    "reconnect.backoff.max.ms": "2000",  # after a broker's restart events should not wait longer
    "topic.metadata.refresh.interval.ms": "5000",
}
CONSUMER_DEFAULTS = {
    "fetch.wait.max.ms": "100",  # how long a broker with nothing new holds a fetch, and so the end of a partition
    "fetch.queue.backoff.ms": "20",
    "fetch.error.backoff.ms": "100",
    "queued.min.messages": "20000",
    "queued.max.messages.kbytes": "8192",  # what a pause throws away and fetches again
}
PRODUCER_DEFAULTS = {
    "linger.ms": "5",
    "batch.size": "100000",  # small, so that a topic with a small max.message.bytes refuses single events, not batches
    "compression.type": "lz4",
    "message.max.bytes": "1000000000",  # the broker decides
    "message.timeout.ms": "30000",
    "topic.metadata.propagation.max.ms": "2000",
}

Client = TypeVar("Client")
OnError = Callable[[KafkaError], None]
OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]


class Clients(NamedTuple):
    """What reads the topic, writes the dead-letter topic, and looks at topics."""

    consumer: Consumer
    producer: Producer
    admin: AdminClient


class _Repeats(logging.Filter):
    """Lets what one client has to say of its connections through now and then. librdkafka logs a facility, the
    client's name and a text; the text of a failed connection differs each time."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at: dict[object, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        facility = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if facility not in ("FAIL", "ERROR"):
            return True
        said_at = self._said_at.get(record.args[:2])  # type: ignore[index]
        if said_at is not None and 0 <= record.created - said_at < REPEAT_S:
            return False
        self._said_at[record.args[:2]] = record.created  # type: ignore[index]
        return True


_LOG.addFilter(_Repeats())


def connect(config: IngestConfig, on_error: OnError, on_commit: OnCommit) -> Clients:
    """Raises IngestConfigError."""
    return Clients(
        new_consumer(config, on_error, on_commit), new_producer(config, on_error), new_admin(config, on_error)
    )


def new_consumer(config: IngestConfig, on_error: OnError, on_commit: OnCommit) -> Consumer:
    """Reads committed events only, commits nothing by itself, and never chooses an offset. Raises IngestConfigError."""
    properties = _chosen(config, CONSUMER_DEFAULTS)
    properties |= {
        "bootstrap.servers": config.bootstrap_servers,
        "group.id": config.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "error_cb": on_error,
        "on_commit": on_commit,
    }
    return _new(Consumer, properties)


def new_producer(config: IngestConfig, on_error: OnError, defaults: Mapping[str, str] = PRODUCER_DEFAULTS) -> Producer:
    """`defaults`: more of them, or others. Raises IngestConfigError."""
    properties = _chosen(config, {**PRODUCER_DEFAULTS, **defaults})
    properties |= {"bootstrap.servers": config.bootstrap_servers, "acks": "all", "error_cb": on_error}
    return _new(Producer, properties)


def new_admin(config: IngestConfig, on_error: OnError) -> AdminClient:
    """Raises IngestConfigError."""
    properties = _chosen(config, {})
    properties |= {"bootstrap.servers": config.bootstrap_servers, "error_cb": on_error}
    return _new(AdminClient, properties)


def _chosen(config: IngestConfig, defaults: dict[str, str]) -> dict[str, object]:
    return {**DEFAULTS, **defaults, **config.properties}


def _new(kind: Callable[..., Client], properties: dict[str, object]) -> Client:
    try:
        return kind(properties, logger=_LOG)
    except KafkaException as error:
        raise IngestConfigError(f"Kafka properties: {error.args[0].str()}") from None
