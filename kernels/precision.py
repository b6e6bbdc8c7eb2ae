"""How vectors are stored: a row of int8, float16 bits or float32, and one scale per row. value = stored * scale.

int8: the scale is the largest magnitude / 127, rounded so that it never is 0. float16: the scale is the power of two
that brings the largest magnitude to [2^14, 2^15), so every finite float32 vector fits, with 11 bits for each element
down to 2^-29 of the largest. float32: the scale is 1. A vector of zeros is zeros with the scale 1.

Rows are padded with zeros to whole loads of 16 bytes, which is what the scoring kernels read at a time.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numba import float32, float64, int32, njit, uint16, uint32
from numpy.typing import NDArray

from kernels.bits import as_f32, as_f64, as_i64, as_u32

LOAD_BYTES = 16
INT8_MAX = 127
HALF_EXPONENT = 14  # of the largest magnitude in a float16 row
SCALE_EXPONENT_MIN = -126  # of the smallest normal float32: scales of float16 rows stay clear of denormals


class Precision(enum.StrEnum):
    INT8 = "int8"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


_STORAGE: dict[Precision, np.dtype[Any]] = {
    Precision.INT8: np.dtype(np.int8),
    Precision.FLOAT16: np.dtype(np.uint16),  # bits: numba has no float16 on the CPU
    Precision.FLOAT32: np.dtype(np.float32),
}


def storage_dtype(precision: Precision) -> np.dtype[Any]:
    return _STORAGE[precision]


def row_width(dim: int, precision: Precision) -> int:
    """Elements of a stored row: `dim` rounded up to whole loads."""
    per_load = LOAD_BYTES // _STORAGE[precision].itemsize
    return -(-dim // per_load) * per_load


def quantise(vector: NDArray[np.float32], precision: Precision, out_row: NDArray[Any]) -> float:
    """Stores one vector of finite float32 [dim] in `out_row` [row_width(dim)] and returns its scale."""
    scale = np.empty(1, np.float32)
    quantise_rows(vector[None], precision, out_row[None], scale)
    return float(scale[0])


def quantise_rows(
    vectors: NDArray[np.float32], precision: Precision, out_rows: NDArray[Any], out_scales: NDArray[np.float32]
) -> None:
    """`quantise` for each of [row, dim]: rows to [row, row_width(dim)], scales to [row]."""
    assert out_rows.dtype == _STORAGE[precision], out_rows.dtype
    assert vectors.shape[1] <= out_rows.shape[1], (vectors.shape, out_rows.shape)
    assert len(vectors) == len(out_rows) == len(out_scales), (len(vectors), len(out_rows), len(out_scales))
    _STORE[precision](vectors, out_rows, out_scales)


def dequantise(rows: NDArray[Any], scales: NDArray[np.float32] | float, dim: int) -> NDArray[np.float64]:
    """The exact values of stored rows [..., row_width(dim)] with their scales [...]: float64 [..., dim]."""
    stored = rows.view(np.float16) if rows.dtype == np.uint16 else rows
    values: NDArray[np.float64] = stored[..., :dim].astype(np.float64) * np.asarray(scales, np.float64)[..., None]
    return values


@njit(nogil=True, cache=True)
def _largest(vector: Any) -> Any:
    largest = float32(0)
    for value in vector:
        largest = max(largest, abs(value))
    return largest


@njit(nogil=True, cache=True)
def _store_int8(vectors: Any, rows: Any, scales: Any) -> None:
    rows[:] = 0
    for i in range(len(vectors)):
        largest = float64(_largest(vectors[i]))
        if largest == 0:
            scales[i] = 1
            continue
        scale = float32(largest / INT8_MAX)
        if float64(scale) * (INT8_MAX + 0.5) < largest:  # a denormal scale may be rounded down a long way, or to 0
            scale = as_f32(as_u32(scale) + uint32(1))
        for d in range(vectors.shape[1]):
            nearest = np.rint(float64(vectors[i, d]) / float64(scale))
            rows[i, d] = int32(min(max(nearest, -float64(INT8_MAX)), float64(INT8_MAX)))
        scales[i] = scale


@njit(nogil=True, cache=True)
def _half_bits(value: Any) -> Any:
    """The bits of the float16 nearest to a float32 of magnitude below 2^15 (ties to even)."""
    bits = as_u32(value)
    sign, magnitude = (bits >> uint32(16)) & uint32(0x8000), bits & uint32(0x7FFFFFFF)
    if magnitude < uint32(113 << 23):  # below 2^-14: steps of 2^-24, which are those of float32 at 0.5
        return uint16(sign | (as_u32(as_f32(magnitude) + float32(0.5)) - as_u32(float32(0.5))))
    half_less_one = uint32(0xFFF) + ((magnitude >> uint32(13)) & uint32(1))
    return uint16(sign | ((magnitude - uint32(112 << 23) + half_less_one) >> uint32(13)))


@njit(nogil=True, cache=True)
def _power_of_two(exponent: Any) -> Any:
    return as_f64((exponent + 1023) << 52)


@njit(nogil=True, cache=True)
def _store_float16(vectors: Any, rows: Any, scales: Any) -> None:
    rows[:] = 0
    for i in range(len(vectors)):
        largest = float64(_largest(vectors[i]))
        if largest == 0:
            scales[i] = 1
            continue
        exponent = (as_i64(largest) >> 52) - 1023  # every float32 above 0 is normal as a float64
        scale_exponent = max(exponent - HALF_EXPONENT, SCALE_EXPONENT_MIN)
        inverse = _power_of_two(-scale_exponent)
        for d in range(vectors.shape[1]):
            rows[i, d] = _half_bits(float32(float64(vectors[i, d]) * inverse))
        scales[i] = _power_of_two(scale_exponent)


@njit(nogil=True, cache=True)
def _store_float32(vectors: Any, rows: Any, scales: Any) -> None:
    rows[:] = 0
    for i in range(len(vectors)):
        for d in range(vectors.shape[1]):
            rows[i, d] = vectors[i, d]
        scales[i] = 1


_STORE: dict[Precision, Any] = {
    Precision.INT8: _store_int8,
    Precision.FLOAT16: _store_float16,
    Precision.FLOAT32: _store_float32,
}
