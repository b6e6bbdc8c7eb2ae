"""PTX instructions that Numba has no name for, and arithmetic on short tuples of registers.

`emit_*` write one instruction into the LLVM code that an intrinsic makes; the names below them are intrinsics for
kernels. Arithmetic says how it rounds (`.rn`), so that no compiler fuses two operations on one path and not on another:
a sum is the same bits wherever it is made.

A tuple stands for values of a thread's several experts; what is given as a scalar serves each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
_LETTERS = {I32: "r", I64: "l", F32: "f", F64: "d"}


def emit(
    builder: Any, text: str, result: Any, arguments: Sequence[Any], *, together: bool = False, effect: bool = False
) -> Any:
    """One PTX instruction. `together`: the whole warp comes to it, so it stays where it is written."""
    results = list(result.elements) if isinstance(result, ir.LiteralStructType) else [result]
    out = [f"={_LETTERS[kind]}" for kind in results if not isinstance(kind, ir.VoidType)]
    constraints = ",".join(out + [_LETTERS[value.type] for value in arguments] + (["~{memory}"] if effect else []))
    asm = ir.InlineAsm(
        ir.FunctionType(result, [value.type for value in arguments]), text, constraints, side_effect=effect or together
    )
    return builder.call(asm, arguments, attrs=("convergent",) if together else ())


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"${i}" for i in range(first, first + count)) + "}"


def _emit_mma(builder: Any, name: str, total: Any, a: Sequence[Any], b: Sequence[Any], c: Sequence[Any]) -> list[Any]:
    text = f"mma.sync.aligned.{name} {_registers(0, 4)}, {_registers(4, 4)}, {_registers(8, 2)}, {_registers(10, 4)};"
    result = emit(builder, text, ir.LiteralStructType([total] * 4), [*a, *b, *c], together=True)
    return [builder.extract_value(result, i) for i in range(4)]


def emit_mma_s8(builder: Any, a: Sequence[Any], b: Sequence[Any], c: Sequence[Any]) -> list[Any]:
    """D [16, 8] int32 = A [16, 32] int8 x B [32, 8] int8 + C, over the warp."""
    return _emit_mma(builder, "m16n8k32.row.col.s32.s8.s8.s32", I32, a, b, c)


def emit_mma_u8(builder: Any, a: Sequence[Any], b: Sequence[Any], c: Sequence[Any]) -> list[Any]:
    """The same with B uint8."""
    return _emit_mma(builder, "m16n8k32.row.col.s32.s8.u8.s32", I32, a, b, c)


def emit_mma_f16(builder: Any, a: Sequence[Any], b: Sequence[Any], c: Sequence[Any]) -> list[Any]:
    """D [16, 8] float32 = A [16, 16] float16 x B [16, 8] float16 + C, over the warp."""
    return _emit_mma(builder, "m16n8k16.row.col.f32.f16.f16.f32", F32, a, b, c)


def emit_shuffle_xor(builder: Any, value: Any, lanes: int) -> Any:
    """The 32-bit value of the lane whose number differs in the bits `lanes`; every lane comes to it."""
    bits = value if value.type == I32 else builder.bitcast(value, I32)
    moved = emit(builder, f"shfl.sync.bfly.b32 $0, $1, {lanes}, 0x1f, 0xffffffff;", I32, [bits], together=True)
    return moved if value.type == I32 else builder.bitcast(moved, value.type)


def emit_lane(builder: Any) -> Any:
    return emit(builder, "mov.u32 $0, %laneid;", I32, [])


def emit_load4(builder: Any, address: Any, item: Any = I32) -> list[Any]:
    """Four items of 32 bits at a 16-byte aligned address, which no one writes while the kernel runs."""
    return emit_load(builder, address, item, 4)


def emit_load(builder: Any, address: Any, item: Any, count: int) -> list[Any]:
    kind = item if count == 1 else ir.VectorType(item, count)
    bytes_ = count * (8 if item == F64 else 4)
    pointer = builder.inttoptr(address, ir.PointerType(kind, 1))
    loaded = builder.load(pointer, align=bytes_)
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return [loaded] if count == 1 else [builder.extract_element(loaded, I32(i)) for i in range(count)]


# ---- fragments, as kernels see them in tests ----


def _mma(emitted: Callable[..., list[Any]], total: Any) -> Any:
    a, b, c = types.UniTuple(types.uint32, 4), types.UniTuple(types.uint32, 2), types.UniTuple(total, 4)

    def typed(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            parts = [
                [builder.extract_value(arg, i) for i in range(n)] for arg, n in zip(arguments, (4, 2, 4), strict=True)
            ]
            return context.make_tuple(builder, signature.return_type, emitted(builder, *parts))

        return c(a, b, c), codegen

    return intrinsic(typed)


# (a 4 x uint32, b 2 x uint32, c 4 x total) -> d 4 x total: lane 4 g + t holds of A rows g and g + 8, of B column g, of
# C and D columns 2 t and 2 t + 1 of rows g and g + 8
mma_s8: Any = _mma(emit_mma_s8, types.int32)
mma_u8: Any = _mma(emit_mma_u8, types.int32)
mma_f16: Any = _mma(emit_mma_f16, types.float32)


# ---- tuples ----

_OF = {types.float32: F32, types.float64: F64, types.int32: I32, types.uint32: I32}


def _items(builder: Any, kind: Any, value: Any, count: int) -> list[Any]:
    if isinstance(kind, types.UniTuple):
        return [builder.extract_value(value, i) for i in range(count)]
    return [value] * count


def _each(text: str, item: Any) -> Any:
    """One instruction for each of a tuple's items."""

    def build(arguments: Sequence[Any]) -> Any:
        count = max(kind.count if isinstance(kind, types.UniTuple) else 1 for kind in arguments)
        result = types.UniTuple(item, count) if any(isinstance(kind, types.UniTuple) for kind in arguments) else item
        wanted = [types.UniTuple(item, kind.count) if isinstance(kind, types.UniTuple) else item for kind in arguments]

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            columns = [_items(builder, k, v, count) for k, v in zip(signature.args, values, strict=True)]
            made = [emit(builder, text, _OF[item], list(row)) for row in zip(*columns, strict=True)]
            return context.make_tuple(builder, result, made) if isinstance(result, types.UniTuple) else made[0]

        return result(*wanted), codegen

    if text.count("$") == 2:
        return intrinsic(lambda _context, a: build([a]))
    if text.count("$") == 3:
        return intrinsic(lambda _context, a, b: build([a, b]))
    return intrinsic(lambda _context, a, b, c: build([a, b, c]))


