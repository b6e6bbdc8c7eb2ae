"""The score of contract section 4, for one ad in each lane, from its products with a user's vectors (rows.py).

Logits, softmax and mixture are made in float32, but the logits are made in float64, with the operations and the order
of the CPU's kernel, (1) for users that route, so that near ties go as they go there, or have a bias beyond LOGIT_MAX,
and (2) for ads whose largest logit is beyond LOGIT_MAX: its rounding in float32 would be felt. Smaller logits far from
the largest have no weight. So scores differ from the float64 truth by no more than
`tolerance` says, whatever the (finite) input, and no input gives NaN.

An ad's score is the same bits in whatever lane, warp or batch it is made.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cuda, float32, float64, int32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic
from numpy.typing import NDArray

from kernels.cuda import ptx
from kernels.cuda.raw import read_f64, read_i32
from kernels.cuda.rows import TILE_EXPERTS, dots
from kernels.cuda.users import HEAD, LOG2_E, LOGIT_MAX, Layout, expert_order
from kernels.precision import Precision

TOLERANCE = 2.0**-16
"""Of y, beside what the docstring of `tolerance` says."""

SAFE_SCALE = 2.0**100  # factor * scale below this times a product is finite
SAFE_UNIT = 2.0**60
_F32 = ptx.F32


def tolerance(
    products: NDArray[np.float64], logits: NDArray[np.float64], bias: float, precision: Precision
) -> NDArray[np.float64]:
    """How far y may lie from the truth, by ad. `products` [ad] is the largest, over the experts, of |temperature| *
    sum_d |U_ed a_d| (int8, whose products are exact: of |temperature * U_e . a|). `logits` [ad], which counts for
    float16 and float32, is the largest of sum_d |K_ed q_d| / sqrt(G): logits are as exact as their float32 sums."""
    unsure = np.zeros_like(logits) if precision is Precision.INT8 else np.minimum(logits * TOLERANCE, 1.0)
    return TOLERANCE * (products + abs(bias) + 1.0) + 2.0 * unsure * products


@cache
def _routed(precision: Precision, tiles: int) -> Any:
    """(logits float64 [8 tiles], route) -> float32 [8 tiles]: 1 where fewer than `route` experts come before this one,
    of a larger logit, or as large with a lower number; else 0."""
    count = tiles * TILE_EXPERTS

    def typed(_context: Any, logits: Any, _route: Any) -> Any:
        result = types.UniTuple(types.float32, count)

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            z = [builder.extract_value(arguments[0], i) for i in range(count)]
            lane = ptx.emit_lane(builder)
            ranks: list[Any] = [ptx.I32(0)] * count
            for i in range(count):
                for j in range(i):  # does the one at j come before that at i?
                    larger = builder.fcmp_ordered(">", z[j], z[i])
                    lower = _lower_number(builder, lane, j, i, precision)
                    before = builder.or_(larger, builder.and_(lower, builder.fcmp_ordered("==", z[j], z[i])))
                    ranks[i] = builder.add(ranks[i], builder.zext(before, ptx.I32))
                    ranks[j] = builder.add(ranks[j], builder.zext(builder.not_(before), ptx.I32))
            inside = [builder.icmp_signed("<", rank, arguments[1]) for rank in ranks]
            made = [builder.select(each, _F32(1.0), _F32(0.0)) for each in inside]
            return context.make_tuple(builder, result, made)

        return result(logits, types.int32), codegen

    return intrinsic(typed)


def _lower_number(builder: Any, lane: Any, j: int, i: int, precision: Precision) -> Any:
    """Whether the expert at position j has a lower number than that at i > j, in a lane's order of them."""
    always = [bool(expert_order(t, 2, precision)[j] < expert_order(t, 2, precision)[i]) for t in range(4)]
    if all(always):
        return ir.Constant(ptx.I1, 1)
    bit = (j ^ i).bit_length() - 2  # the highest bit in which they differ, as a bit of the lane
    flipped = builder.trunc(builder.lshr(lane, ptx.I32(bit)), ptx.I1)
    return builder.not_(flipped)


