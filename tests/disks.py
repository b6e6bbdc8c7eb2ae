"""A disk in memory that does what disks may: forget what was not synced, tear, fill up, end a process at any step."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable


class Crash(BaseException):
    """The process ends here."""


class File:
    """`synced`: its bytes outlive a crash."""

    def __init__(self, data: bytes = b"", synced: bool = False) -> None:
        self.data = data
        self.synced = synced


class Names:
    """A folder. `durable`: the names that outlive a crash."""

    def __init__(self) -> None:
        self.entries: dict[str, File | Names] = {}
        self.durable: dict[str, File | Names] = {}


class MemoryDisk:
    """Implements gpu_index.disk.Disk."""

    def __init__(self, room_bytes: int | None = None) -> None:
        self.root = Names()
        self.room_bytes = room_bytes  # left for what is written; None: without end
        self.steps = 0  # that changed something
        self.written: list[str] = []
        self.before: Callable[[str, str], None] = lambda _operation, _path: None  # each step; may raise

    def crash_after(self, steps: int) -> None:
        """Ends the process once so many more steps were done."""
        last = self.steps + steps

        def before(_operation: str, _path: str) -> None:
            if self.steps > last:
                raise Crash

        self.before = before

    def after_power_loss(self, r: random.Random) -> MemoryDisk:
        """As the next process finds it: of what was not synced, any of the names and any part of the bytes."""
        found = MemoryDisk()
        found.root = _survivors(self.root, lambda names: r.choice(names), lambda size: r.randrange(size + 1))
        return found

    def after_kill(self) -> MemoryDisk:
        """As the next process finds it when only this one ended: all that was done is done."""
        found = MemoryDisk()
        found.root = _survivors(self.root, lambda names: names[0], lambda size: size)
        return found

    # Disk

    def names(self, folder: str) -> list[str]:
        found = self._find(folder)
        return sorted(found.entries) if isinstance(found, Names) else []

    def size(self, path: str) -> int | None:
        found = self._find(path)
        return len(found.data) if isinstance(found, File) else None

    def read(self, path: str) -> bytes:
        found = self._find(path)
        if not isinstance(found, File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found.data

    def write(self, path: str, data: bytes) -> None:
        names, name = self._place(path)
        file = names.entries[name] = File()
        self._step("create", path)
        if self.room_bytes is not None:
            self.room_bytes -= len(data)
            if self.room_bytes < 0:
                del names.entries[name]
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        file.data = data
        self._step("fill", path)
        file.synced = True
        self._step("fsync", path)
        self.written.append(path)

    def rename(self, path: str, new: str) -> None:
        names, name = self._place(path)
        new_names, new_name = self._place(new)
        assert not (isinstance(names.entries[name], Names) and new_name in new_names.entries), "a folder is in the way"
        new_names.entries[new_name] = names.entries.pop(name)
        self._step("rename", path)

    def remove(self, path: str) -> None:
        found = self._find(path)
        if found is None:
            return
        if isinstance(found, Names):
            for name in list(found.entries):
                self.remove(f"{path}/{name}")
        names, name = self._place(path)
        del names.entries[name]
        self._step("remove", path)

    def make_folder(self, path: str) -> None:
        at = self.root
        for name in path.split("/"):
            if name not in at.entries:
                at.entries[name] = Names()
                self._step("make_folder", path)
            inner = at.entries[name]
            assert isinstance(inner, Names)
            at = inner

    def sync(self, folder: str) -> None:
        found = self._find(folder)
        assert isinstance(found, Names), folder
        found.durable = dict(found.entries)
        self._step("sync", folder)

    def _step(self, operation: str, path: str) -> None:
        self.steps += 1
        self.before(operation, path)

    def _find(self, path: str) -> File | Names | None:
        at: File | Names | None = self.root
        for name in path.split("/"):
            if name != ".":
                at = at.entries.get(name) if isinstance(at, Names) else None
        return at

    def _place(self, path: str) -> tuple[Names, str]:
        folder, _, name = path.rpartition("/")
        names = self._find(folder or ".")
        assert isinstance(names, Names), path
        return names, name


def _survivors(
    names: Names, choose: Callable[[list[File | Names | None]], File | Names | None], kept: Callable[[int], int]
) -> Names:
    after = Names()
    for name in sorted(names.entries.keys() | names.durable.keys()):
        found = choose([names.entries.get(name), names.durable.get(name)])
        if isinstance(found, Names):
            after.entries[name] = _survivors(found, choose, kept)
        elif found is not None:
            data = found.data if found.synced else found.data[: kept(len(found.data))]
            after.entries[name] = File(data, synced=True)
    after.durable = dict(after.entries)
    return after
