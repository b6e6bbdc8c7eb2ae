"""Whole answers: random histories of events and requests, host and device together, against the plain index. They need
what the service needs."""

from __future__ import annotations

import random

from gpu_index.events import Outcome
from kernels.cuda.types import Device
from kernels.precision import Precision
from tests.gpu.cases import cases_of
from tests.gpu.twins import DeviceTwins


@cases_of("check_random_history", [(precision, 11) for precision in Precision])
def check_random_history(device: Device, precision: Precision, seed: int) -> None:
    """Creates, modifies, expires, the clock's turns; filters, exclusions, pathways, caps, a request's own now. After
    it the copy equals the host's arrays byte for byte."""
    r = random.Random(seed)
    twins = DeviceTwins(r, device, ids=300, precision=precision)
    for _ in range(5):
        twins.send([twins.event(r) for _ in range(150)])
        twins.ask([twins.request(r) for _ in range(r.choice([1, 3, 7]))])
        twins.advance(r.choice([-30_000_000, 5_000_000, 40_000_000]))
    twins.check()
    assert twins.outcomes[Outcome.APPLIED] > 250
    assert not twins.outcomes[Outcome.INDEX_FULL]
