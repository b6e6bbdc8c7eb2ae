"""The order of events, without a broker: however records arrive, what goes to the engine is the same merge."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ingest.merge import Lane, take


@dataclass(frozen=True)
class Record:
    """A record as the client gives it, as far as merging looks."""

    partition_: int
    offset_: int
    timestamp_: int
    value_: bytes = b"12345"

    def offset(self) -> int:
        return self.offset_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.timestamp_

    def value(self) -> bytes:
        return self.value_


def lanes_of(ends: list[int]) -> dict[int, Lane]:
    return {partition: Lane(partition, 0, end, False) for partition, end in enumerate(ends)}


def taken(lanes: dict[int, Lane], events_max: int = 100, bytes_max: int = 10**6) -> list[tuple[int, int]]:
    records, _ = take(lanes, events_max, bytes_max)
    return [(record.partition_, record.offset_) for record in records]  # type: ignore[attr-defined]


def test_the_oldest_head_goes_first_and_a_partition_keeps_its_order() -> None:
    lanes = lanes_of([3, 2])
    for arrival, (partition, offset, timestamp) in enumerate(
        [(0, 0, 50), (0, 1, 10), (0, 2, 70), (1, 0, 20), (1, 1, 60)]
    ):
        lanes[partition].push(Record(partition, offset, timestamp), arrival)
    assert taken(lanes) == [(1, 0), (0, 0), (0, 1), (1, 1), (0, 2)]


def test_a_partition_of_which_nothing_came_holds_up_the_others_until_its_end_is_known() -> None:
    lanes = lanes_of([1, 5])
    lanes[0].push(Record(0, 0, 10), 1)
    assert taken(lanes) == []
    lanes[1].read = 5  # its end was reached: there were only markers
    records, positions = take(lanes, 100, 100)
    assert len(records) == 1
    assert positions == {0: 1, 1: 5}
    assert take(lanes, 100, 100) == ([], {})


def test_what_was_sent_after_the_start_comes_after_all_that_was_there() -> None:
    lanes = lanes_of([1, 1])
    lanes[0].push(Record(0, 0, 900), 1)
    lanes[0].push(Record(0, 1, 1), 2)  # its clock is wrong, and it was not there at start
    assert taken(lanes) == []
    lanes[1].push(Record(1, 0, 800), 3)
    assert taken(lanes) == [(1, 0), (0, 0)]
    assert taken(lanes) == [(0, 1)]


def test_after_catching_up_records_go_as_they_arrived() -> None:
    lanes = lanes_of([0, 0])
    for arrival, (partition, offset, timestamp) in enumerate([(1, 0, 9), (0, 0, 5), (1, 1, 1)]):
        lanes[partition].push(Record(partition, offset, timestamp), arrival)
    assert taken(lanes) == [(1, 0), (0, 0), (1, 1)]


def test_a_held_partition_gives_what_it_has_and_holds_up_nobody() -> None:
    lanes = lanes_of([9, 2])
    lanes[0].push(Record(0, 0, 5), 1)
    lanes[0].held = True
    lanes[1].push(Record(1, 0, 9), 2)
    lanes[1].push(Record(1, 1, 9), 3)
    assert taken(lanes) == [(0, 0), (1, 0), (1, 1)]
    assert lanes[0].position == 1


def test_batches_are_bounded_and_a_large_record_goes_alone() -> None:
    lanes = lanes_of([4])
    for offset in range(4):
        lanes[0].push(Record(0, offset, offset, b"x" * 60), offset)
    assert taken(lanes, events_max=1) == [(0, 0)]
    assert taken(lanes, bytes_max=130) == [(0, 1), (0, 2)]
    assert taken(lanes, bytes_max=10) == [(0, 3)]


def test_what_is_forgotten_is_read_again() -> None:
    lanes = lanes_of([0])
    lanes[0].push(Record(0, 0, 1), 1)
    take(lanes, 100, 100)
    lanes[0].push(Record(0, 1, 1), 2)
    lanes[0].forget()
    assert (lanes[0].read, lanes[0].position, lanes[0].bytes, lanes[0].records) == (1, 1, 0, type(lanes[0].records)())


PARTITIONS = st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=4)  # timestamps by offset


@given(PARTITIONS, st.data())
def test_any_arrival_gives_the_same_merge(partitions: list[list[int]], data: st.DataObject) -> None:
    """Against a plain merge of whole partitions. Some partitions end in a marker, which only the end's event passes."""
    marked = [data.draw(st.booleans()) for _ in partitions]
    lanes = lanes_of([len(times) + marker for times, marker in zip(partitions, marked, strict=True)])
    to_come = {partition: list(enumerate(times)) for partition, times in enumerate(partitions)}
    result = []
    for arrival in range(sum(map(len, partitions)) + len(partitions)):
        partition = data.draw(st.sampled_from(sorted(to_come)))
        if to_come[partition]:
            offset, timestamp = to_come[partition].pop(0)
            lanes[partition].push(Record(partition, offset, timestamp), arrival)
        else:
            lanes[partition].read = lanes[partition].end_at_start
            del to_come[partition]
        if data.draw(st.booleans()) or not to_come:
            while step := taken(lanes, events_max=data.draw(st.integers(1, 5))):
                result += step
    heads = [0] * len(partitions)
    expected = []
    while any(head < len(times) for head, times in zip(heads, partitions, strict=True)):
        timestamp, partition = min(
            (times[head], number)
            for number, (head, times) in enumerate(zip(heads, partitions, strict=True))
            if head < len(times)
        )
        expected.append((partition, heads[partition]))
        heads[partition] += 1
    assert result == expected
    assert [lane.position for lane in lanes.values()] == [lane.end_at_start for lane in lanes.values()]
