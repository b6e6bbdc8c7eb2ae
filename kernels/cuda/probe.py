"""Kernels that only measure: what the memory gives, ads that are made where they lie, and a plain dot product that
reads the bytes that gated scoring reads."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cuda, float32, float64, uint32, uint64

from kernels.cuda import ptx
from kernels.cuda.raw import read2_u64, store_f32, store_f64, store_u32, store_u64
from kernels.cuda.rows import dots
from kernels.cuda.users import HEAD, Layout

UNROLLED = 4  # loads of 16 bytes that a thread has in flight


@cuda.jit
def read_units(source: Any, units: Any, out: Any) -> None:
    """Reads `units` (a multiple of what all threads read at a time) of 16 bytes, and writes where they are nothing."""
    stride = uint64(cuda.gridsize(1))
    at, found = uint64(cuda.grid(1)), uint64(0)
    while at < uint64(units):
        one, two = read2_u64(source, uint64(2) * at), read2_u64(source, uint64(2) * (at + stride))
        three = read2_u64(source, uint64(2) * (at + uint64(2) * stride))
        four = read2_u64(source, uint64(2) * (at + uint64(3) * stride))
        found |= one[0] ^ one[1] ^ two[0] ^ two[1] ^ three[0] ^ three[1] ^ four[0] ^ four[1]
        at += uint64(UNROLLED) * stride
    if found == uint64(0):
        store_u64(out, uint64(0), found)


@cuda.jit(device=True, forceinline=True)
def _mixed(seed: Any, i: Any) -> Any:
    """SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators)."""
    x = uint64(seed) + uint64(i) * uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@cuda.jit
def fill_random(target: Any, words: Any, seed: Any, kept: Any) -> None:
    """uint64 [words], any of the bits in `kept` set."""
    i = uint64(cuda.grid(1))
    while i < uint64(words):
        store_u64(target, i, _mixed(seed, i) & uint64(kept))
        i += uint64(cuda.gridsize(1))


@cuda.jit
def fill_scales(target: Any, count: Any, value: Any) -> None:
    """float32 [count], all the same."""
    i = uint64(cuda.grid(1))
    while i < uint64(count):
        store_f32(target, i, float32(value))
        i += uint64(cuda.gridsize(1))


@cuda.jit
def fill_quotients(target: Any, count: Any, divisor: Any) -> None:
    """uint32 [count]: i // divisor."""
    i = uint64(cuda.grid(1))
    while i < uint64(count):
        store_u32(target, i, uint32(i // uint64(divisor)))
        i += uint64(cuda.gridsize(1))


@cuda.jit
def fill_bids(target: Any, count: Any, seed: Any) -> None:
    """float64 [count] from 1 to 2."""
    i = uint64(cuda.grid(1))
    while i < uint64(count):
        store_f64(target, i, 1.0 + float64(_mixed(seed, i) >> uint64(32)) * 2.0**-32)
        i += uint64(cuda.gridsize(1))


@cuda.jit
def fill_bits(target: Any, words: Any, share: Any, seed: Any) -> None:
    """uint32 [words], each bit set with a probability of `share`."""
    i = uint64(cuda.grid(1))
    limit = uint64(share * 65536.0)
    while i < uint64(words):
        bits, drawn = uint32(0), uint64(0)
        for b in range(32):
            if b & 3 == 0:
                drawn = _mixed(seed, i * uint64(8) + uint64(b >> 2))
            if drawn & uint64(0xFFFF) < limit:
                bits = uint32(bits | uint32(1) << uint32(b))
            drawn >>= uint64(16)
        store_u32(target, i, bits)
        i += uint64(cuda.gridsize(1))


@cache
def plain_scorer(layout: Layout) -> Any:
    """In place of `score.scorer`: a dot product with the user's experts, no gates; the gates' rows are read just so.
    For int8 and float16 rows that a warp holds."""
    expert_dots = dots(layout.row_bytes, layout.precision, layout.tiles)
    read, read4 = ptx.reader_f32(layout.columns), ptx.reader_f32(4)
    experts_at, single, single_bytes = layout.experts, HEAD.itemsize, 3 * layout.columns * 4

    @cuda.jit(device=True, forceinline=True)
    def score(rows: Any, gate_rows: Any, scale: Any, gate_scale: Any, user: Any) -> Any:
        products = expert_dots(rows, user + uint64(experts_at))
        factors = read(user, uint64(single) + uint64(cuda.laneid & 3) * uint64(single_bytes))
        scalars = read4(user, uint64(0))
        mixed = ptx.weighted(ptx.as_f32(products), factors)
        unused = ptx.multiply(gate_scale, float32(ptx.any_bits(gate_rows)))  # so that they are read
        mixed = ptx.fused(unused, float32(0.0), mixed)
        y = ptx.fused(mixed, ptx.multiply(scale, scalars[0]), scalars[1])
        return ptx.reciprocal(float32(1.0) + ptx.exp2(ptx.multiply(-y, float32(1.4426950408889634))))

    return score
