"""The log, the dead-letter topic and the group's commits, as they lie at the broker; clients.py reaches them.

An offset holds a record or nothing: a transaction's marker, or a record of an aborted one. Reading goes up to the first
offset of a transaction in progress. Retention moves where a partition begins. What the topic held stays known here, so
that the truth can be folded from it.
"""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


class Partition:
    def __init__(self) -> None:
        self.entries: list[Record | None] = []  # [offset], removed ones too; None: a marker, an aborted record
        self.begins_at = 0
        self.open_at: int | None = None  # first offset of a transaction in progress

    @property
    def end(self) -> int:
        """Where reading of committed records ends."""
        return len(self.entries) if self.open_at is None else self.open_at

    def close(self, commit: bool) -> None:
        """Ends the transaction in progress with a marker."""
        if self.open_at is not None:
            if not commit:
                self.entries[self.open_at :] = [None] * (len(self.entries) - self.open_at)
            self.entries.append(None)
            self.open_at = None


class Topic:
    def __init__(self, name: str, partitions: int) -> None:
        self.id = name
        self.partitions = [Partition() for _ in range(partitions)]


class Letter(NamedTuple):
    """A record of the dead-letter topic."""

    partition: int  # where the bad event lies
    offset: int
    key: bytes | None
    value: bytes | None


class Broker:
    def __init__(self, partitions: int) -> None:
        self.topics_made = 0
        self.topic: Topic | None = None
        self.make_topic(partitions)
        self.letters: list[Letter] = []
        self.committed: dict[int, tuple[int, str]] = {}  # partition -> offset, metadata
        # what is wrong with it
        self.writable = True  # the dead-letter topic
        self.slow: set[int] = set()  # partitions of which nothing is sent now
        self.leaderless: set[int] = set()
        self.loss = 0.0  # how often an answer is lost

    def make_topic(self, partitions: int) -> None:
        self.topics_made += 1
        self.topic = Topic(f"topic-{self.topics_made}", partitions)

    def add_partition(self) -> None:
        assert self.topic is not None
        self.topic.partitions.append(Partition())

    def heal(self) -> None:
        self.writable, self.loss = True, 0.0
        self.slow.clear()
        self.leaderless.clear()
        if self.topic is not None:
            for partition in self.topic.partitions:
                partition.close(commit=True)
