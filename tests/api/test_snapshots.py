"""Snapshots of a running engine: written while it works, on request, at an interval and at the end; and when not."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api.cli import main
from api.config import UserError
from api.engine import Engine
from api.snapshots import Done, NotWritten, Skipped, Snapshots
from gpu_index.disk import Folder
from gpu_index.events import Batch
from gpu_index.manifest import Identity
from tests.api.running import Running, clock_us
from tests.api.test_admin import bearer
from tests.api.test_http import US, problem
from tests.kafka import until
from tests.random_cases import SCHEMA
from tests.twins import DIM, GATE_DIM, Twins, new_index

Start = Callable[..., Running]
IDENTITY = Identity("t", "i", "c", SCHEMA.fingerprint, None, DIM, GATE_DIM, "int8")
WAIT_S = 60.0


def create(number: int) -> dict[str, Any]:
    return {"type": "create", "ad_id": str(number), "version": 1, "ad": {"bid": 1 + number}}


# Over HTTP.


def test_a_snapshot_on_request(start: Start) -> None:
    running = start()
    problem(running.post("/v1/admin/snapshots"), 503, "no-snapshot")
    running.begin()
    figures = running.get("/v1/admin/snapshots").json()
    assert (figures["snapshots"], figures["last"], figures["restored"]) == ([], None, None)
    running.take(*(create(number) for number in range(5)))
    written = running.post("/v1/admin/snapshots")
    assert written.status_code == 200
    assert (written.json()["sequence"], written.json()["offsets"]) == (1, {"0": 5})
    assert written.json()["pause_ms"] > 0
    again = running.post("/v1/admin/snapshots").json()
    assert (again["sequence"], again["bytes_written"]) == (2, 0)
    figures = running.get("/v1/admin/snapshots").json()
    assert [(each["sequence"], each["ads"], each["offsets"]) for each in figures["snapshots"]] == [
        (2, 5, {"0": 5}),
        (1, 5, {"0": 5}),
    ]
    assert figures["age_s"] >= 0
    assert (figures["written"], figures["failed"], figures["problem"]) == (2, 0, None)
    assert running.post("/v1/retrieve", US).json()["eligible"] == 5


def test_no_snapshot_passes_a_dead_letter_that_was_not_sent(start: Start) -> None:
    running = start()
    running.begin()
    running.take(create(1))
    running.safe = False
    detail = problem(running.post("/v1/admin/snapshots"), 503, "no-snapshot")["detail"]
    assert "dead-letter" in detail
    figures = running.get("/v1/admin/snapshots").json()
    assert (figures["snapshots"], figures["skipped"], figures["failed"]) == ([], 1, 0)
    assert figures["problem"] == detail
    running.safe = True
    assert running.post("/v1/admin/snapshots").status_code == 200
    assert running.get("/v1/admin/snapshots").json()["problem"] is None


def test_the_metrics_of_snapshots(start: Start) -> None:
    running = start()
    running.begin()
    assert "mirach_snapshot_age_seconds" not in running.get("/metrics").text
    running.take(create(1))
    running.post("/v1/admin/snapshots")
    running.safe = False
    running.post("/v1/admin/snapshots")
    found = running.get("/metrics").text
    for line in ('mirach_snapshots_total{outcome="written"} 1.0', 'mirach_snapshots_total{outcome="skipped"} 1.0',
                 'mirach_snapshots_total{outcome="failed"} 0.0', "mirach_snapshot_age_seconds ",
                 "mirach_snapshot_bytes ", "mirach_snapshot_seconds ", "mirach_snapshot_pause_seconds ",
                 "mirach_snapshot_written_bytes_total "):  # fmt: skip
        assert "\n" + line in found


def test_they_need_the_token(start: Start) -> None:
    running = start(admin_token="s3cret")
    for method in ("GET", "POST"):
        problem(running.request(method, "/v1/admin/snapshots"), 401, "unauthorized")
    assert running.get("/v1/admin/snapshots", headers=bearer("s3cret")).status_code == 200


def test_while_it_restores_it_is_not_ready(start: Start) -> None:
    running = start()
    running.snapshots._show_progress(3_000_000, 9_000_000)
    assert "3 of 9 MB" in problem(running.get("/readyz"), 503, "not-ready")["detail"]


# Beside an engine.


class Parts:
    """An engine with twins' events, and its snapshots in a folder."""

    def __init__(self, folder: Path, *, interval_s: float = 0, kept: int = 3) -> None:
        self.engine = Engine(new_index(), clock_us=clock_us)
        self.safe = True
        self.asked: list[dict[int, int]] = []

        def safe(offsets: Any, _timeout_s: float) -> bool:
            self.asked.append(dict(offsets))
            return self.safe

        self.snapshots = Snapshots(
            Folder(folder), self.engine, safe, interval_s=interval_s, kept=kept, clock_us=clock_us
        )
        self.snapshots.lock()
        self.engine.start()
        self.start = self.snapshots.restore(IDENTITY, new_index)
        self.snapshots.start()

    def offer(self, batch: Batch) -> None:
        assert self.engine.offer(batch, WAIT_S)
        self.engine.call(lambda _: None).result(WAIT_S)
        self.engine.call(lambda _: None).result(WAIT_S)

    def write(self) -> Done:
        return self.snapshots.request().result(WAIT_S)

    def stop(self) -> None:
        self.snapshots.stop()
        self.engine.stop()
        self.snapshots.finish()


