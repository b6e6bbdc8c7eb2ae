"""Snapshots of the running service: restored at the start, written at an interval, on request and at an orderly end.

A snapshot on a thread of its own, while the engine works: (1) the index's memory goes into huge pages, so that forking
is quick; (2) the engine forks between two batches; (3) the child writes; (4) once every dead letter below the offsets
of that moment is in its topic, what was written is put in place, and what is old removed. So none ever passes a dead
letter that was not sent; and a failure at any step leaves the last good one, is counted, and shown with its reason.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from api.config import UserError
from api.engine import Engine, Stopped
from gpu_index.disk import Folder
from gpu_index.fork import Child, ChildFailed, described, fork, wait
from gpu_index.index import Index
from gpu_index.layout import groups
from gpu_index.manifest import Damaged, Identity, Manifest, moment
from gpu_index.restore import PassedOver, restore
from gpu_index.snapshot import Written, write
from gpu_index.store import Store
from kernels.memory import use_huge_pages

LOCK_WAIT_S = 10.0  # for a process that was killed, or a child of it, to let go
LOCK_POLL_S = 0.05
SAFE_WAIT_S = 5.0  # for dead letters on their way
WRITE_S_MAX = 900.0  # then the child is ended
LOG_INTERVAL_S = 2.0  # of the progress of a restore

log = logging.getLogger("mirach.snapshots")

Safe = Callable[[Mapping[int, int], float], bool]  # whether a snapshot at these offsets may be written, in time


class NotWritten(Exception):
    """No snapshot was written, and the last one stays; the message says why."""


class Skipped(NotWritten):
    """It could not be written now without passing over what it must not: no failure."""


class Done(NamedTuple):
    """A snapshot that is in place."""

    written: Written
    created_us: int
    seconds: float
    pause_ms: float  # that the engine waited


class Fork(Protocol):
    def __call__(self, work: Callable[[Callable[[], None]], object], keep_open: Iterable[int]) -> Child: ...


class Wait(Protocol):
    def __call__(self, child: Child, timeout_s: float, cancelled: Callable[[], bool]) -> msgspec.Raw: ...


class Snapshots:
    def __init__(
        self,
        folder: Folder,
        engine: Engine,
        safe: Safe,
        *,
        interval_s: float,
        kept: int,
        clock_us: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        thread: Callable[..., threading.Thread] = threading.Thread,
        fork: Fork = fork,
        wait: Wait = wait,
    ) -> None:
        """`interval_s` 0: only on request and at the end. `kept`: how many stay. `fork` and `wait` are those of
        gpu_index/fork.py, `clock` and `thread` the system's, but in tests/simulation."""
        self.store = Store(folder)
        self._folder = folder
        self._engine = engine
        self._safe = safe
        self._interval_s, self._kept = interval_s, kept
        self._clock_us, self._clock = clock_us, clock
        self._fork_image, self._wait = fork, wait
        self._identity: Identity | None = None  # known once the topic was seen
        self._lock: int | None = None  # descriptor
        self._changed = threading.Condition()
        self._wanted: Future[Done] | None = None  # of the next one, by those who asked for one
        self._stopping = False
        self._due = 0.0  # by the clock: when the next one is, of itself
        self._thread = thread(target=self._run, name="mirach-snapshots", daemon=True)
        # what is shown
        self._restoring: str | None = None
        self._restored: int | None = None
        self._restore_s = 0.0
        self._passed_over: list[PassedOver] = []
        self._writing = False
        self._last: Done | None = None
        self._start: dict[int, int] = {}  # the offsets that were restored
        self._offsets: dict[int, int] | None = None  # of the newest snapshot of this index
        self._model: str | None = None  # of that one, by fingerprint
        self._model_writing: str | None = None
        self._newest_us: int | None = None  # when that was made
        self._problem: str | None = None  # why the newest try wrote none
        self._counts = {"written": 0, "failed": 0, "skipped": 0}
        self._bytes_written = 0

    # -- start

    def lock(self) -> None:
        """Makes sure that no other process uses the folder. Raises UserError."""
        deadline = time.monotonic() + LOCK_WAIT_S
        try:
            while (descriptor := self._folder.lock()) is None:
                if time.monotonic() > deadline:
                    other = self._folder.locked_by()
                    raise UserError(
                        f"data_dir {self._folder.root} is in use by process {other}; each service needs its own"
                    )
                time.sleep(LOCK_POLL_S)
        except OSError as error:
            raise UserError(f"data_dir {self._folder.root} cannot be used: {described(error)}") from error
        self._lock = descriptor
        for name in self.store.clear_parts():
            log.warning("snapshot %s was left half-written by a process that ended; it is removed", int(name))

    def restore(self, identity: Identity, new_index: Callable[[], Index]) -> dict[int, int]:
        """Gives the engine the newest good snapshot of this identity, if there is one. -> the offsets to read on from.
        Raises DoesNotFit, Stopped."""
        self._identity = identity
        self._restoring = "looking for a snapshot"
        began = self._clock()
        try:
            found = restore(self.store, identity, new_index, self._show_progress)
            self._passed_over = found.passed_over
            if found.manifest is None:
                log.info("no usable snapshot in %s: the index is built from the topic's beginning", self._folder.root)
                return {}
            self._restore_s = self._clock() - began
            self._engine.adopt(found.index).result()
        finally:
            self._restoring = None
        self._restored, self._newest_us = found.manifest.sequence, found.manifest.created_us
        self._start = self._offsets = dict(found.manifest.offsets)
        self._model = identity.model_fingerprint
        log.info(
            "snapshot %d of %s is restored: %d ads, %.0f MB in %.1f s", found.manifest.sequence,
            moment(found.manifest.created_us), found.index.count, found.manifest.bytes / 1e6, self._restore_s,
        )  # fmt: skip
        return self._start

    def _show_progress(self, read: int, total: int) -> None:
        self._restoring = f"restoring a snapshot: {read / 1e6:,.0f} of {total / 1e6:,.0f} MB read"

    @property
    def restoring(self) -> str | None:
        """How far a restore is; None: none is going on."""
        return self._restoring

    def start(self) -> None:
        """From now on snapshots are written. The engine's index has this identity and positions."""
        assert self._identity is not None
        self._due = self._clock() + self._interval_s
        self._thread.start()

    # -- on request

    def request(self) -> Future[Done]:
        """A snapshot that is not older than this call. The future raises NotWritten."""
        with self._changed:
            if self._stopping or not self._thread.is_alive():
                refused: Future[Done] = Future()
                why = "is stopping" if self._stopping else "has not begun to read its topic yet"
                refused.set_exception(Skipped(f"the service {why}"))
                return refused
            if self._wanted is None:
                self._wanted = Future()
                self._changed.notify_all()
            return self._wanted

    # -- the thread

    def _run(self) -> None:
        while self.turn(wait=True):
            pass

    def turn(self, *, wait: bool = False) -> bool:
        """Writes a snapshot if one is due, with `wait` once it is; False once the thread is to end."""
        with self._changed:
            if wait:
                patience = None if self._interval_s == 0 else max(0.0, self._due - self._clock())
                self._changed.wait_for(lambda: self._stopping or self._wanted is not None, patience)
            if self._stopping:
                return False
            wanted, self._wanted = self._wanted, None
        if wanted is None and (self._interval_s == 0 or self._clock() < self._due):
            return True
        self._due = self._clock() + self._interval_s
        if wanted is None and self._is_written():
            return True
        result = self._try(self._write)
        if wanted is not None:
            if isinstance(result, Done):
                wanted.set_result(result)
            else:
                wanted.set_exception(result)
        return True

    def _try(self, write_one: Callable[[int], Done]) -> Done | NotWritten:
        """Writes a snapshot, or cleans up what there is of one; counts and logs what came of it."""
        sequence = 0
        self._writing = True
        try:
            sequence = self.store.next_sequence()
            done = write_one(sequence)
        except (NotWritten, ChildFailed, Stopped, OSError) as error:
            return self._failed(sequence, error)
        except Exception as error:
            log.exception("a fault of our own")
            return self._failed(sequence, error)
        finally:
            self._writing = False
        self._succeeded(done)
        return done

    def _write(self, sequence: int) -> Done:
        began = self._clock()
        self._check_safe(self._engine.positions())
        for group in groups(self._engine.index):
            for column in group.columns.values():
                if column.flags.c_contiguous:
                    use_huge_pages(column[: group.rows])
        child, created_us, pause_ms = self._engine.call(lambda index: self._fork(index, sequence)).result()
        written = msgspec.json.decode(self._wait(child, WRITE_S_MAX, lambda: self._stopping), type=Written)
        self._check_safe(written.offsets)
        self.store.publish(sequence)
        return Done(written, created_us, self._clock() - began, pause_ms)

    def _is_written(self) -> bool:
        """Whether the newest snapshot is of the index as it is."""
        return self._engine.positions() == self._offsets and model_of(self._engine.index) == self._model

    def _identity_of(self, index: Index) -> Identity:
        """Of the index as it is: its model may have been switched since the start. On the engine's thread."""
        assert self._identity is not None
        self._model_writing = model_of(index)
        return msgspec.structs.replace(
            self._identity, model_fingerprint=self._model_writing, dim=index.dim, gate_dim=index.gate_dim
        )

    def _fork(self, index: Index, sequence: int) -> tuple[Child, int, float]:
        """On the engine's thread."""
        identity, created_us = self._identity_of(index), self._clock_us()
        began = time.perf_counter()
        kept_open = () if self._lock is None else (self._lock,)
        child = self._fork_image(
            lambda alive: write(index, self.store, sequence, identity, created_us, alive), kept_open
        )
        return child, created_us, (time.perf_counter() - began) * 1e3

    def _check_safe(self, positions: Mapping[int, int], timeout_s: float = SAFE_WAIT_S) -> None:
        """What was restored is safe: a partition that stands there may not even be read yet."""
        moved = {partition: offset for partition, offset in positions.items() if offset > self._start.get(partition, 0)}
        if not self._safe(moved, timeout_s):
            raise Skipped("bad events below its offsets are not in the dead-letter topic yet")

    def _succeeded(self, done: Done) -> None:
        self._last, self._offsets, self._problem = done, done.written.offsets, None
        self._model = self._model_writing
        self._newest_us = done.created_us
        self._counts["written"] += 1
        self._bytes_written += done.written.bytes_written
        log.info(
            "snapshot %d is written: %.0f MB, %.0f of them new, in %.1f s; the engine waited %.1f ms",
            done.written.sequence, done.written.bytes / 1e6, done.written.bytes_written / 1e6, done.seconds,
            done.pause_ms,
        )  # fmt: skip
        try:
            self.store.prune(self._kept)
        except OSError as error:
            self._problem = f"old snapshots could not be removed: {described(error)}"
            log.error("%s", self._problem)

    def _failed(self, sequence: int, error: Exception) -> NotWritten:
        reason = described(error) if isinstance(error, OSError) else str(error) or "the engine has ended"
        skipped = isinstance(error, Skipped | Stopped)
        self._problem = reason
        self._counts["skipped" if skipped else "failed"] += 1
        log.log(logging.WARNING if skipped else logging.ERROR, "no snapshot is written, the last one stays: %s", reason)
        with suppress(OSError):  # room for the next try, if it may be had
            self.store.abandon(sequence)
            self.store.prune(self._kept)
        return Skipped(reason) if skipped else NotWritten(reason)

    # -- the end

    def stop(self) -> None:
        """Ends the thread, and the child that is writing."""
        with self._changed:
            self._stopping = True
            wanted, self._wanted = self._wanted, None
            self._changed.notify_all()
        if wanted is not None:
            wanted.set_exception(Skipped("the service is stopping"))
        if self._thread.ident is not None:
            self._thread.join()

    def finish(self) -> None:
        """Ingest and engine have ended: writes what is new since the last snapshot, with no fork, and lets go of the
        folder."""
        if self._engine.alive or self._engine.failed:
            log.error("no snapshot is written at the end: the engine did not end in order")
        elif self._thread.ident is not None and not self._is_written():
            self._try(self._write_here)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write_here(self, sequence: int) -> Done:
        began, created_us = self._clock(), self._clock_us()
        identity = self._identity_of(self._engine.index)
        self._check_safe(self._engine.positions(), 0.0)
        written = write(self._engine.index, self.store, sequence, identity, created_us)
        self.store.publish(sequence)
        return Done(written, created_us, self._clock() - began, 0.0)

    # -- what is shown

    def figures(self) -> dict[str, Any]:
        """How snapshots stand, as JSON types, without looking at the disk."""
        last = self._last
        return {
            "data_dir": str(self._folder.root),
            "interval_s": self._interval_s,
            "kept": self._kept,
            "restoring": self._restoring,
            "restored": self._restored,
            "restore_s": round(self._restore_s, 3),
            "passed_over": [each._asdict() for each in self._passed_over],
            "writing": self._writing,
            "problem": self._problem,
            "last": None if last is None else shown(last),
            "age_s": None if self._newest_us is None else max(0.0, (self._clock_us() - self._newest_us) / 1e6),
            **self._counts,
            "bytes_written": self._bytes_written,
        }

    def list(self) -> list[dict[str, Any]]:
        """Those on disk, the newest first. Raises OSError."""
        return [listed(self.store, sequence) for sequence in self.store.sequences()]


def model_of(index: Index) -> str | None:
    return None if index.model is None else index.model.fingerprint


def shown(done: Done) -> dict[str, Any]:
    written = msgspec.to_builtins(done.written)
    return {**written, "seconds": round(done.seconds, 3), "pause_ms": round(done.pause_ms, 3)}


def listed(store: Store, sequence: int) -> dict[str, Any]:
    """One snapshot on disk as JSON types, by its manifest alone."""
    try:
        manifest = store.manifest(sequence)
    except Damaged as damage:
        return {"sequence": sequence, "damaged": str(damage)}
    return described_manifest(manifest)


def described_manifest(manifest: Manifest) -> dict[str, Any]:
    return {
        "sequence": manifest.sequence,
        "created": moment(manifest.created_us),
        "offsets": {str(partition): offset for partition, offset in manifest.offsets.items()},
        "bytes": manifest.bytes,
        **manifest.counts,
        "identity": msgspec.to_builtins(manifest.identity),
    }
