"""Every case, on the emulated device."""

from __future__ import annotations

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")

from tests.gpu import (
    match_cases,
    merge_cases,
    pipeline_cases,
    program_cases,
    pruning_cases,
    ptx_cases,
    score_cases,
    top_k_cases,
)
from tests.gpu.cases import CASES
from tests.gpu.emulated import EmulatedDevice

assert match_cases and merge_cases and pipeline_cases and program_cases
assert pruning_cases and ptx_cases and score_cases and top_k_cases


@pytest.mark.parametrize("name", list(CASES))
def test_on_the_emulated_device(name: str) -> None:
    CASES[name](EmulatedDevice())
