"""Restarts of the real service over a real Apache Kafka: after a kill at any moment, a stop, damage, a gap, another
topic, schema or width, it answers what the fold of the topic says, or says why it does not answer.

KILLS=50 (`make chaos`) kills it fifty times in place of a few; SEED repeats a run."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import ads as bench
from tests.end_to_end import BY_KEY, DIM, GATE_DIM, ROOT, Json, Service, Truth, World, environment, figures
from tests.kafka import ApacheKafka, Record, until

KILLS = int(os.environ.get("KILLS", "4"))
SEED = int(os.environ.get("SEED", "20261130"))
LIVE_ADS = 800
SENT_AT_ONCE = 40
BAD_EVERY = 50  # events

Make = Callable[..., World]


@pytest.fixture
def make(apache_kafka: ApacheKafka, tmp_path: Path) -> Iterator[Make]:
    """Worlds, each with a service that is ready; whatever is running at the end is killed."""
    made: list[World] = []

    def one(*flags: str, **more: Any) -> World:
        made.append(World(apache_kafka, tmp_path / str(len(made)), *flags, **more))
        made[-1].service.wait_ready()
        return made[-1]

    yield one
    for world in made:
        world.close()


class Stream(threading.Thread):
    """Sends events to the world's topic without a pause, until it is held, and then again."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(daemon=True)
        self.world = world
        self.sent = 0
        self.held = threading.Lock()  # nothing is sent by others while one has it
        self._last: dict[int, int] = {}
        self._events = enumerate(bench.stream(seed, live=LIVE_ADS, vectors=(DIM, GATE_DIM)))
        self._stopping = False
        self.start()

    def run(self) -> None:
        while not self._stopping:
            with self.held:
                records = [self._record() for _ in range(SENT_AT_ONCE)]
                self._last |= self.world.broker.send(self.world.topic, records, partitioner="murmur2_random")
                self.sent += len(records)

    def _record(self) -> Record:
        number, event = next(self._events)
        value = msgspec.json.encode(event)
        if number % BAD_EVERY == 0:
            value = value.replace(b'"bid"', b'"bit"')
        return Record(event["ad_id"].encode(), value, partition=BY_KEY)

    def settle(self) -> None:
        """With the stream held: the truth follows it, and the service's next answers include it."""
        self.world.offsets |= self._last
        self.world.truth.follow(self._last)

    def after(self, more: int) -> None:
        """Waits until so many more events were sent."""
        wanted = self.sent + more
        until(lambda: self.sent >= wanted, "events are sent")

    def stop(self) -> None:
        self._stopping = True
        self.join()


def ask(world: World, r: random.Random, count: int = 5) -> None:
    """Random requests, which must be answered as the plain index answers them, in its order."""
    for body in bench.requests(r.randrange(2**32), count, k=200):
        world.ask(body)


def restored(world: World) -> list[int]:
    """Numbers of the snapshots that its starts began from, in order."""
    return [int(number) for number in re.findall(r"snapshot (\d+) of \S+ is restored", world.service.log())]


def snapshots(world: World) -> Json:
    return world.service.get("/v1/admin/snapshots").json()  # type: ignore[no-any-return]


def stop(world: World) -> None:
    world.service.signal(signal.SIGTERM)
    assert world.service.end() == 0


def start(world: World) -> None:
    world.service.start()
    world.service.wait_ready()