multiply: Any = _each("mul.rn.f32 $0, $1, $2;", types.float32)  # (a, b): a * b
subtract: Any = _each("sub.rn.f32 $0, $1, $2;", types.float32)  # (a, b): a - b
fused: Any = _each("fma.rn.f32 $0, $1, $2, $3;", types.float32)  # (a, b, c): a * b + c, rounded once
exp2: Any = _each("ex2.approx.f32 $0, $1;", types.float32)  # 2^a to 2 units in the last place; 0 for -inf
weight: Any = _each("ex2.approx.ftz.f32 $0, $1;", types.float32)  # the same, but 0 where 2^a is below 2^-126
reciprocal: Any = _each("rcp.approx.ftz.f32 $0, $1;", types.float32)  # 1 / a to 1 unit in the last place
log2: Any = _each("lg2.approx.ftz.f32 $0, $1;", types.float32)  # to 2^-22, or 2 units in the last place
larger: Any = _each("max.f32 $0, $1, $2;", types.float32)  # of a NaN and a number the number
smaller: Any = _each("min.f32 $0, $1, $2;", types.float32)
multiply64: Any = _each("mul.rn.f64 $0, $1, $2;", types.float64)
add64: Any = _each("add.rn.f64 $0, $1, $2;", types.float64)
subtract64: Any = _each("sub.rn.f64 $0, $1, $2;", types.float64)


def _converted(item: Any) -> Any:
    of = _OF[item]

    def convert(builder: Any, value: Any) -> Any:
        if value.type == of:
            return value
        if value.type == I32:
            return builder.sitofp(value, of)
        return builder.fpext(value, of) if of == F64 else builder.fptrunc(value, of)

    def typed(_context: Any, a: Any) -> Any:
        result = types.UniTuple(item, a.count) if isinstance(a, types.UniTuple) else item

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            if not isinstance(a, types.UniTuple):
                return convert(builder, arguments[0])
            made = [convert(builder, value) for value in _items(builder, a, arguments[0], a.count)]
            return context.make_tuple(builder, result, made)

        return result(a), codegen

    return intrinsic(typed)


as_f32: Any = _converted(types.float32)  # of int32, float32 or float64, rounded to nearest
as_f64: Any = _converted(types.float64)


