"""Users as the scoring kernel reads them: one record each, packed on the host.

A record is, from its beginning: HEAD (see `Head`); the factors and biases of experts and gates in float32, once for
each of four lanes, in the order in which that lane holds the experts (rows.py), those of the gates times log2(e); the
gates' in float64, likewise, but plain; then the fragments of the experts and those of the gates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.rows import FRAGMENT_BYTES, TILE_EXPERTS, fragments, pieces
from kernels.cuda.types import UserVectors
from kernels.precision import Precision, row_width, storage_dtype
from kernels.score import int16_max

LANES = 4
HEAD = np.dtype(
    [
        ("unit", "<f4"),  # power of two that factors of experts were divided by; NaN: see `unit64`
        ("bias", "<f4"),
        ("gate_factor_max", "<f4"),  # NaN: gate logits are made in float64 for every ad
        ("route", "<i4"),  # experts that take part; 0 for all
        ("unit64", "<f8"),
        ("bias64", "<f8"),
    ]
)
LOG2_E = 1.4426950408889634
LOGIT_MAX = 32.0  # of gate logits in float32; ads of larger ones have theirs made in float64
UNIT_EXPONENT_MAX = 100
FLOAT32_SHIFT = 15  # vectors of float32 precision are scaled to below 2^-15, so that no sum of products overflows
HALF_EXPONENT = 14
PAD_BIAS = -np.inf  # of experts that are not there: a weight of 0


class Layout(NamedTuple):
    """Of the records of one index and one number of experts. Offsets in bytes."""

    dim: int
    gate_dim: int
    precision: Precision
    tiles: int  # of 8 experts

    @property
    def columns(self) -> int:
        return self.tiles * TILE_EXPERTS

    @property
    def row_bytes(self) -> int:
        return row_width(self.dim, self.precision) * storage_dtype(self.precision).itemsize

    @property
    def gate_row_bytes(self) -> int:
        return row_width(self.gate_dim, self.precision) * storage_dtype(self.precision).itemsize

    @property
    def factors64(self) -> int:
        return HEAD.itemsize + LANES * 3 * self.columns * 4

    @property
    def experts(self) -> int:
        return self.factors64 + LANES * 2 * self.columns * 8

    @property
    def gates(self) -> int:
        return self.experts + self.tiles * fragments(self.row_bytes, self.precision) * FRAGMENT_BYTES

    @property
    def bytes(self) -> int:
        return self.gates + self.tiles * fragments(self.gate_row_bytes, self.precision) * FRAGMENT_BYTES


def tiles_of(experts: int) -> int:
    assert 1 <= experts <= 2 * TILE_EXPERTS, experts
    return -(-experts // TILE_EXPERTS)


def expert_order(lane: int, tiles: int, precision: Precision) -> NDArray[np.int64]:
    """The experts in the order in which lane `lane` of four holds their products."""
    position = np.arange(tiles * TILE_EXPERTS)
    return position if precision is Precision.FLOAT32 else position ^ (lane << 1)


@cache
def _elements(row_bytes: int, precision: Precision) -> NDArray[np.int64]:
    """[fragment, lane of 4, item] -> the element of a row that lies there; -1 for none.

    Items are those of two registers (float32: of the 16 bytes)."""
    size = storage_dtype(precision).itemsize
    found = []
    for piece in pieces(row_bytes):
        per_lane = piece.first // size + np.arange(4 * piece.bytes // size).reshape(4, -1)
        if precision is Precision.FLOAT32:
            found.append(np.pad(per_lane, ((0, 0), (0, 4 - per_lane.shape[1])), constant_values=-1))
        else:
            room = piece.steps * 8 // size
            padded = np.pad(per_lane, ((0, 0), (0, room - per_lane.shape[1])), constant_values=-1)
            found += list(padded.reshape(4, piece.steps, 8 // size).swapaxes(0, 1))
    return np.array(found)


def _power_exponents(vectors: NDArray[np.float64], wanted: int) -> NDArray[np.int64]:
    """[..] the exponent n for which the largest magnitude of vector * 2^-n lies in [2^(wanted - 1), 2^wanted)."""
    largest = np.abs(vectors).max(axis=-1)
    return np.where(largest > 0, np.frexp(largest)[1] - wanted, 0)


def quantised(vectors: NDArray[np.float64], precision: Precision) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What products are made with [.., dim], and scales [..]: vector = quantised * scale, exactly so but for int8,
    where it is rounded to int16 as on the CPU."""
    if precision is Precision.INT8:
        largest = np.abs(vectors).max(axis=-1)
        scales = np.where(largest > 0, largest / int16_max(vectors.shape[-1]), 1.0)
        return np.rint(vectors / scales[..., None]), scales
    exponents = _power_exponents(vectors, HALF_EXPONENT + 1 if precision is Precision.FLOAT16 else -FLOAT32_SHIFT)
    return np.ldexp(vectors, -exponents[..., None]), np.ldexp(1.0, exponents)


