"""Users as the scoring kernel reads them: one record each, packed on the host.

A record is, from its beginning: HEAD (see `Head`); the factors and biases of experts and gates in float32, once for
each of four lanes, in the order in which that lane holds the experts (rows.py), those of the gates times log2(e); the
gates' in float64, likewise, but plain; then the fragments of the experts and those of the gates; and for the first look
(rows.py, `reach`) the experts once more, times the temperature, coarsely and all on one scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.rows import FRAGMENT_BYTES, TILE_EXPERTS, fragments, look_fragments, pieces
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
        # of the first look: an ad may reach y >= -ln(x) only if, for an expert, coarse . row + look_slack
        # + (log2(x) * look_log + look_bias) / scale >= 0; NaN: any ad may
        ("look_log", "<f4"),
        ("look_bias", "<f4"),
        ("look_slack", "<f4"),
        ("unused", "<f4"),
    ]
)
LOG2_E = 1.4426950408889634
LOGIT_MAX = 32.0  # of gate logits in float32; ads of larger ones have theirs made in float64
UNIT_EXPONENT_MAX = 100
FLOAT32_SHIFT = 15  # vectors of float32 precision are scaled to below 2^-15, so that no sum of products overflows
HALF_EXPONENT = 14
PAD_BIAS = -np.inf  # of experts that are not there: a weight of 0
LOOK_AT = 32  # where the first look's numbers are in a head
assert HEAD.fields is not None and HEAD.fields["look_log"][1] == LOOK_AT
LOOK_TOLERANCE = 2.0**-14  # of y, four times what scores may be wrong by (score.py, TOLERANCE), for roundings of both
LOOK_Y_MAX = 90.0  # of y in float32 no score is nearer to 0 or 1
LOOK_RANGE = 2.0**60  # of scales and biases with which the first look is made in float32


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
    def look(self) -> int:
        return self.gates + self.tiles * fragments(self.gate_row_bytes, self.precision) * FRAGMENT_BYTES

    @property
    def looks(self) -> bool:
        """Whether there is a first look: tensor cores make it, in float32 there are none."""
        return self.precision is not Precision.FLOAT32

    @property
    def bytes(self) -> int:
        return self.look + (look_fragments(self.row_bytes, self.tiles) * FRAGMENT_BYTES if self.looks else 0)


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


def _coarse(vectors: NDArray[np.float64], layout: Layout) -> tuple[NDArray[Any], NDArray[np.float64], Any]:
    """Of float64 [user, column, dim]: what the first look multiplies with, the scales [user] that all columns of a user
    share, and how far a product with a row of the layout may lie above its own, in units of the scale."""
    largest = np.abs(vectors).max(axis=(1, 2))
    if layout.precision is Precision.INT8:
        scales = np.where(largest > 0, largest / 127, 1.0)
    else:
        scales = np.ldexp(1.0, _power_exponents(vectors.reshape(len(vectors), -1), HALF_EXPONENT + 1))
    exact = vectors / scales[:, None, None]
    coarse = np.rint(exact).astype(np.int8) if layout.precision is Precision.INT8 else exact.astype(np.float16)
    wrong = np.abs(exact - coarse.astype(np.float64)).sum(axis=2).max(axis=1)
    wrong = wrong + LOOK_TOLERANCE * np.abs(exact).sum(axis=2).max(axis=1)
    element_max, whole = (128, 2.0) if layout.precision is Precision.INT8 else (2.0 ** (HALF_EXPONENT + 1), 0.0)
    return coarse, scales, wrong * element_max + whole  # int8: and rounded to whole numbers


def _look_fragments(coarse: NDArray[Any], layout: Layout) -> NDArray[np.uint8]:
    """[user, bytes]: for each tile of experts, two steps side by side in each 16 bytes of a lane."""
    elements = _elements(layout.row_bytes, layout.precision)
    elements = np.pad(elements, ((0, len(elements) % 2), (0, 0), (0, 0)), constant_values=-1)
    users, _columns, dim = coarse.shape
    room = max(int(elements.max()) + 1, dim) + 1
    padded = np.zeros((users, layout.columns, room), coarse.dtype)
    padded[..., :dim] = coarse
    by_tile = padded.reshape(users, layout.tiles, TILE_EXPERTS, room)[..., elements]  # [.., expert, step, lane, item]
    items = elements.shape[-1]
    paired = by_tile.reshape(users, layout.tiles, TILE_EXPERTS, len(elements) // 2, 2, LANES, items)
    ordered = np.ascontiguousarray(paired.transpose(0, 1, 3, 2, 5, 4, 6))  # [.., pair, expert, lane, step, item]
    out: NDArray[np.uint8] = ordered.reshape(users, -1).view(np.uint8)
    return out


def _put_looks(
    out: NDArray[np.uint8], vectors: NDArray[np.float64], biases: NDArray[np.float64], layout: Layout
) -> None:
    """The first look's part of each record. `vectors` [user, column, dim] are temperature * U as scores have it; what
    float32 cannot do is NaN, and every ad may reach."""
    with np.errstate(all="ignore"):
        largest = np.abs(vectors).max(axis=(1, 2))
        sure = (largest < LOOK_RANGE) & ((largest > 1 / LOOK_RANGE) | (largest == 0)) & (np.abs(biases) < LOOK_RANGE)
        vectors = np.where(sure[:, None, None], vectors, 0.0)
        coarse, scales, slack = _coarse(vectors, layout)
        margin = LOOK_TOLERANCE * (LOOK_Y_MAX + np.abs(biases))
        heads = out[:, : HEAD.itemsize].copy().view(HEAD)[:, 0]
        heads["look_log"], heads["look_slack"] = math.log(2.0) / scales, slack * (1 + 2.0**-20)
        heads["look_bias"] = np.where(sure, (biases + margin) / scales, np.nan)
        out[:, : HEAD.itemsize] = heads.view(np.uint8).reshape(len(out), -1)
    out[:, layout.look :] = _look_fragments(coarse, layout)


def _clipped(values: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = float(np.finfo(np.float32).max)
    return np.clip(values, -limit, limit)


def _biases(users: Sequence[UserVectors]) -> NDArray[np.float64]:
    return np.array([user.bias for user in users], np.float64)


def _heads(
    users: Sequence[UserVectors], counts: NDArray[np.int64], exponents: NDArray[np.int64],
    gate_factor: NDArray[np.float64],
) -> NDArray[Any]:  # fmt: skip
    heads = np.zeros(len(users), HEAD)
    routes = np.array([user.route for user in users], np.int64)
    bias_max = np.array([np.abs(user.gate_bias).max() for user in users])
    units, biases = np.ldexp(1.0, exponents), _biases(users)
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
    with np.errstate(over="ignore"):
        scaled = experts * (expert_scale * temperature[:, None])[..., None]
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
    out[:, layout.gates : layout.look] = _fragments(gates, layout.gate_row_bytes, tiles, precision)
    if layout.looks:  # experts that are not there are as the first, so that they reach nothing of their own
        _put_looks(out, np.where(here[..., None], scaled, scaled[:, :1]), _biases(users), layout)
    return out
