"""The score of contract section 4 for the survivors of a match, over row-major columns of ads.

Threads take survivors in blocks, and in a block LANES at a time, each an ad in a lane of its own:
1. their rows are transposed into a tile, and the tile multiplied with the experts; the same for the gate (dots.py);
2. gate logits, softmax, mixture and logistic function are made in float64 (lanes.py, exp.py), in which every finite
   float32 input has a finite result, so there is no second way for extreme ones.
No lane sees another and each sum has a fixed order: an ad's score is the same bits whatever lies beside it, on any
number of threads and any processor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

from kernels.bits import fetch_add
from kernels.dots import dot_products, load_tile, prefetch_rows
from kernels.exp import exp_not_positive, logistic
from kernels.lanes import LANES, at_least, broadcast, gather, load, maximum, store
from kernels.precision import INT8_MAX, Precision, row_width

EXPERTS_MAX = 16
COLUMN_GROUP = 4  # experts whose dot products are made together
DIM_MAX = 1024  # of embeddings, and of gate vectors
BLOCK_ADS = 1024  # what a thread takes at a time
ONE_THREAD_BLOCKS_MAX = 16
PREFETCH_ADS = 4 * LANES  # how far ahead rows are asked for


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
    """Packs a user's vectors [expert, dim] into zeros `out` [packed_shape]; returns the scale of each [expert]."""
    scales = np.ones(len(vectors))
    if precision is Precision.INT8:
        _pack_pairs(vectors, int16_max(vectors.shape[1]), out, scales)
    else:
        _pack_values(vectors, out)
    return scales


@njit(nogil=True, cache=True)
def _pack_values(vectors: Any, out: Any) -> None:
    for e in range(vectors.shape[0]):
        for d in range(vectors.shape[1]):
            out[d, e] = vectors[e, d]


