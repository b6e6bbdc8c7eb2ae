"""The vectors of another model, made for every ad of a live index beside those in use, and put in their place at once.

The ads go on changing meanwhile. Beside each ad's new vectors stands its stamp: the ad's hash, and the partition and
offset of the event that made the ad what it was when the model was asked. A slot whose stamp is not the ad's own is
stale, so what is left to do is found by comparing, and the last look, with no events between, finds nothing. Beside the
stamp stands a digest of what the model was told: where an event left all of that as it was, as a new bid does, the
vectors hold on and only the stamp is made new.

(1) `stale` and `read` on the index's thread, some slots at a time; (2) the model is asked anywhere; (3) `write`, by the
one thread that asks; (4) `take` on the index's thread.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpu_index.ad_inputs import AdInputs, inputs_at
from gpu_index.index import Index, ModelName
from kernels import ads as ads_
from kernels import extents as extents_
from kernels.ads import GIVEN_EMBEDDING, GIVEN_GATE, ZERO_EMBEDDING, Ads
from kernels.memory import reserve
from kernels.precision import Precision, quantise_rows, row_width, storage_dtype

OF_VECTORS = ZERO_EMBEDDING | GIVEN_EMBEDDING | GIVEN_GATE  # the flags that come with an ad's vectors
STAMP_BYTES = 8 + 4 + 8 + 8 + 1  # of a slot, digest and flags too


class Unusable(Exception):
    """Ads whose given vectors have another width than the model's, and that have no features to make new ones of."""

    def __init__(self, count: int, examples: list[str]) -> None:
        super().__init__(count, examples)
        self.count, self.examples = count, examples


class AdsToEmbed(NamedTuple):
    """Some ads as they are at one moment."""

    slots: NDArray[np.int64]
    hashes: NDArray[np.uint64]  # [ad]
    partitions: NDArray[np.int32]
    offsets: NDArray[np.int64]
    digests: NDArray[np.uint64]  # of all that its vectors are made of
    inputs: list[AdInputs]
    embedding: tuple[NDArray[Any], NDArray[np.float32]]  # rows and scales in use, for those that are kept
    gate: tuple[NDArray[Any], NDArray[np.float32]]


