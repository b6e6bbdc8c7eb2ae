"""The few things that snapshots ask of a disk: tests put one in its place that fails, fills up or forgets."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

LOCK = "lock"


class Disk(Protocol):
    """Files below one folder, by paths relative to it. Everything may raise OSError."""

    def names(self, folder: str) -> list[str]:
        """What lies in a folder; nothing where there is no such folder."""

    def size(self, path: str) -> int | None:
        """Bytes of a file; None where there is no such file."""

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: bytes) -> None:
        """A file with these contents, which outlive a crash once its folder is synced. No part of it is left behind
        where that fails."""

    def rename(self, path: str, new: str) -> None:
        """At once or not at all; outlives a crash once the folder is synced."""

    def remove(self, path: str) -> None:
        """A file or a folder with all that is in it. One that is absent is fine."""

    def make_folder(self, path: str) -> None: ...

    def sync(self, folder: str) -> None:
        """Which names lie in the folder outlives a crash from now on."""


class Folder:
    """A disk that is a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError):
            return os.listdir(self.root / folder)
        return []

    def size(self, path: str) -> int | None:
        with suppress(FileNotFoundError):
            return (self.root / path).stat().st_size
        return None

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        try:
            with (self.root / path).open("wb", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                (self.root / path).unlink(missing_ok=True)
            raise

    def rename(self, path: str, new: str) -> None:
        (self.root / path).rename(self.root / new)

    def remove(self, path: str) -> None:
        whole = self.root / path
        if whole.is_dir():
            shutil.rmtree(whole)
        else:
            whole.unlink(missing_ok=True)

    def make_folder(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)

    def sync(self, folder: str) -> None:
        descriptor = os.open(self.root / folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self) -> int | None:
        """Keeps other processes from locking this folder, for as long as this one or a fork of it lives. -> descriptor
        of the lock, None where another process has it"""
        self.make_folder(".")
        descriptor = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor

    def locked_by(self) -> str:
        """Which process has the lock, as it wrote itself."""
        with suppress(OSError):
            return (self.root / LOCK).read_text().strip() or "unknown"
        return "unknown"
