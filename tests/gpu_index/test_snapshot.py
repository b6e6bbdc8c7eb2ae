"""An index to a disk and back, through every kind of damage and a crash at every step."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gpu_index.disk import Disk, Folder
from gpu_index.events import AdEvent, Batch, EventKind
from gpu_index.fork import ChildFailed, fork, wait
from gpu_index.index import Index, Limits
from gpu_index.layout import groups
from gpu_index.manifest import FORMAT, Damaged, Identity, decode, difference
from gpu_index.restore import Restored, restore
from gpu_index.snapshot import DoesNotFit, Written, load, write
from gpu_index.store import CHUNKS, SNAPSHOTS, Store
from gpu_index.values import parse_fields
from gpu_index.zones import Schedule
from kernels.precision import Precision
from scoring.retrieve import retrieve
from tests import random_cases as cases
from tests.consistent import assert_consistent
from tests.disks import Crash, MemoryDisk
from tests.twins import DIM, GATE_DIM, LIMITS, START_US, Twins, new_index, parsed, whole_patch

IDENTITY = Identity("ad-events", "topic-1", "cluster-1", cases.SCHEMA.fingerprint, None, DIM, GATE_DIM, "int8")


def save(index: Index, disk: Disk, identity: Identity = IDENTITY) -> Written:
    """A snapshot, in place."""
    store = Store(disk)
    written = write(index, store, store.next_sequence(), identity, START_US)
    store.publish(written.sequence)
    return written


def back(disk: Disk, identity: Identity = IDENTITY, limits: Limits = LIMITS) -> Restored:
    precision = Precision(identity.precision)
    return restore(Store(disk), identity, lambda: new_index(limits=limits, precision=precision))


def filled(seed: int = 1, *, ids: int = 60, events: int = 400, precision: Precision = Precision.INT8) -> Twins:
    r = random.Random(seed)
    twins = Twins(r, ids=ids, precision=precision, targetings=20)
    twins.send([twins.event(r) for _ in range(events)])
    return twins


def contents(index: Index) -> dict[str, bytes]:
    """Everything that an index holds, as bytes."""
    found = {}
    for group in groups(index):
        for name, column in group.columns.items():
            found[f"{group.name}.{name}"] = column[: group.rows].tobytes()
    return found


# There and back.


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("limits", [LIMITS, Limits(ads=2**16, targetings=2**17, terms=2**18, expired=2**13)])
def test_goes_on_as_if_nothing_had_happened(precision: Precision, limits: Limits) -> None:
    """Through several restarts the index does what the plain one does, whose history has none: outcomes, answers with
    the order of ties, remembered versions, every count and list."""
    r = random.Random(f"{precision} {limits.ads}")
    twins = Twins(r, ids=80, precision=precision, targetings=25)
    disk = MemoryDisk()
    identity = msgspec.structs.replace(IDENTITY, precision=str(precision))
    for _ in range(6):
        for _ in range(4):
            twins.send([twins.event(r) for _ in range(r.randrange(1, 60))])
            twins.advance(r.choice([0, 30_000_000, -15_000_000]))
        requests = [twins.request(r) for _ in range(8)]
        before = [retrieve(twins.index, [request]) for request in requests]
        save(twins.index, disk, identity)
        twins.index = back(disk, identity, limits).index
        twins.check()
        for request, answers in zip(requests, before, strict=True):
            again = retrieve(twins.index, [request])
            assert [answer.results for answer in again] == [answer.results for answer in answers]
        twins.advance(r.choice([0, 3_600_000_000]))
        twins.ask(requests)
        twins.check()


def test_a_restored_index_is_the_same_to_the_last_byte() -> None:
    twins = filled()
    disk = MemoryDisk()
    save(twins.index, disk)
    found = back(disk)
    assert contents(found.index) == contents(twins.index)
    assert found.index.positions == twins.index.positions
    assert found.index.now_us == twins.index.now_us


def test_an_empty_index() -> None:
    disk = MemoryDisk()
    save(new_index(), disk)
    assert_consistent(back(disk).index)
    assert back(disk).manifest is not None


def test_every_array_of_the_index_is_in_the_layout() -> None:
    """A new column that is not stored would come back as zeros."""
    index = filled().index

    def arrays(value: object, name: str) -> Iterator[tuple[str, int]]:
        if isinstance(value, np.ndarray):
            yield name, value.ctypes.data
        elif isinstance(value, tuple):
            for field in value._fields:  # type: ignore[attr-defined]
                yield from arrays(getattr(value, field), f"{name}.{field}")

    stored = {column.ctypes.data for group in groups(index) for column in group.columns.values()}
    parts = {"ads": index.ads, "targetings": index.targetings, "expired": index.expired}
    missing = {name for part, value in parts.items() for name, at in arrays(value, part) if at not in stored}
    assert missing == {
        "ads.field_zeroed", "ads.field_is_zeroed", "targetings.zeroed", "targetings.is_zeroed",  # empty between batches
        "targetings.domain",  # made from the schema
        "expired.evicted",  # counts since the process began
    }  # fmt: skip
    assert index.applied.ctypes.data in stored


def test_terms_that_only_a_cache_kept_are_given_back() -> None:
    index = new_index()
    targeting = parsed({"attr": "country", "in": ["only here"]})
    for offset in range(3):  # seen again, so cached
        events = [AdEvent(EventKind.CREATE, "1", None, 0, offset, 0, patch=whole_patch(targeting=targeting))]
        index.apply(Batch(events, {0: offset + 1}, lambda *_: None), START_US)
    index.apply(Batch([AdEvent(EventKind.EXPIRE, "1", None, 0, 3, 0)], {0: 4}, lambda *_: None), START_US)
    assert len(index.terms.vocabulary) > len(new_index().terms.vocabulary)
    disk = MemoryDisk()
    save(index, disk)
    restored = back(disk).index
    assert len(restored.terms.vocabulary) == len(new_index().terms.vocabulary)
    assert_consistent(restored)


def test_what_is_stored_has_the_meaning_that_its_format_says() -> None:
    """Of a fixed history the same words must be stored. If they are not, a version that reads this format would read
    older snapshots wrong: raise manifest.FORMAT, and put the new hash here."""
    index = new_index()
    raws = [
        {"attr": "country", "in": ["US", "CA"]},
        {"all": [{"attr": "age", "between": [18, 34]}, {"not": {"attr": "country", "in": ["DE"]}}]},
        {"any": [{"attr": "country", "in": ["FR"]}, {"attr": "age", "between": [None, 20]}]},
        {"attr": "point", "within": {"lat": 40.7, "lon": -74.0, "radius_km": 25}},
        {"any": [{"attr": "price", "between": [1.5, None]}, {"attr": "os_version", "between": ["9.1", "17"]}]},
        {"not": {"any": [{"attr": "wifi", "is": True}, {"attr": "audience", "in": ["a1", "a2"]}]}},
    ]
    schedule = Schedule("Europe/Berlin", (9, 10, 100))
    events = [
        AdEvent(EventKind.CREATE, f"ad {n}", n, 0, n, 1000 + n, patch=whole_patch(
            targeting=parsed(raws[n % len(raws)]), schedule=schedule if n % 4 == 0 else None, bid=1.5 + n,
            start_us=START_US - n, end_us=START_US + n, advertiser_id="7", features=b"{}", paused=n == 3,
            embedding=np.arange(DIM, dtype=np.float32) - n, fields=parse_fields(cases.SCHEMA, {"format": "video"}),
        ))
        for n in range(12)
    ]  # fmt: skip
    events += [AdEvent(EventKind.EXPIRE, "ad 5", 50, 0, 12, 2000), AdEvent(EventKind.EXPIRE, "ad 6", 60, 0, 13, 2001)]
    index.apply(Batch(events, {0: 14}, lambda *_: None), START_US)
    whole = blake2b(digest_size=8)
    for name, data in sorted(contents(index).items()):
        whole.update(name.encode() + data)
    assert (FORMAT, whole.hexdigest()) == (2, "1d592480f58c38c9")


# What is and is not written.


def test_unchanged_chunks_are_not_written_again() -> None:
    twins, disk = filled(), MemoryDisk()
    first = save(twins.index, disk)
    assert first.chunks_written > 10
    assert first.bytes == first.bytes_written
    disk.written.clear()
    second = save(twins.index, disk)
    assert (second.chunks_written, second.bytes_written) == (0, 0)
    assert disk.written == [f"{SNAPSHOTS}/0000000002.part/manifest.json"]
    r = random.Random(1)
    twins.send([twins.event(r) for _ in range(5)])
    third = save(twins.index, disk)
    assert 0 < third.chunks_written < first.chunks_written


def test_only_segments_that_changed_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_index.snapshot.CHUNK_BYTES", 1 << 14)
    twins, disk = filled(ids=3000, events=4000), MemoryDisk()
    first = save(twins.index, disk)
    r = random.Random(1)
    twins.send([twins.event(r, EventKind.MODIFY, twins.ids[5])])
    second = save(twins.index, disk)
    assert first.chunks > 60
    assert second.chunks_written < 12


def test_old_snapshots_and_their_chunks_are_removed() -> None:
    twins, disk = filled(), MemoryDisk()
    r = random.Random(1)
    for _ in range(6):
        twins.send([twins.event(r) for _ in range(20)])
        save(twins.index, disk)
    store = Store(disk)
    disk.write(f"{CHUNKS}/left.safetensors.part", b"torn")
    store.prune(3)
    assert store.sequences() == [6, 5, 4]
    used = {chunk.hash + ".safetensors" for n in (6, 5, 4) for chunk in store.verify(n).chunks()}
    assert set(disk.names(CHUNKS)) == used
    store.prune(1)
    assert store.sequences() == [6]
    assert contents(back(disk).index) == contents(twins.index)


def test_a_snapshot_that_cannot_be_read_now_is_not_removed() -> None:
    twins, disk = filled(), MemoryDisk()
    for _ in range(3):
        save(twins.index, disk)
    read, asked = disk.read, []

    def failing(path: str) -> bytes:
        asked.append(path)
        if "0000000002" in path:
            raise OSError(5, "Input/output error", path)
        return read(path)

    disk.read = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Input/output"):
        Store(disk).prune(2)
    assert Store(disk).sequences() == [3, 2, 1]
    assert asked


# Damage.


@pytest.fixture(scope="module")
def two() -> tuple[MemoryDisk, Twins, dict[str, bytes]]:
    """A disk with two snapshots, the twins at the second, and what the first holds."""
    twins, disk = filled(), MemoryDisk()
    save(twins.index, disk)
    first = contents(twins.index)
    r = random.Random(5)
    twins.send([twins.event(r) for _ in range(200)])
    save(twins.index, disk)
    return disk, twins, first


def files_of(disk: MemoryDisk, sequence: int, alone: bool = True) -> list[str]:
    """The chunks of a snapshot, those that it alone has."""
    store = Store(disk)
    mine = {chunk.hash for chunk in store.manifest(sequence).chunks()}
    others = {chunk.hash for n in store.sequences() if n != sequence for chunk in store.manifest(n).chunks()}
    return [f"{CHUNKS}/{name}.safetensors" for name in sorted(mine - others if alone else mine)]


def spoilt(disk: MemoryDisk, path: str, data: bytes | None) -> MemoryDisk:
    """The same disk with one file another, or gone."""
    other = disk.after_kill()
    names, name = other._place(path)
    if data is None:
        del names.entries[name]
    else:
        names.entries[name].data = data  # type: ignore[union-attr]
    return other


def assert_first(disk: MemoryDisk, first: dict[str, bytes], caplog: pytest.LogCaptureFixture) -> None:
    """The first snapshot is taken, and the second is named as passed over."""
    caplog.clear()
    found = back(disk)
    assert found.manifest is not None
    assert found.manifest.sequence == 1
    assert [each.sequence for each in found.passed_over] == [2]
    assert contents(found.index) == first
    assert "snapshot 2 is passed over" in caplog.text


def test_every_byte_of_a_manifest_matters(two: tuple[MemoryDisk, Twins, dict[str, bytes]]) -> None:
    disk, _, _ = two
    path = f"{SNAPSHOTS}/0000000002/manifest.json"
    data = disk.read(path)
    r = random.Random(3)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << r.randrange(8)
        with pytest.raises(Damaged):
            decode(bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(Damaged):
            decode(data[:size])


def test_flipped_bits_of_chunks_are_found(
    two: tuple[MemoryDisk, Twins, dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    disk, _, first = two
    r = random.Random(4)
    for path in files_of(disk, 2):
        data = disk.read(path)
        for at in [0, len(data) - 1, *r.sample(range(len(data)), 4)]:
            damaged = bytearray(data)
            damaged[at] ^= 1 << r.randrange(8)
            assert_first(spoilt(disk, path, bytes(damaged)), first, caplog)


def test_truncated_lengthened_and_missing_chunks_are_found(
    two: tuple[MemoryDisk, Twins, dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    disk, _, first = two
    for path in files_of(disk, 2):
        data = disk.read(path)
        for other in (None, b"", data[:-1], data[: len(data) // 2], data + b"\0"):
            assert_first(spoilt(disk, path, other), first, caplog)


def test_a_manifest_that_is_gone_torn_or_anothers(
    two: tuple[MemoryDisk, Twins, dict[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    disk, _, first = two
    path = f"{SNAPSHOTS}/0000000002/manifest.json"
    for data in (None, b"", disk.read(path)[:-9], disk.read(f"{SNAPSHOTS}/0000000001/manifest.json")):
        assert_first(spoilt(disk, path, data), first, caplog)


def test_without_a_good_snapshot_the_index_is_empty(two: tuple[MemoryDisk, Twins, dict[str, bytes]]) -> None:
    disk, _, _ = two
    shared = set(files_of(disk, 2, alone=False)) & set(files_of(disk, 1, alone=False))
    found = back(spoilt(disk, sorted(shared)[0], None))
    assert found.manifest is None
    assert [each.sequence for each in found.passed_over] == [2, 1]
    assert found.index.positions == {}
    assert_consistent(found.index)


def test_a_chunk_found_damaged_is_written_again(two: tuple[MemoryDisk, Twins, dict[str, bytes]]) -> None:
    """Otherwise it would be in every snapshot to come, for it has the right name and size."""
    disk, twins, _ = two
    path = sorted(set(files_of(disk, 2, alone=False)) & set(files_of(disk, 1, alone=False)))[0]
    damaged = spoilt(disk, path, bytes(len(disk.read(path))))
    store = Store(damaged)
    assert restore(store, IDENTITY, new_index).manifest is None
    assert write(twins.index, store, 3, IDENTITY, START_US).chunks_written == 1
    store.publish(3)
    assert contents(back(damaged).index) == contents(twins.index)


def test_chunks_that_stay_are_looked_at_in_turn(two: tuple[MemoryDisk, Twins, dict[str, bytes]]) -> None:
    disk, twins, _ = two
    path = files_of(disk, 2)[0]
    damaged = spoilt(disk, path, bytes(len(disk.read(path))))
    written = [write(twins.index, Store(damaged), 3 + n, IDENTITY, START_US).chunks_written for n in range(16)]
    assert sorted(written) == [0] * 15 + [1]
    Store(damaged).verify(2)


# Crashes and full disks.


def test_a_crash_at_any_step_leaves_a_whole_snapshot() -> None:
    """Whichever step is the last, of writing, putting in place and removing, and whatever of the rest a power loss
    lets through: the next process finds one of the two snapshots, whole."""
    twins, disk = filled(ids=20, events=60), MemoryDisk()
    save(twins.index, disk)
    old = contents(twins.index)
    r = random.Random(8)
    twins.send([twins.event(r) for _ in range(40)])
    new = contents(twins.index)
    step, seen = 0, []
    while True:
        running = disk.after_kill()
        running.crash_after(step)
        try:
            save(twins.index, running)
            published = True
            Store(running).prune(1)
            break
        except Crash:
            published = "0000000002" in running.root.entries[SNAPSHOTS].durable  # type: ignore[union-attr]
        for found in (running.after_kill(), running.after_power_loss(r), running.after_power_loss(r)):
            Store(found).clear_parts()
            restored = contents(back(found).index)
            assert restored == new if published else restored in (old, new), step
        if step % 8 == 0:  # and it can be written again
            save(twins.index, found)
            assert contents(back(found).index) == new
        seen.append(published)
        step += 1
    assert step > 60
    assert set(seen) == {False, True}


def test_half_written_snapshots_are_removed_and_named() -> None:
    twins, disk = filled(ids=20, events=60), MemoryDisk()
    save(twins.index, disk)
    write(twins.index, Store(disk), 2, IDENTITY, START_US)  # not put in place
    store = Store(disk)
    assert store.sequences() == [1]
    assert store.next_sequence() == 3
    assert store.clear_parts() == ["0000000002"]
    assert disk.names(SNAPSHOTS) == ["0000000001"]


def test_a_full_disk_at_any_write_leaves_the_last_snapshot() -> None:
    twins, disk = filled(ids=20, events=60), MemoryDisk()
    save(twins.index, disk)
    old = contents(twins.index)
    r = random.Random(8)
    twins.send([twins.event(r) for _ in range(40)])
    needed = save(twins.index, disk.after_kill()).bytes_written
    for room in range(0, needed, needed // 20):
        full = disk.after_kill()
        full.room_bytes = room
        with pytest.raises(OSError, match="No space left"):
            save(twins.index, full)
        Store(full).abandon(2)
        Store(full).prune(3)
        assert contents(back(full).index) == old
        full.room_bytes = None
        assert save(twins.index, full).bytes_written == needed
        assert contents(back(full).index) == contents(twins.index)


def test_a_folder_of_this_machine(tmp_path: Path) -> None:
    twins = filled()
    disk = Folder(tmp_path / "data")
    assert disk.names(SNAPSHOTS) == []
    save(twins.index, disk)
    save(twins.index, disk)
    assert contents(back(disk).index) == contents(twins.index)
    Store(disk).prune(1)
    assert Store(disk).sequences() == [2]
    assert disk.lock() is not None
    assert Folder(tmp_path / "data").lock() is None
    assert disk.locked_by().isdecimal()


def test_what_a_folder_refuses_leaves_no_torn_file(tmp_path: Path) -> None:
    """The system's own refusal, in a process of its own."""
    disk = Folder(tmp_path)

    def write_too_much(_alive: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        disk.write("large", bytes(1 << 20))

    with pytest.raises(ChildFailed, match="File too large"):
        wait(fork(write_too_much), 60)
    assert disk.names(".") == []
    (tmp_path / "chunks").write_text("a file where a folder should be")
    with pytest.raises(OSError, match="chunks"):
        save(filled().index, disk)


# Other identities and limits.


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("topic", "other", "of topic ad-events, not other"),
        ("topic_id", "topic-2", "deleted since"),
        ("cluster_id", "cluster-2", "another Kafka cluster"),
        ("schema_fingerprint", "0", "another attribute schema"),
        ("model_fingerprint", "m", "another model"),
        ("dim", DIM + 1, "embeddings"),
        ("gate_dim", GATE_DIM + 1, "gates"),
        ("precision", "float32", "precision int8"),
    ],
)
def test_snapshots_of_something_else_are_passed_over(
    field: str, value: object, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    save(filled().index, disk)
    found = back(disk, msgspec.structs.replace(IDENTITY, **{field: value}))  # type: ignore[arg-type]
    assert found.manifest is None
    assert found.index.positions == {}
    assert said in found.passed_over[0].reason
    assert said in caplog.text


def test_an_older_broker_without_ids_of_topics() -> None:
    """What is not known cannot differ."""
    assert difference(IDENTITY, msgspec.structs.replace(IDENTITY, topic_id=None)) is None
    assert difference(msgspec.structs.replace(IDENTITY, cluster_id=None), IDENTITY) is None


def test_the_newest_of_this_topic_is_taken() -> None:
    twins, disk = filled(), MemoryDisk()
    save(twins.index, disk)
    save(filled(seed=2).index, disk, msgspec.structs.replace(IDENTITY, topic="other"))
    found = back(disk)
    assert found.manifest is not None
    assert found.manifest.sequence == 1
    assert contents(found.index) == contents(twins.index)


def test_another_format_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    with monkeypatch.context() as patch:
        patch.setattr("gpu_index.snapshot.FORMAT", FORMAT + 1)
        save(filled().index, disk)
    assert f"format {FORMAT + 1}" in back(disk).passed_over[0].reason


def test_smaller_limits_are_refused_by_name() -> None:
    twins, disk, r = filled(ids=20_000), MemoryDisk(), random.Random(1)
    twins.send([twins.event(r, EventKind.CREATE) for _ in range(12_000)])
    save(twins.index, disk)
    with pytest.raises(DoesNotFit, match=r"ads has .* rows.*raise ads_max"):
        back(disk, limits=LIMITS._replace(ads=8192))
    with pytest.raises(DoesNotFit, match="raise targetings_max"):
        back(disk, limits=LIMITS._replace(targetings=64))
    with pytest.raises(DoesNotFit, match="terms"):
        back(disk, limits=LIMITS._replace(terms=1024))


def test_progress_is_told() -> None:
    disk, told = MemoryDisk(), []
    save(filled().index, disk)
    restore(Store(disk), IDENTITY, new_index, lambda read, total: told.append((read, total)))
    assert told[-1][0] == told[-1][1] == Store(disk).manifest(1).bytes
    assert told == sorted(told)


def test_a_manifest_of_other_parts_is_refused() -> None:
    disk = MemoryDisk()
    save(filled().index, disk)
    store = Store(disk)
    manifest = store.manifest(1)
    fewer = msgspec.structs.replace(manifest, groups=manifest.groups[1:])
    with pytest.raises(Damaged, match="other parts"):
        load(store, fewer, new_index())
    group = manifest.groups[0]
    fewer = msgspec.structs.replace(manifest, groups=[msgspec.structs.replace(group, chunks=[]), *manifest.groups[1:]])
    with pytest.raises(Damaged, match="lacks chunks"):
        load(store, fewer, new_index())
