"""Dot products of LANES ads, wherever their rows lie, with one user's packed vectors.

1. `load_tile` reads the rows 16 bytes at a time and transposes 32-bit words: tile[word, lane], so that each lane of a
   register is an ad. It lies in the first-level cache.
2. `dot_products` runs over the tile once for 8 (or 4) of the user's columns, with one accumulator for each.
   int8: a word holds four elements; its low and high bytes are spread to pairs of int16, and vpmaddwd adds the two
   products of a pair (LLVM makes vpdpwssd of it and the addition where there is VNNI). The sums are exact.
   float16, float32: products of two float32 are exact in float64, in which they are added up; so it makes no
   difference whether a processor fuses the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.lanes import (
    F32,
    F64_LANES,
    I8,
    I16,
    I32,
    I64,
    LANES,
    at_index,
    data_pointer,
    emit_prefetch,
    llvm_function,
    splat,
)

LOAD_BYTES = 16
LOAD_WORDS = 4
CACHE_LINE_BYTES = 64
PREFETCH_LINES_MAX = 4  # of a row; the processor's own prefetcher follows a longer one

I16_PAIRS = ir.VectorType(I16, 2 * LANES)
I32_LANES = ir.VectorType(I32, LANES)
F32_LANES = ir.VectorType(F32, LANES)


def _has_multiply_add_pairs(context: Any) -> bool:
    """Whether the processor compiled for has vpmaddwd on 256 bits. If it has not, using it would end the process."""
    _triple, _name, features = context.codegen().magic_tuple()
    return "+avx2" in features.split(",")


def _constant(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _mask(lanes: list[int]) -> Any:
    return ir.Constant(ir.VectorType(I32, len(lanes)), lanes)


def _row_pointers(context: Any, builder: Any, sig: Any, arguments: Any) -> tuple[list[Any], Any]:
    """Byte pointers to rows[slots[at + lane]], and the bytes of a row. The first arguments are rows, slots and at."""
    rows = context.make_array(sig.args[0])(context, builder, arguments[0])
    slots = builder.gep(data_pointer(context, builder, sig.args[1], arguments[1]), [arguments[2]])
    width = I64(sig.args[0].dtype.bitwidth // 8)
    row_bytes = builder.mul(cgutils.unpack_tuple(builder, rows.shape)[1], width) if sig.args[0].ndim == 2 else width
    base = builder.bitcast(rows.data, I8.as_pointer())
    pointers = []
    for lane in range(LANES):
        slot = builder.zext(builder.load(builder.gep(slots, [I64(lane)])), I64)
        pointers.append(builder.gep(base, [builder.mul(slot, row_bytes)]))
    return pointers, row_bytes


# ---- the tile ----


def _interleave(builder: Any, a: Any, b: Any, from_word: int, words: int) -> Any:
    """Of each four words of a and b: `words` of a from `from_word`, as many of b, the next of a, the next of b."""
    lanes = []
    for four in range(0, LANES, LOAD_WORDS):
        for word in range(four + from_word, four + from_word + 2, words):
            lanes += list(range(word, word + words)) + list(range(LANES + word, LANES + word + words))
    return builder.shuffle_vector(a, b, _mask(lanes))


def _transposed(builder: Any, loads: list[Any]) -> list[Any]:
    """Of the <4 x i32> of each lane's row: the four words, each <LANES x i32>."""
    rows = [builder.shuffle_vector(loads[i], loads[i + 4], _mask(list(range(8)))) for i in range(LOAD_WORDS)]
    low = [_interleave(builder, rows[i], rows[i + 1], 0, 1) for i in (0, 2)]
    high = [_interleave(builder, rows[i], rows[i + 1], 2, 1) for i in (0, 2)]
    return [_interleave(builder, a, b, from_word, 2) for a, b in (low, high) for from_word in (0, 2)]


