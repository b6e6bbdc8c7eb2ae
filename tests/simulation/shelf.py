"""The snapshots as they must be: which were put in place, of what history, made of which files, and which stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_index.manifest import Identity, checksum
from gpu_index.store import SNAPSHOTS, chunk_path, folder_of
from tests.simulation.disk import SimulatedDisk
from tests.simulation.threads import Wrong
from tests.simulation.truth import Place


@dataclass
class Placed:
    """A snapshot that has its name."""

    topic_id: str
    offsets: dict[int, int]
    history: Sequence[Place]
    manifest: str  # path
    files: dict[str, bytes | None]  # by path; None: it was damaged already, so that only its name says what it was
    damaged: set[str] = field(default_factory=set)  # paths of those that were damaged on purpose

    def lost(self, files: dict[str, bytes]) -> list[str]:
        """Paths of those that are not there as they were written."""
        return [path for path, data in self.files.items() if not _is(path, files.get(path), data)]


def _is(path: str, found: bytes | None, written: bytes | None) -> bool:
    return found is not None and (found == written or (written is None and path == chunk_path(checksum(found))))


class Shelf:
    def __init__(self) -> None:
        self.placed: dict[int, Placed] = {}
        self.promised: list[int] = []  # the product said that they are written

    def sequence_of(self, path: str) -> int | None:
        """Of the folder that has just been given its name."""
        name = path.removeprefix(f"{SNAPSHOTS}/").removesuffix(".part")
        return int(name) if name.isdecimal() else None

    def offsets_of(self, disk: SimulatedDisk, sequence: int) -> dict[int, int]:
        manifest = self._manifest(disk, sequence)
        return {int(partition): offset for partition, offset in manifest["offsets"].items()}

    def _manifest(self, disk: SimulatedDisk, sequence: int) -> dict[str, Any]:
        return msgspec.json.decode(disk.files()[f"{folder_of(sequence)}/manifest.json"])["manifest"]

    def place(self, disk: SimulatedDisk, sequence: int, history: Sequence[Place]) -> None:
        files, flipped, manifest = disk.files(), disk.flipped, self._manifest(disk, sequence)
        path = f"{folder_of(sequence)}/manifest.json"
        of_it = [path, *(chunk_path(chunk["hash"]) for group in manifest["groups"] for chunk in group["chunks"])]
        missing = [each for each in of_it if each not in files]
        if missing:
            raise Wrong(f"snapshot {sequence} is in place and lacks {missing}")
        self.placed[sequence] = Placed(
            manifest["identity"]["topic_id"], self.offsets_of(disk, sequence), history, path,
            {each: None if each in flipped else files[each] for each in of_it}, flipped & set(of_it),
        )  # fmt: skip

    def promise(self, sequence: int, kept: int) -> None:
        if sequence in self.placed:
            self.promised = sorted({*self.promised, sequence})[-kept:]

    def damage(self, path: str) -> None:
        for placed in self.placed.values():
            if path in placed.files:
                placed.damaged.add(path)

    def check(self, disk: SimulatedDisk, kept: int) -> None:
        """What was promised is there, but for damage done on purpose; so is all of what has its name."""
        files = disk.files()
        self.placed = {
            sequence: placed for sequence, placed in self.placed.items()
            if sequence in self.promised or placed.manifest in files
        }  # fmt: skip
        in_place = [sequence for sequence, placed in self.placed.items() if placed.manifest in files]
        for sequence, placed in list(self.placed.items()):
            lost = placed.lost(files)
            if not set(lost) - placed.damaged:
                continue
            if placed.manifest not in files and len([each for each in in_place if each > sequence]) >= kept:
                self.promised.remove(sequence)
                del self.placed[sequence]
            elif placed.manifest in placed.damaged and placed.manifest not in files:
                self.promised = [each for each in self.promised if each != sequence]  # it was removed as damaged
                del self.placed[sequence]
            else:
                raise Wrong(f"snapshot {sequence} was written and is not whole: {lost}")

    def check_restored(
        self, disk: SimulatedDisk, sequence: int | None, identity: Identity, offsets: dict[int, int]
    ) -> Sequence[Place]:
        """The newest whole one of this topic is what is restored. -> its history"""
        files = disk.files()
        whole = [
            each for each, placed in self.placed.items()
            if placed.topic_id == identity.topic_id and not placed.lost(files)
        ]  # fmt: skip
        if sequence != max(whole, default=None):
            raise Wrong(f"snapshot {sequence} is restored, of those that are whole: {whole}")
        if sequence is None:
            return []
        if offsets != self.placed[sequence].offsets:
            raise Wrong(f"snapshot {sequence} is restored at {offsets}")
        return self.placed[sequence].history
