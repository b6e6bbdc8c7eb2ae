"""Work on an image of the process: what the child sees, reports, keeps open, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gpu_index.fork import ChildFailed, fork, wait
from kernels.memory import HUGE_PAGE_BYTES, reserve, use_huge_pages
from tests.kafka import until

WAIT_S = 60.0


def test_the_child_has_the_memory_of_the_moment(tmp_path: Path) -> None:
    array = reserve(1 << 20, np.int64)
    array[:] = 1
    go, gone = os.pipe()

    def total(_alive: Callable[[], None]) -> int:
        os.read(go, 1)  # until the parent has changed everything
        return int(array.sum())

    child = fork(total, (go,))
    array[:] = 2
    os.write(gone, b"x")
    assert msgspec.json.decode(wait(child, WAIT_S)) == 1 << 20
    os.close(go)
    os.close(gone)


def test_other_threads_are_no_reason_to_warn() -> None:
    """From Python 3.12 on a fork of a process with threads warns, and warnings are errors here."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert msgspec.json.decode(wait(fork(lambda _alive: threading.active_count()), WAIT_S)) == 1
    done.set()
    for thread in threads:
        thread.join()


def test_failures_are_told() -> None:
    def fails(_alive: Callable[[], None]) -> None:
        raise OSError(28, "No space left on device", "/data/chunks/x")

    def faulty(_alive: Callable[[], None]) -> None:
        raise KeyError("a fault")

    def dies(_alive: Callable[[], None]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ChildFailed, match=r"^No space left on device: /data/chunks/x$"):
        wait(fork(fails), WAIT_S)
    with pytest.raises(ChildFailed, match="KeyError: 'a fault'"):
        wait(fork(faulty), WAIT_S)
    with pytest.raises(ChildFailed, match="ended early"):
        wait(fork(dies), WAIT_S)


def test_a_child_that_takes_too_long_is_killed() -> None:
    child = fork(lambda _alive: threading.Event().wait())
    with pytest.raises(ChildFailed, match="longer than"):
        wait(child, 0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    child = fork(lambda _alive: threading.Event().wait())
    with pytest.raises(ChildFailed, match="not waited for"):
        wait(child, WAIT_S, lambda: True)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_the_child_lets_go_of_what_it_does_not_need() -> None:
    """Ports and connections above all: a killed service could not be started again while a child of it still ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    one, other = socket.socketpair()
    kept, written = os.pipe()

    def open_ones(_alive: Callable[[], None]) -> list[bool]:
        found = []
        for descriptor in (listener.fileno(), one.fileno(), kept):
            try:
                os.fstat(descriptor)
                found.append(True)
            except OSError:
                found.append(False)
        return found

    assert msgspec.json.decode(wait(fork(open_ones, (kept,)), WAIT_S)) == [False, False, True]
    for each in (listener, one, other):
        assert each.fileno() >= 0  # the parent's are as they were
        each.close()
    os.close(kept)
    os.close(written)


def test_signals_are_the_parents_alone() -> None:
    def takes_one(_alive: Callable[[], None]) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return signal.SIGTERM in signal.sigpending()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert msgspec.json.decode(wait(fork(takes_one), WAIT_S)) is True
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


ORPHAN = """
import os, signal, sys
from gpu_index.fork import fork

def work(alive):
    sys.stdout.write("begun\\n")
    sys.stdout.flush()
    while True:
        alive()

child = fork(work)
sys.stdout.write(f"{child.pid}\\n")
sys.stdout.flush()
signal.pause()
"""


def test_a_child_whose_parent_is_killed_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = [parent.stdout.readline().strip() for _ in range(2)]
        parent.kill()
        assert parent.stdout.read() == ""  # until nobody has the pipe open any more: both have ended
    child = int(next(line for line in lines if line.isdecimal()))
    until(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child), "the child ends")


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_huge_pages_change_nothing_that_is_stored() -> None:
    array = reserve(3 * HUGE_PAGE_BYTES, np.uint8)
    use_huge_pages(array, later=True)
    array[:] = np.arange(len(array), dtype=np.uint8)
    use_huge_pages(array)
    use_huge_pages(array[:100])
    use_huge_pages(array[:0])
    assert np.array_equal(array, np.arange(len(array), dtype=np.uint8))
