"""The scoring kernels against the float64 reference, which is fed the very vectors that are stored and packed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.dots import dot_products, dot_products_portably
from kernels.exp import exp_not_positive, logistic
from kernels.lanes import LANES, load, store
from kernels.precision import Precision, dequantise, quantise_rows, row_width, storage_dtype
from kernels.score import (
    BLOCK_ADS,
    EXPERTS_MAX,
    ONE_THREAD_BLOCKS_MAX,
    ScoreColumns,
    int16_max,
    packed_shape,
    padded_columns,
    score,
)
from scoring.reference import ScoreParts, score_parts, score_reference, sigmoid
from scoring.user import User, pack
from tests.int16 import as_int16

ROOT = Path(__file__).resolve().parents[2]
ALL_PRECISIONS = pytest.mark.parametrize("precision", list(Precision))

TOLERANCE = 1e-11
"""Of y, relative to what it is summed from: the kernels' exp is good to 1e-12 and all else is float64."""


def make_columns(precision: Precision, embedding: NDArray[np.float32], gate: NDArray[np.float32]) -> ScoreColumns:
    count, dtype = len(embedding), storage_dtype(precision)
    columns = ScoreColumns(
        np.zeros((count, row_width(embedding.shape[1], precision)), dtype), np.zeros(count, np.float32),
        np.zeros((count, row_width(gate.shape[1], precision)), dtype), np.zeros(count, np.float32),
    )  # fmt: skip
    quantise_rows(embedding, precision, columns.embedding, columns.embedding_scale)
    quantise_rows(gate, precision, columns.gate, columns.gate_scale)
    return columns


def served(user: User, precision: Precision) -> User:
    """The user as packed for this precision: rounded to int16 with a scale for each vector where ads are int8."""
    if precision is not Precision.INT8:
        return user
    return msgspec.structs.replace(user, experts=as_int16(user.experts), gates=as_int16(user.gates))


def reference(user: User, columns: ScoreColumns, precision: Precision) -> ScoreParts:
    """Of every ad in the columns."""
    embedding = dequantise(columns.embedding, columns.embedding_scale, user.experts.shape[1])
    gate = dequantise(columns.gate, columns.gate_scale, user.gates.shape[1])
    return score_parts(served(user, precision), embedding, gate)


def scores(
    columns: ScoreColumns, slots: NDArray[np.uint32], users: list[User], starts: list[int], precision: Precision
) -> NDArray[np.float64]:
    out = np.full(len(slots), np.nan)
    score(columns, slots, np.array(starts, np.int64), pack(users, precision), out)
    return out


def assert_right(got: NDArray[np.float64], parts: ScoreParts, user: User) -> None:
    """`got` lies where y within its tolerance puts it; a y summed from large numbers has a larger one."""
    summed_from = np.abs(user.temperature * parts.g * parts.products).sum(axis=1) + abs(user.bias)
    slack = TOLERANCE * summed_from + TOLERANCE
    low, high = sigmoid(parts.y - slack), sigmoid(parts.y + slack)
    wrong = ~((low - 1e-300 <= got) & (got <= high + 1e-300))
    assert not wrong.any(), (np.flatnonzero(wrong)[:5], got[wrong][:5], parts.score[wrong][:5])


def random_user(rng: np.random.Generator, dim: int, gate_dim: int, experts: int, route: int | None = None) -> User:
    return User(
        experts=rng.normal(size=(experts, dim)).astype(np.float32),
        gates=rng.normal(size=(experts, gate_dim)).astype(np.float32),
        gate_bias=rng.normal(size=experts).astype(np.float32),
        temperature=float(rng.normal()), bias=float(rng.normal()), route=route or experts,
    )  # fmt: skip


def random_columns(rng: np.random.Generator, precision: Precision, count: int, dim: int, gate_dim: int) -> ScoreColumns:
    embedding, gate = rng.normal(size=(count, dim)), rng.normal(size=(count, gate_dim))
    return make_columns(precision, embedding.astype(np.float32), gate.astype(np.float32))


@ALL_PRECISIONS
@pytest.mark.parametrize(
    ("dim", "gate_dim", "experts", "route"),
    [(1, 1, 1, 1), (2, 3, 2, 1), (3, 1, 3, 2), (15, 17, 4, 4), (16, 16, 5, 1), (17, 33, 7, 6), (64, 16, 8, 8),
     (65, 15, 9, 3), (128, 64, 12, 12), (100, 256, 13, 7), (1023, 255, 16, 16), (1024, 256, 16, 2)],
)  # fmt: skip
def test_scores_are_those_of_the_reference(
    precision: Precision, dim: int, gate_dim: int, experts: int, route: int
) -> None:
    rng = np.random.default_rng(dim * 1000 + route)
    columns = random_columns(rng, precision, 100, dim, gate_dim)
    user = random_user(rng, dim, gate_dim, experts, route)
    slots = np.arange(100, dtype=np.uint32)
    assert_right(scores(columns, slots, [user], [0, 100], precision), reference(user, columns, precision), user)


