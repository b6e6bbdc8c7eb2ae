"""Stored vectors: what is read back is as near as the precision allows, for any finite float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from kernels.precision import Precision, dequantise, quantise, quantise_rows, row_width, storage_dtype

FLOAT32_MAX, DENORMAL_MIN = float(np.finfo(np.float32).max), 2.0**-149
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = hnp.arrays(np.float32, st.integers(1, 40), elements=FINITE)
UNTIMED = settings(deadline=None)  # the first example compiles
ALL_PRECISIONS = pytest.mark.parametrize("precision", list(Precision))


def stored(vector: NDArray[np.float32], precision: Precision) -> tuple[NDArray[Any], float]:
    """The row and the scale, written over the remains of another vector."""
    row = np.full(row_width(len(vector), precision), 77, storage_dtype(precision))
    return row, quantise(vector, precision, row)


@ALL_PRECISIONS
def test_rows_are_whole_loads_of_16_bytes(precision: Precision) -> None:
    for dim in (1, 3, 8, 16, 17, 64, 1024):
        width = row_width(dim, precision)
        assert width >= dim
        assert width * storage_dtype(precision).itemsize % 16 == 0
        assert (width - dim) * storage_dtype(precision).itemsize < 16


@ALL_PRECISIONS
@UNTIMED
@given(vector=VECTORS)
def test_padding_is_zero_and_the_scale_is_a_positive_float32(precision: Precision, vector: NDArray[np.float32]) -> None:
    row, scale = stored(vector, precision)
    assert not row[len(vector) :].any()
    assert scale > 0
    assert float(np.float32(scale)) == scale


@UNTIMED
@given(vector=VECTORS)
def test_int8_is_within_half_a_step(vector: NDArray[np.float32]) -> None:
    row, scale = stored(vector, Precision.INT8)
    assert row.min() >= -127
    error = np.abs(dequantise(row, scale, len(vector)) - vector.astype(np.float64)).max()
    assert error <= scale * 0.5000001
    if (largest := float(np.abs(vector).max())) >= 127 * 2.0**-126:  # where the scale is a normal float32
        assert scale == np.float32(largest / 127)


@UNTIMED
@given(vector=VECTORS)
def test_float16_is_what_numpy_rounds_to(vector: NDArray[np.float32]) -> None:
    row, scale = stored(vector, Precision.FLOAT16)
    assert np.log2(scale).is_integer()
    assert np.array_equal(row[: len(vector)].view(np.float16), (vector.astype(np.float64) / scale).astype(np.float16))
    wide = vector.astype(np.float64)
    error, largest = np.abs(dequantise(row, scale, len(vector)) - wide), np.abs(wide).max()
    assert (error <= np.maximum(np.abs(wide) * 2.0**-11, max(largest * 2.0**-38, 2.0**-151))).all()


@UNTIMED
@given(vector=VECTORS)
def test_float32_is_exact(vector: NDArray[np.float32]) -> None:
    row, scale = stored(vector, Precision.FLOAT32)
    assert np.array_equal(dequantise(row, scale, len(vector)), vector.astype(np.float64))


@ALL_PRECISIONS
def test_zeros_and_the_ends_of_float32(precision: Precision) -> None:
    zeros = np.zeros(5, np.float32)
    row, scale = stored(zeros, precision)
    assert (row.any(), scale) == (False, 1.0)
    for magnitude in (FLOAT32_MAX, 1.0, 2.0**-126, 2.0**-127, 100 * DENORMAL_MIN, DENORMAL_MIN):
        vector = np.array([magnitude, -magnitude, 0, magnitude], np.float32)
        row, scale = stored(vector, precision)
        assert np.isfinite(scale)
        assert dequantise(row, scale, 4) == pytest.approx(vector.astype(np.float64), rel=2.0**-8)


@ALL_PRECISIONS
def test_rows_are_stored_as_single_vectors_are(precision: Precision) -> None:
    vectors = np.random.default_rng(1).normal(size=(9, 21)).astype(np.float32)
    rows, scales = np.zeros((9, row_width(21, precision)), storage_dtype(precision)), np.zeros(9, np.float32)
    quantise_rows(vectors, precision, rows, scales)
    for i, vector in enumerate(vectors):
        row, scale = stored(vector, precision)
        assert np.array_equal(rows[i], row)
        assert scales[i] == scale
    values = dequantise(rows, scales, 21)
    assert values.shape == (9, 21)
    assert values == pytest.approx(vectors, abs=0.02)
