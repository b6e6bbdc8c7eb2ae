"""The score of contract section 4 for the survivors of a match, over row-major columns of ads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.precision import INT8_MAX, Precision, row_width

EXPERTS_MAX = 16
COLUMN_GROUP = 4  # experts whose dot products are made together
DIM_MAX = 1024  # of embeddings, and of gate vectors


class ScoreColumns(NamedTuple):
    """Ads' vectors by slot, in one precision. The rows are best aligned to their own width, as `reserve` gives them."""

    embedding: NDArray[Any]  # [slot, row_width(D)] storage_dtype
    embedding_scale: NDArray[np.float32]  # [slot]
    gate: NDArray[Any]  # [slot, row_width(G)] storage_dtype
    gate_scale: NDArray[np.float32]  # [slot]


class PackedUsers(NamedTuple):
    """Users as the kernels read them. Columns are experts, padded to a multiple of 4 (the same for all users)."""

    experts: NDArray[Any]  # [user, step, column] see packed_shape, packed_dtype
    gates: NDArray[Any]  # [user, step, column] likewise
    expert_factor: NDArray[np.float64]  # [user, column] temperature * scale of the packed vector
    gate_factor: NDArray[np.float64]  # [user, column] scale of the packed vector / sqrt(G)
    gate_bias: NDArray[np.float64]  # [user, column]
    bias: NDArray[np.float64]  # [user]
    expert_count: NDArray[np.int64]  # [user]
    route: NDArray[np.int64]  # [user] 1 .. expert_count


def padded_columns(expert_count: int) -> int:
    return -(-expert_count // COLUMN_GROUP) * COLUMN_GROUP


def packed_shape(dim: int, columns: int, precision: Precision) -> tuple[int, int]:
    """Of one user's packed vectors: [step, column]. A step is a pair of elements in int8 precision, else one."""
    width = row_width(dim, precision)
    return (width // 2 if precision is Precision.INT8 else width, columns)


def packed_dtype(precision: Precision) -> np.dtype[Any]:
    return np.dtype(np.int32 if precision is Precision.INT8 else np.float64)


def int16_max(dim: int) -> int:
    """The largest magnitude of a user's packed element. A dot product of `dim` such with int8 values of at most 127
    is at most dim * 127 * int16_max < 2^31 in magnitude, and so is each sum on the way to it."""
    return min(2**15 - 1, (2**31 - 1) // (INT8_MAX * dim))


def pack_vectors(vectors: NDArray[np.float32], precision: Precision, out: NDArray[Any]) -> NDArray[np.float64]:
    """Packs a user's vectors [expert, dim] into `out` [packed_shape]; returns the scale of each [expert]."""
    count, dim = vectors.shape
    if precision is not Precision.INT8:
        out[:dim, :count] = vectors.T
        return np.ones(count)
    steps, columns = out.shape
    largest = np.abs(vectors).max(axis=1).astype(np.float64)
    scale = np.where(largest > 0, largest, 1.0) / int16_max(dim)
    elements = np.zeros((columns, steps // 2, 2, 2), np.int16)  # [column, word, half of it, byte of the half]
    elements.reshape(columns, -1)[:count, :dim] = np.rint(vectors / scale[:, None])
    pairs = np.ascontiguousarray(elements.transpose(1, 3, 0, 2)).view(np.int32)  # bytes 0 and 2 of a word, then 1 and 3
    out[:] = pairs.reshape(steps, columns)
    return scale