@ALL_PRECISIONS
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 63, 64, 65, 1023, 1024, 1025, 3000, 40_001])
def test_survivors_are_any_slots_in_any_order(precision: Precision, count: int) -> None:
    rng = np.random.default_rng(count)
    columns, user = random_columns(rng, precision, 500, 20, 6), random_user(rng, 20, 6, 5, 3)
    slots = rng.integers(0, 500, count).astype(np.uint32)  # with duplicates
    got = scores(columns, slots, [user], [0, count], precision)
    everything = scores(columns, np.arange(500, dtype=np.uint32), [user], [0, 500], precision)
    assert np.array_equal(got, everything[slots])  # to the bit, whatever lies beside an ad
    assert_right(everything, reference(user, columns, precision), user)


@ALL_PRECISIONS
def test_jobs_are_scored_with_their_own_users(precision: Precision) -> None:
    rng = np.random.default_rng(5)
    columns = random_columns(rng, precision, 300, 24, 8)
    sizes = [0, 5, 1, 0, 0, 64, 1200, 3, 0]
    users = [random_user(rng, 24, 8, experts, max(1, experts - 2)) for experts in (1, 4, 16, 2, 3, 5, 8, 9, 11)]
    starts = [0, *np.cumsum(sizes).tolist()]
    slots = rng.integers(0, 300, starts[-1]).astype(np.uint32)
    got = scores(columns, slots, users, starts, precision)
    for user, start, end in zip(users, starts, starts[1:], strict=False):
        parts = reference(user, columns, precision)
        assert_right(got[start:end], ScoreParts(*(part[slots[start:end]] for part in parts)), user)
        assert np.array_equal(got[start:end], scores(columns, slots[start:end], [user], [0, end - start], precision))


MAGNITUDES = st.sampled_from([1e38, 1e30, 1e10, 100.0, 1.0, 0.01, 1e-10, 1e-30, 1e-38, 2.0**-149, 0.0])


@ALL_PRECISIONS
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 40), gate_dim=st.integers(1, 20), experts=st.integers(1, 16),
    data=st.data(), magnitudes=st.tuples(*[MAGNITUDES] * 6),
)  # fmt: skip
def test_any_finite_input_has_a_right_score(
    precision: Precision, seed: int, dim: int, gate_dim: int, experts: int, data: Any, magnitudes: tuple[float, ...]
) -> None:
    route = data.draw(st.integers(1, experts))
    rng = np.random.default_rng(seed)

    def draw(magnitude: float, *shape: int) -> NDArray[np.float32]:
        return (rng.uniform(-3.4, 3.4, shape) * magnitude).astype(np.float32)

    e, q, u, k, c, b = magnitudes
    columns = make_columns(precision, draw(e, 9, dim), draw(q, 9, gate_dim))
    temperature, bias = float(draw(1)), float(draw(b))
    user = User(draw(u, experts, dim), draw(k, experts, gate_dim), draw(c, experts), temperature, bias, route)
    got = scores(columns, np.arange(9, dtype=np.uint32), [user], [0, 9], precision)
    assert np.isfinite(got).all()
    assert_right(got, reference(user, columns, precision), user)


@ALL_PRECISIONS
def test_all_at_the_largest_magnitude_does_not_overflow(precision: Precision) -> None:
    """The int32 accumulators of int8 precision at the widest row, every product at its largest and of one sign."""
    largest = np.finfo(np.float32).max
    columns = make_columns(precision, np.full((8, 1024), -largest, np.float32), np.full((8, 256), largest, np.float32))
    ones = np.ones((2, 1024), np.float32)
    user = User(ones, np.full((2, 256), largest, np.float32), np.zeros(2, np.float32), 1e-41, 0.0, 2)
    got = scores(columns, np.arange(8, dtype=np.uint32), [user], [0, 8], precision)
    assert got == pytest.approx(sigmoid(np.array(-1024 * float(largest) * 1e-41)), rel=1e-5)
    assert_right(got, reference(user, columns, precision), user)


@ALL_PRECISIONS
def test_vectors_of_zeros_score_by_the_bias_alone(precision: Precision) -> None:
    columns = make_columns(precision, np.zeros((3, 10), np.float32), np.zeros((3, 4), np.float32))
    for bias in (0.0, -2.5, 1e38, -1e38):
        user = User(np.ones((3, 10), np.float32), np.ones((3, 4), np.float32), np.zeros(3, np.float32), 7.0, bias, 2)
        got = scores(columns, np.arange(3, dtype=np.uint32), [user], [0, 3], precision)
        assert got == pytest.approx(sigmoid(np.array(bias)), rel=TOLERANCE)
    user = msgspec.structs.replace(user, bias=0.0)
    assert (scores(columns, np.arange(3, dtype=np.uint32), [user], [0, 3], precision) == 0.5).all()


