"""What makes a soak fail: a wrong answer, an answer that no client should get, or a process that grows steadily.

Growth is measured within periods, each from one start of the process to its end, without its first SETTLE_S: the mean
of a period's last third against that of its first. One period says little (a cache fills, an allocator rounds up), so
the median of all decides. Whether a later process is larger than the first at the same work is looked at, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import NamedTuple

SETTLE_S = 20.0
PERIOD_SAMPLES_MIN = 12
DOCUMENTED_503 = ("not-ready", "index-behind", "overloaded", "no-snapshot")
EXPECTED = ("200", "413 too-large", "down", *(f"503 {kind}" for kind in DOCUMENTED_503))


class Sample(NamedTuple):
    """One moment. What could not be asked, the service being down, is None."""

    at_s: float
    start: int  # which start of the process, from 1
    fault: str  # what is being done to it
    resident_bytes: int | None
    handles: int | None
    threads: int | None
    requests: int  # answered 200 since the last sample
    p50_ms: float | None
    p99_ms: float | None
    refused: int  # answered otherwise, or not
    freshness_p50_ms: float | None
    freshness_p99_ms: float | None
    lag: int | None
    ads: int | None
    dead_letters_pending: int | None


class Growth(NamedTuple):
    """Of one figure: in the median period, and from the first period to the last."""

    within: float
    across: float
    first: float  # its mean in the first period
    periods: int


class Limit(NamedTuple):
    """How much a figure may grow within a period: this share, or this much where that is more; twice that across."""

    share: float
    least: float
    unit: str


LIMITS = {
    "resident_bytes": Limit(0.05, 8e6, "bytes"),
    "handles": Limit(0.0, 3, "file handles"),
    "threads": Limit(0.0, 3, "threads"),
}


def growth(samples: Sequence[Sample], figure: str) -> Growth | None:
    """None: no period was long enough."""
    periods = [[getattr(sample, figure) for sample in period] for period in periods_of(samples)]
    if not periods:
        return None
    within = [mean(values[-(len(values) // 3) :]) - mean(values[: len(values) // 3]) for values in periods]
    return Growth(median(within), mean(periods[-1]) - mean(periods[0]), mean(periods[0]), len(periods))


def periods_of(samples: Sequence[Sample]) -> list[list[Sample]]:
    """By start of the process, those samples that growth is measured by."""
    found = []
    for start in sorted({sample.start for sample in samples}):
        period = [sample for sample in samples if sample.start == start and sample.ads is not None]
        settled = [sample for sample in period if sample.at_s - period[0].at_s >= SETTLE_S]
        if len(settled) >= PERIOD_SAMPLES_MIN:
            found.append(settled)
    return found


def growing(samples: Sequence[Sample]) -> Iterator[str]:
    """A sentence for each figure that grows."""
    for figure, limit in LIMITS.items():
        found = growth(samples, figure)
        if found is None:
            continue
        least = max(limit.least, limit.share * found.first)
        for grown, most, where in (
            (found.within, least, "within its median period"),
            (found.across, 2 * least, "from its first start to its last"),
        ):
            if grown > most:
                yield (
                    f"the process grew {where}: {limit.unit} by {grown:,.0f} over {found.first:,.0f}, where "
                    f"{most:,.0f} is allowed"
                )


def unexpected(kinds: Counter[str]) -> Iterator[str]:
    """A sentence for each kind of answer that no client should get."""
    for kind, count in sorted(kinds.items()):
        if kind not in EXPECTED:
            yield f"{count} requests were answered {kind}"
