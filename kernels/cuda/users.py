"""Users as the scoring kernel reads them: one record each, packed on the host.

A record is, from its beginning: HEAD (see `Head`); the factors and biases of experts and gates in float32, once for
each of four lanes, in the order in which that lane holds the experts (rows.py), those of the gates times log2(e); the
gates' in float64, likewise, but plain; then the fragments of the experts and those of the gates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

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
    """[vector] the exponent n for which the largest magnitude of vector * 2^-n lies in [2^(wanted - 1), 2^wanted)."""
    largest = np.abs(vectors).max(axis=1)
    return np.where(largest > 0, np.frexp(largest)[1] - wanted, 0)


def quantised(vectors: NDArray[np.float32], precision: Precision) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What products are made with [vector, dim], and scales [vector]: vector = quantised * scale, exactly so but for
    int8, where it is rounded to int16 as on the CPU."""
    wide = vectors.astype(np.float64)
    if precision is Precision.INT8:
        largest = np.abs(wide).max(axis=1)
        scales = np.where(largest > 0, largest / int16_max(wide.shape[1]), 1.0)
        return np.rint(wide / scales[:, None]), scales
    exponents = _power_exponents(wide, HALF_EXPONENT + 1 if precision is Precision.FLOAT16 else -FLOAT32_SHIFT)
    return np.ldexp(wide, -exponents[:, None]), np.ldexp(1.0, exponents)


def _put_fragments(
    values: NDArray[np.float64], row_bytes: int, tiles: int, precision: Precision, out: NDArray[np.uint8]
) -> None:
    """`values` [vector, dim] to `out` [bytes]."""
    elements = _elements(row_bytes, precision)  # [fragment, lane, item]
    padded = np.zeros((tiles * TILE_EXPERTS, max(int(elements.max()), values.shape[1]) + 2))
    padded[: len(values), : values.shape[1]] = values
    placed = padded.reshape(tiles, TILE_EXPERTS, -1)[:, :, elements].swapaxes(
        1, 2
    )  # [tile, fragment, expert, lane, item]
    if precision is Precision.INT8:
        whole = placed.astype(np.int32)
        out[:] = np.concatenate([whole >> 8, whole & 0xFF], axis=-1).astype(np.uint8).reshape(-1)
    elif precision is Precision.FLOAT16:
        high = placed.astype(np.float16)
        low = (placed - high.astype(np.float64)).astype(np.float16)
        out[:] = np.concatenate([high, low], axis=-1).reshape(-1).view(np.uint8)
    else:
        out[:] = placed.astype(np.float32).reshape(-1).view(np.uint8)


def _clipped(value: float) -> float:
    limit = float(np.finfo(np.float32).max)
    return min(max(value, -limit), limit)


def _pack_one(user: UserVectors, layout: Layout, out: NDArray[np.uint8]) -> None:
    count, columns = len(user.experts), layout.columns
    experts, expert_scale = quantised(user.experts, layout.precision)
    gates, gate_scale = quantised(user.gates, layout.precision)
    expert_factor, gate_factor, gate_bias = np.zeros(columns), np.zeros(columns), np.full(columns, PAD_BIAS)
    expert_factor[:count] = expert_scale * user.temperature
    gate_factor[:count] = gate_scale / math.sqrt(layout.gate_dim)
    gate_bias[:count] = user.gate_bias
    largest = float(np.abs(expert_factor).max())
    exponent = int(np.frexp(largest)[1]) if largest > 0 else 0
    expert_factor = np.ldexp(expert_factor, -exponent)
    head = out[: HEAD.itemsize].view(HEAD)[0]
    head["unit"] = 2.0**exponent if abs(exponent) <= UNIT_EXPONENT_MAX else np.nan
    head["bias"] = _clipped(user.bias)
    head["unit64"], head["bias64"] = np.ldexp(1.0, exponent), user.bias
    head["route"] = user.route if user.route < count else 0
    in_float32 = user.route == count and np.abs(user.gate_bias).max() <= LOGIT_MAX
    head["gate_factor_max"] = _clipped(float(gate_factor.max())) if in_float32 else np.nan
    single = out[HEAD.itemsize : layout.factors64].view(np.float32).reshape(LANES, 3, columns)
    double = out[layout.factors64 : layout.experts].view(np.float64).reshape(LANES, 2, columns)
    for lane in range(LANES):
        order = expert_order(lane, layout.tiles, layout.precision)
        with np.errstate(over="ignore", under="ignore"):
            single[lane] = np.stack([expert_factor, gate_factor * LOG2_E, gate_bias * LOG2_E])[:, order]
        double[lane] = np.stack([gate_factor, gate_bias])[:, order]
    _put_fragments(experts, layout.row_bytes, layout.tiles, layout.precision, out[layout.experts : layout.gates])
    _put_fragments(gates, layout.gate_row_bytes, layout.tiles, layout.precision, out[layout.gates : layout.bytes])


def pack_users(users: Sequence[UserVectors], layout: Layout) -> NDArray[np.uint8]:
    """[user, layout.bytes]"""
    out = np.zeros((len(users), layout.bytes), np.uint8)
    for user, record in zip(users, out, strict=True):
        assert user.experts.shape[1] == layout.dim and user.gates.shape[1] == layout.gate_dim
        assert len(user.experts) == len(user.gates) == len(user.gate_bias) and 1 <= user.route <= len(user.experts)
        assert tiles_of(len(user.experts)) <= layout.tiles
        _pack_one(user, layout, record)
    return out