@ALL_PRECISIONS
@pytest.mark.parametrize("route", [1, 2, 3, 4, 5, 6])
def test_where_logits_tie_the_lower_numbered_expert_is_routed_to(precision: Precision, route: int) -> None:
    """Experts 1 and 4 have the largest logit, 0 and 2 and 5 the next, 3 the least; each gives another score."""
    logits = np.array([0, 2, 0, -1, 2, 0], np.float32)
    experts = np.array([[100], [3], [-40], [1000], [-7], [25]], np.float32)
    user = User(experts, np.zeros((6, 2), np.float32), logits, 1.0, 0.0, route)
    columns = make_columns(precision, np.full((1, 1), 0.125, np.float32), np.ones((1, 2), np.float32))
    chosen = [1, 4, 0, 2, 5, 3][:route]
    weights = np.exp(logits[chosen].astype(np.float64))
    wanted = sigmoid(np.array((weights @ experts[chosen, 0]) / weights.sum() / 8))
    got = scores(columns, np.zeros(1, np.uint32), [user], [0, 1], precision)
    assert got[0] == pytest.approx(float(wanted), rel=1e-6)  # the ad's 0.125 is rounded in int8


def test_equal_logits_give_the_plain_mean_and_equal_users_equal_scores() -> None:
    rng = np.random.default_rng(0)
    columns = random_columns(rng, Precision.FLOAT32, 50, 8, 4)
    experts = rng.normal(size=(4, 8)).astype(np.float32)
    user = User(experts, np.zeros((4, 4), np.float32), np.zeros(4, np.float32), 1.0, 0.0, 4)
    got = scores(columns, np.arange(50, dtype=np.uint32), [user, user], [0, 25, 50], Precision.FLOAT32)
    wanted = sigmoid(columns.embedding[:, :8].astype(np.float64) @ experts.astype(np.float64).mean(axis=0))
    assert got == pytest.approx(wanted, rel=1e-10)


def test_int8_scores_are_near_those_of_the_vectors_before_rounding() -> None:
    rng = np.random.default_rng(3)
    embedding, gate = rng.normal(size=(200, 64)).astype(np.float32) / 8, rng.normal(size=(200, 16)).astype(np.float32)
    user = msgspec.structs.replace(random_user(rng, 64, 16, 8), temperature=1.0)
    exact = score_reference(user, embedding.astype(np.float64), gate.astype(np.float64))
    for precision, near in ((Precision.INT8, 0.01), (Precision.FLOAT16, 0.001), (Precision.FLOAT32, 1e-9)):
        columns = make_columns(precision, embedding, gate)
        got = scores(columns, np.arange(200, dtype=np.uint32), [user], [0, 200], precision)
        assert np.abs(got - exact).max() < near


@ALL_PRECISIONS
def test_scores_do_not_depend_on_the_number_of_threads(precision: Precision) -> None:
    rng = np.random.default_rng(9)
    count = (ONE_THREAD_BLOCKS_MAX + 3) * BLOCK_ADS + 5
    columns, user = random_columns(rng, precision, count, 12, 5), random_user(rng, 12, 5, 6)
    slots = np.arange(count, dtype=np.uint32)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        one = scores(columns, slots, [user], [0, count], precision)
    finally:
        numba.set_num_threads(before)
    assert np.array_equal(one, scores(columns, slots, [user], [0, count], precision))
    assert np.array_equal(one[:99], scores(columns, slots[:99], [user], [0, 99], precision))


def test_float32_scores_are_the_float64_ones_rounded() -> None:
    rng = np.random.default_rng(2)
    columns, user = random_columns(rng, Precision.INT8, 77, 30, 9), random_user(rng, 30, 9, 3)
    slots = np.arange(77, dtype=np.uint32)
    out = np.empty(77, np.float32)
    score(columns, slots, np.array([0, 77], np.int64), pack([user], Precision.INT8), out)
    assert np.array_equal(out, scores(columns, slots, [user], [0, 77], Precision.INT8).astype(np.float32))


def test_widths_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(2)
    columns, user = random_columns(rng, Precision.INT8, 5, 32, 16), random_user(rng, 64, 16, 3)
    with pytest.raises(AssertionError):
        scores(columns, np.arange(5, dtype=np.uint32), [user], [0, 5], Precision.INT8)
    with pytest.raises(AssertionError):
        scores(columns, np.arange(5, dtype=np.uint32), [random_user(rng, 32, 16, 3)], [0, 4], Precision.INT8)


