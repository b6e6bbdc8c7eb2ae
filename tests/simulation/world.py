"""A seed's world: the log and those who write to it, the process with its lives, and what befalls either.

`run` draws actions one after another, from weights that the seed draws too, so that some worlds are quiet and some are
nothing but crashes. Then everything is mended, the service must catch up, and all of it is held to the truth; then it
is started once more, and must come to the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from zlib import crc32

from api.engine import QueueFull
from gpu_index.store import PART, SNAPSHOTS
from tests.disks import Crash, MemoryDisk
from tests.simulation.broker import Broker
from tests.simulation.disk import SimulatedDisk
from tests.simulation.events import Events
from tests.simulation.service import LIMITS, Outside, Service, Settings, new_index
from tests.simulation.settle import settle
from tests.simulation.threads import Clock, Wrong
from tests.simulation.truth import Truth, small_twins
from tests.twins import START_US

WEIGHTS = {
    "turn": 40, "turns": 12, "produce": 16, "ask": 6, "snapshot": 4, "time": 6, "check": 2,
    "stop": 1, "crash": 1, "crash_at_seam": 1.5, "crash_at_disk": 2.5,
    "set_clock": 1, "letters_fail": 2, "slow": 2, "lose": 1, "leader": 0.5, "transaction": 2, "partitions": 0.7,
    "topic_again": 0.25, "retention": 1, "lose_records": 0.25, "disk_full": 0.7, "flip": 0.5, "child": 0.4,
}  # fmt: skip
OUTSIDE = (  # what may happen while there is no process
    "produce", "time", "set_clock", "letters_fail", "slow", "transaction", "partitions", "topic_again", "retention",
    "flip",
)  # fmt: skip
ALWAYS = ("turn", "turns", "produce", "ask", "snapshot", "time", "check")


class World:
    def __init__(self, seed: int, say: Callable[[str], None] = lambda _: None) -> None:
        self.r = r = random.Random(seed)
        self.say = say
        self.clock = Clock(START_US)
        self.broker = Broker(r.choice([1, 1, 2, 3]))
        self.settings = self._settings()
        twins = small_twins(r, new_index(self.settings), r.choice([3, 6, 12]))
        self.events = Events(r, twins.ids, twins.raws)
        self.twins = twins
        truth = Truth(self.broker, twins)
        self.outside = Outside(r, self.clock, self.broker, truth, self.say_, self._meanwhile)
        self._watch_disk()
        self.weights = {
            name: weight * (1 if name in ALWAYS else r.choice([0, 0.3, 1, 4])) for name, weight in WEIGHTS.items()
        }
        self.service: Service | None = None
        self.mended = False  # nothing happens any more but what the service does
        self._crash_at_disk: int | None = None  # after so many more operations of this kind
        self._crash_kind = ""
        self._last: object = None  # what the service showed as its last snapshot

    def _settings(self) -> Settings:
        r = self.r
        batch = r.choice([1, 3, 8])
        return Settings(
            on_gap=r.choice(["refuse", "continue"]), batch_events_max=batch,
            buffer_events_max=batch * r.choice([1, 2, 8]), dead_letters_max=r.choice([1, 3, 20]),
            interval_s=r.choice([0.0, 0.0, 5.0, 30.0]), kept=r.choice([1, 2, 3]), switching=r.choice([0.0, 0.1, 0.4]),
            limits=LIMITS._replace(expired=r.choice([512, 512, 6])),
        )  # fmt: skip

    def say_(self, what: str) -> None:
        self.say(f"{self.clock.seconds:9.2f} {what}")

    @property
    def truth(self) -> Truth:
        return self.outside.truth

    def run(self) -> None:
        """All that the seed has. Raises what is wrong."""
        r = self.r
        self.say_(f"{self.settings} {len(self.broker.topic.partitions)} partitions")  # type: ignore[union-attr]
        self.do_produce(r.randrange(12))
        actions = list(self.weights)
        for _ in range(r.choice([40, 80, 140])):
            self.step(r.choices(actions, list(self.weights.values()))[0])
        settle(self)
        r.choice([self.stop, self._kill, self._lose_power])()
        settle(self)

    def step(self, action: str) -> None:
        try:
            if self.service is None and (action not in OUTSIDE or self.r.random() < 0.2):
                self.start()
            elif self.service is None:
                self.say_(action)
                getattr(self, f"do_{action}")()
            elif self.service.ingest.failure is not None:
                self.say_(f"failed: {self.service.ingest.failure}")
                self.stop()
            elif not self.service.reading and self.r.random() < 0.5:
                self.service.begin()
            else:
                self.say_(action)
                getattr(self, f"do_{action}")()
            self.look()
        except Crash:
            self.say_("crash")
            powerless = 0.85 if self._crash_kind else 0.5  # it matters what was synced
            (self._lose_power if self.r.random() < powerless else self._kill)()

    # The process.

    def start(self) -> None:
        self.say_("start")
        self._last = None
        self.service = Service(self.outside, self.settings)
        self.service.start()

    def look(self) -> None:
        """At what the product says of itself."""
        if self.service is not None and self.service.snapshots._last is not self._last:
            self._last = last = self.service.snapshots._last
            assert last is not None
            self.say_(f"snapshot {last.written.sequence} is written, at {last.written.offsets}")
            self.outside.shelf.promise(last.written.sequence, self.settings.kept)

    def _gone(self) -> None:
        assert self.service is not None
        self.service = None
        self._crash_at_disk, self._crash_kind = None, ""

    def stop(self) -> None:
        if self.service is None:
            return
        self.say_("orderly stop")
        service = self.service
        service.stop()
        self.look()
        positions = service.engine.index.positions
        failed = service.snapshots._problem is not None
        if service.reading and not failed and positions != service.snapshots._offsets:
            raise Wrong(f"an orderly stop left no snapshot of {positions}")
        self._gone()
        self.outside.shelf.check(self.outside.disk, self.settings.kept)

    def _kill(self) -> None:
        if self.service is not None:
            self._crash("killed", lambda: self.outside.disk.after_kill())

    def _lose_power(self) -> None:
        if self.service is not None:
            self._crash("power lost", lambda: self.outside.disk.after_power_loss(self.r))

    def _crash(self, how: str, after: Callable[[], MemoryDisk]) -> None:
        assert self.service is not None
        self.service.crash()
        if self.service.reading and not self.truth.lost:
            self.truth.fold(self.service.engine.index)
        self._gone()
        found = SimulatedDisk.found(after(), self.outside.disk)
        self.outside.disk = found
        self._watch_disk()
        self.say_(f"{how}; snapshots {found.names(SNAPSHOTS)}")
        self.outside.shelf.check(found, self.settings.kept)

    def _watch_disk(self) -> None:
        self.outside.disk.before = self._disk_step

    def _disk_step(self, operation: str, path: str) -> None:
        """After each operation that changed something."""
        service, shelf, disk = self.service, self.outside.shelf, self.outside.disk
        assert service is not None
        if operation == "rename" and path.startswith(SNAPSHOTS) and path.endswith(PART):
            sequence = shelf.sequence_of(path)
            assert sequence is not None
            history = []
            if not self.truth.lost:
                offsets = shelf.offsets_of(disk, sequence)
                service.check_passed(offsets, f"snapshot {sequence}")
                history = self.truth.history(offsets)
            shelf.place(disk, sequence, history)
        self.look()
        if self._crash_at_disk is not None and self._crash_kind in operation:
            self._crash_at_disk -= 1
            if self._crash_at_disk < 0:
                self.say_(f"crash at {operation} {path}")
                service.threads.die()
        service.threads.seam()

    # What happens. do_X for each X of WEIGHTS.

    def do_stop(self) -> None:
        self.stop()

    def do_crash(self) -> None:
        raise Crash

    def do_turn(self) -> None:
        assert self.service is not None
        self.service.threads.any_turn()

    def do_turns(self) -> None:
        for _ in range(self.r.choice([5, 20])):
            self.do_turn()

    def do_produce(self, count: int = 0) -> None:
        topic = self.broker.topic
        if topic is None:
            return
        for _ in range(count or self.r.choice([1, 1, 3, 10])):
            record = self.events.record(self.clock.now_us)
            number = crc32(record.key or b"") % len(topic.partitions)
            partition = topic.partitions[number]
            partition.entries.append(record)

    def _meanwhile(self) -> None:
        """What happens outside while the product is at work."""
        if self.mended:
            return
        self.clock.pass_(self.r.choice([0.0, 0.1, 1.0]))
        if self.r.random() < 0.7:
            self.do_produce(self.r.choice([1, 2]))
        elif self.r.random() < 0.3 and self.weights["letters_fail"]:
            self.do_letters_fail()

    def do_ask(self) -> None:
        assert self.service is not None
        if not self.service.reading:
            return
        self.twins.now_us = self.clock.now_us
        requests = [self.twins.request(self.r) for _ in range(self.r.choice([1, 1, 3]))]
        if self.r.random() < 0.3 and self.broker.topic is not None:
            number = self.r.randrange(len(self.broker.topic.partitions))
            for request in requests:
                request.min_offsets[number] = len(self.broker.topic.partitions[number].entries) - 1
        try:
            self.service.requests.append((requests, self.service.engine.submit(requests)))
        except QueueFull:
            return

    def do_snapshot(self) -> None:
        assert self.service is not None
        self.service.wanted.append(self.service.snapshots.request())

    def do_time(self) -> None:
        self.clock.pass_(self.r.choice([0.2, 2.0, 12.0, 60.0, 3600.0]))

    def do_set_clock(self) -> None:
        self.clock.now_us += self.r.choice([-3600, -30, -1, 1, 30, 3600]) * 1_000_000
        if self.service is not None and self.r.random() < 0.5:
            self.service.engine.turn()
            self.do_check()

    def do_check(self) -> None:
        assert self.service is not None
        if self.service.reading and not self.truth.lost:
            self.truth.check_state(self.service.engine.index)

    def do_crash_at_seam(self) -> None:
        assert self.service is not None
        self.service.threads.seams_left = self.r.choice([3, 20, 80]) + self.r.randrange(20)

    def do_crash_at_disk(self) -> None:
        """In the middle of writing, or where names come and go."""
        if self._crash_at_disk is not None:
            return
        self._crash_kind = self.r.choice(["", "about to sync", "remove"])
        most = {"": self.r.choice([6, 40, 150]), "about to sync": 4, "remove": 4}[self._crash_kind]
        self._crash_at_disk = self.r.randrange(most)
        self.do_snapshot()

    def do_letters_fail(self) -> None:
        self.broker.writable = not self.broker.writable

    def do_slow(self) -> None:
        self.broker.slow ^= {self.r.randrange(4)}

    def do_lose(self) -> None:
        self.broker.loss = self.r.choice([0.0, 0.1, 0.5])

    def do_leader(self) -> None:
        self.broker.leaderless ^= {self.r.randrange(3)}

    def do_transaction(self) -> None:
        """One begins or ends; or a marker is left by a short one."""
        if self.broker.topic is None:
            return
        partition = self.r.choice(self.broker.topic.partitions)
        if partition.open_at is not None:
            partition.close(commit=self.r.random() < 0.5)
        elif self.r.random() < 0.5:
            partition.open_at = len(partition.entries)
        else:
            partition.entries.append(None)

    def do_partitions(self) -> None:
        if self.broker.topic is not None and len(self.broker.topic.partitions) < 5:
            self.broker.add_partition()

    def do_topic_again(self) -> None:
        if self.broker.topic is None:
            self.broker.make_topic(self.r.choice([1, 2]))
            self.do_produce(self.r.randrange(20))
        else:
            self.broker.topic = None
            if self.r.random() < 0.5:
                self.broker.make_topic(self.r.choice([1, 2, 3]))
        self.truth.lost = True

    def do_retention(self) -> None:
        """Removes what the newest snapshot that is promised does not need."""
        topic, shelf = self.broker.topic, self.outside.shelf
        if topic is None or not shelf.promised or (newest := shelf.placed[shelf.promised[-1]]).topic_id != topic.id:
            return
        for number, partition in enumerate(topic.partitions):
            if self.r.random() < 0.7:
                partition.begins_at = max(partition.begins_at, newest.offsets.get(number, 0))

    def do_lose_records(self) -> None:
        """Removes what may be needed still."""
        if self.broker.topic is not None:
            partition = self.r.choice(self.broker.topic.partitions)
            partition.begins_at += self.r.randrange(partition.end - partition.begins_at + 1)

    def do_disk_full(self) -> None:
        self.outside.disk.room_bytes = (
            None if self.outside.disk.room_bytes is not None else self.r.choice([0, 2000, 20_000])
        )

    def do_flip(self) -> None:
        disk, placed = self.outside.disk, self.outside.shelf.placed
        among = placed[max(placed)].files if placed and self.r.random() < 0.7 else disk.files()
        for _ in range(self.r.choice([1, 3])):
            path = disk.flip(self.r, among)
            if path is not None:
                self.say_(f"a bit of {path} flips")
                self.outside.shelf.damage(path)
        if self.service is not None and self.r.random() < 0.5:
            raise Crash

    def do_child(self) -> None:
        self.outside.child_dies = self.r.choice([0.0, 0.02, 0.2])

    def mend(self) -> None:
        """Nothing is wrong from now on, and nothing happens but what the service does."""
        self.say_("all is mended")
        self.mended = True
        if self.broker.topic is None:
            self.broker.make_topic(2)
            self.do_produce(5)
        self.broker.heal()
        self.outside.disk.room_bytes, self.outside.child_dies = None, 0.0
        self._crash_at_disk = None
        if self.service is not None:
            self.service.threads.seams_left = None