def _load_tile(_context: Any, rows: Any, slots: Any, _at: Any, tile: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointers, row_bytes = _row_pointers(context, builder, sig, arguments)
        tile_pointer = data_pointer(context, builder, sig.args[3], arguments[3])
        with cgutils.for_range(builder, builder.udiv(row_bytes, I64(LOAD_BYTES))) as loop:
            offset = builder.mul(loop.index, I64(LOAD_BYTES))
            four = ir.VectorType(I32, LOAD_WORDS)
            loads = [builder.load(at_index(builder, pointer, offset, four), align=1) for pointer in pointers]
            for word, values in enumerate(_transposed(builder, loads)):
                index = builder.add(builder.mul(loop.index, I64(LOAD_WORDS * LANES)), I64(word * LANES))
                builder.store(values, at_index(builder, tile_pointer, index, I32_LANES), align=4)
        return context.get_dummy_value()

    return types.void(rows, slots, types.int64, tile), codegen


def _prefetch_rows(_context: Any, rows: Any, slots: Any, _at: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointers, row_bytes = _row_pointers(context, builder, sig, arguments)
        wanted = builder.udiv(builder.add(row_bytes, I64(CACHE_LINE_BYTES - 1)), I64(CACHE_LINE_BYTES))
        lines_max = I64(PREFETCH_LINES_MAX)
        lines = builder.select(builder.icmp_unsigned("<", wanted, lines_max), wanted, lines_max)
        with cgutils.for_range(builder, lines) as loop:
            offset = builder.mul(loop.index, I64(CACHE_LINE_BYTES))
            for pointer in pointers:
                emit_prefetch(builder, builder.gep(pointer, [offset]))
        return context.get_dummy_value()

    return types.void(rows, slots, types.int64), codegen


# ---- the products ----


def _add_pairs_portably(_context: Any, builder: Any, total: Any, ads: Any, pair: Any) -> Any:
    """total[lane] += ads[2 * lane] * low(pair) + ads[2 * lane + 1] * high(pair), all int16 in int32."""
    words = builder.bitcast(ads, I32_LANES)
    sixteen = _constant(I32_LANES, 16)

    def low(word: Any) -> Any:
        return builder.ashr(builder.shl(word, sixteen), sixteen)

    pairs = splat(builder, pair)
    products = builder.mul(low(words), low(pairs))
    return builder.add(
        total, builder.add(products, builder.mul(builder.ashr(words, sixteen), builder.ashr(pairs, sixteen)))
    )


def _add_pairs(context: Any, builder: Any, total: Any, ads: Any, pair: Any) -> Any:
    """The same by vpmaddwd where there is one: LLVM does not find it once the user's pair is the same in each lane."""
    if not _has_multiply_add_pairs(context):
        return _add_pairs_portably(context, builder, total, ads, pair)
    multiply_add = llvm_function(builder, "llvm.x86.avx2.pmadd.wd", I32_LANES, [I16_PAIRS, I16_PAIRS])
    return builder.add(total, builder.call(multiply_add, [ads, builder.bitcast(splat(builder, pair), I16_PAIRS)]))


def _int8_halves(builder: Any, words: Any) -> list[Any]:
    """Bytes 0 and 2 of each word as a pair of int16, and bytes 1 and 3."""
    bytes_ = builder.bitcast(words, I16_PAIRS)
    eight = _constant(I16_PAIRS, 8)
    return [builder.ashr(builder.shl(bytes_, eight), eight), builder.ashr(bytes_, eight)]


def _float16_values(builder: Any, words: Any) -> list[Any]:
    """The two float16 of each word, as float64. Their bits are moved into a float32 whose exponent is 112 too low."""
    values = []
    for half in (words, builder.lshr(words, _constant(I32_LANES, 16))):
        magnitude = builder.shl(builder.and_(half, _constant(I32_LANES, 0x7FFF)), _constant(I32_LANES, 13))
        sign = builder.shl(builder.and_(half, _constant(I32_LANES, 0x8000)), _constant(I32_LANES, 16))
        small = builder.bitcast(builder.or_(magnitude, sign), F32_LANES)
        values.append(builder.fpext(builder.fmul(small, ir.Constant(F32_LANES, [2.0**112] * LANES)), F64_LANES))
    return values


def _float32_values(builder: Any, words: Any) -> list[Any]:
    return [builder.fpext(builder.bitcast(words, F32_LANES), F64_LANES)]


def _add_product(_context: Any, builder: Any, total: Any, ads: Any, element: Any) -> Any:
    product = builder.fmul(ads, splat(builder, element), flags=("contract",))
    return builder.fadd(total, product, flags=("contract",))


def _accumulated(builder: Any, count: Any, totals: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """The totals after body(index, totals) for each index below `count`, which is at least 1; kept in registers."""
    before, loop, after = builder.block, builder.append_basic_block("dots"), builder.append_basic_block("dots.end")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    index.add_incoming(I64(0), before)
    running = [builder.phi(total.type) for total in totals]
    for phi, total in zip(running, totals, strict=True):
        phi.add_incoming(total, before)
    results = body(index, running)
    following = builder.add(index, I64(1))
    index.add_incoming(following, builder.block)
    for phi, result in zip(running, results, strict=True):
        phi.add_incoming(result, builder.block)
    builder.cbranch(builder.icmp_unsigned("<", following, count), loop, after)
    builder.position_at_end(after)
    return results


def _dot_products_with(add_pairs: Callable[..., Any]) -> Callable[..., Any]:
    def typing(
        _context: Any, rows: Any, tile: Any, packed: Any, _user: Any, _column: Any, columns: Any, out: Any
    ) -> Any:
        stored = rows.dtype
        decode, accumulate, total = {
            types.int8: (_int8_halves, add_pairs, I32_LANES),
            types.uint16: (_float16_values, _add_product, F64_LANES),
            types.float32: (_float32_values, _add_product, F64_LANES),
        }[stored]
        steps_per_word = 1 if stored == types.float32 else 2
        count = columns.literal_value

        def codegen(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            vectors = context.make_array(sig.args[2])(context, builder, arguments[2])
            _, steps, stride = cgutils.unpack_tuple(builder, vectors.shape, 3)
            user_start = builder.mul(builder.mul(steps, stride), arguments[3])
            first = builder.gep(vectors.data, [builder.add(user_start, arguments[4])])
            tile_pointer = data_pointer(context, builder, sig.args[1], arguments[1])

            def body(word: Any, totals: list[Any]) -> list[Any]:
                where = at_index(builder, tile_pointer, builder.mul(word, I64(LANES)), I32_LANES)
                step = builder.mul(word, I64(steps_per_word))
                for ads in decode(builder, builder.load(where, align=4)):
                    elements = builder.gep(first, [builder.mul(step, stride)])
                    totals = [
                        accumulate(context, builder, value, ads, builder.load(builder.gep(elements, [I64(c)])))
                        for c, value in enumerate(totals)
                    ]
                    step = builder.add(step, I64(1))
                return totals

            zeros = [ir.Constant(total, None)] * count
            results = _accumulated(builder, builder.udiv(steps, I64(steps_per_word)), zeros, body)
            products = data_pointer(context, builder, sig.args[6], arguments[6])
            for c, value in enumerate(results):
                index = builder.mul(builder.add(arguments[4], I64(c)), I64(LANES))
                wide = builder.sitofp(value, F64_LANES) if total is I32_LANES else value
                builder.store(wide, at_index(builder, products, index, F64_LANES), align=8)
            return context.get_dummy_value()

        return types.void(rows, tile, packed, types.int64, types.int64, columns, out), codegen

    return typing


# (rows [slot, width], slots u32, at, tile i32 [width / 4 bytes, LANES]): rows[slots[at : at + LANES]] into the tile
load_tile: Any = intrinsic(_load_tile)
# (rows [slot, width] or [slot], slots, at): asks for the beginnings of rows[slots[at : at + LANES]] ahead of their use
prefetch_rows: Any = intrinsic(_prefetch_rows)
# (rows, tile, packed [user, step, column], user, column, columns literal, products f64 [column, LANES]):
# products[column : column + columns] of the tile with the user's columns. `rows` only says how elements are stored.
dot_products: Any = intrinsic(prefer_literal=True)(_dot_products_with(_add_pairs))
dot_products_portably: Any = intrinsic(prefer_literal=True)(_dot_products_with(_add_pairs_portably))