@cache
def scorer(layout: Layout) -> Any:
    """A device function: (rows of the embedding, rows of the gate, scale of the lane's embedding, of its gate, address
    of the user's record) -> score. The whole warp comes to it."""
    columns = layout.columns
    single, double = HEAD.itemsize, layout.factors64
    experts_at, gates_at = uint64(layout.experts), uint64(layout.gates)
    expert_dots = dots(layout.row_bytes, layout.precision, layout.tiles)
    gate_dots = dots(layout.gate_row_bytes, layout.precision, layout.tiles)
    read, read64 = ptx.reader_f32(columns), ptx.reader_f64(columns)
    routed = _routed(layout.precision, layout.tiles)
    single_bytes, double_bytes, column_bytes = 3 * columns * 4, 2 * columns * 8, columns * 4
    multiply, subtract, fused, exp2, reciprocal = ptx.multiply, ptx.subtract, ptx.fused, ptx.exp2, ptx.reciprocal
    weight, weighted = ptx.weight, ptx.weighted
    multiply64, add64, subtract64, as_f32, as_f64 = ptx.multiply64, ptx.add64, ptx.subtract64, ptx.as_f32, ptx.as_f64
    largest, total = ptx.largest, ptx.total
    log2_e, logit_max = float32(LOG2_E), float32(LOGIT_MAX * LOG2_E)
    safe_scale, safe_unit = float32(SAFE_SCALE), float32(SAFE_UNIT)
    bias_at, factor_max_at, route_at, unit64_at, bias64_at = 1, 2, 3, 2, 3  # in items of their size

    @cuda.jit(device=True, forceinline=True)
    def logistic(y: Any) -> Any:
        small = exp2(multiply(-abs(y), log2_e))
        return multiply(float32(1.0) if y >= float32(0.0) else small, reciprocal(float32(1.0) + small))

    @cuda.jit(device=True, forceinline=True)
    def weights64(gate_products: Any, gate_scale: Any, user: Any, lane4: Any) -> Any:
        at = uint64(double) + uint64(lane4) * uint64(double_bytes)
        factors, biases = read64(user, at), read64(user, at + uint64(2 * column_bytes))
        z = add64(multiply64(multiply64(as_f64(gate_products), factors), float64(gate_scale)), biases)
        weights = weight(multiply(as_f32(subtract64(z, largest(z))), log2_e))
        route = read_i32(user, uint64(route_at))
        if route > int32(0):
            weights = multiply(weights, routed(z, route))
        return weights

    @cuda.jit(device=True, forceinline=True)
    def score(rows: Any, gate_rows: Any, scale: Any, gate_scale: Any, user: Any) -> Any:
        lane4 = cuda.laneid & 3
        gate_products = gate_dots(gate_rows, user + gates_at)
        products = expert_dots(rows, user + experts_at)
        at = uint64(single) + uint64(lane4) * uint64(single_bytes)
        scalars = read4(user, uint64(0))
        gate_factors = multiply(read(user, at + uint64(column_bytes)), gate_scale)
        z = fused(as_f32(gate_products), gate_factors, read(user, at + uint64(2 * column_bytes)))
        top = largest(z)
        if multiply(scalars[factor_max_at], gate_scale) <= safe_scale and abs(top) <= logit_max:
            weights = weight(subtract(z, top))
        else:
            weights = weights64(gate_products, gate_scale, user, lane4)
        mixed = weighted(weights, multiply(as_f32(products), read(user, at)))
        mixed = multiply(mixed, reciprocal(total(weights)))
        unit = multiply(scale, scalars[0])
        if unit <= safe_unit:
            y = fused(mixed, unit, scalars[bias_at])
        else:
            wide = multiply64(multiply64(float64(mixed), float64(scale)), read_f64(user, uint64(unit64_at)))
            y = as_f32(add64(wide, read_f64(user, uint64(bias64_at))))
        return logistic(y)

    read4 = ptx.reader_f32(4)
    return score
