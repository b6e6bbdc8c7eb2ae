"""The manifest of a snapshot: of what and when it is, where in the topic it stands, and which chunks it is made of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b

import msgspec

FORMAT = 2  # raised whenever anything that is stored gets another meaning, words within records included
HASH_BYTES = 20
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Damaged(Exception):
    """A snapshot is not what was written; the message says which part."""


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of what an index is made. Snapshots of another identity are never mixed in."""

    topic: str
    topic_id: str | None  # None: the broker is older than topic ids
    cluster_id: str | None
    schema_fingerprint: str
    model_fingerprint: str | None
    dim: int
    gate_dim: int
    precision: str


_SAID = {
    "topic": "of topic {}, not {}",
    "topic_id": "of a topic of this name that was deleted since (id {}, now {})",
    "cluster_id": "of another Kafka cluster ({}, now {})",
    "schema_fingerprint": "of another attribute schema (fingerprint {}, now {})",
    "model_fingerprint": "of another model ({}, now {})",
    "dim": "of embeddings {} wide, not {}",
    "gate_dim": "of gates {} wide, not {}",
    "precision": "of precision {}, not {}",
}


def difference(stored: Identity, now: Identity) -> str | None:
    """What a snapshot is of that this process is not, as the end of a sentence; None: nothing."""
    for name, said in _SAID.items():
        one, other = getattr(stored, name), getattr(now, name)
        if one != other and not (name in ("topic_id", "cluster_id") and None in (one, other)):
            return said.format(one, other)
    return None


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A safetensors file, named by the hash of its bytes."""

    hash: str
    bytes: int


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]  # of one row


class StoredGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rows` of each column, `rows_per_chunk` in every chunk but the last."""

    name: str
    rows: int
    rows_per_chunk: int
    columns: dict[str, Column]
    chunks: list[Chunk]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    sequence: int
    created_us: int  # microseconds since 1970
    identity: Identity
    offsets: dict[int, int]  # partition -> the next offset to read
    now_us: int  # the engine's clock
    row_words: int  # of a row of targetings, in use
    zones: dict[str, int]  # of schedules: the first of the terms of each
    counts: dict[str, int]
    limits: dict[str, int]  # of the index that was stored
    groups: list[StoredGroup]

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks())

    def chunks(self) -> list[Chunk]:
        return [chunk for group in self.groups for chunk in group.chunks]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    checksum: str
    manifest: msgspec.Raw


class _Head(msgspec.Struct):
    format: int


def checksum(data: bytes) -> str:
    return blake2b(data, digest_size=HASH_BYTES).hexdigest()


def encode(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_File(checksum(body), msgspec.Raw(body)))


def decode(data: bytes) -> Manifest:
    """Raises Damaged, for one of another format too."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if checksum(bytes(file.manifest)) != file.checksum:
            raise Damaged("its manifest does not have the checksum that it was written with")
        written = msgspec.json.decode(file.manifest, type=_Head).format
        if written != FORMAT:
            raise Damaged(f"it has format {written}; this version reads format {FORMAT}")
        return msgspec.json.decode(file.manifest, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is a DecodeError
        raise Damaged(f"its manifest cannot be read: {error}") from None


def moment(us: int) -> str:
    """RFC 3339, of microseconds since 1970."""
    return (EPOCH + timedelta(microseconds=us)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