def batch(first: int, count: int = 1) -> Batch:
    twins = Twins(random.Random(first), ids=20, partitions=1)
    twins.offset = [first]
    events = [twins.event(random.Random(n)) for n in range(count)]
    return Batch(events, {0: twins.offset[0]}, lambda *_: None)


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    made: list[Parts] = []

    def make(**more: Any) -> Parts:
        made.append(Parts(tmp_path / "data", **more))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def test_the_end_writes_what_is_new_and_only_that(parts: Callable[..., Parts], tmp_path: Path) -> None:
    one = parts()
    one.offer(batch(0, 30))
    one.stop()
    assert os.listdir(tmp_path / "data" / "snapshots") == ["0000000001"]
    two = parts()
    assert two.start == one.engine.positions()
    assert two.engine.index.count == one.engine.index.count
    two.stop()
    assert os.listdir(tmp_path / "data" / "snapshots") == ["0000000001"]


def test_the_end_passes_no_dead_letter_either(parts: Callable[..., Parts], tmp_path: Path) -> None:
    one = parts()
    one.offer(batch(0, 30))
    one.safe = False
    one.stop()
    assert not (tmp_path / "data" / "snapshots").exists()


def test_what_was_restored_is_safe(parts: Callable[..., Parts]) -> None:
    """Its partitions may not have been taken up yet."""
    one = parts()
    one.offer(batch(0, 30))
    one.stop()
    two = parts()
    two.write()
    assert two.asked == [{}, {}]
    two.offer(batch(500, 3))
    two.write()
    assert two.asked[-1] == two.engine.positions()


def test_an_interval_writes_where_there_is_something_new(parts: Callable[..., Parts]) -> None:
    one = parts(interval_s=0.02, kept=2)
    for first in (0, 100, 200, 300):
        one.offer(batch(first, 10))
        wanted = one.engine.positions()
        until(lambda wanted=wanted: one.snapshots._offsets == wanted, "a snapshot of it")  # type: ignore[misc]
    assert len(one.snapshots.store.sequences()) <= 3  # the newest is there before the oldest is removed
    written = one.snapshots.figures()["written"]
    one.snapshots.stop()
    assert written <= 5, "nothing new, nothing written"


def test_a_full_disk_leaves_the_last_and_the_service_goes_on(
    parts: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = parts()
    one.offer(batch(0, 30))
    one.write()
    one.offer(batch(100, 30))
    write = Folder.write

    def full(self: Folder, path: str, data: bytes) -> None:
        if "manifest" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full)
        with pytest.raises(NotWritten, match="No space left on device"):
            one.write()
    figures = one.snapshots.figures()
    assert (figures["failed"], figures["written"]) == (1, 1)
    assert "No space left" in figures["problem"]
    assert "No space left" in caplog.text
    assert one.snapshots.store.sequences() == [1]
    one.snapshots.store.verify(1)
    one.offer(batch(200, 30))
    assert one.write().written.offsets == one.engine.positions()
    assert one.snapshots.figures()["problem"] is None