def _tree(texts: dict[Any, str], *, absolute: bool = False) -> Any:
    """Joins a tuple's items two by two, then the pairs, and so on: exchanging two neighbours, or two pairs of
    neighbours, changes nothing."""

    def typed(_context: Any, a: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            of, text = _OF[a.dtype], texts[a.dtype]
            held = _items(builder, a, arguments[0], a.count)
            if absolute:
                held = [emit(builder, "abs.f32 $0, $1;", of, [value]) for value in held]
            while len(held) > 1:
                held = [emit(builder, text, of, held[i : i + 2]) for i in range(0, len(held), 2)]
            return held[0]

        return a.dtype(a), codegen

    return intrinsic(typed)


_MAX = {types.float32: "max.f32 $0, $1, $2;", types.float64: "max.f64 $0, $1, $2;"}
largest: Any = _tree(_MAX)  # of a tuple of 8 or 16
largest_magnitude: Any = _tree(_MAX, absolute=True)
total: Any = _tree({types.float32: "add.rn.f32 $0, $1, $2;"})
any_bits: Any = _tree({types.uint32: "or.b32 $0, $1, $2;"})


def _weighted(_context: Any, weights: Any, _values: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        w, v = (_items(builder, weights, each, weights.count) for each in arguments)
        held = []
        for i in range(0, weights.count, 2):
            first = emit(builder, "mul.rn.f32 $0, $1, $2;", F32, [w[i], v[i]])
            held.append(emit(builder, "fma.rn.f32 $0, $1, $2, $3;", F32, [w[i + 1], v[i + 1], first]))
        while len(held) > 1:
            held = [emit(builder, "add.rn.f32 $0, $1, $2;", F32, held[i : i + 2]) for i in range(0, len(held), 2)]
        return held[0]

    return types.float32(weights, weights), codegen


weighted: Any = intrinsic(_weighted)  # (weights, values): the sum of their products, as a tree over pairs


def _loaded(item: Any, count: int) -> Any:
    def typed(_context: Any, _address: Any, _offset: Any) -> Any:
        result, per_load = types.UniTuple(item, count), 16 // (item.bitwidth // 8)

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            base = builder.add(arguments[0], arguments[1])
            made: list[Any] = []
            for first in range(0, count, per_load):
                made += emit_load(builder, builder.add(base, I64(first * item.bitwidth // 8)), _OF[item], per_load)
            return context.make_tuple(builder, result, made)

        return result(types.uint64, types.uint64), codegen

    return intrinsic(typed)


_READ = {(item, count): _loaded(item, count) for item in (types.float32, types.float64) for count in (4, 8, 16)}


def reader_f32(count: int) -> Any:
    """(address, byte offset) -> `count` (4, 8 or 16) float32 in a tuple, where no one writes; 16-byte aligned."""
    return _READ[types.float32, count]


def reader_f64(count: int) -> Any:
    return _READ[types.float64, count]


def _atomic_max_u64(_context: Any, _address: Any, _index: Any, _value: Any) -> Any:
    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        at = builder.add(arguments[0], builder.mul(arguments[1], I64(8)))
        emit(builder, "red.global.max.u64 [$0], $1;", ir.VoidType(), [at, arguments[2]], effect=True)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), codegen


atomic_max_u64: Any = intrinsic(_atomic_max_u64)  # (address, index, value)


def _load_latest_u64(_context: Any, _address: Any, _index: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        at = builder.add(arguments[0], builder.mul(arguments[1], I64(8)))
        return emit(builder, "ld.relaxed.gpu.global.u64 $0, [$1];", I64, [at], effect=True)

    return types.uint64(types.uint64, types.uint64), codegen


load_latest_u64: Any = intrinsic(_load_latest_u64)  # (address, index): what other blocks wrote, past this one's cache


def _load4_latest_u32(_context: Any, _address: Any, _index: Any) -> Any:
    result = types.UniTuple(types.uint32, 4)

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        at = builder.add(arguments[0], builder.mul(arguments[1], I64(4)))
        text = "ld.relaxed.gpu.global.v4.u32 {$0, $1, $2, $3}, [$4];"
        loaded = emit(builder, text, ir.LiteralStructType([I32] * 4), [at], effect=True)
        return context.make_tuple(builder, result, [builder.extract_value(loaded, i) for i in range(4)])

    return result(types.uint64, types.uint64), codegen


load4_latest_u32: Any = intrinsic(_load4_latest_u32)  # (address, index of a multiple of 4)


def _count_u32(_context: Any, _address: Any, _index: Any) -> Any:
    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        at = builder.add(arguments[0], builder.mul(arguments[1], I64(4)))
        emit(builder, "red.relaxed.gpu.global.add.u32 [$0], 1;", ir.VoidType(), [at], effect=True)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), codegen


count_u32: Any = intrinsic(_count_u32)  # (address, index): one more


def _warp_sum(_context: Any, _value: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return emit(builder, "redux.sync.add.s32 $0, $1, 0xffffffff;", I32, [arguments[0]], together=True)

    return types.int32(types.int32), codegen


warp_sum: Any = intrinsic(_warp_sum)  # of int32 over the lanes; every lane comes to it


def _bits(_context: Any, _value: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], I64)

    return types.uint64(types.float64), codegen


bits_f64: Any = intrinsic(_bits)  # of a float64; of one that is not negative they are in its order


def _of_bits(_context: Any, _value: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], F64)

    return types.float64(types.uint64), codegen


f64_of_bits: Any = intrinsic(_of_bits)
