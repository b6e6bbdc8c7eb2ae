"""Dot products of a warp's 32 ads with one user's vectors, on tensor cores for int8 and float16.

An ad's row is read once, by four lanes, 16 bytes at a time: lane 4 g + t reads its part t of the rows of ads 4 g to
4 g + 3. A product does not care about the order of its terms, so each lane's bytes go into tensor-core fragments as
they come, and the user's vectors are packed in the same order on the host (users.py): no shuffle, no staging.

int8: a user's element is an int16, held as a signed high and an unsigned low byte; 256 * (row . high) + (row . low) is
the exact int32 sum of the CPU's kernel. float16: an element is the sum of two float16, and both products are added in
float32. float32: plain multiply-adds, with the four lanes' sums added at the end.

In the end each lane holds the products of one ad, that of its own number: `products[8 tile + 2 p + c]` is that with
expert 8 tile + 2 (t ^ p) + c (`float32`: expert 8 tile + 2 p + c). Sums over experts that are made as trees are so the
same bits in every lane.

`reach` is the first look: one product a step with the experts made coarse, begun from what the ad lacks, so that a sign
says whether an expert may reach what is asked; nothing is exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels.cuda.ptx import (
    F32,
    I32,
    I64,
    emit,
    emit_lane,
    emit_load,
    emit_load4,
    emit_mma_f16,
    emit_mma_s8,
    emit_mma_u8,
    emit_shuffle_xor,
)
from kernels.precision import Precision

WARP_ADS = 32
ROWS = 4  # that a lane reads
STEP_BYTES = 32  # of a row, in one tensor-core product
FRAGMENT_BYTES = 512  # of a user's vectors, for one step (float32: for one piece) and 8 experts
TILE_EXPERTS = 8
HELD_BYTES_MAX = 256  # a longer row is read again for each user, so that registers do not run out


class Piece(NamedTuple):
    """What the four lanes read at a time: lane t `bytes` bytes from `first + t * bytes` of the row."""

    first: int
    bytes: int

    @property
    def steps(self) -> int:
        return 2 if self.bytes == 16 else 1


@cache
def pieces(row_bytes: int) -> tuple[Piece, ...]:
    """A row is a multiple of 16 bytes."""
    assert row_bytes > 0 and row_bytes % 16 == 0, row_bytes
    found, at = [], 0
    for each in (16, 8, 4):
        while row_bytes - at >= 4 * each:
            found.append(Piece(at, each))
            at += 4 * each
    return tuple(found)


def fragments(row_bytes: int, precision: Precision) -> int:
    """Of a user's vectors, for 8 experts: FRAGMENT_BYTES each."""
    return sum(1 if precision is Precision.FLOAT32 else piece.steps for piece in pieces(row_bytes))