def test_a_fault_of_ours_is_a_failure_and_the_thread_goes_on(
    parts: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = parts()
    with monkeypatch.context() as patch:
        patch.setattr("api.snapshots.use_huge_pages", lambda _: 1 / 0)
        with pytest.raises(NotWritten, match="division"):
            one.write()
    one.write()


def test_requests_that_wait_share_one_snapshot(parts: Callable[..., Parts]) -> None:
    one = parts()
    held, go = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        held.set()
        assert go.wait(WAIT_S)

    one.engine.call(hold)
    assert held.wait(WAIT_S)
    first = one.snapshots.request()
    until(lambda: one.snapshots._wanted is None, "it is being written")
    others = [one.snapshots.request() for _ in range(3)]
    go.set()
    assert first.result(WAIT_S).written.sequence == 1
    assert {other.result(WAIT_S).written.sequence for other in others} == {2}


def test_a_stop_ends_the_child_that_writes(parts: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch) -> None:
    one = parts()
    one.offer(batch(0, 30))
    monkeypatch.setattr("api.snapshots.write", lambda *_: threading.Event().wait())
    writing = one.snapshots.request()
    until(lambda: one.snapshots._writing, "it is being written")
    one.snapshots.stop()
    with pytest.raises(NotWritten):
        writing.result(WAIT_S)
    with pytest.raises(Skipped, match="stopping"):
        one.write()
    monkeypatch.undo()
    one.stop()
    assert one.snapshots.store.sequences() != []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_a_fault_of_the_engine_nothing_is_written(parts: Callable[..., Parts]) -> None:
    """The index may be half changed."""
    one = parts()
    one.offer(batch(0, 30))
    broken = batch(200)
    broken.positions[0] = -1
    assert one.engine.offer(broken, WAIT_S)
    until(lambda: not one.engine.alive, "the engine ends")
    assert one.engine.failed
    with pytest.raises(NotWritten, match="engine"):
        one.write()
    one.stop()
    assert one.snapshots.store.sequences() == []


def test_a_folder_serves_one_service(
    parts: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts()
    monkeypatch.setattr("api.snapshots.LOCK_WAIT_S", 0.0)
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        parts()
    (tmp_path / "file").write_text("")
    other = Snapshots(
        Folder(tmp_path / "file"), Engine(new_index(), clock_us=clock_us), lambda *_: True, interval_s=0, kept=1,
        clock_us=clock_us,
    )  # fmt: skip
    with pytest.raises(UserError, match="cannot be used"):
        other.lock()


def test_what_was_left_half_written_is_said(parts: Callable[..., Parts], tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "data" / "snapshots" / "0000000007.part").mkdir(parents=True)
    one = parts()
    assert "snapshot 7 was left half-written" in caplog.text
    one.offer(batch(0, 3))
    one.write()
    assert one.snapshots.store.sequences() == [1]


# From the command line.


def test_the_command_lists_verifies_and_names_what_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: Callable[..., Parts]
) -> None:
    one = parts()
    one.offer(batch(0, 30))
    one.write()
    one.offer(batch(100, 30))
    one.write()
    folder = ("--data-dir", str(tmp_path / "data"))

    def mirach(*arguments: str) -> tuple[int, str]:
        """Exit code and what it says: on standard output or, of a user's error, the last line of the other."""
        code = main(["snapshot", *arguments, *folder])
        said = capsys.readouterr()
        return code, said.err.splitlines()[-1] if code == 2 else said.out

    code, said = mirach("list")
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()[1:]] == ["2", "1"]
    code, said = mirach("list", "1", "--json")
    assert [(each["sequence"], each["identity"]["topic"]) for each in json.loads(said)] == [(1, "t")]
    assert mirach("verify")[0] == 0
    assert mirach("list", "7") == (2, "mirach: there is no snapshot 7; there are: 2, 1")
    code, said = mirach("create", "--url", "http://127.0.0.1:1")
    assert code == 2
    assert "is the service up?" in said

    store = one.snapshots.store
    only = {chunk.hash for chunk in store.manifest(2).chunks()} - {chunk.hash for chunk in store.manifest(1).chunks()}
    chunk = tmp_path / "data" / "chunks" / f"{min(only)}.safetensors"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    code, said = mirach("verify")
    assert code == 1
    assert f"snapshot 2 is damaged: chunks/{chunk.name} has" in said
    assert "snapshot 1 is whole" in said
    (tmp_path / "data" / "snapshots" / "0000000001" / "manifest.json").write_text("{}")
    assert "1  damaged" in mirach("list")[1]


def test_the_command_of_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("list", "verify"):
        assert main(["snapshot", action, "--data-dir", str(tmp_path)]) == 0
        assert "there is no snapshot" in capsys.readouterr().err
