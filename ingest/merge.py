"""In which order events go to the engine.

While catching up, records below the ends that the partitions had at start are merged by record timestamp: always the
partition whose next record is the oldest, so that a topic which was given more partitions replays in order. A
partition of which nothing has arrived yet holds the others up until it has a record or turns out to have none below
its end (an end-of-partition event passes transaction markers). The ends are frozen at start, so this takes bounded
time however much is produced meanwhile. Records behind the ends come after all of that, as they arrive.
"""

from __future__ import annotations

import heapq
from collections import deque

from confluent_kafka import Message


class Lane:
    """One partition on its way to the engine."""

    __slots__ = (
        "anchored",
        "bytes",
        "end_at_start",
        "held",
        "lost_at_look",
        "partition",
        "paused",
        "read",
        "records",
        "told",
    )

    def __init__(self, partition: int, start: int, end_at_start: int, anchored: bool) -> None:
        """`start`: the first offset to read. `end_at_start`: where the partition ended when it was taken up.
        `anchored`: offsets before `start` are in the index, so that a later first offset would be a gap."""
        self.partition = partition
        self.read = start  # the next offset to receive; markers that were passed are behind it
        self.end_at_start = end_at_start
        self.anchored = anchored
        self.records: deque[tuple[int, Message]] = (
            deque()
        )  # received, not yet handed on; with the number of the arrival
        self.bytes = 0  # of `records`
        self.told = start  # the position that the engine was last told
        self.paused = False
        self.held = False  # not read any more: offsets were lost
        # the broker does not have the offset to read next: found when this many looks at the topic had begun
        self.lost_at_look: int | None = None

    @property
    def position(self) -> int:
        """The next offset to hand on."""
        return _offset(self.records[0][1]) if self.records else self.read

    @property
    def behind(self) -> bool:
        return self.position < self.end_at_start and (bool(self.records) or not self.held)

    def push(self, message: Message, arrival: int) -> None:
        self.records.append((arrival, message))
        self.bytes += record_bytes(message)
        self.read = _offset(message) + 1
        self.anchored = True

    def pop(self) -> Message:
        message = self.records.popleft()[1]
        self.bytes -= record_bytes(message)
        return message

    def forget(self) -> None:
        """Drops what was not handed on; it would be read again from here."""
        self.records.clear()
        self.bytes = 0
        self.read = self.told

    def order(self, catching_up: bool) -> tuple[int, int, Lane]:
        """What decides whose record is next: the record's timestamp, or when it arrived."""
        arrival, message = self.records[0]
        return message.timestamp()[1] if catching_up else arrival, self.partition, self


def record_bytes(message: Message) -> int:
    value = message.value()
    return 0 if value is None else len(value)


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def take(lanes: dict[int, Lane], events_max: int, bytes_max: int) -> tuple[list[Message], dict[int, int]]:
    """The next records for the engine, at least one if any may go, and the positions that changed since the last
    call (partition -> next offset)."""
    behind = [lane for lane in lanes.values() if lane.behind]
    records: list[Message] = []
    if all(lane.records for lane in behind):
        _merge(behind or list(lanes.values()), bool(behind), records, events_max, bytes_max)
    positions = {}
    for partition, lane in lanes.items():
        position = lane.position
        if position != lane.told:
            positions[partition] = lane.told = position
    return records, positions


def _merge(lanes: list[Lane], catching_up: bool, records: list[Message], events_max: int, bytes_max: int) -> None:
    """Moves records over, oldest first, until a bound is reached or the order of what follows is not known yet."""
    heap = [lane.order(catching_up) for lane in lanes if lane.records]
    heapq.heapify(heap)
    bytes_left = bytes_max
    while heap and len(records) < events_max:
        lane = heap[0][2]
        bytes_left -= record_bytes(lane.records[0][1])
        if bytes_left < 0 and records:
            return
        records.append(lane.pop())
        if catching_up and lane.position >= lane.end_at_start:
            heapq.heappop(heap)  # what else it has comes after all of the others
        elif lane.records:
            heapq.heapreplace(heap, lane.order(catching_up))
        elif catching_up and not lane.held:
            return  # its next record may be older than any of the others
        else:
            heapq.heappop(heap)
