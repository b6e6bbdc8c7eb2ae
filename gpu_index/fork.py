"""Work on an image of this process: a fork, of which the system copies a page only when one side writes to it.

The thread that owns the index forks between two batches; that is all it waits for. The child has the memory of that
moment and one thread, does its work, reports it through a pipe and ends without running anything of the parent's. The
price: pages that the parent writes to meanwhile are copied, so that a snapshot of an index under many updates may take
up to as much memory again as they touch; and forking copies page tables, so that the pause grows with the memory that
does not lie in huge pages (kernels/memory.py, `use_huge_pages`; measured, and shown as a metric). A backend whose
index is not in this process's memory copies it out asynchronously in place of this.

A child of a process with threads may touch nothing that another thread may have held: no lock, no log, no Kafka
client, no OpenMP. Collection of garbage is off, lest it end such an object; signals stay blocked, lest one be written
to the parent's event loop; descriptors but for the needed ones are closed, so that a child which outlives a killed
parent holds neither its port nor its connections. It looks between two pieces of work whether its parent lives.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, NoReturn

import msgspec

NICENESS = 10  # of the child: queries come first
REPORT_BYTES_MAX = 1 << 20
CANCELLED_POLL_MS = 50
STANDARD_DESCRIPTORS = 3
DESCRIPTORS_MAX = 1 << 20


class Child(NamedTuple):
    pid: int
    report: int  # descriptor


class ChildFailed(Exception):
    """The work was not done; the message says why."""


class _ParentGone(Exception):
    pass


class _Report(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: str | None = None


def fork(work: Callable[[Callable[[], None]], object], keep_open: Iterable[int] = ()) -> Child:
    """Starts `work(alive)` on an image of this process and returns. `work` calls `alive` now and then, which ends it if
    the parent is gone; its result goes through JSON. Raises OSError where the system has no room for a child.

    `wait` must follow. `keep_open`: descriptors that the child needs, or keeps on behalf of its parent.
    """
    # From 3.12 on Python warns of forks in processes with threads. What makes them dangerous is ruled out above.
    warnings.filterwarnings("ignore", r"This process .* is multi-threaded", DeprecationWarning)
    parent = os.getpid()
    report, write_end = os.pipe()
    collecting = gc.isenabled()
    gc.disable()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _run(work, parent, write_end, {*keep_open, write_end})
    except OSError:
        os.close(report)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        if collecting:
            gc.enable()
        os.close(write_end)
    return Child(pid, report)


def wait(child: Child, timeout_s: float, cancelled: Callable[[], bool] = lambda: False) -> msgspec.Raw:
    """The result as JSON, once the child has ended; one that takes longer, or is cancelled, is killed. Raises
    ChildFailed."""
    try:
        return _result(child, timeout_s, cancelled)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        os.close(child.report)


def _result(child: Child, timeout_s: float, cancelled: Callable[[], bool]) -> msgspec.Raw:
    poll = select.poll()
    poll.register(child.report, select.POLLIN)
    deadline = time.monotonic() + timeout_s
    data = b""
    while True:
        while not poll.poll(CANCELLED_POLL_MS):
            if cancelled():
                raise ChildFailed("it was not waited for")
            if time.monotonic() > deadline:
                raise ChildFailed(f"it took longer than {timeout_s:g} s")
        piece = os.read(child.report, REPORT_BYTES_MAX)
        if not piece:
            break
        data += piece
    try:
        report = msgspec.json.decode(data, type=_Report)
    except msgspec.DecodeError:
        raise ChildFailed("its process ended early; was there too little memory?") from None
    if report.failure is not None:
        raise ChildFailed(report.failure)
    return report.result


def _run(work: Callable[[Callable[[], None]], object], parent: int, write_end: int, keep: set[int]) -> NoReturn:
    """The child's whole life."""
    status = 1
    try:
        _close_all_but(keep)
        os.nice(NICENESS)

        def alive() -> None:
            if os.getppid() != parent:
                raise _ParentGone

        try:
            report = _Report(result=msgspec.Raw(msgspec.json.encode(work(alive))))
            status = 0
        except OSError as error:
            report = _Report(failure=described(error))
        except Exception as error:
            report = _Report(failure=f"{type(error).__name__}: {error}")
        _write(write_end, msgspec.json.encode(report))
    finally:
        os._exit(status)


def described(error: OSError) -> str:
    """What went wrong and where, as one sentence."""
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"


def _close_all_but(keep: set[int]) -> None:
    first = STANDARD_DESCRIPTORS
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = max(first, descriptor + 1)
    os.closerange(first, DESCRIPTORS_MAX)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
