"""What the benchmarks hold kernels against."""

from __future__ import annotations

import numba
import pytest

from bench.scoring import run
from kernels.precision import Precision
from kernels.stream import read_bandwidth
from kernels.threads import threads, threads_max


def test_read_bandwidth_of_an_array_of_any_size() -> None:
    for array_bytes in (8, 4096, 1 << 20):
        assert read_bandwidth(0.0, array_bytes) > 0


def test_threads_are_given_back_after_the_block() -> None:
    before = numba.get_num_threads()

    def fail_inside() -> None:
        with threads(1):
            raise KeyError(numba.get_num_threads())

    with pytest.raises(KeyError, match="1"):
        fail_inside()
    assert numba.get_num_threads() == before <= threads_max()


def test_the_scoring_benchmark_covers_precisions_orders_and_threads() -> None:
    result = run(0.0, 3000)
    assert set(result["scored"]) == {precision.value for precision in Precision}
    for orders in result["scored"].values():
        assert set(orders) == {"dense", "runs", "random"}
        for by_threads in orders.values():
            assert set(by_threads) == set(result["read_bytes_per_s"]) == {"1", str(threads_max())}
            assert all(min(figures.values()) > 0 for figures in by_threads.values())
