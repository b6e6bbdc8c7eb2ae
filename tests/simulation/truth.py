"""What the service must be: the fold of the log, by tests/plain.py, in the order that the contract promises.

Every batch that the reader hands on is held to the log: each partition in order, nothing passed over but what is
nothing (markers, aborted records) or a reported gap, and while catching up the partitions merged by record timestamp.
What is folded are the log's own records, each decoded afresh, so that no cache has a part in it. Outcomes of the fold
say which events are bad, and so which dead letters there must be, and may be.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpu_index.events import AdEvent, Batch, Outcome
from gpu_index.index import Index
from ingest.decode import Decoder
from ingest.statistics import Gap
from scoring.request import Answer, Request
from tests import random_cases as cases
from tests.plain import PlainIndex
from tests.simulation.broker import Broker, Letter, Topic
from tests.simulation.events import EVENT_BYTES_MAX
from tests.simulation.threads import Wrong
from tests.twins import DIM, EXPIRED_VERSIONS_S, GATE_DIM, Twins

DEAD = {Outcome.BAD, Outcome.UNKNOWN_AD, Outcome.INDEX_FULL}
Place = tuple[int, int]  # partition, offset


class Lane(NamedTuple):
    """A partition as the reader took it up."""

    end_at_start: int
    held: bool


def decoder() -> Decoder:
    return Decoder(cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, compile_meta=compile_meta, event_bytes_max=EVENT_BYTES_MAX)


def compile_meta(spec: Any) -> dict[str, object]:
    """In these tests a Meta spec is an expression, and means its opposite."""
    return {"not": spec}


class Truth:
    def __init__(self, broker: Broker, twins: Twins) -> None:
        self._broker = broker
        self.twins = twins
        self._decoded: dict[tuple[str, int, int], AdEvent] = {}
        self._ever_good: set[tuple[str, int, int]] = set()
        self.begin({}, [])

    def begin(self, offsets: Mapping[int, int], history: Sequence[Place]) -> None:
        """The service begins with what this history of the topic makes, and reads on from these offsets."""
        self.topic: Topic | None = self._broker.topic
        self.lost = False  # the topic is another one meanwhile: until a restart there is no truth
        self.lanes: dict[int, Lane] = {}
        self._anchored = set(offsets)
        self._next = dict(offsets)  # partition -> the next offset to be handed on
        self._ordered: list[Place] = list(history)
        self._positions = [(len(history), dict(offsets))]  # after each batch: how many were ordered, told positions
        self._folded = 0
        self.restored = len(history)
        self.outcomes: dict[Place, Outcome] = {}
        self.twins.plain = PlainIndex(
            cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=self.twins.index.precision,
            expired_versions_s=EXPIRED_VERSIONS_S, expired_max=self.twins.index.limits.expired,
        )  # fmt: skip
        self._fold_to(len(history))

    # What is handed on.

    def handed_on(self, batch: Batch, gaps: Sequence[Gap], lanes: Mapping[int, Lane]) -> None:
        """Holds a batch to the log; `lanes` as they were when it was put together."""
        if self.lost:
            return
        for event in batch.events:
            partition, offset = event.partition, event.offset
            if offset < self._next.get(partition, 0):
                raise Wrong(f"offset {offset} of partition {partition} is handed on again")
            self._check_passed(partition, offset, gaps)
            self._check_order(partition, offset, lanes)
            self._ordered.append((partition, offset))
            self._next[partition] = offset + 1
            self._anchored.add(partition)
        for partition, position in batch.positions.items():
            if position < self._next.get(partition, 0):
                raise Wrong(f"partition {partition} moves back to {position}")
            self._check_passed(partition, position, gaps)
            self._next[partition] = position
        self._positions.append((len(self._ordered), self._positions[-1][1] | batch.positions))

    def _entries(self, partition: int) -> list[Any]:
        assert self.topic is not None
        return self.topic.partitions[partition].entries

    def _check_passed(self, partition: int, stop: int, gaps: Sequence[Gap]) -> None:
        """What lies between is nothing, or was gone before anything of the partition was read, or is a reported gap."""
        assert self.topic is not None
        passed = range(self._next.get(partition, 0), stop)
        entries, begins_at = self._entries(partition), self.topic.partitions[partition].begins_at
        if stop > len(entries):
            raise Wrong(f"partition {partition} is told to stand at {stop} and ends at {len(entries)}")
        for offset in passed:
            if entries[offset] is None:
                continue
            if partition not in self._anchored and offset < begins_at:
                continue
            accepted = [gap for gap in gaps if gap.partition == partition and not gap.refused]
            if not any(gap.first <= offset < (gap.next or 0) for gap in accepted):
                raise Wrong(f"offset {offset} of partition {partition} is passed over")

    def _check_order(self, partition: int, offset: int, lanes: Mapping[int, Lane]) -> None:
        """While catching up, no other partition has an older record that is still to come."""
        record = self._entries(partition)[offset]
        if record is None:
            raise Wrong(f"offset {offset} of partition {partition} is no committed record")
        mine = record.timestamp_ms
        catching_up = offset < lanes[partition].end_at_start
        for number, lane in lanes.items():
            if number == partition or lane.held:
                continue
            head = self._head(number, lane.end_at_start)
            if head is None:
                continue
            if not catching_up:
                raise Wrong(f"offset {offset} of partition {partition} is new, and {number} is still catching up")
            if head < mine:
                raise Wrong(f"offset {offset} of partition {partition} comes before an older record of {number}")

    def _head(self, partition: int, end: int) -> int | None:
        """Timestamp of the next record of a partition below its end at start; None: none, or not known any more."""
        assert self.topic is not None
        entries = self._entries(partition)
        for offset in range(self._next.get(partition, 0), end):
            if entries[offset] is not None:
                gone = offset < self.topic.partitions[partition].begins_at
                return None if gone else entries[offset].timestamp_ms
        return None

    # What is applied.

    def fold(self, index: Index) -> None:
        """Makes the plain index what the index must be at its positions."""
        count = next((count for count, positions in self._positions if positions == index.positions), None)
        if count is None:
            raise Wrong(f"the index stands at {index.positions}, where no batch ended")
        self._positions = [each for each in self._positions if each[0] >= count]
        self._fold_to(count)
        self.twins.plain.positions = dict(index.positions)

    def _fold_to(self, count: int) -> None:
        if count < self._folded:
            raise Wrong("the index went back")
        for place in self._ordered[self._folded : count]:
            outcome = self.outcomes[place] = self.twins.plain.apply(self._event(place))
            if outcome not in DEAD:
                assert self.topic is not None
                self._ever_good.add((self.topic.id, *place))
        if count > self._folded:
            self.twins._scores = None
        self._folded = count

    def _event(self, place: Place) -> AdEvent:
        assert self.topic is not None
        name = (self.topic.id, *place)
        event = self._decoded.get(name)
        if event is None:
            record = self._entries(place[0])[place[1]]
            event = self._decoded[name] = decoder().decode(record.key, record.value, *place, record.timestamp_ms)
        return event

    def history(self, offsets: Mapping[int, int]) -> list[Place]:
        """All that an index with these positions has of the log, in the order in which it was applied."""
        return [place for place in self._ordered if place[1] < offsets.get(place[0], 0)]

    def counted(self) -> dict[str, int]:
        """Outcomes of what was applied since the start."""
        counts = dict.fromkeys((outcome.value for outcome in Outcome), 0)
        for place in self._ordered[self.restored : self._folded]:
            counts[self.outcomes[place].value] += 1
        return counts

    # What the product says and does.

    def check_answer(self, request: Request, answer: Answer, index: Index) -> None:
        self.fold(index)
        want = self.twins.plain.retrieve(request, index.now_us, self.twins._score)
        if (answer.eligible, answer.indexed) != (want.eligible, want.indexed):
            raise Wrong(
                f"{answer.eligible} of {answer.indexed} ads are eligible, not {want.eligible} of {want.indexed}"
            )
        if answer.results != want.results:
            raise Wrong(f"results {answer.results} are not {want.results}")
        if answer.offsets != want.offsets:
            raise Wrong(f"the answer says offsets {answer.offsets}, not {want.offsets}")

    def check_state(self, index: Index) -> None:
        """All that the index holds is what the fold holds."""
        self.fold(index)
        try:
            self.twins.check()
        except AssertionError as error:
            raise Wrong(f"the index is not the fold: {where(error)}") from error

    def missing_letters(self, offsets: Mapping[int, int]) -> list[Place]:
        """Bad events below these offsets that are not in the dead-letter topic. One that was good in another life, when
        partitions came in another order, may have been committed as such."""
        assert self.topic is not None
        there = set(self._broker.letters)
        return [
            place
            for place, outcome in self.outcomes.items()
            if outcome in DEAD and place[1] < offsets.get(place[0], 0)
            and self._letter(place) not in there and (self.topic.id, *place) not in self._ever_good
        ]  # fmt: skip

    def _letter(self, place: Place) -> Letter:
        record = self._entries(place[0])[place[1]]
        return Letter(*place, record.key, record.value)

    def check_letter(self, letter: Letter, index: Index) -> None:
        """Only what is bad goes to the dead-letter topic, as it was."""
        place = letter.partition, letter.offset
        self.fold(index)
        if self.outcomes.get(place) not in DEAD:
            raise Wrong(f"a dead letter of {place}, which is {self.outcomes.get(place)}")
        if letter != self._letter(place):
            raise Wrong(f"the dead letter of {place} is not its record")


def where(error: BaseException) -> str:
    """The error and the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).partition("\n")[0] or last.line
    return f"{type(error).__name__}: {text} ({last.filename.rpartition('/')[2]}:{last.lineno})"


def small_twins(r: random.Random, index: Index, ids: int) -> Twins:
    """Ids, shared targetings and users of one seed, and the comparison of an index with a plain one."""
    twins = Twins(r, ids=ids, targetings=6, depth=3)
    twins.index = index
    return twins
