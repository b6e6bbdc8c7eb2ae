"""Durations in buckets that grow by a fourth root of two: any quantile within 19 %, at a fixed size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEPS_PER_DOUBLING = 4
DOUBLINGS = 22  # from 1 ms to 70 minutes; what is longer is in the last bucket
UPPER_MS: NDArray[np.float64] = 2.0 ** (np.arange(DOUBLINGS * STEPS_PER_DOUBLING + 1) / STEPS_PER_DOUBLING)
WINDOW_US = 60_000_000


class Histogram:
    """Counts since the start, and separately those of the last one to two minutes, which the quantiles are of."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(UPPER_MS) + 1, np.int64)
        self._sum_ms = 0.0
        self._recent = np.zeros((2, len(UPPER_MS) + 1), np.int64)  # [this window and the one before, bucket]
        self._window_us: int | None = None  # begin of this window

    def record(self, durations_us: NDArray[np.int64], now_us: int) -> None:
        """`durations_us`: below zero, as clocks differ, counts as zero."""
        durations_ms = np.maximum(durations_us, 0) / 1000
        counts = np.bincount(np.searchsorted(UPPER_MS, durations_ms), minlength=len(UPPER_MS) + 1)
        if self._window_us is not None and now_us < self._window_us:  # the clock stepped back: recent is from here on
            self._window_us = now_us
        self._turn(now_us)
        self._counts += counts
        self._recent[0] += counts
        self._sum_ms += float(durations_ms.sum())

    def _turn(self, now_us: int) -> None:
        if self._window_us is None:
            self._window_us = now_us
        past = (now_us - self._window_us) // WINDOW_US
        if past > 0:
            self._recent[1] = self._recent[0] if past == 1 else 0
            self._recent[0] = 0
            self._window_us += past * WINDOW_US

    def recent_quantile_ms(self, share: float, now_us: int) -> float | None:
        """The duration that `share` of the last one to two minutes do not exceed; None if there were none."""
        self._turn(now_us)
        counts = self._recent.sum(axis=0)  # [bucket]
        total = int(counts.sum())
        if not total:
            return None
        rank = share * total
        bucket = int(np.searchsorted(np.cumsum(counts), rank))
        bucket = min(bucket, len(UPPER_MS) - 1)
        lower = 0.0 if bucket == 0 else float(UPPER_MS[bucket - 1])
        inside = (rank - float(counts[:bucket].sum())) / max(1, int(counts[bucket]))
        return lower + (float(UPPER_MS[bucket]) - lower) * min(1.0, max(0.0, inside))

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    @property
    def sum_s(self) -> float:
        return self._sum_ms / 1000

    def cumulative(self) -> list[tuple[float, int]]:
        """Since the start: upper bounds in seconds (the doublings only, then infinity), and how many were within."""
        upto = np.cumsum(self._counts)
        bounds = [(float(UPPER_MS[i]) / 1000, int(upto[i])) for i in range(0, len(UPPER_MS), STEPS_PER_DOUBLING)]
        return [*bounds, (float("inf"), int(upto[-1]))]