@numba.njit
def both_products(rows: Any, tile: Any, packed: Any, by_instruction: Any, portably: Any) -> None:
    for column in range(0, EXPERTS_MAX, 8):
        dot_products(rows, tile, packed, 0, column, 8, by_instruction)
        dot_products_portably(rows, tile, packed, 0, column, 8, portably)


@pytest.mark.parametrize("dim", [4, 16, 64, 1024])
@pytest.mark.parametrize("extreme", [False, True])
def test_integer_products_are_exact_by_every_variant(dim: int, extreme: bool) -> None:
    """Each row has its own dot product, whatever the instruction: the tile is made here, as `load_tile` would."""
    rng = np.random.default_rng(dim)
    top = int16_max(dim)
    ads, user = rng.integers(-127, 128, (LANES, dim)), rng.integers(-top, top + 1, (EXPERTS_MAX, dim))
    if extreme:
        ads, user = np.sign(ads * 2 + 1) * 127, np.sign(user * 2 + 1) * top
        ads[0], user[0], user[1] = 127, top, -top
    tile = np.ascontiguousarray(ads.astype(np.int8).view(np.int32).T)
    pairs = user.astype(np.int16).reshape(EXPERTS_MAX, dim // 4, 2, 2).transpose(1, 3, 0, 2)
    packed = np.ascontiguousarray(pairs).view(np.int32).reshape(1, dim // 2, EXPERTS_MAX)
    assert packed.shape[1:] == packed_shape(dim, EXPERTS_MAX, Precision.INT8) or dim < 16
    by_instruction, portably = np.empty((EXPERTS_MAX, LANES)), np.empty((EXPERTS_MAX, LANES))
    both_products(np.zeros((1, dim), np.int8), tile.ravel(), packed, by_instruction.ravel(), portably.ravel())
    assert np.array_equal(by_instruction, user @ ads.T)
    assert np.array_equal(portably, user @ ads.T)


@numba.njit
def exp_and_logistic(x: Any, exp_out: Any, logistic_out: Any) -> None:
    for i in range(0, len(x), LANES):
        store(exp_out, i, exp_not_positive(load(x, i)))
        store(logistic_out, i, logistic(load(x, i)))


def test_exp_and_logistic_function() -> None:
    x = np.concatenate([-np.logspace(-300, 2.8, 4000), -np.linspace(0, 699, 4000), np.zeros(8)])
    exp_out, logistic_out = np.empty_like(x), np.empty_like(x)
    exp_and_logistic(x, exp_out, logistic_out)
    assert np.abs(exp_out / np.exp(x) - 1).max() < 1e-12
    assert np.abs(logistic_out / sigmoid(x) - 1).max() < 3e-12
    assert (exp_out[-8:] == 1).all()
    assert (logistic_out[-8:] == 0.5).all()
    exp_and_logistic(-x, exp_out, logistic_out)
    assert np.abs(logistic_out / sigmoid(-x) - 1).max() < 3e-12
    exp_and_logistic(np.array([1e308, -1e308] * 4), exp_out[:8], logistic_out[:8])
    assert logistic_out[:8] == pytest.approx([1.0, 0.0] * 4, abs=1e-300)


def test_columns_are_padded_to_groups() -> None:
    assert [padded_columns(count) for count in (1, 4, 5, 8, 9, 16)] == [4, 4, 8, 8, 12, 16]


# ---- other processes, other processors ----

WORK = """
import hashlib, numpy as np
from tests.kernels.test_score import *
digest = hashlib.sha256()
for precision in (Precision.INT8, Precision.FLOAT16):
    rng = np.random.default_rng(1)
    columns = random_columns(rng, precision, 70, 33, 9)
    users = [random_user(rng, 33, 9, 7), random_user(rng, 33, 9, 9, 4)]
    slots = np.arange(70, dtype=np.uint32)
    digest.update(scores(columns, slots, users, [0, 37, 70], precision).tobytes())
import kernels.score, kernels.precision
compiled = [kernels.score._score, kernels.score._pack_pairs, kernels.precision._store_int8]
print(digest.hexdigest(), sum(sum(kernel.stats.cache_misses.values()) for kernel in compiled))
"""


def run_elsewhere(cache: Path, **environment: str) -> tuple[str, int]:
    """Digest of scores, and kernels compiled, in a process of its own."""
    command = [sys.executable, "-c", WORK]
    settings_ = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, env=settings_, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    digest, misses = done.stdout.split()
    return digest, int(misses)


def test_a_second_process_compiles_nothing_and_a_plainer_processor_gives_the_same_bits(tmp_path: Path) -> None:
    digest, misses = run_elsewhere(tmp_path)
    assert misses > 0
    assert run_elsewhere(tmp_path) == (digest, 0)
    plainest = run_elsewhere(tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert plainest[0] == digest
    assert len(digest) == hashlib.sha256().digest_size * 2