def publish(world: World, r: random.Random, count: int = 300) -> None:
    """A stretch of a stream of ads."""
    stream = bench.stream(r.randrange(2**32), live=count // 2, vectors=(DIM, GATE_DIM))
    world.publish_events(*(next(stream) for _ in range(count)))


def folder_of(world: World) -> Path:
    return world.service._data_dir / "snapshots"


def file_of(world: World, sequence: int) -> Path:
    return folder_of(world) / f"{sequence:010d}" / "manifest.json"


def change(world: World, *flags: str) -> None:
    """For the next start: the last of two flags counts."""
    world.service._command += flags


# Kills.


def test_killed_at_any_moment_under_a_live_stream(make: Make) -> None:
    """After each kill the answers are the fold of the topic, and at the end every bad event is in the dead-letter
    topic. Some kills come while it starts; snapshots are written all the while."""
    print(f"SEED={SEED}")
    r = random.Random(SEED)
    world = make("--snapshot-interval-s", "0.2", "--snapshots-kept", "2")
    stream = Stream(world, r.randrange(2**32))
    try:
        for number in range(KILLS):
            stream.after(r.randrange(1, 1500))
            world.service.kill()
            world.service.start()
            if number % 3 == 2:  # again, before it is ready
                stream.after(r.randrange(1, 400))
                world.service.kill()
                world.service.start()
            world.service.wait_ready()
            with stream.held:
                stream.settle()
                ask(world, r)
    finally:
        stream.stop()
    stream.settle()
    ask(world, r, 20)
    world.check_dead_letters()
    assert len(restored(world)) >= KILLS - 1
    assert len(set(restored(world))) > 1
    assert " ERROR " not in world.service.log()


def test_two_replicas_with_different_histories_give_the_same_answers(make: Make, tmp_path: Path) -> None:
    """One was restored, and holds ads and values in other slots and numbers than one that began at the beginning."""
    r = random.Random(SEED + 1)
    world = make()
    publish(world, r, 600)
    world.wait()
    stop(world)
    publish(world, r, 600)
    start(world)
    assert restored(world) == [1]
    publish(world, r, 100)
    other = Service(world.broker, world.topic, world.dlq_topic, tmp_path / "other", "--group-id", "other")
    try:
        other.wait_ready()
        now = bench.rfc3339(datetime.now(UTC))
        for body in bench.requests(SEED, 40, k=500, vectors=(DIM, GATE_DIM, 2)):
            asked = {**body, "now": now, **world.min_offsets}
            one, two = (service.post("/v1/retrieve", asked).json() for service in (world.service, other))
            assert figures(one) == figures(two)
    finally:
        other.kill()


# Stops and starts.


def test_a_stop_writes_a_snapshot_and_a_start_reads_on_from_it(make: Make) -> None:
    r = random.Random(SEED + 2)
    world = make(partitions=2)
    publish(world, r)
    world.wait()
    stop(world)
    publish(world, r, 100)
    world.broker.add_partitions(world.topic, 3)
    publish(world, r, 100)
    start(world)
    assert restored(world) == [1]
    ask(world, r)
    figures_of = snapshots(world)
    assert figures_of["restored"] == 1
    assert figures_of["passed_over"] == []
    partitions = world.ingest()["partitions"]
    assert {number: state["start"] for number, state in partitions.items()} == {
        **figures_of["snapshots"][0]["offsets"],
        "2": 0,
    }
    stop(world)
    start(world)
    assert restored(world) == [1, 2]
    ask(world, r)
    stop(world)  # nothing new
    assert not file_of(world, 3).exists()


def test_a_damaged_snapshot_is_named_and_the_one_before_is_used(make: Make) -> None:
    r = random.Random(SEED + 3)
    world = make()
    for _ in range(3):
        publish(world, r, 200)
        world.wait()
        assert world.service.post("/v1/admin/snapshots", None).status_code == 200
    world.service.kill()
    newest = file_of(world, 3)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    file_of(world, 2).unlink()
    shutil.copytree(file_of(world, 1).parent, folder_of(world) / "0000000009.part")
    start(world)
    assert restored(world) == [1]
    for said in ("snapshot 3 is passed over", "snapshot 2 is passed over", "snapshot 9 was left half-written"):
        assert said in world.service.log()
    assert [each["sequence"] for each in snapshots(world)["passed_over"]] == [3, 2]
    ask(world, r)
    stop(world)
    start(world)
    assert restored(world) == [1, 4]
    ask(world, r)


def test_a_topic_made_again_is_another_topic(make: Make) -> None:
    """Its first events have the offsets that the snapshot passed: mixed in, they would be missing."""
    r = random.Random(SEED + 4)
    world = make(partitions=1)
    publish(world, r)
    world.wait()
    stop(world)
    world.broker.delete_topic(world.topic)
    until(lambda: world.topic not in world.broker.admin.list_topics(timeout=10).topics, "the topic is gone")
    world.broker.topic(1, name=world.topic)
    world.truth.close()
    world.truth = Truth(world.broker, world.topic, None)
    world.offsets.clear()
    publish(world, r, 700)
    start(world)
    assert restored(world) == []
    assert "that was deleted since" in snapshots(world)["passed_over"][0]["reason"]
    ask(world, r)


@pytest.mark.parametrize(("flag", "said"), [("width", "of gates"), ("schema", "of another attribute schema")])
def test_a_snapshot_of_something_else_is_not_mixed_in(make: Make, tmp_path: Path, flag: str, said: str) -> None:
    world = make()
    world.publish_events(*({"type": "create", "ad_id": ad_id, "ad": {"bid": 1}} for ad_id in "12"))
    world.wait()
    stop(world)
    (tmp_path / "schema.toml").write_text('[attributes.colour]\ntype = "category"\n')
    changed = {"width": ("--gate-dim", str(GATE_DIM + 1)), "schema": ("--schema", str(tmp_path / "schema.toml"))}
    change(world, *changed[flag])
    start(world)
    assert restored(world) == []
    assert said in snapshots(world)["passed_over"][0]["reason"]
    assert world.service.post("/v1/retrieve", world.min_offsets).json()["eligible"] == 2
    stop(world)
    start(world)
    assert restored(world) == [2]


# Gaps and dead letters.


def test_a_gap_is_refused_until_the_operator_allows_it(make: Make) -> None:
    """While it is refused, no snapshot passes it, and the one before it stays the newest."""
    world = make(partitions=1)
    events = [{"type": "create", "ad_id": str(number), "ad": {"bid": 1}} for number in range(30)]
    world.publish_events(*events[:10])
    world.wait()
    stop(world)
    world.publish_events(*events[10:])
    world.broker.delete_records(world.topic, {0: 20})
    world.service.start()
    until(lambda: world.ingest()["gaps"], "the gap is found")
    unready = world.service.get("/readyz")
    assert unready.status_code == 503
    assert "offsets 10 to 19 of partition 0 are gone" in unready.text
    assert world.service.post("/v1/admin/snapshots", None).json()["offsets"] == {"0": 10}
    stop(world)
    assert sorted(os.listdir(folder_of(world))) == ["0000000001", "0000000002"]
    change(world, "--on-gap", "continue")
    start(world)
    assert restored(world) == [1, 2]
    assert world.service.post("/v1/retrieve", world.min_offsets).json()["eligible"] == 20
    assert world.service.post("/v1/admin/snapshots", None).json()["offsets"] == {"0": 30}


def test_no_snapshot_passes_a_bad_event_that_is_in_no_topic(make: Make) -> None:
    world = make(partitions=1)
    world.publish_events({"type": "create", "ad_id": "1", "ad": {"bid": 1}})
    world.wait()
    world.broker.delete_topic(world.dlq_topic)
    world.publish_events(*({"type": "create", "ad_id": str(bid), "ad": {"bid": bid}} for bid in (-2, 3)))
    world.wait()
    refused = world.service.post("/v1/admin/snapshots", None)
    assert (refused.status_code, refused.json()["type"]) == (503, "no-snapshot")
    stop(world)
    assert not (folder_of(world)).exists() or os.listdir(folder_of(world)) == []
    world.broker.topic(1, name=world.dlq_topic)
    start(world)
    assert restored(world) == []
    world.check_dead_letters()
    until(lambda: world.service.post("/v1/admin/snapshots", None).status_code == 200, "it may be written")


def test_a_folder_of_two_services_is_refused(make: Make) -> None:
    world = make()
    done = subprocess.run(
        world.service._command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert f"is in use by process {world.service.process.pid}" in done.stderr