class SecondVectors:
    def __init__(self, index: Index, dim: int, gate_dim: int) -> None:
        """Room for vectors of these widths, none made yet. Raises AddressSpaceError."""
        n, precision = index.limits.ads, index.precision
        self.dim, self.gate_dim, self.precision = dim, gate_dim, precision
        self._keeps = dim == index.dim, gate_dim == index.gate_dim  # given embeddings, gates
        self._embedding = reserve((n, row_width(dim, precision)), storage_dtype(precision))
        self._embedding_scale = reserve(n, np.float32)
        self._gate = reserve((n, row_width(gate_dim, precision)), storage_dtype(precision))
        self._gate_scale = reserve(n, np.float32)
        self._flags = reserve(n, np.uint8)
        self._hash, self._partition, self._offset = reserve(n, np.uint64), reserve(n, np.int32), reserve(n, np.int64)
        self._digest = reserve(n, np.uint64)

    def check_given(self, index: Index) -> None:
        """Raises Unusable."""
        a, slots = index.ads, slots_of(index)
        lost = (np.uint8(0) if self._keeps[0] else GIVEN_EMBEDDING) | (np.uint8(0) if self._keeps[1] else GIVEN_GATE)
        wrong = np.flatnonzero((a.flags[:slots] & lost != 0) & (a.features_at[:slots] == 0) & used(index, 0, slots))
        if len(wrong):
            raise Unusable(len(wrong), [index.ad_id(slot) for slot in wrong[:3].tolist()])

    def stale(self, index: Index, first: int, end: int) -> NDArray[np.int64]:
        """The slots from `first` to `end` whose ad the vectors are not of."""
        return self._stale_of(index, used_slots(index, first, end))

    def _stale_of(self, index: Index, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        a = index.ads
        same = (self._hash[slots] == a.table.hash[slots]) & (self._offset[slots] == a.offset[slots])
        same &= self._partition[slots] == a.partition[slots]
        found: NDArray[np.int64] = slots[~same]
        return found

    def read(self, index: Index, slots: NDArray[np.int64]) -> AdsToEmbed:
        """The ads at these slots, as far as there still are some that the vectors are not of. Raises Unusable."""
        a, words = index.ads, index.ads.extents.bits[slots >> 6]
        slots = self._stale_of(index, slots[(words >> (slots & 63).astype(np.uint64)) & np.uint64(1) != 0])
        inputs = [inputs_at(index, slot) for slot in slots.tolist()]
        wrong = [ad.ad_id for ad in inputs if self._loses(ad) and not ad.features]
        if wrong:
            raise Unusable(len(wrong), wrong[:3])
        digests = np.array([self._digest_of(a, at, ad) for at, ad in zip(slots, inputs, strict=True)], np.uint64)
        same = (self._hash[slots] == a.table.hash[slots]) & (self._digest[slots] == digests)
        self._offset[slots[same]], self._partition[slots[same]] = a.offset[slots[same]], a.partition[slots[same]]
        inputs = [ad for ad, holds in zip(inputs, same, strict=True) if not holds]
        slots, digests = slots[~same], digests[~same]
        return AdsToEmbed(
            slots, a.table.hash[slots], a.partition[slots], a.offset[slots], digests, inputs,
            (a.embedding[slots], a.embedding_scale[slots]), (a.gate[slots], a.gate_scale[slots]),
        )  # fmt: skip

    def _digest_of(self, a: Ads, slot: np.int64, ad: AdInputs) -> int:
        """Of what the ad's vectors are made of: what the model is told, and the given ones that stay."""
        told = blake2b(msgspec.msgpack.encode(ad), digest_size=8)
        if ad.given_embedding and self._keeps[0]:
            told.update(a.embedding[slot].tobytes() + a.embedding_scale[slot].tobytes())
        if ad.given_gate and self._keeps[1]:
            told.update(a.gate[slot].tobytes() + a.gate_scale[slot].tobytes())
        return int.from_bytes(told.digest(), "little")

    def _loses(self, ad: AdInputs) -> bool:
        """Whether a vector that was given for the ad has the old width."""
        return (ad.given_embedding and not self._keeps[0]) or (ad.given_gate and not self._keeps[1])

    def write(self, ads: AdsToEmbed, embeddings: NDArray[np.float32], gates: NDArray[np.float32]) -> None:
        """What the model made of the ads: [ad, dim] and [ad, gate_dim]. Vectors that an event gave stay as they are
        stored, where the width is the same."""
        kept = [self._keeps[0] and ad.given_embedding for ad in ads.inputs]
        kept_gates = [self._keeps[1] and ad.given_gate for ad in ads.inputs]
        embedding = _stored(embeddings, self._embedding.shape[1], self.precision, kept, ads.embedding)
        gate = _stored(gates, self._gate.shape[1], self.precision, kept_gates, ads.gate)
        self._embedding[ads.slots], self._embedding_scale[ads.slots] = embedding
        self._gate[ads.slots], self._gate_scale[ads.slots] = gate
        flags = np.where(np.any(embedding[0], axis=1), np.uint8(0), ZERO_EMBEDDING)
        flags |= np.where(kept, GIVEN_EMBEDDING, np.uint8(0)) | np.where(kept_gates, GIVEN_GATE, np.uint8(0))
        self._flags[ads.slots] = flags
        self._hash[ads.slots], self._offset[ads.slots] = ads.hashes, ads.offsets
        self._partition[ads.slots], self._digest[ads.slots] = ads.partitions, ads.digests

    def take(self, index: Index, model: ModelName) -> None:
        """From now on the index has these vectors, which must be of every ad, and is of this model."""
        a, slots = index.ads, slots_of(index)
        flags = a.flags[:slots]
        flags &= ~OF_VECTORS
        flags |= self._flags[:slots]
        a.state[ads_.ZERO_ADS] = np.count_nonzero((flags & ZERO_EMBEDDING != 0) & used(index, 0, slots))
        index.take_vectors(
            self.dim, self.gate_dim, self._embedding, self._embedding_scale, self._gate, self._gate_scale, model
        )


def slots_of(index: Index) -> int:
    """All slots in use lie below."""
    return int(index.ads.extents.state[extents_.FRONTIER])


def used_slots(index: Index, first: int, end: int) -> NDArray[np.int64]:
    """The slots from `first`, a multiple of 64, to `end` that have an ad."""
    return np.flatnonzero(used(index, first, end)) + first


def used(index: Index, first: int, end: int) -> NDArray[np.bool_]:
    """[slot - first] whether it has an ad."""
    assert first % 64 == 0, first
    words = index.ads.extents.bits[first // 64 : -(-end // 64)]
    return np.unpackbits(words.view(np.uint8), bitorder="little")[: end - first].view(np.bool_)


def second_bytes(slots: int, dim: int, gate_dim: int, precision: Precision) -> int:
    """What the vectors and stamps of so many slots take."""
    width = row_width(dim, precision) + row_width(gate_dim, precision)
    return slots * (width * storage_dtype(precision).itemsize + 2 * 4 + STAMP_BYTES)


def _stored(
    vectors: NDArray[np.float32], width: int, precision: Precision, kept: list[bool],
    in_use: tuple[NDArray[Any], NDArray[np.float32]],
) -> tuple[NDArray[Any], NDArray[np.float32]]:  # fmt: skip
    """Rows and scales of the vectors, for `kept` ones those in use."""
    rows, scales = np.zeros((len(vectors), width), storage_dtype(precision)), np.ones(len(vectors), np.float32)
    quantise_rows(vectors, precision, rows, scales)
    if any(kept):
        rows[kept], scales[kept] = in_use[0][kept], in_use[1][kept]
    return rows, scales
