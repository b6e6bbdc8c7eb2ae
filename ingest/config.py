"""What ingest is told once, at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OnGap = Literal["refuse", "continue"]

_COMMITS = "an offset is committed only when its event is in the index or in the dead-letter topic"

# librdkafka properties that the guarantees of the contract rest on -> why a user cannot set them
OURS = {
    "bootstrap.servers": "it is the setting MIRACH_KAFKA_BOOTSTRAP_SERVERS",
    "group.id": "commits are made under a group of the service's own",
    "enable.auto.commit": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "enable.partition.eof": "the ends of partitions decide when the index has caught up",
    "isolation.level": "events of aborted transactions must not be served",
    "auto.offset.reset": "lost offsets are reported, never passed in silence",
    "acks": "a dead letter counts as sent when all replicas have it",
}


class IngestConfigError(Exception):
    """A setting cannot be used; the message names it."""


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    bootstrap_servers: str
    topic: str = "ad-events"
    dlq_topic: str = "ad-events-dlq"
    properties: Mapping[str, str] = field(default_factory=dict)  # librdkafka's, for every client, such as sasl.username
    group_id: str = "mirach"  # commits are made under it, for tools that show a lag; nothing else depends on it
    on_gap: OnGap = "refuse"
    batch_events_max: int = 1000  # handed to the engine at once: bounds how long a query waits for a batch
    batch_bytes_max: int = 4 << 20
    buffer_events_max: int = 10_000  # of one partition, received and not yet handed on
    buffer_bytes_max: int = 64 << 20  # of all partitions
    dead_letters_max: int = 10_000  # not yet in the dead-letter topic; then consumption pauses
    dead_letter_bytes_max: int = 64 << 20
    watch_interval_s: float = 10.0  # between looks at the topic's partitions; new ones are taken up within 30 s
    commit_interval_s: float = 1.0

    def __post_init__(self) -> None:
        """Raises IngestConfigError."""
        for name in self.properties:
            if name in OURS:
                raise IngestConfigError(f"the Kafka property {name} cannot be set: {OURS[name]}")
        if self.topic == self.dlq_topic:
            raise IngestConfigError(f"the topic and its dead-letter topic are both {self.topic}; give them two names")
        assert 0 < self.batch_events_max <= self.buffer_events_max, self
        assert 0 < self.batch_bytes_max <= self.buffer_bytes_max, self
        assert 0 < self.watch_interval_s <= 15, self  # with librdkafka's own look, 30 s for a new partition
        assert min(self.dead_letters_max, self.dead_letter_bytes_max) > 0, self
        assert self.on_gap in ("refuse", "continue"), self
