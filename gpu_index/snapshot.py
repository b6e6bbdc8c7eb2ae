"""An index to a store and back.

`write` takes an index that does not change meanwhile: the image in a fork (fork.py), or one whose engine has ended.
Group by group (layout.py) it writes bounded chunks, then the vocabularies as JSON in chunks of their own, then the
manifest. Chunks begin at the same rows each time, so what did not change has the same contents, hence the same name.
`load` fills an empty index, which may have other limits as long as what is stored fits; every chunk is held to its
hash before it is believed. What caches alone kept in a vocabulary is let go, since caches begin empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from gpu_index.index import Index
from gpu_index.layout import Group, capacity, groups
from gpu_index.manifest import FORMAT, Column, Damaged, Identity, Manifest, StoredGroup
from gpu_index.schema import Kind
from gpu_index.store import Store
from gpu_index.vocabulary import Key, Vocabulary
from kernels import targetings as targetings_
from kernels.memory import use_huge_pages

CHUNK_BYTES = 8 << 20
TERMS_PER_CHUNK = 1 << 16
VOCABULARIES = ("vocabulary.terms", "vocabulary.fields")
_OF_TERMS = ("ads.field_terms", "targetings.entries", "targetings.terms")  # groups as long as a vocabulary
_SETTINGS = {"ads": "ads_max", "targetings": "targetings_max"}  # of limits

READERS = 2  # threads that read and check chunks, each holding one

Piece = dict[str, NDArray[Any]]  # of a group: a chunk
Alive = Callable[[], None]  # called between two chunks; raises what shall end the writing


class DoesNotFit(Exception):
    """What is stored is more than this index may hold; the message names the setting."""


class Written(msgspec.Struct, frozen=True):
    """What one snapshot took."""

    sequence: int
    offsets: dict[int, int]
    bytes: int  # of all its chunks
    bytes_written: int  # of those that were not there yet
    chunks: int
    chunks_written: int


def write(
    index: Index, store: Store, sequence: int, identity: Identity, created_us: int, alive: Alive = lambda: None
) -> Written:
    """Writes all but the last step, `store.publish`. Raises OSError, and what `alive` raises."""
    store.begin(sequence)
    stored, written, bytes_written = [], 0, 0
    for group, pieces in _pieces(index):
        chunks = []
        for piece in pieces:
            alive()
            chunk, new = store.put(safetensors.numpy.save(piece), sequence)
            chunks.append(chunk)
            written += new
            bytes_written += new * chunk.bytes
        stored.append(StoredGroup(group.name, group.rows, _rows_per_chunk(group), _forms(group), chunks))
    manifest = Manifest(
        format=FORMAT,
        sequence=sequence,
        created_us=created_us,
        identity=identity,
        offsets=dict(sorted(index.positions.items())),
        now_us=index.now_us,
        row_words=int(targetings_.row_words(index.targetings)),
        zones=index.terms.zones,
        counts={"ads": index.count, "targetings": int(index.targetings.state[targetings_.LIVE])},
        limits=index.limits._asdict(),
        groups=stored,
    )
    store.finish(manifest)
    return Written(sequence, manifest.offsets, manifest.bytes, bytes_written, len(manifest.chunks()), written)


def load(store: Store, manifest: Manifest, index: Index, progress: Callable[[int], None] = lambda _: None) -> None:
    """Fills an empty index with a snapshot of its identity. `progress` is told the bytes read so far.

    Raises Damaged or DoesNotFit; the index is then good for nothing.
    """
    assert not index.positions
    empty = {group.name: group for group in _all_groups(index, manifest.row_words)}
    stored = {group.name: group for group in manifest.groups}
    if stored.keys() != empty.keys():
        raise Damaged(f"it has other parts: {', '.join(sorted(stored.keys() ^ empty.keys()))}")
    for name, group in stored.items():
        _check_fits(group, empty[name], manifest.limits)
        for column in empty[name].columns.values():
            if column.flags.c_contiguous:
                use_huge_pages(column[: group.rows], later=True)
    named: dict[str, list[Piece]] = {name: [{}] * len(stored[name].chunks) for name in VOCABULARIES}

    def place(group: StoredGroup, number: int) -> int:
        """Puts one chunk where it belongs. -> its bytes"""
        piece = _read(store, group, number)
        if group.name in named:
            named[group.name][number] = piece
        else:
            first = number * group.rows_per_chunk
            for column, rows in piece.items():
                empty[group.name].columns[column][first : first + len(rows)] = rows
        return group.chunks[number].bytes

    bytes_read = 0
    with ThreadPoolExecutor(READERS) as readers:
        all_chunks = [(group, number) for group in stored.values() for number in range(len(group.chunks))]
        for size in readers.map(lambda each: place(*each), all_chunks):
            bytes_read += size
            progress(bytes_read)
    _restore_vocabularies(index, named, manifest.zones)
    index.positions = dict(manifest.offsets)
    index.now_us = manifest.now_us


# Groups as pieces, a chunk each.


def _all_groups(index: Index, row_words: int | None = None) -> list[Group]:
    """Those of arrays, and the vocabularies as groups without columns of their own."""
    highest = (index.terms.vocabulary.highest, index.fields.vocabulary.highest)
    named = [Group(name, rows, {}) for name, rows in zip(VOCABULARIES, highest, strict=True)]
    return [*groups(index, row_words), *named]


def _pieces(index: Index) -> Iterator[tuple[Group, Iterator[Piece]]]:
    references = {
        VOCABULARIES[0]: (index.terms.vocabulary, index.targetings.term_references),
        VOCABULARIES[1]: (index.fields.vocabulary, index.ads.field_references),
    }
    for group in _all_groups(index):
        pieces = _names(*references[group.name]) if group.name in references else _slices(group)
        yield group, pieces


def _rows_per_chunk(group: Group) -> int:
    """A power of two, so that chunks begin at the same rows while the index grows."""
    if not group.columns:
        return TERMS_PER_CHUNK
    row_bytes = sum(column.itemsize * int(np.prod(column.shape[1:])) for column in group.columns.values())
    return 1 << (max(CHUNK_BYTES // max(row_bytes, 1), 1).bit_length() - 1)


def _forms(group: Group) -> dict[str, Column]:
    if not group.columns:
        return {"attribute": Column("int32", ()), "value": Column("json", ())}
    return {name: Column(str(column.dtype), column.shape[1:]) for name, column in group.columns.items()}


def _slices(group: Group) -> Iterator[Piece]:
    step = _rows_per_chunk(group)
    for first in range(0, group.rows, step):
        rows = slice(first, min(first + step, group.rows))
        yield {name: np.ascontiguousarray(column[rows]) for name, column in group.columns.items()}


def _names(vocabulary: Vocabulary, references: NDArray[np.uint32]) -> Iterator[Piece]:
    """Attribute and value of each term; what no ad and no targeting refers to counts as free."""
    for first in range(0, vocabulary.highest, TERMS_PER_CHUNK):
        attributes, values = vocabulary.named(first, first + TERMS_PER_CHUNK)
        used = references[first : first + len(values)] != 0
        named = [value if use else None for value, use in zip(values, used.tolist(), strict=True)]
        text = msgspec.json.encode(named)
        yield {
            "attribute": np.where(used, np.array(attributes, np.int32), np.int32(-1)),
            "value": np.frombuffer(text, np.uint8),
        }


# Chunks back into an index.


def _check_fits(stored: StoredGroup, empty: Group, limits: dict[str, int]) -> None:
    if stored.columns != _forms(empty):
        raise Damaged(f"its part {stored.name} has other columns than this version's")
    if stored.rows_per_chunk < 1 or len(stored.chunks) != -(-stored.rows // stored.rows_per_chunk):
        raise Damaged(f"its part {stored.name} lacks chunks")
    if empty.columns and stored.rows > capacity(empty):
        limit = "terms" if stored.name in _OF_TERMS else stored.name.partition(".")[0]
        raise DoesNotFit(
            f"its part {stored.name} has {stored.rows:,} rows and this index has room for {capacity(empty):,}: raise "
            f"{_SETTINGS.get(limit, 'the limit of ' + limit)}, which was {limits.get(limit, 0):,} when it was written, "
            "or remove the snapshot to build the index from the topic"
        )


def _read(store: Store, group: StoredGroup, number: int) -> Piece:
    """Raises Damaged."""
    chunk = group.chunks[number]
    try:
        piece = safetensors.numpy.load(store.chunk(chunk))
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise Damaged(f"chunk {chunk.hash} of {group.name} is no safetensors file: {error}") from None
    rows = min(group.rows_per_chunk, group.rows - number * group.rows_per_chunk)
    for name, form in group.columns.items():
        column = piece.get(name)
        if form.dtype == "json":
            good = column is not None and column.dtype == np.uint8
        else:
            good = column is not None and column.dtype == form.dtype and column.shape == (rows, *form.shape)
        if not good:
            raise Damaged(f"chunk {chunk.hash} of {group.name} has no good column {name}")
    return piece


def _restore_vocabularies(index: Index, named: dict[str, list[Piece]], zones: dict[str, int]) -> None:
    kinds = [attribute.kind for attribute in index.schema.attribute_list]
    index.terms.restore(*_decoded(named[VOCABULARIES[0]], kinds), zones)
    kinds = [field.kind for field in index.schema.field_list]
    index.fields.vocabulary.restore(*_decoded(named[VOCABULARIES[1]], kinds), ())


def _decoded(pieces: list[Piece], kinds: list[Kind]) -> tuple[list[int], list[Key | None]]:
    """Attributes and values by term. Raises Damaged."""
    attributes: list[int] = []
    values: list[Key | None] = []
    versions = {number for number, kind in enumerate(kinds) if kind is Kind.VERSION}
    for piece in pieces:
        of, read = piece["attribute"].tolist(), msgspec.json.decode(piece["value"].tobytes())
        if len(of) != len(read) or any(not -1 <= attribute < len(kinds) for attribute in of):
            raise Damaged("a chunk of its vocabulary names attributes that there are not")
        if versions:
            read = [tuple(value) if attribute in versions else value for attribute, value in zip(of, read, strict=True)]
        attributes += of
        values += read
    return attributes, values
