"""What ingest has done and how far it is, for readiness, /v1/admin/ingest and the metrics. Any thread may ask."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from gpu_index.events import AdEvent, Outcome
from ingest.histogram import Histogram

GAPS_MAX = 100  # kept; of those that were accepted, older ones are only counted

GapKind = Literal["removed", "ahead", "replaced"]


class Gap(msgspec.Struct, frozen=True):
    """Offsets of a partition that cannot be read any more. `removed`: retention or a delete-records took them.
    `ahead`: the partition ends before the offset to read next. `replaced`: the topic was deleted and made again."""

    partition: int
    kind: GapKind
    first: int  # the offset that was to be read next
    next: int | None  # where reading goes on; None: nowhere
    refused: bool
    detail: str


class InUse(NamedTuple):
    """A bound, and how much of it is in use."""

    in_use: int
    limit: int


class PartitionState(msgspec.Struct):
    begins_at: int  # the partition's first offset when it was taken up
    start: int  # the first offset that this service was to read
    end_at_start: int
    fresh_from: int  # events from here on count for freshness; those before were waiting when it was taken up
    position: int  # the next offset to apply
    end: int
    safe: int  # commits and snapshots may go up to here
    held: bool = False

    @property
    def lag(self) -> int:
        return max(0, self.end - self.position)


class Progress(msgspec.Struct, frozen=True):
    """How far the index is from where the topic ended at start."""

    ready: bool
    detail: str
    partitions: dict[str, dict[str, int]]  # partition -> position, end_at_start


class Statistics:
    def __init__(self, topic: str) -> None:
        self._lock = threading.Lock()
        self._topic = topic
        self._topic_id: str | None = None
        self._partition_count: int | None = None  # of the topic; None until it was seen
        self._partitions: dict[int, PartitionState] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._faults: Counter[str] = Counter()
        self._gaps: list[Gap] = []
        self._gap_count = 0
        self.limits: Callable[[], dict[str, InUse]] = dict  # Ingest.limits, once there is one
        self._bytes = 0
        self._dead_letters = {"sent": 0, "pending": 0, "already_sent": 0}
        self._caught_up = False
        self._problems: dict[str, str] = {}
        self._failure: str | None = None
        self._event_time = Histogram()
        self._produce_time = Histogram()
        self._now_us = 0

    def topic_seen(self, topic_id: str | None, partitions: int) -> None:
        with self._lock:
            self._topic_id, self._partition_count = topic_id, partitions

    def partition_taken_up(self, partition: int, state: PartitionState) -> None:
        with self._lock:
            self._partitions[partition] = state
            self._caught_up = self._caught_up or self._has_caught_up()

    def gap_found(self, gap: Gap) -> None:
        with self._lock:
            self._gap_count += 1
            self._gaps.append(gap)
            accepted = [each for each in self._gaps if not each.refused]
            if len(accepted) > GAPS_MAX:
                self._gaps.remove(accepted[0])
            self._partitions[gap.partition].held |= gap.refused

    def bytes_received(self, count: int) -> None:
        with self._lock:
            self._bytes += count

    def applied(
        self,
        events: Sequence[AdEvent],
        outcomes: Sequence[Outcome],
        faults: Sequence[str],
        positions: Mapping[int, int],
        now_us: int,
    ) -> None:
        """A batch is in the index. `faults`: codes of its bad events. `now_us`: when queries began to see it."""
        with self._lock:
            self._outcomes.update(outcomes)
            self._faults.update(faults)
            self._record_freshness(events, outcomes, now_us)
            for partition, position in positions.items():
                self._partitions[partition].position = position
            self._caught_up = self._caught_up or self._has_caught_up()

    def _record_freshness(self, events: Sequence[AdEvent], outcomes: Sequence[Outcome], now_us: int) -> None:
        self._now_us = now_us
        fresh_from = {partition: state.fresh_from for partition, state in self._partitions.items()}
        fresh = [
            event
            for event, outcome in zip(events, outcomes, strict=True)
            if outcome is Outcome.APPLIED and event.offset >= fresh_from[event.partition]
        ]
        if not fresh:
            return
        produced_us = np.array([event.timestamp_ms for event in fresh], np.int64) * 1000
        self._produce_time.record(now_us - produced_us, now_us)
        happened_us = [event.event_time_us for event in fresh if event.event_time_us is not None]
        if happened_us:
            self._event_time.record(now_us - np.array(happened_us, np.int64), now_us)

    def _has_caught_up(self) -> bool:
        return len(self._partitions) == self._partition_count and all(
            state.position >= state.end_at_start for state in self._partitions.values()
        )

    def dead_letters(
        self, safe: Mapping[int, int], sent: int, pending: int, already_sent: int, problem: str | None
    ) -> None:
        """How many are where, why the last could not be sent, and which offsets are safe in consequence."""
        with self._lock:
            for partition, offset in safe.items():
                self._partitions[partition].safe = offset
            self._dead_letters = {"sent": sent, "pending": pending, "already_sent": already_sent}
        self.problem("dead_letters", problem)

    def ended(self, ends: Mapping[int, int]) -> None:
        """Where partitions end now."""
        with self._lock:
            for partition, end in ends.items():
                self._partitions[partition].end = end

    def problem(self, name: str, problem: str | None) -> None:
        """What is wrong with `topic`, `kafka` (the connection), `commit` or `dead_letters`; None: nothing now."""
        with self._lock:
            self._problems.pop(name, None)
            if problem is not None:
                self._problems[name] = problem

    def failed(self, failure: str) -> None:
        with self._lock:
            self._failure = failure
            self._problems["failure"] = failure

    @property
    def caught_up(self) -> bool:
        """Whether it has ever reached where the topic ended at start."""
        return self._caught_up

    @property
    def failure(self) -> str | None:
        """Why a thread of ingest ended; None while all of them run."""
        return self._failure

    def partitions(self) -> set[int]:
        """Those of the topic, as far as they are known."""
        with self._lock:
            return set(range(self._partition_count or 0)) | set(self._partitions)

    @property
    def gaps_kept(self) -> int:
        return len(self._gaps)

    def progress(self) -> Progress:
        with self._lock:
            refused = [gap for gap in self._gaps if gap.refused]
            ready = self._caught_up and not refused and self._failure is None
            partitions = {
                str(number): {"position": state.position, "end_at_start": state.end_at_start}
                for number, state in sorted(self._partitions.items())
            }
            return Progress(ready, "" if ready else self._detail(refused), partitions)

    def _detail(self, refused: Sequence[Gap]) -> str:
        if self._failure is not None:
            return f"reading events has ended: {self._failure}"
        if refused:
            return "; ".join(gap.detail for gap in refused)
        if self._partition_count is None:
            return f"waiting for topic {self._topic}: {self._problems.get('topic', 'it was not seen yet')}"
        left = sum(max(0, state.end_at_start - state.position) for state in self._partitions.values())
        missing = self._partition_count - len(self._partitions)
        without = f", {missing} partitions have no leader" if missing > 0 else ""
        return f"catching up, {left} offsets to go{without}"

    def histograms(self) -> dict[str, Histogram]:
        """By name: event_time and produce_time, each to searchable. Counts may be a batch apart."""
        return {"event_time": self._event_time, "produce_time": self._produce_time}

    def snapshot(self, now_us: int) -> dict[str, Any]:
        """All of it as JSON types. Positions and ends are offsets, durations milliseconds."""
        with self._lock:
            partitions = {
                str(number): {
                    "position": state.position,
                    "end": max(state.end, state.position),  # what fetches said may be older than what was applied
                    "lag": state.lag,
                    "safe": state.safe,
                    "begins_at": state.begins_at,
                    "start": state.start,
                    "end_at_start": state.end_at_start,
                    "held": state.held,
                }
                for number, state in sorted(self._partitions.items())
            }
            return {
                "topic": self._topic,
                "topic_id": self._topic_id,
                "caught_up": self._caught_up,
                "partitions": partitions,
                "lag": sum(state.lag for state in self._partitions.values()),
                "events": self._outcomes.total(),
                "bytes": self._bytes,
                "outcomes": {outcome.value: self._outcomes[outcome] for outcome in Outcome},
                "faults": dict(sorted(self._faults.items())),
                "dead_letters": self._dead_letters,
                "freshness": {
                    name: {
                        "p50_ms": histogram.recent_quantile_ms(0.5, now_us),
                        "p99_ms": histogram.recent_quantile_ms(0.99, now_us),
                        "count": histogram.count,
                    }
                    for name, histogram in self.histograms().items()
                },
                "gap_count": self._gap_count,
                "gaps": [msgspec.to_builtins(gap) for gap in self._gaps],
                "problems": dict(self._problems),
            }
