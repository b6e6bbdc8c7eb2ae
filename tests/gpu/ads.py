"""Ads on a device, in pages, and the answers that are right for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.types import Device, DeviceArray, DeviceColumns, PagedColumn, TopK, TopKJob, UserVectors
from kernels.precision import Precision, dequantise, quantise_rows, row_width, storage_dtype
from kernels.score import ScoreColumns
from tests.int16 import as_int16

PAGE_SLOTS_LOG2 = 13


class Ads(NamedTuple):
    """Ads as the host has them."""

    precision: Precision
    columns: ScoreColumns
    bid: NDArray[np.float64]  # [slot]
    tie: NDArray[np.uint64]  # [slot]
    dim: int
    gate_dim: int

    @property
    def count(self) -> int:
        return len(self.bid)


def make_ads(
    precision: Precision, embedding: NDArray[np.float32], gate: NDArray[np.float32], bid: NDArray[np.float64],
    tie: NDArray[np.uint64],
) -> Ads:  # fmt: skip
    count, dtype = len(embedding), storage_dtype(precision)
    columns = ScoreColumns(
        np.zeros((count, row_width(embedding.shape[1], precision)), dtype), np.zeros(count, np.float32),
        np.zeros((count, row_width(gate.shape[1], precision)), dtype), np.zeros(count, np.float32),
    )  # fmt: skip
    quantise_rows(embedding, precision, columns.embedding, columns.embedding_scale)
    quantise_rows(gate, precision, columns.gate, columns.gate_scale)
    return Ads(precision, columns, bid, tie, embedding.shape[1], gate.shape[1])


def random_ads(rng: np.random.Generator, precision: Precision, count: int, dim: int, gate_dim: int) -> Ads:
    return make_ads(
        precision, rng.normal(size=(count, dim)).astype(np.float32),
        rng.normal(size=(count, gate_dim)).astype(np.float32),
        rng.lognormal(size=count), rng.integers(0, 2**64, count, np.uint64),
    )  # fmt: skip


def random_user(
    rng: np.random.Generator, dim: int, gate_dim: int, experts: int, route: int | None = None
) -> UserVectors:
    return UserVectors(
        experts=rng.normal(size=(experts, dim)).astype(np.float32) / np.float32(np.sqrt(dim)),
        gates=rng.normal(size=(experts, gate_dim)).astype(np.float32),
        gate_bias=rng.normal(size=experts).astype(np.float32),
        temperature=1.5, bias=-0.5, route=route or experts,
    )  # fmt: skip


def upload(device: Device, host: NDArray[Any]) -> DeviceArray:
    array = device.empty(host.shape, host.dtype)
    device.upload(np.ascontiguousarray(host), array)
    return array


def _paged(device: Device, host: NDArray[Any]) -> PagedColumn:
    """Pages in an order of their own; beyond the ads there is what no score may be made of."""
    slots, item_bytes = 1 << PAGE_SLOTS_LOG2, host.itemsize * int(np.prod(host.shape[1:], dtype=np.int64))
    count = -(-len(host) // slots)
    held = []
    for page in reversed(range(count)):
        poisoned = np.full((slots, item_bytes), 0xFF, np.uint8)
        part = np.ascontiguousarray(host[page * slots : (page + 1) * slots])
        poisoned[: len(part)] = part.view(np.uint8).reshape(len(part), item_bytes)
        held.append(upload(device, poisoned))
    held.reverse()
    table = upload(device, np.array([page.address for page in held], np.uint64))
    return PagedColumn(table._replace(owner=(table.owner, held)), item_bytes)


def on_device(device: Device, ads: Ads) -> DeviceColumns:
    c = ads.columns
    return DeviceColumns(
        PAGE_SLOTS_LOG2, ads.precision, ads.dim, ads.gate_dim, _paged(device, c.embedding),
        _paged(device, c.embedding_scale), _paged(device, c.gate), _paged(device, c.gate_scale),
        _paged(device, ads.bid), _paged(device, ads.tie),
    )  # fmt: skip


def slots_of(count: int) -> int:
    return -(-count // 8192) * 8192


def mask_of(device: Device, wanted: NDArray[np.bool_]) -> DeviceArray:
    bits = np.zeros(slots_of(len(wanted)), np.bool_)
    bits[: len(wanted)] = wanted
    return upload(device, np.packbits(bits, bitorder="little").view(np.uint32))


def served(user: UserVectors, precision: Precision) -> UserVectors:
    """The user as packed for this precision: rounded to int16 with a scale for each vector where ads are int8."""
    if precision is not Precision.INT8:
        return user
    return user._replace(experts=as_int16(user.experts), gates=as_int16(user.gates))


def vectors_of(ads: Ads) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Embeddings and gates as stored."""
    c = ads.columns
    return dequantise(c.embedding, c.embedding_scale, ads.dim), dequantise(c.gate, c.gate_scale, ads.gate_dim)


def best(ads: Ads, scores: NDArray[np.float32], wanted: NDArray[np.bool_], k: int, by_value: bool) -> TopK:
    """The right answer for these scores [slot]."""
    slots = np.flatnonzero(wanted)
    values = scores[slots].astype(np.float64) * ads.bid[slots]
    order = values if by_value else scores[slots].astype(np.float64)
    ranked = np.lexsort((slots, ads.tie[slots], -order))[:k]
    return TopK(slots[ranked].astype(np.uint32), scores[slots[ranked]], values[ranked])


def assert_same(got: TopK, right: TopK) -> None:
    assert (got.slots == right.slots).all() and len(got.slots) == len(right.slots)
    assert (got.scores == right.scores).all()
    assert (got.values == right.values).all()


def all_scores(device: Device, columns: DeviceColumns, ads: Ads, users: Sequence[UserVectors]) -> NDArray[np.float32]:
    """[user, slot] as the device makes them, through `top_k` with room for every ad."""
    from kernels.cuda.top_k import top_k  # here, so that this module is imported without numba-cuda

    everyone = mask_of(device, np.ones(ads.count, np.bool_))
    out = np.full((len(users), ads.count), np.nan, np.float32)
    answers = top_k(
        device, columns, slots_of(ads.count), [TopKJob(everyone, user, ads.count, by_value=False) for user in users]
    )
    for row, answer in zip(out, answers, strict=True):
        row[answer.slots] = answer.scores
    return out
