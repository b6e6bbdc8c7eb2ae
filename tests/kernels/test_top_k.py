"""The k best of many against a full sort."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.top_k import SKIP, SPARE_MIN, top_k


def sorted_positions(values: NDArray[np.float64], ties: NDArray[np.uint64], k: int) -> NDArray[np.int64]:
    return np.lexsort((np.arange(len(values)), ties, -(values + 0.0)))[:k]


def assert_best(values: NDArray[np.float64], ties: NDArray[np.uint64], k: int) -> None:
    got = top_k(values, ties, k)
    assert got.dtype == np.int64
    assert np.array_equal(got, sorted_positions(values, ties, k))


FEW_VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, 5e-324, -5e-324, 1.7e308, -1.7e308])
FEW_TIES = st.sampled_from([0, 1, 2, 2**63 - 1, 2**63, 2**64 - 1])


@settings(max_examples=300, deadline=None)
@given(
    pairs=st.lists(st.tuples(FEW_VALUES | st.floats(allow_nan=False), FEW_TIES | st.integers(0, 2**64 - 1))),
    k=st.integers(0, 30),
)
def test_any_short_list(pairs: list[tuple[float, int]], k: int) -> None:
    values, ties = np.array([v for v, _ in pairs], np.float64), np.array([t for _, t in pairs], np.uint64)
    assert_best(values, ties, k)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), count=st.integers(0, 6000), k=st.integers(1, 1200), distinct=st.integers(1, 1000),
    distinct_ties=st.sampled_from([1, 2, 1000, 2**63]),
)  # fmt: skip
def test_any_long_list(seed: int, count: int, k: int, distinct: int, distinct_ties: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.choice(rng.normal(size=distinct) * 10.0 ** rng.integers(-300, 300, distinct), count)
    assert_best(values, rng.integers(0, distinct_ties, count).astype(np.uint64) << np.uint64(1), k)


ADVERSARIES: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "all equal": lambda n: np.full(n, 0.5),
    "ascending": lambda n: np.arange(n, dtype=np.float64),
    "descending": lambda n: -np.arange(n, dtype=np.float64),
    "up and down": lambda n: np.abs(np.arange(n) - n / 2),
    "blocks of equals, ascending": lambda n: np.floor(np.arange(n) / 1000),
    "one for each bit": lambda n: 2.0 ** -(np.arange(n) % 1000),
    "next to each other": lambda n: (np.arange(n) % 5000 + (1 << 60)).view(np.float64).copy(),
    "zeros of both signs": lambda n: np.where(np.arange(n) % 2 == 0, 0.0, -0.0),
    "best at the end": lambda n: np.where(np.arange(n) >= n - 300, 2.0, 1.0),
    "organ pipes": lambda n: np.minimum(np.arange(n) % 257, 256 - np.arange(n) % 257).astype(np.float64),
}


@pytest.mark.parametrize("name", list(ADVERSARIES))
@pytest.mark.parametrize("k", [1, 100, 10_000])
def test_adversarial_order(name: str, k: int) -> None:
    count = 50_000
    values, order = ADVERSARIES[name](count), np.arange(count, dtype=np.uint64)
    for ties in (order, order[::-1].copy(), order * np.uint64(0x9E3779B97F4A7C15), np.zeros(count, np.uint64)):
        assert_best(values, ties, k)


@pytest.mark.parametrize("k", [1, 2, 255, 256, 257, 300])
def test_sizes_around_the_buffer_and_the_skip(k: int) -> None:
    rng = np.random.default_rng(k)
    for base in (k, SKIP, 2 * SKIP, k + SPARE_MIN, 2 * k, k + SPARE_MIN + SKIP):
        for count in (base - 1, base, base + 1):
            assert_best(rng.integers(0, 9, count).astype(np.float64), rng.integers(0, 2**64, count, dtype=np.uint64), k)


def test_work_grows_in_step_with_the_input_when_every_candidate_beats_the_last() -> None:
    """Ten buffers' worth of ever better candidates with k of 10,000, and of equal ones whose ties get better."""
    count = 200_000
    best = np.arange(count - 1, count - 10_001, -1)
    assert np.array_equal(top_k(np.arange(count, dtype=np.float64), np.zeros(count, np.uint64), 10_000), best)
    ties = np.arange(count, 0, -1).astype(np.uint64)
    assert np.array_equal(top_k(np.ones(count), ties, 10_000), best)


def test_wrong_types_are_refused() -> None:
    with pytest.raises(AssertionError):
        top_k(np.zeros(3, np.float32), np.zeros(3, np.uint64), 1)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        top_k(np.zeros(3), np.zeros(3, np.int64), 1)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        top_k(np.zeros(3), np.zeros(2, np.uint64), 1)
