"""Whole answers from an emulated device, held against the plain index; the copy, held against the host's arrays."""

from __future__ import annotations

import random

import pytest

from gpu_index.events import Outcome
from kernels.precision import Precision
from tests.gpu.twins import DeviceTwins


@pytest.mark.parametrize("precision", list(Precision))
def test_random_histories_have_the_plain_index_s_answers(precision: Precision) -> None:
    r = random.Random(11)
    twins = DeviceTwins(r, ids=300, precision=precision)
    for _ in range(6):
        twins.send([twins.event(r) for _ in range(150)])
        twins.ask([twins.request(r) for _ in range(r.choice([1, 3, 7]))])
        twins.advance(r.choice([-30_000_000, 5_000_000, 40_000_000]))
    twins.check()
    assert twins.outcomes[Outcome.APPLIED] > 300
    assert not twins.outcomes[Outcome.INDEX_FULL]
