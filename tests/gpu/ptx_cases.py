"""Inline PTX against NumPy: what lies where in a tensor core's fragments above all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, uint64

from kernels.cuda import ptx
from kernels.cuda.raw import load_f32, load_u32, load_u64, read4_u32, read_i32, store_f32, store_u32, store_u64
from kernels.cuda.types import Device
from tests.gpu.ads import upload
from tests.gpu.cases import case, cases_of


def _mma_kernel(mma: Any, load: Any, store: Any) -> Any:
    @cuda.jit
    def multiplied(a: Any, b: Any, c: Any, d: Any) -> None:
        lane = uint64(cuda.grid(1))
        two = lane * uint64(2)
        four = lane * uint64(4)
        sums = (load(c, four), load(c, four + uint64(1)), load(c, four + uint64(2)), load(c, four + uint64(3)))
        made = mma(read4_u32(a, four), (load_u32(b, two), load_u32(b, two + uint64(1))), sums)
        for i in range(4):
            store(d, four + uint64(i), made[i])

    return multiplied


_KERNELS = {
    "s8": _mma_kernel(ptx.mma_s8, read_i32, store_u32),
    "u8": _mma_kernel(ptx.mma_u8, read_i32, store_u32),
    "f16": _mma_kernel(ptx.mma_f16, load_f32, store_f32),
}


def _fragments(matrix: Any, rows: tuple[int, ...], depth: int) -> Any:
    """[lane, register] words of A (rows (0, 8)) or B transposed (rows (0,)), as the PTX manual's figures have them:
    register r of lane 4 g + t holds, of row g or g + 8, the items t * each and on of the first or the second half."""
    each = 4 // matrix.dtype.itemsize
    words = np.zeros((32, 2 * len(rows), each), matrix.dtype)
    for lane in range(32):
        group, part = lane >> 2, (lane & 3) * each
        for half in range(2):
            for i, row in enumerate(rows):
                first = half * depth // 2 + part
                words[lane, half * len(rows) + i] = matrix[group + row, first : first + each]
    return words.reshape(32, -1).view(np.uint32)


@cases_of("mma", [("s8",), ("u8",), ("f16",)])
def check_mma(device: Device, kind: str) -> None:
    rng = np.random.default_rng(7)
    if kind == "f16":
        left = rng.integers(-50, 50, (16, 16)).astype(np.float16)
        right = rng.integers(-50, 50, (16, 8)).astype(np.float16)
        start: Any = rng.integers(-99, 99, (16, 8)).astype(np.float32)
        right_of_product = right.astype(np.float32)
    else:
        left = rng.integers(-128, 128, (16, 32)).astype(np.int8)
        right = rng.integers(-128, 128, (32, 8)).astype(np.int8).view(np.int8 if kind == "s8" else np.uint8)
        start = rng.integers(-(2**20), 2**20, (16, 8)).astype(np.int32)
        right_of_product = right.astype(np.int32)
    depth = left.shape[1]
    places = [[(lane >> 2) + row for row in (0, 0, 8, 8)] for lane in range(32)]
    columns = [[(lane & 3) * 2 + column for column in (0, 1, 0, 1)] for lane in range(32)]
    c = np.ascontiguousarray(start[places, columns])
    target = upload(device, np.full_like(c, 77))
    device.launch(
        _KERNELS[kind], 1, 32,
        (upload(device, _fragments(left, (0, 8), depth)), upload(device, _fragments(right.T, (0,), depth)),
         upload(device, c), target),
    )  # fmt: skip
    truth = left.astype(right_of_product.dtype) @ right_of_product + start
    assert (device.download(target) == truth[places, columns]).all()


@cuda.jit
def functions(x: Any, exponential: Any, inverse: Any, fused: Any, added: Any) -> None:
    i = uint64(cuda.grid(1))
    value = load_f32(x, i)
    store_f32(exponential, i, ptx.exp2(value))
    store_f32(inverse, i, ptx.reciprocal(value))
    store_f32(fused, i, ptx.fused(value, value, ptx.multiply(value, value)))
    both = ptx.add64(ptx.as_f64((value, value)), ptx.multiply64(ptx.as_f64(value), ptx.as_f64(value)))
    store_f32(added, i, ptx.as_f32(ptx.subtract64(both, ptx.as_f64(value)))[1])


@case
def check_functions(device: Device) -> None:
    x = np.concatenate([np.linspace(-150, 60, 500), [0.5, 1.0, 2.0, 16.0, -np.inf, 1e-3, -126.5, -149.0]]).astype(
        np.float32
    )
    x = np.resize(x, 512)
    x[x == 0] = 1
    outs = [upload(device, np.full(512, np.nan, np.float32)) for _ in range(4)]
    device.launch(functions, 4, 128, (upload(device, x), *outs))
    exponential, inverse, fused, added = (device.download(out).astype(np.float64) for out in outs)
    wide = x.astype(np.float64)
    assert (np.abs(exponential - np.exp2(wide)) <= 2.0**-21 * np.exp2(wide) + 2.0**-148).all()
    finite = np.isfinite(x)
    assert (np.abs(inverse[finite] * wide[finite] - 1) <= 2.0**-22).all()
    assert (inverse[~finite] == 0).all()
    square = (x * x).astype(np.float64)
    with np.errstate(invalid="ignore"):
        assert (fused == (wide * wide + square).astype(np.float32))[finite].all()
        assert (added == (wide + wide * wide - wide).astype(np.float32))[finite].all()


@cuda.jit
def published(keys: Any, most: Any, seen: Any) -> None:
    i = uint64(cuda.grid(1))
    ptx.atomic_max_u64(most, uint64(1), load_u64(keys, i))
    store_u64(seen, i, ptx.load_latest_u64(most, uint64(1)))


@case
def check_atomic_max(device: Device) -> None:
    keys = np.random.default_rng(3).integers(0, 2**64, 128, np.uint64)
    most, seen = upload(device, np.array([5, 6, 7], np.uint64)), upload(device, np.zeros(128, np.uint64))
    device.launch(published, 2, 64, (upload(device, keys), most, seen))
    assert device.download(most).tolist() == [5, int(keys.max()), 7]
    assert (device.download(seen) >= keys).all()


_READ8 = ptx.reader_f32(8)


@cuda.jit
def trees(x: Any, out: Any) -> None:
    i = uint64(cuda.grid(1))
    eight = _READ8(x, i * uint64(32))
    store_f32(out, i * uint64(3), ptx.total(eight))
    store_f32(out, i * uint64(3) + uint64(1), ptx.largest(eight))
    store_f32(out, i * uint64(3) + uint64(2), ptx.largest_magnitude(eight))


@case
def check_trees(device: Device) -> None:
    x = np.random.default_rng(4).normal(size=(64, 8)).astype(np.float32)
    out = upload(device, np.full((64, 3), np.nan, np.float32))
    device.launch(trees, 2, 32, (upload(device, x), out))
    pairs = x[:, 0::2] + x[:, 1::2]
    pairs = pairs[:, 0::2] + pairs[:, 1::2]
    expected = np.stack([pairs[:, 0] + pairs[:, 1], x.max(axis=1), np.abs(x).max(axis=1)], axis=1)
    assert (device.download(out) == expected).all()
