"""Mutation tests: the simulation finds each planted fault, within so many seeds from the first.

The same seeds find nothing in the product as it is: test_simulation.py runs them all.
"""

from __future__ import annotations

import pytest

from tests.simulation.faults import FAULTS, Fault, planted
from tests.simulation.run import run_seed
from tests.simulation.test_simulation import SEEDS

SEEDS_MAX = 200


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_is_found(fault: Fault) -> None:
    others = []
    with planted(fault):
        for seed in range(SEEDS_MAX):
            failure = run_seed(seed).failure
            if fault.is_found_by(failure):
                return
            others += [] if failure is None else [f"seed {seed}: {failure}"]
    pytest.fail("\n".join([f"no seed below {SEEDS_MAX} finds it: {fault.says}", *others]))


def test_there_are_enough_and_each_is_one_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 10
    assert SEEDS_MAX <= SEEDS, "the product itself must pass the seeds that find faults"
