"""Ads scored per second, held against what the memory could bring of them.

One request's user (8 experts, D = 64, G = 16) scores every ad of an index three ways: in slot order (`dense`), in
runs of eight neighbours that lie anywhere (`runs`, what a match leaves of campaigns), and one by one in random order
(`random`). Bytes are those of the vectors and scales that a score needs; the share is of the read bandwidth that
kernels/stream.py measures in the same run with as many threads.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from kernels.memory import reserve
from kernels.precision import Precision, dequantise, quantise_rows, row_width, storage_dtype
from kernels.score import PackedUsers, ScoreColumns, score
from kernels.stream import read_bandwidth
from kernels.threads import threads, threads_max
from scoring.reference import score_reference
from scoring.user import User, pack

DIM, GATE_DIM, EXPERTS = 64, 16, 8
RUN = 8
DISTINCT = 8192  # ads; the others repeat their vectors
SEED = 1
REPETITIONS_MIN = 3
STREAM_SHARE = 0.1  # of the time, for measuring the memory
NEAR = 1e-4  # of a score to the reference with the user not rounded to int16


def run(seconds: float, ads: int) -> dict[str, Any]:
    """Measures for about `seconds` over `ads` ads. Threads are keys as text ("1", "2", …); rates are per second."""
    rng = default_rng(SEED)
    counts = sorted({1, threads_max()})
    bandwidth: dict[str, float] = {}
    for count in counts:
        with threads(count):
            bandwidth[str(count)] = read_bandwidth(seconds * STREAM_SHARE / len(counts))
    orders = _orders(rng, ads)
    user = _user(rng)
    each = seconds * (1 - STREAM_SHARE) / (len(Precision) * len(counts) * len(orders))
    result: dict[str, Any] = {
        "ads": ads, "dim": DIM, "gate_dim": GATE_DIM, "experts": EXPERTS, "read_bytes_per_s": bandwidth, "scored": {},
    }  # fmt: skip
    for precision in Precision:
        columns = _columns(rng, precision, ads)
        users = pack([user], precision)
        _check(columns, user, users)
        ad_bytes = sum(column[0].nbytes for column in columns)
        result["scored"][precision.value] = {
            name: {str(count): _measure(columns, slots, users, count, each, ad_bytes, bandwidth) for count in counts}
            for name, slots in orders.items()
        }
    return result


def _measure(
    columns: ScoreColumns, slots: NDArray[np.uint32], users: PackedUsers, count: int, seconds: float, ad_bytes: int,
    bandwidth: dict[str, float],
) -> dict[str, float]:  # fmt: skip
    job_start, out = np.array([0, len(slots)], np.int64), np.empty(len(slots))
    best, repetitions, start = np.inf, 0, perf_counter()
    with threads(count):
        while repetitions < REPETITIONS_MIN or perf_counter() - start < seconds:
            before = perf_counter()
            score(columns, slots, job_start, users, out)
            best = min(best, perf_counter() - before)
            repetitions += 1
    rate = len(slots) / best
    bytes_per_s = rate * ad_bytes
    return {"ads_per_s": rate, "bytes_per_s": bytes_per_s, "stream_share": bytes_per_s / bandwidth[str(count)]}


def _orders(rng: Generator, ads: int) -> dict[str, NDArray[np.uint32]]:
    slots: NDArray[np.uint32] = np.arange(ads, dtype=np.uint32)
    runs = slots[: ads // RUN * RUN].reshape(-1, RUN)
    return {"dense": slots, "runs": rng.permutation(runs).ravel(), "random": rng.permutation(slots)}


def _user(rng: Generator) -> User:
    experts, gates = rng.normal(size=(EXPERTS, DIM)), rng.normal(size=(EXPERTS, GATE_DIM))
    bias = rng.normal(size=EXPERTS).astype(np.float32)
    return User(experts.astype(np.float32), gates.astype(np.float32), bias, temperature=1.0, bias=0.0, route=EXPERTS)


def _columns(rng: Generator, precision: Precision, ads: int) -> ScoreColumns:
    """Reserved as the index reserves them, so that rows begin at the same cache lines."""
    dtype = storage_dtype(precision)
    columns = ScoreColumns(
        reserve((ads, row_width(DIM, precision)), dtype), reserve(ads, np.float32),
        reserve((ads, row_width(GATE_DIM, precision)), dtype), reserve(ads, np.float32),
    )  # fmt: skip
    distinct = min(ads, DISTINCT)
    for dim, rows, scales in ((DIM, *columns[:2]), (GATE_DIM, *columns[2:])):
        vectors = rng.normal(size=(distinct, dim)).astype(np.float32) / np.float32(np.sqrt(dim))
        quantise_rows(vectors, precision, rows[:distinct], scales[:distinct])
        for start in range(distinct, ads, distinct):
            rows[start : start + distinct] = rows[: min(distinct, ads - start)]
            scales[start : start + distinct] = scales[: min(distinct, ads - start)]
    return columns


def _check(columns: ScoreColumns, user: User, users: PackedUsers) -> None:
    """What is measured is right: the first ads' scores are the reference's."""
    count = min(len(columns.embedding), 256)
    out = np.empty(count)
    score(columns, np.arange(count, dtype=np.uint32), np.array([0, count], np.int64), users, out)
    embedding = dequantise(columns.embedding[:count], columns.embedding_scale[:count], DIM)
    gate = dequantise(columns.gate[:count], columns.gate_scale[:count], GATE_DIM)
    assert np.abs(out - score_reference(user, embedding, gate)).max() < NEAR