def look_fragments(row_bytes: int, tiles: int) -> int:
    """Of a user's coarse vectors: two steps in each."""
    steps = sum(piece.steps for piece in pieces(row_bytes))
    return tiles * -(-steps // 2)


def _words(builder: Any, address: Any, lane: Any, piece: Piece, item: Any) -> list[Any]:
    """The lane's part of a piece of the row at `address`."""
    part = builder.zext(builder.and_(lane, I32(3)), I64)
    at = builder.add(address, builder.add(builder.mul(part, I64(piece.bytes)), I64(piece.first)))
    return emit_load(builder, at, item, piece.bytes // 4)


def _quads(rows: list[list[Any]], row_bytes: int) -> list[list[Any]]:
    """[step, pair] -> the four registers of A that tensor cores multiply at a time: words of two rows by turns."""
    out, word = [], 0
    for piece in pieces(row_bytes):
        for _ in range(piece.steps):
            for pair in range(2):
                a, c = rows[2 * pair], rows[2 * pair + 1]
                whole = piece.bytes > 4
                out.append([a[word], c[word], a[word + 1] if whole else I32(0), c[word + 1] if whole else I32(0)])
            word += 2 if piece.bytes > 4 else 1
    return out


def _load_quads(builder: Any, addresses: Sequence[Any], lane: Any, row_bytes: int) -> list[list[Any]]:
    return _quads(
        [
            [word for piece in pieces(row_bytes) for word in _words(builder, address, lane, piece, I32)]
            for address in addresses
        ],
        row_bytes,
    )


@cache
def load_rows(row_bytes: int, precision: Precision) -> Any:
    """(four addresses, 0) -> what `dots` takes: the lane's words of the four rows, or the addresses of long rows.

    The 0 must be one that no compiler sees through. Registers that one load fills lie side by side, and so must those
    of a tensor-core product, which are others: they are moved, and by an exclusive or with this 0, which stays where it
    is written, they are moved once, not again for each user."""
    held = row_bytes <= HELD_BYTES_MAX and precision is not Precision.FLOAT32
    addresses = types.UniTuple(types.uint64, ROWS)
    steps = sum(piece.steps for piece in pieces(row_bytes))

    def typed(_context: Any, _addresses: Any, _zero: Any) -> Any:
        result = types.UniTuple(types.uint32, 8 * steps) if held else addresses

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            values = [builder.extract_value(arguments[0], row) for row in range(ROWS)]
            if held:
                quads = _load_quads(builder, values, emit_lane(builder), row_bytes)
                values = [
                    emit(builder, "xor.b32 $0, $1, $2;", I32, [word, arguments[1]], together=True)
                    for quad in quads
                    for word in quad
                ]
            return context.make_tuple(builder, result, values)

        return result(addresses, types.uint32), codegen

    return intrinsic(typed)


def _tensor_products(
    builder: Any, quads: list[list[Any]], user: Any, lane: Any, row_bytes: int, tiles: int, precision: Precision
) -> list[list[list[Any]]]:
    """[tile][row][c]: products of row 4 g + row with expert 8 tile + 2 t + c."""
    count = fragments(row_bytes, precision)
    of, parts = (I32, 2) if precision is Precision.INT8 else (F32, 1)
    sums = {(tile, pair, part): [of(0)] * 4 for tile in range(tiles) for pair in range(2) for part in range(parts)}
    mine = builder.add(user, builder.mul(builder.zext(lane, I64), I64(16)))
    for step in range(count):
        for tile in range(tiles):
            b = emit_load4(builder, builder.add(mine, I64((tile * count + step) * FRAGMENT_BYTES)))
            for pair in range(2):
                a = quads[2 * step + pair]
                if precision is Precision.INT8:
                    sums[tile, pair, 0] = emit_mma_s8(builder, a, b[:2], sums[tile, pair, 0])
                    sums[tile, pair, 1] = emit_mma_u8(builder, a, b[2:], sums[tile, pair, 1])
                else:
                    for half in (b[:2], b[2:]):
                        sums[tile, pair, 0] = emit_mma_f16(builder, a, half, sums[tile, pair, 0])
    out = []
    for tile in range(tiles):
        of_rows = []
        for row in range(ROWS):
            pair, first = row // 2, row % 2 * 2
            columns = sums[tile, pair, 0][first : first + 2]
            if precision is Precision.INT8:
                low = sums[tile, pair, 1][first : first + 2]
                columns = [
                    builder.add(builder.shl(high, I32(8)), below) for high, below in zip(columns, low, strict=True)
                ]
            of_rows.append(columns)
        out.append(of_rows)
    return out


def _bit(builder: Any, lane: Any, bit: int) -> Any:
    return builder.trunc(builder.lshr(lane, I32(bit)), ir.IntType(1))


def _own_row(builder: Any, rows: list[list[Any]], lane: Any) -> list[Any]:
    """Of the four lanes' products of four rows: those of row t, for lane t. [2 p + c] is from lane t ^ p."""
    for bit in range(2):
        swap = _bit(builder, lane, bit)
        rows = [
            [builder.select(swap, other, own) for own, other in zip(rows[row], rows[row ^ (1 << bit)], strict=True)]
            for row in range(ROWS)
        ]
    return [emit_shuffle_xor(builder, value, p) if p else value for p in range(ROWS) for value in rows[p]]


def _plain_products(
    builder: Any, addresses: Sequence[Any], user: Any, lane: Any, row_bytes: int, tiles: int
) -> list[Any]:
    """float32: [8 tile + expert] of the lane's own row."""
    columns, count = tiles * TILE_EXPERTS, fragments(row_bytes, Precision.FLOAT32)
    sums = [[F32(0)] * columns for _ in range(ROWS)]
    mine = builder.add(user, builder.mul(builder.zext(builder.and_(lane, I32(3)), I64), I64(16)))
    for number, piece in enumerate(pieces(row_bytes)):
        items = [_words(builder, address, lane, piece, F32) for address in addresses]
        for column in range(columns):
            tile, expert = divmod(column, TILE_EXPERTS)
            at = (tile * count + number) * FRAGMENT_BYTES + expert * 64
            elements = emit_load4(builder, builder.add(mine, I64(at)), F32)
            for row in range(ROWS):
                for item, element in zip(items[row], elements, strict=False):
                    sums[row][column] = emit(
                        builder, "fma.rn.f32 $0, $1, $2, $3;", F32, [item, element, sums[row][column]]
                    )
    for bit in (1, 0):  # each time half of the rows go to the lanes of the other half
        high, half = _bit(builder, lane, bit), len(sums) // 2
        sums = [
            [_added(builder, high, low, up, 1 << bit) for low, up in zip(sums[row], sums[row + half], strict=True)]
            for row in range(half)
        ]
    return sums[0]


def _added(builder: Any, high: Any, low: Any, up: Any, lanes: int) -> Any:
    """The sum, over two lanes, of `up` in the lane whose bit is set, of `low` in the other."""
    kept, sent = builder.select(high, up, low), builder.select(high, low, up)
    return emit(builder, "add.rn.f32 $0, $1, $2;", F32, [kept, emit_shuffle_xor(builder, sent, lanes)])


@cache
def dots(row_bytes: int, precision: Precision, tiles: int) -> Any:
    """(rows of `load_rows`, the address of the user's fragments) -> int32 or float32 [8 * tiles]: the products of the
    lane's ad, in the order that the module's docstring says. The whole warp comes to it."""
    item = types.int32 if precision is Precision.INT8 else types.float32

    def typed(_context: Any, rows: Any, _user: Any) -> Any:
        result = types.UniTuple(item, tiles * TILE_EXPERTS)

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            values = [builder.extract_value(arguments[0], i) for i in range(rows.count)]
            lane = emit_lane(builder)
            if precision is Precision.FLOAT32:
                products = _plain_products(builder, values, arguments[1], lane, row_bytes, tiles)
            else:
                held = values[0].type == I32
                quads = (
                    [values[i : i + 4] for i in range(0, len(values), 4)]
                    if held
                    else _load_quads(builder, values, lane, row_bytes)
                )
                by_tile = _tensor_products(builder, quads, arguments[1], lane, row_bytes, tiles, precision)
                products = [value for each in by_tile for value in _own_row(builder, each, lane)]
            return context.make_tuple(builder, result, products)

        return result(rows, types.uint64), codegen

    return intrinsic(typed)


@cache
def reach(row_bytes: int, precision: Precision, tiles: int) -> Any:
    """(rows of `load_rows`, the address of the user's coarse fragments, float32 `lacks` of the lane's ad) -> uint32
    [4]: of rows 4 g .. 4 g + 3; the highest bit says that coarse . row + `lacks` is below 0 for all of the lane's
    experts. The whole warp comes to it. int8: `lacks` is rounded to an integer."""
    assert precision is not Precision.FLOAT32

    def typed(_context: Any, rows: Any, _user: Any, _lacks: Any) -> Any:
        result = types.UniTuple(types.uint32, ROWS)

        def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            values = [builder.extract_value(arguments[0], i) for i in range(rows.count)]
            lane = emit_lane(builder)
            whole = precision is Precision.INT8
            lacks = emit(builder, "cvt.rni.s32.f32 $0, $1;", I32, [arguments[2]]) if whole else arguments[2]
            start = [_from_row(builder, lacks, lane, row) for row in range(ROWS)]
            held = values[0].type == I32
            quads = (
                [values[i : i + 4] for i in range(0, len(values), 4)]
                if held
                else _load_quads(builder, values, lane, row_bytes)
            )
            return context.make_tuple(
                builder, result, _below(builder, quads, arguments[1], lane, row_bytes, tiles, whole, start)
            )

        return result(rows, types.uint64, types.float32), codegen

    return intrinsic(typed)


def _from_row(builder: Any, value: Any, lane: Any, row: int) -> Any:
    """The value of the lane whose ad is the group's row `row`."""
    bits = value if value.type == I32 else builder.bitcast(value, I32)
    source = builder.or_(builder.and_(lane, I32(28)), I32(row))
    moved = emit(builder, "shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;", I32, [bits, source], together=True)
    return moved if value.type == I32 else builder.bitcast(moved, value.type)


def _below(
    builder: Any, quads: list[list[Any]], user: Any, lane: Any, row_bytes: int, tiles: int, whole: bool, start: Any
) -> list[Any]:
    """By row, the highest bits of all sums, joined by `and`."""
    steps = sum(piece.steps for piece in pieces(row_bytes))
    mine = builder.add(user, builder.mul(builder.zext(lane, I64), I64(16)))
    multiply = emit_mma_s8 if whole else emit_mma_f16
    found: list[Any] = [None] * ROWS
    for tile in range(tiles):
        sums = [[start[2 * pair]] * 2 + [start[2 * pair + 1]] * 2 for pair in range(2)]
        for step in range(steps):
            if step % 2 == 0:
                at = look_fragments(row_bytes, 1) * tile + step // 2
                b = emit_load4(builder, builder.add(mine, I64(at * FRAGMENT_BYTES)))
            half = b[2 * (step % 2) : 2 * (step % 2) + 2]
            for pair in range(2):
                sums[pair] = multiply(builder, quads[2 * step + pair], half, sums[pair])
        for row in range(ROWS):
            for each in sums[row // 2][row % 2 * 2 : row % 2 * 2 + 2]:
                bits = each if each.type == I32 else builder.bitcast(each, I32)
                found[row] = bits if found[row] is None else builder.and_(found[row], bits)
    return found
