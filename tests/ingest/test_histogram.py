"""Freshness: counts, and quantiles of the last minutes."""

from __future__ import annotations

import numpy as np
import pytest

from ingest.histogram import UPPER_MS, WINDOW_US, Histogram

NOW_US = 1_700_000_000_000_000


def record(histogram: Histogram, durations_ms: list[float], now_us: int = NOW_US) -> None:
    histogram.record(np.array([1000 * each for each in durations_ms], np.int64), now_us)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantiles_are_near_the_true_ones(share: float) -> None:
    generator = np.random.default_rng(7)
    durations_ms = generator.lognormal(4, 1, 10_000)
    histogram = Histogram()
    record(histogram, list(durations_ms))
    true = float(np.quantile(durations_ms, share))
    assert histogram.recent_quantile_ms(share, NOW_US) == pytest.approx(true, rel=0.1)


def test_nothing_recorded_has_no_quantile() -> None:
    histogram = Histogram()
    assert histogram.recent_quantile_ms(0.5, NOW_US) is None
    assert histogram.count == 0


def test_quantiles_forget_after_two_windows_and_counts_do_not() -> None:
    histogram = Histogram()
    record(histogram, [100] * 10)
    record(histogram, [1000] * 10, NOW_US + WINDOW_US)
    assert 80 < histogram.recent_quantile_ms(0.25, NOW_US + WINDOW_US) < 120  # type: ignore[operator]
    assert 800 < histogram.recent_quantile_ms(0.25, NOW_US + 2 * WINDOW_US) < 1200  # type: ignore[operator]
    assert histogram.recent_quantile_ms(0.25, NOW_US + 9 * WINDOW_US) is None
    assert histogram.count == 20
    assert histogram.sum_s == pytest.approx(11)


def test_the_buckets_are_cumulative_and_end_in_infinity() -> None:
    histogram = Histogram()
    record(histogram, [-5, 0, 1, 1.5, 2, 10**9])
    buckets = histogram.cumulative()
    assert buckets[:3] == [(0.001, 3), (0.002, 5), (0.004, 5)]
    assert buckets[-1] == (float("inf"), 6)
    assert [bound for bound, _ in buckets] == sorted(bound for bound, _ in buckets)
    assert histogram.recent_quantile_ms(1.0, NOW_US) == UPPER_MS[-1], "what is longer counts as the longest"


def test_a_clock_that_steps_makes_no_nonsense() -> None:
    """Back: what is recorded after it is recent for two windows of the new time. Forward: what was is not any more.
    An event from the future is not fresher than now."""
    histogram = Histogram()
    record(histogram, [1000] * 10)
    back_us = NOW_US - 60 * WINDOW_US
    record(histogram, [100] * 10, back_us)
    assert 80 < histogram.recent_quantile_ms(0.25, back_us) < 120  # type: ignore[operator]
    assert histogram.recent_quantile_ms(0.5, back_us + 2 * WINDOW_US) is None
    record(histogram, [50], NOW_US + 60 * WINDOW_US)
    assert 40 < histogram.recent_quantile_ms(0.99, NOW_US + 60 * WINDOW_US) < 60  # type: ignore[operator]
    record(histogram, [-5000] * 1000, NOW_US + 60 * WINDOW_US)
    assert 0 <= histogram.recent_quantile_ms(0.01, NOW_US + 60 * WINDOW_US) < 2  # type: ignore[operator]
    assert histogram.sum_s > 0
