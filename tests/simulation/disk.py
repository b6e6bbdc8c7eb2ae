"""The disk of the simulated process: tests/disks.py with damage, and with a child that writes beside its parent."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import msgspec

from gpu_index.fork import ChildFailed, described
from tests.disks import Crash, File, MemoryDisk, Names
from tests.simulation.threads import Threads

Operation = tuple[
    str, tuple[Any, ...]
]  # a method of the disk and its arguments; "alive": the child looks for its parent


class SimulatedDisk(MemoryDisk):
    """As MemoryDisk, with the lock of a folder, and bits that flip."""

    root_name = "simulated"

    def __init__(self) -> None:
        super().__init__()
        self._damaged: set[tuple[str, bytes]] = set()  # paths and contents with a wrong bit
        self.damage_read = False  # since a manifest was read last
        self.locks: list[int] = []

    @staticmethod
    def found(other: MemoryDisk, before: SimulatedDisk) -> SimulatedDisk:
        """As the next process finds it."""
        disk = SimulatedDisk()
        disk.root, disk._damaged = other.root, before._damaged
        return disk

    @property
    def flipped(self) -> set[str]:
        """Paths of files with a wrong bit."""
        return {path for path, data in self._damaged if self.files().get(path) == data}

    def lock(self) -> int:
        self.locks.append(os.open(os.devnull, os.O_RDONLY))
        return self.locks[-1]

    def locked_by(self) -> str:
        return "nobody"

    def read(self, path: str) -> bytes:
        if path.endswith("manifest.json"):
            self.damage_read = False
        data = super().read(path)
        self.damage_read |= (path, data) in self._damaged
        return data

    def sync(self, folder: str) -> None:
        if not isinstance(self._find(folder), Names):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        self._step("about to sync", folder)
        super().sync(folder)

    def files(self) -> dict[str, bytes]:
        """Contents by path."""
        return dict(_files(self.root, ""))

    def flip(self, r: random.Random, among: Collection[str]) -> str | None:
        """Turns one bit of one of these files, if any lies there. -> its path"""
        paths = [path for path in sorted(among) if self.size(path)]
        if not paths:
            return None
        path = r.choice(paths)
        names, name = self._place(path)
        file = names.entries[name]
        assert isinstance(file, File)
        data = bytearray(file.data)
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)
        damaged = File(bytes(data), file.synced)
        if names.durable.get(name) is file:
            names.durable[name] = damaged
        names.entries[name] = damaged
        self._damaged.add((path, bytes(data)))
        return path


def _files(names: Names, under: str) -> Iterable[tuple[str, bytes]]:
    for name, found in names.entries.items():
        if isinstance(found, Names):
            yield from _files(found, f"{under}{name}/")
        else:
            yield under + name, found.data


class Recorder(MemoryDisk):
    """What a child of the process sees and does: its operations are kept, to be done on the real disk one by one."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__()
        self.root = _copied(disk.root)
        self.operations: list[Operation] = []

    def alive(self) -> None:
        self.operations.append(("alive", ()))

    def write(self, path: str, data: bytes) -> None:
        self.operations.append(("write", (path, data)))
        super().write(path, data)

    def rename(self, path: str, new: str) -> None:
        self.operations.append(("rename", (path, new)))
        super().rename(path, new)

    def make_folder(self, path: str) -> None:
        self.operations.append(("make_folder", (path,)))
        super().make_folder(path)

    def sync(self, folder: str) -> None:
        self.operations.append(("sync", (folder,)))
        super().sync(folder)


def _copied(names: Names) -> Names:
    """Folders of its own; files are never changed in place."""
    copy = Names()
    copy.entries = {
        name: _copied(found) if isinstance(found, Names) else found for name, found in names.entries.items()
    }
    copy.durable = dict(copy.entries)
    return copy


class Child(NamedTuple):
    operations: list[Operation]  # still to be done
    result: object
    failure: str | None


class Forks:
    """In place of gpu_index/fork.py: the image of the process is worked on at once, into a record of what it does to
    the disk, which happens while `wait` waits and everybody else goes on."""

    def __init__(self, disk: SimulatedDisk, threads: Threads, dies: Callable[[], bool]) -> None:
        """`dies`: asked at each operation, whether the child ends early."""
        self._disk = disk
        self._threads = threads
        self._dies = dies
        self.swap: Callable[[MemoryDisk], Callable[[], None]] = lambda _disk: lambda: None
        self.child: Child | None = None  # that writes now

    def fork(self, work: Callable[[Callable[[], None]], object], keep_open: Iterable[int] = ()) -> Child:
        recorder = Recorder(self._disk)
        undo = self.swap(recorder)
        result, failure = None, None
        try:
            result = work(recorder.alive)
        except OSError as error:
            failure = described(error)
        finally:
            undo()
        self.child = Child(recorder.operations[::-1], result, failure)
        return self.child

    def wait(self, child: Child, timeout_s: float, cancelled: Callable[[], bool] = lambda: False) -> msgspec.Raw:
        try:
            while child.operations:
                self._threads.seam()
                if cancelled():
                    raise ChildFailed("it was not waited for")
                if self._dies():
                    raise ChildFailed("its process ended early; was there too little memory?")
                self._one(child)
        except OSError as error:
            raise ChildFailed(described(error)) from None
        finally:
            if not self._threads.dead:
                self.child = None
        if child.failure is not None:
            raise ChildFailed(child.failure)
        return msgspec.Raw(msgspec.json.encode(child.result))

    def _one(self, child: Child) -> bool:
        """-> whether the child would have noticed here that its parent is gone"""
        name, arguments = child.operations.pop()
        if name == "alive":
            return True
        getattr(self._disk, name)(*arguments)
        return False

    def parent_gone(self) -> None:
        """The parent was killed: its child goes on until it looks for it."""
        self._disk.before = lambda *_: None
        if self.child is not None:
            try:
                while self.child.operations and not self._one(self.child):
                    pass
            except (OSError, Crash, KeyError):
                return