def _fragments(values: NDArray[np.float64], row_bytes: int, tiles: int, precision: Precision) -> NDArray[np.uint8]:
    """[user, bytes] of `values` [user, column, dim]."""
    elements = _elements(row_bytes, precision)  # [fragment, lane, item], -1 for the zero that is put at the end
    users, columns, dim = values.shape
    room = max(int(elements.max()) + 1, dim) + 1
    if precision is Precision.INT8:
        parts: list[NDArray[Any]] = [values.astype(np.int32)]
        parts = [(parts[0] >> 8).astype(np.int8).view(np.uint8), (parts[0] & 0xFF).astype(np.uint8)]
    elif precision is Precision.FLOAT16:
        high = values.astype(np.float16)
        parts = [high, (values - high.astype(np.float64)).astype(np.float16)]
    else:
        parts = [values.astype(np.float32)]
    placed = []
    for part in parts:
        padded = np.zeros((users, columns, room), part.dtype)
        padded[..., :dim] = part
        by_tile = padded.reshape(users, tiles, TILE_EXPERTS, room)[..., elements]  # [.., expert, fragment, lane, item]
        placed.append(by_tile.swapaxes(2, 3))
    out: NDArray[np.uint8] = np.ascontiguousarray(np.concatenate(placed, axis=-1)).reshape(users, -1).view(np.uint8)
    return out


def _clipped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = float(np.finfo(np.float32).max)
    return np.clip(values, -limit, limit)


def _heads(
    users: Sequence[UserVectors], counts: NDArray[np.int64], exponents: NDArray[np.int64],
    gate_factor: NDArray[np.float64],
) -> NDArray[Any]:  # fmt: skip
    heads = np.zeros(len(users), HEAD)
    routes = np.array([user.route for user in users], np.int64)
    bias_max = np.array([np.abs(user.gate_bias).max() for user in users])
    units, biases = np.ldexp(1.0, exponents), np.array([user.bias for user in users], np.float64)
    heads["unit"] = np.where(np.abs(exponents) <= UNIT_EXPONENT_MAX, _clipped(units), np.nan)
    heads["bias"], heads["unit64"], heads["bias64"] = _clipped(biases), units, biases
    heads["route"] = np.where(routes < counts, routes, 0)
    in_float32 = (routes == counts) & (bias_max <= LOGIT_MAX)
    heads["gate_factor_max"] = np.where(in_float32, _clipped(gate_factor.max(axis=1)), np.nan)
    return heads


def pack_users(users: Sequence[UserVectors], layout: Layout) -> NDArray[np.uint8]:
    """[user, layout.bytes]"""
    count, columns, tiles, precision = len(users), layout.columns, layout.tiles, layout.precision
    out = np.zeros((count, layout.bytes), np.uint8)
    if not count:
        return out
    experts, gates = np.zeros((count, columns, layout.dim)), np.zeros((count, columns, layout.gate_dim))
    gate_bias, here = np.full((count, columns), PAD_BIAS), np.zeros((count, columns), np.bool_)
    for i, user in enumerate(users):
        n = len(user.experts)
        assert n == len(user.gates) == len(user.gate_bias) and 1 <= user.route <= n <= columns, (n, user.route, columns)
        experts[i, :n], gates[i, :n], gate_bias[i, :n], here[i, :n] = user.experts, user.gates, user.gate_bias, True
    temperature = np.array([user.temperature for user in users], np.float64)
    experts, expert_scale = quantised(experts, precision)
    gates, gate_scale = quantised(gates, precision)
    expert_factor = np.where(here, expert_scale * temperature[:, None], 0.0)
    gate_factor = np.where(here, gate_scale / math.sqrt(layout.gate_dim), 0.0)
    exponents = _power_exponents(expert_factor, 0)
    expert_factor = np.ldexp(expert_factor, -exponents[:, None])
    counts = here.sum(axis=1)
    out[:, : HEAD.itemsize] = _heads(users, counts, exponents, gate_factor).view(np.uint8).reshape(count, -1)
    order = np.array([expert_order(lane, tiles, precision) for lane in range(LANES)])  # [lane, column]
    with np.errstate(over="ignore", under="ignore"):
        single = np.stack([expert_factor, gate_factor * LOG2_E, gate_bias * LOG2_E], axis=1).astype(np.float32)
    double = np.stack([gate_factor, gate_bias], axis=1)
    for values, first, end in ((single, HEAD.itemsize, layout.factors64), (double, layout.factors64, layout.experts)):
        by_lane = np.ascontiguousarray(values[:, :, order].swapaxes(1, 2))  # [user, lane, kind, column]
        out[:, first:end] = by_lane.reshape(count, -1).view(np.uint8)
    out[:, layout.experts : layout.gates] = _fragments(experts, layout.row_bytes, tiles, precision)
    out[:, layout.gates :] = _fragments(gates, layout.gate_row_bytes, tiles, precision)
    return out
