"""The seam between the CPU and a GPU: what a backend makes of a batch of requests, and what answers are made from.

A backend matches, filters and scores; caps and pathways are walked by the same code on both sides (retrieve.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_index.index import Index
from scoring.request import Request


class Ranked(NamedTuple):
    """Ads of one pathway in their order."""

    slots: list[int]
    scores: NDArray[np.floating[Any]]
    values: NDArray[np.float64]
    whole: bool  # there are no more


class Lane(Protocol):
    """The ads that one pathway may give."""

    def best(self, wanted: int) -> Ranked:
        """The first `wanted` at least, or all there are; called again with more where caps left too few."""


class Survivors(NamedTuple):
    eligible: list[int]  # [request] ads that matched
    lanes: Sequence[Sequence[Lane]]  # [request][pathway]
    timings_ms: dict[str, float]


class Backend(Protocol):
    batch_max: int  # requests of one pass

    def survivors(self, index: Index, requests: Sequence[Request]) -> Survivors:
        """Raises TooMuchAtOnce; what it gives is good until it is called again."""


class TooMuchAtOnce(RuntimeError):
    """There is no room on the device for so many requests in one pass."""
