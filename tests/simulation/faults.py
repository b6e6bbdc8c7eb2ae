"""Planted faults: each is one mistake that somebody could make in the product, and that the simulation must find.

A fault is a change of the real code while it is planted. `found_as` is what the failure that finds it says, so that a
fault which merely breaks the simulation does not count as found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from confluent_kafka import KafkaError, KafkaException, TopicPartition

import api.engine
import api.snapshots
import gpu_index.index
import gpu_index.restore
import ingest.accounting
import ingest.bytes_cache
import ingest.commits
import ingest.consumer
import ingest.dead_letters
import ingest.merge
from gpu_index.disk import Disk
from gpu_index.index import Index
from gpu_index.manifest import Manifest, encode
from gpu_index.store import CHUNKS, SNAPSHOTS, SUFFIX, Store, chunk_path, folder_of
from kernels import ads as ads_
from kernels import expired as expired_

Change = tuple[object, str, Callable[..., Any]]  # where, which name, what in its place


class Fault(NamedTuple):
    name: str
    says: str
    found_as: str  # a pattern
    changes: list[Change]

    def is_found_by(self, failure: str | None) -> bool:
        return failure is not None and re.search(self.found_as, failure) is not None


FAULTS: list[Fault] = []


def fault(says: str, found_as: str) -> Callable[[Callable[[], Iterator[Change]]], None]:
    def add(changes: Callable[[], Iterator[Change]]) -> None:
        FAULTS.append(Fault(changes.__name__, says, found_as, list(changes())))

    return add


@contextmanager
def planted(planted_fault: Fault) -> Iterator[None]:
    with ExitStack() as stack:
        for where, name, other in planted_fault.changes:
            stack.enter_context(mock.patch.object(where, name, other))
        yield


def before(real: Callable[..., Any], first: Callable[..., None]) -> Callable[..., Any]:
    def both(self: Any, *arguments: Any, **named: Any) -> Any:
        first(self, *arguments, **named)
        return real(self, *arguments, **named)

    return both


def after(real: Callable[..., Any], then: Callable[..., None]) -> Callable[..., Any]:
    def both(self: Any, *arguments: Any, **named: Any) -> Any:
        result = real(self, *arguments, **named)
        then(self, *arguments, **named)
        return result

    return both


# Ingest.


@fault("Offsets count as safe, and are committed, once their batch is handed on, before it is applied.", "a commit at")
def committed_before_applied() -> Iterator[Change]:
    def then(self: Any, batch: Any) -> None:
        self._applied.update(batch.positions)
        self._publish()

    accounting = ingest.accounting.Accounting
    yield accounting, "handed_on", after(accounting.handed_on, then)


@fault("A dead letter that could not be sent is dropped in place of being sent again.", "dead letters of")
def dead_letter_dropped_on_error() -> Iterator[Change]:
    def again(self: Any, letter: Any, problem: str) -> None:
        del self._pending[letter.partition][letter.offset]
        self.pending -= 1

    yield ingest.dead_letters.DeadLetters, "_again", again


@fault(
    "Positions are safe up to what is applied, whatever dead letters are still to be sent.", "passes the dead letters"
)
def safe_ignores_dead_letters() -> Iterator[Change]:
    yield ingest.dead_letters.DeadLetters, "first_pending", lambda self, partition: None


@fault("Dead letters below an offset committed for another topic of this name count as sent.", "dead letters of")
def commits_of_any_topic_count() -> Iterator[Change]:
    def ask(self: Any, partitions: Any, identity: str, stopping: object) -> dict[int, int]:
        asked = [TopicPartition(self._config.topic, each) for each in partitions]
        try:
            answer = self._consumer.committed(asked, timeout=1.0)
        except KafkaException:
            return {}
        return {each.partition: each.offset for each in answer if each.offset >= 0}

    yield ingest.commits.Commits, "ask", ask


@fault("While catching up, records are taken as they arrive, not by their timestamps.", "before an older record")
def merge_ignores_timestamps() -> Iterator[Change]:
    lane = ingest.merge.Lane
    yield lane, "order", lambda self, catching_up: (self.records[0][0], self.partition, self)


@fault("The end of a partition does not move its position past markers and aborted records.", "does not catch up")
def markers_not_passed() -> Iterator[Change]:
    real = ingest.consumer.Reader._error

    def error(self: Any, error: Any, lane: Any, message: Any) -> None:
        if error.code() != KafkaError._PARTITION_EOF:
            real(self, error, lane, message)

    yield ingest.consumer.Reader, "_error", error


@fault(
    "Where retention took offsets, reading goes on behind them and nobody is told.", "is passed over|does not catch up"
)
def gap_in_silence() -> Iterator[Change]:
    def gap(self: Any, lane: Any, kind: str, reads_on: int | None) -> None:
        lane.read = lane.read if reads_on is None else reads_on

    yield ingest.consumer.Reader, "_gap", gap


@fault("A lane that is paused and read again loses what it had received.", "is passed over")
def pause_forgets_records() -> Iterator[Change]:
    def first(self: Any) -> None:
        for lane in self._lanes.values():
            if not lane.paused and len(lane.records) >= self._config.buffer_events_max:
                lane.records.pop()

    reader = ingest.consumer.Reader
    yield reader, "_pause_and_resume", before(reader._pause_and_resume, first)


@fault("The cache of parsed targetings knows them by the first bytes of their JSON.", "results|eligible|not the fold")
def cache_key_too_short() -> Iterator[Change]:
    cache = ingest.bytes_cache.BytesCache
    get, put = cache.get, cache.put
    yield cache, "get", lambda self, key: get(self, key[:24])
    yield cache, "put", lambda self, key, parsed: put(self, key[:24], parsed)


# The engine and its index.


@fault(
    "Positions move on when a batch is offered, before it is applied.",
    "results|eligible|not the fold|mirach-engine: AssertionError",
)
def positions_before_apply() -> Iterator[Change]:
    real = api.engine.Engine.offer

    def offer(self: Any, batch: Any, timeout_s: float) -> bool:
        taken = real(self, batch, timeout_s)
        if taken:
            self.index.positions |= batch.positions
        return taken

    yield api.engine.Engine, "offer", offer


@fault("Requests do not wait for the offsets that they ask for.", "was to include")
def offsets_not_waited_for() -> Iterator[Change]:
    yield api.engine.Engine, "_reached", lambda self, offsets: True


@fault(
    "An event whose offset is the next one counts as a duplicate: the check is off by one.",
    "not the fold|counted|eligible|results",
)
def duplicates_off_by_one() -> Iterator[Change]:
    def first(self: Index, batch: Any, now_us: int) -> None:
        for partition in {event.partition for event in batch.events} & self.positions.keys():
            self.applied[partition] += 1

    yield Index, "apply", before(Index.apply, first)


@fault("When the clock steps back, ads that had ended stay off.", "eligible|results|not the fold")
def clock_steps_back_unseen() -> Iterator[Change]:
    real = ads_.turn
    yield gpu_index.index.ads_, "turn", lambda ads, now_us, again: real(ads, now_us, False)


@fault(
    "Versions of expired ads are forgotten by the wall's clock, not by the timestamps of records.",
    "not the fold|counted|eligible|results",
)
def versions_forgotten_by_the_wall() -> Iterator[Change]:
    def first(self: Index, batch: Any, now_us: int) -> None:
        for partition in batch.positions:
            self.expired.newest_ms[partition] = max(now_us // 1000, self.expired.newest_ms[partition])

    yield Index, "apply", before(Index.apply, first)


# Snapshots.


@fault("Versions of expired ads are not in a snapshot.", "not the fold|counted|eligible|results")
def versions_not_saved() -> Iterator[Change]:
    real = api.snapshots.write

    def write(index: Index, *arguments: Any, **named: Any) -> Any:
        held = index.expired
        index.expired = expired_.expired(len(held.version))._replace(newest_ms=held.newest_ms)
        try:
            return real(index, *arguments, **named)
        finally:
            index.expired = held

    yield api.snapshots, "write", write


@fault("A snapshot's folder gets its name, and the folder around it is not synced.", "is not whole")
def rename_without_sync() -> Iterator[Change]:
    def publish(self: Store, sequence: int) -> None:
        self.disk.rename(folder_of(sequence) + ".part", folder_of(sequence))
        self._doubtful.clear()

    yield Store, "publish", publish


@fault("The names of chunks are not synced before the manifest that names them.", "is not whole")
def chunks_without_sync() -> Iterator[Change]:
    def finish(self: Store, manifest: Manifest) -> None:
        part = folder_of(manifest.sequence) + ".part"
        self.disk.write(f"{part}/manifest.json", encode(manifest))
        self.disk.sync(part)

    yield Store, "finish", finish


@fault("A snapshot gets its name first and its chunks after.", "is in place and lacks")
def manifest_before_chunks() -> Iterator[Change]:
    later: dict[str, bytes] = {}

    class Later:
        """A disk that leaves chunks for later."""

        def __init__(self, disk: Disk) -> None:
            self.disk = disk

        def __getattr__(self, name: str) -> Any:
            return getattr(self.disk, name)

        def write(self, path: str, data: bytes) -> None:
            later[path] = data

        def rename(self, path: str, new: str) -> None:
            later[new] = later.pop(path)

    put, finish = Store.put, Store.finish

    def put_later(self: Store, data: bytes, sequence: int) -> Any:
        disk, self.disk = self.disk, Later(self.disk)  # type: ignore[assignment]
        try:
            return put(self, data, sequence)
        finally:
            self.disk = disk

    def finish_first(self: Store, manifest: Manifest) -> None:
        finish(self, manifest)
        self.disk.rename(folder_of(manifest.sequence) + ".part", folder_of(manifest.sequence))
        for path, data in later.items():
            self.disk.write(path, data)
        later.clear()

    yield Store, "put", put_later
    yield Store, "finish", finish_first
    yield Store, "publish", lambda self, sequence: None


@fault("A snapshot is put in place though dead letters below its offsets are not sent.", "passes the dead letters")
def snapshot_passes_unsent_dead_letter() -> Iterator[Change]:
    yield api.snapshots.Snapshots, "_check_safe", lambda self, positions, timeout_s=0.0: None


@fault("What is read of a snapshot is not held to its checksums.", "a damaged snapshot is restored")
def restore_ignores_checksum() -> Iterator[Change]:
    yield Store, "chunk", lambda self, chunk: self.disk.read(chunk_path(chunk.hash))


@fault("A snapshot of a topic that was deleted and made again is restored.", "is restored")
def topic_id_not_compared() -> Iterator[Change]:
    real = gpu_index.restore.difference

    def difference(stored: Any, now: Any) -> str | None:
        other = real(stored, now)
        return None if other is not None and "was deleted since" in other else other

    yield gpu_index.restore, "difference", difference


@fault("Restored ads are not live until something touches them.", "eligible|results|not the fold")
def not_live_after_restore() -> Iterator[Change]:
    real = gpu_index.restore.load

    def load(store: Any, manifest: Any, index: Index, *more: Any) -> None:
        real(store, manifest, index, *more)
        index.ads.live[:] = 0

    yield gpu_index.restore, "load", load


@fault("Removing old snapshots removes chunks that older ones still have.", "is not whole")
def prune_forgets_shared_chunks() -> Iterator[Change]:
    real = Store.prune

    def then(self: Store, kept: int) -> None:
        newest = next(iter(self.sequences()), None)
        if newest is not None:
            used = {chunk.hash + SUFFIX for chunk in self.manifest(newest).chunks()}
            for name in set(self.disk.names(CHUNKS)) - used:
                self.disk.remove(f"{CHUNKS}/{name}")

    yield Store, "prune", after(real, then)


@fault("The oldest snapshots stay when old ones are removed.", "is not whole")
def prune_removes_the_newest() -> Iterator[Change]:
    def prune(self: Store, kept: int) -> None:
        for sequence in self.sequences()[:-kept]:
            self.disk.remove(folder_of(sequence))
        self.disk.sync(SNAPSHOTS)

    yield Store, "prune", prune
