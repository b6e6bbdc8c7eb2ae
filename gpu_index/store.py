"""Snapshots on a disk: how they are written, put in place, found damaged, and removed.

    chunks/<hash>.safetensors           contents, shared by all snapshots that have them
    snapshots/<sequence>/manifest.json  a snapshot; the highest number is the newest
    snapshots/<sequence>.part/          one being written, or left half-written

A file is written under another name, synced and renamed; its folder is synced; chunks come before the manifest that
names them, and the folder of the manifest gets its name last. So a crash at any moment leaves all snapshots that were
there before, and the new one whole or not at all. A chunk that an earlier snapshot wrote is not written again: it is
looked at again now and then, lest one damaged file be in every snapshot to come.
"""

from __future__ import annotations

import logging

from gpu_index.disk import Disk
from gpu_index.manifest import Chunk, Damaged, Manifest, checksum, decode, encode

CHUNKS, SNAPSHOTS, PART = "chunks", "snapshots", ".part"
SUFFIX = ".safetensors"
LOOKED_AT_EVERY = 16  # snapshots: how often a chunk that is not written again is read and compared

_LOG = logging.getLogger("mirach.snapshots")


def chunk_path(name: str) -> str:
    return f"{CHUNKS}/{name}{SUFFIX}"


def folder_of(sequence: int) -> str:
    return f"{SNAPSHOTS}/{sequence:010d}"


class Store:
    """One process writes. What it writes is put in place by `publish`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._doubtful: set[str] = set()  # hashes of chunks that were found damaged: to be written again

    def sequences(self) -> list[int]:
        """Numbers of the snapshots that are in place, the newest first."""
        return sorted((int(name) for name in self.disk.names(SNAPSHOTS) if name.isdecimal()), reverse=True)

    def next_sequence(self) -> int:
        """Above every number that is, or was about to be, in use."""
        numbers = [name.removesuffix(PART) for name in self.disk.names(SNAPSHOTS)]
        return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1

    def manifest(self, sequence: int) -> Manifest:
        """Raises Damaged."""
        path = f"{folder_of(sequence)}/manifest.json"
        try:
            found = decode(self.disk.read(path))
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from None
        if found.sequence != sequence:
            raise Damaged(f"its manifest is that of snapshot {found.sequence}")
        return found

    def chunk(self, chunk: Chunk) -> bytes:
        """The contents as they were written. Raises Damaged."""
        path = chunk_path(chunk.hash)
        try:
            data = self.disk.read(path)
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from None
        if len(data) == chunk.bytes and checksum(data) == chunk.hash:
            return data
        self._doubtful.add(chunk.hash)
        if len(data) != chunk.bytes:
            raise Damaged(f"{path} has {len(data):,} bytes, not {chunk.bytes:,}")
        raise Damaged(f"{path} does not hold what was written")

    def verify(self, sequence: int) -> Manifest:
        """Reads everything that a snapshot is made of. Raises Damaged."""
        manifest = self.manifest(sequence)
        for chunk in manifest.chunks():
            self.chunk(chunk)
        return manifest

    # -- write

    def begin(self, sequence: int) -> None:
        """What a snapshot of this number is written into. Raises OSError, as everything below does."""
        self.disk.make_folder(CHUNKS)
        self.disk.make_folder(folder_of(sequence) + PART)
        self.disk.sync(".")

    def put(self, data: bytes, sequence: int) -> tuple[Chunk, bool]:
        """Makes sure that a chunk with these contents is there. -> the chunk, whether it had to be written"""
        chunk = Chunk(checksum(data), len(data))
        if self._holds(chunk, look=int(chunk.hash[:4], 16) % LOOKED_AT_EVERY == sequence % LOOKED_AT_EVERY):
            return chunk, False
        path = chunk_path(chunk.hash)
        self.disk.write(path + PART, data)
        self.disk.rename(path + PART, path)
        self._doubtful.discard(chunk.hash)
        return chunk, True

    def _holds(self, chunk: Chunk, *, look: bool) -> bool:
        """Whether a chunk is there, to all appearances or, with `look`, as it was written."""
        if chunk.hash in self._doubtful or self.disk.size(chunk_path(chunk.hash)) != chunk.bytes:
            return False
        if look:
            try:
                self.chunk(chunk)
            except Damaged:
                return False
        return True

    def finish(self, manifest: Manifest) -> None:
        """All chunks are there: the manifest after them."""
        self.disk.sync(CHUNKS)
        part = folder_of(manifest.sequence) + PART
        self.disk.write(f"{part}/manifest.json", encode(manifest))
        self.disk.sync(part)

    def publish(self, sequence: int) -> None:
        """Puts what `finish` left in place."""
        self.disk.rename(folder_of(sequence) + PART, folder_of(sequence))
        self.disk.sync(SNAPSHOTS)
        self._doubtful.clear()  # those that it has were written again, perhaps by a fork of this process

    def abandon(self, sequence: int) -> None:
        """Removes what was written of a snapshot that shall not be; its chunks go with the next `prune`."""
        self.disk.remove(folder_of(sequence) + PART)

    # -- remove

    def prune(self, kept: int) -> None:
        """Leaves the newest `kept` snapshots with a whole manifest, and no chunk but theirs."""
        assert kept >= 1, kept
        used: set[str] = set()
        for sequence in self.sequences():
            manifest = self._whole_manifest(sequence) if kept else None
            if manifest is None:
                self.disk.remove(folder_of(sequence))
                continue
            kept -= 1
            used.update(chunk.hash + SUFFIX for chunk in manifest.chunks())
        self.disk.sync(SNAPSHOTS)
        for name in self.disk.names(CHUNKS):
            if name not in used:
                self.disk.remove(f"{CHUNKS}/{name}")

    def _whole_manifest(self, sequence: int) -> Manifest | None:
        """None for one that can never be read again. Raises OSError where it cannot be read now."""
        try:
            return decode(self.disk.read(f"{folder_of(sequence)}/manifest.json"))
        except (FileNotFoundError, Damaged) as damage:
            _LOG.warning("removing snapshot %d: %s", sequence, damage)
            return None

    def clear_parts(self) -> list[str]:
        """Removes what was left half-written by a process that ended. -> names of those snapshots"""
        parts = sorted(name for name in self.disk.names(SNAPSHOTS) if name.endswith(PART))
        for name in parts:
            self.disk.remove(f"{SNAPSHOTS}/{name}")
        return [name.removesuffix(PART) for name in parts]