@njit(nogil=True, cache=True)
def _pack_pairs(vectors: Any, magnitude_max: int, out: Any, scales: Any) -> None:
    """Of each four elements, the first and the third make a pair, then the second and the fourth: as bytes 0 and 2 of
    an ad's word and bytes 1 and 3 are spread to pairs in dots.py."""
    for e in range(vectors.shape[0]):
        largest = 0.0
        for d in range(vectors.shape[1]):
            largest = max(largest, abs(np.float64(vectors[e, d])))
        if largest == 0.0:
            continue
        scales[e] = largest / magnitude_max
        for d in range(vectors.shape[1]):
            element = np.int64(np.rint(vectors[e, d] / scales[e])) & 0xFFFF
            out[d // 4 * 2 + d % 2, e] |= np.int32(element << (d % 4 // 2 * 16))


def score(
    columns: ScoreColumns,
    slots: NDArray[np.uint32],
    job_start: NDArray[np.int64],
    users: PackedUsers,
    out: NDArray[Any],
) -> None:
    """Scores to `out` [survivor] (float32, or float64) of the ads in `slots` [survivor], which are in any order and may
    repeat. Those of job j lie at job_start[j] : job_start[j + 1] and are scored with user j."""
    assert job_start[0] == 0 and job_start[-1] == len(slots) == len(out), (job_start, len(slots), len(out))
    assert len(job_start) == len(users.route) + 1, (len(job_start), len(users.route))
    assert 1 <= users.expert_count.min() and users.expert_count.max() <= users.expert_factor.shape[1] <= EXPERTS_MAX
    assert (1 <= users.route).all() and (users.route <= users.expert_count).all(), users.route
    step_elements = 2 if columns.embedding.itemsize == 1 else 1
    for rows, packed in ((columns.embedding, users.experts), (columns.gate, users.gates)):
        assert packed.shape[1] * step_elements == rows.shape[1], (rows.shape, packed.shape)
    for array in (*columns, *users, slots, job_start, out):
        assert array.flags.c_contiguous, array.strides  # another layout would be compiled for, while the caller waits
    if len(slots):
        _score(columns, slots, job_start, users, out, get_num_threads(), np.zeros(1, np.int64))


@njit(nogil=True, cache=True, parallel=True)
def _score(columns: Any, slots: Any, job_start: Any, users: Any, out: Any, threads: int, taken: Any) -> None:
    """`taken` counts blocks: each thread takes the next one when it is done, so that a thread whose core has other work
    to do holds up none. A few blocks are not worth waking threads for: where cores are busy that takes milliseconds."""
    blocks = (len(slots) + BLOCK_ADS - 1) // BLOCK_ADS
    if threads == 1 or blocks <= ONE_THREAD_BLOCKS_MAX:
        _score_blocks(columns, slots, job_start, users, out, blocks, taken)
    else:
        for _thread in prange(threads):
            _score_blocks(columns, slots, job_start, users, out, blocks, taken)


@njit(nogil=True, cache=True)
def _score_blocks(columns: Any, slots: Any, job_start: Any, users: Any, out: Any, blocks: int, taken: Any) -> None:
    block = fetch_add(taken, 1)
    while block < blocks:
        start = block * BLOCK_ADS
        _score_block(columns, slots, job_start, users, out, start, min(start + BLOCK_ADS, len(slots)))
        block = fetch_add(taken, 1)


@njit(nogil=True, cache=True)
def _score_block(columns: Any, slots: Any, job_start: Any, users: Any, out: Any, start: int, end: int) -> None:
    """Scores the survivors from `start` to `end`, job by job, LANES at a time; the last lanes of a job may be spare."""
    row_bytes = max(columns.embedding.shape[1], columns.gate.shape[1]) * columns.embedding.itemsize
    tile = np.empty(row_bytes // 4 * LANES, np.int32)
    products = np.empty(EXPERTS_MAX * LANES)
    logits = np.empty(EXPERTS_MAX * LANES)
    lane_slots = np.empty(LANES, np.uint32)
    lane_scores = np.empty(LANES)
    job = np.searchsorted(job_start, start, side="right") - 1
    at = start
    while at < end:
        while job_start[job + 1] <= at:
            job += 1
        count = min(LANES, min(end, job_start[job + 1]) - at)
        for lane in range(LANES):
            lane_slots[lane] = slots[at + min(lane, count - 1)]
        if at + PREFETCH_ADS + LANES <= len(slots):
            prefetch_rows(columns.embedding, slots, at + PREFETCH_ADS)
            prefetch_rows(columns.embedding_scale, slots, at + PREFETCH_ADS)
            prefetch_rows(columns.gate, slots, at + PREFETCH_ADS)
            prefetch_rows(columns.gate_scale, slots, at + PREFETCH_ADS)
        load_tile(columns.gate, lane_slots, 0, tile)
        _all_products(columns.gate, tile, users.gates, job, logits)
        load_tile(columns.embedding, lane_slots, 0, tile)
        _all_products(columns.embedding, tile, users.experts, job, products)
        embedding_scale = gather(columns.embedding_scale, lane_slots)
        gate_scale = gather(columns.gate_scale, lane_slots)
        y = _mixture(users, job, logits, products, gate_scale) * embedding_scale + broadcast(users.bias[job])
        store(lane_scores, 0, logistic(y))
        for lane in range(count):
            out[at + lane] = lane_scores[lane]
        at += count


@njit(nogil=True, cache=True)
def _all_products(rows: Any, tile: Any, packed: Any, job: int, products: Any) -> None:
    """products[column, lane] for each column of the job's user."""
    columns = packed.shape[2]
    column = 0
    while column + 8 <= columns:
        dot_products(rows, tile, packed, job, column, 8, products)
        column += 8
    if column < columns:
        dot_products(rows, tile, packed, job, column, COLUMN_GROUP, products)


@njit(nogil=True, cache=True)
def _mixture(users: Any, job: int, logits: Any, products: Any, gate_scale: Any) -> Any:
    """temperature * sum_e g_e (U_e . a) / the scale of a, by lane. `logits` holds K_e . q / the scale of q before, and
    z_e after."""
    experts, route = users.expert_count[job], users.route[job]
    largest = broadcast(-np.inf)
    for e in range(experts):
        dot = load(logits, e * LANES) * broadcast(users.gate_factor[job, e])
        z = dot * gate_scale + broadcast(users.gate_bias[job, e])
        store(logits, e * LANES, z)
        largest = maximum(largest, z)
    total, mixed = broadcast(0.0), broadcast(0.0)
    for e in range(experts):
        z = load(logits, e * LANES)
        weight = exp_not_positive(z - largest)
        if route < experts:
            weight = weight * _routed(logits, e, experts, route)
        total = total + weight
        mixed = mixed + weight * (load(products, e * LANES) * broadcast(users.expert_factor[job, e]))
    return mixed / total


@njit(nogil=True, cache=True)
def _routed(logits: Any, expert: int, experts: int, route: int) -> Any:
    """1 where fewer than `route` experts come before this one: of a larger logit, or as large with a lower number."""
    z = load(logits, expert * LANES)
    before = broadcast(0.0)
    for other in range(experts):
        if other < expert:
            before = before + at_least(load(logits, other * LANES), z)
        elif other > expert:
            before = before + (broadcast(1.0) - at_least(z, load(logits, other * LANES)))
    return at_least(broadcast(route - 1.0), before)
