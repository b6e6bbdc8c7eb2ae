"""A bounded part of the simulation, in every test run: `make simulate` runs ten thousand seeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.run import run_seed
from tests.simulation.world import WEIGHTS, World

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 300
REPLAYED = (3, 7, 19, 23)

# what the seeds must come to, or they would show nothing -> at least how often
REACHED = {
    r"restored [1-9]": 300,
    r"restored None": 500,
    r"orderly stop": 200,
    r"killed": 250,
    r"power lost": 250,
    r"crash at (create|fill|fsync|rename|remove|sync|make_folder|about to sync)": 100,
    r"snapshot \d+ is written": 300,
    r"answered [1-9]": 1000,
    r"answered with IndexBehind": 100,
    r"started again: Gap.*'removed'": 3,
    r"started again: Gap.*'(replaced|ahead)'": 8,
    r"a bit of snapshots": 3,
    r"a bit of chunks": 90,
}


@pytest.fixture(scope="module")
def said() -> list[str]:
    """Every line that the seeds say, all of which must be right."""
    lines: list[str] = []
    failed = [ran for ran in (run_seed(seed, lines.append) for seed in range(SEEDS)) if ran.failure is not None]
    assert not failed, "\n".join(
        f"seed {ran.seed}: {ran.failure}; python -m tests.simulation --seed {ran.seed} --trace" for ran in failed
    )
    return lines


def test_nothing_is_wrong_and_much_has_happened(said: list[str]) -> None:
    counts = {pattern: sum(re.search(pattern, line) is not None for line in said) for pattern in REACHED}
    assert all(counts[pattern] >= count for pattern, count in REACHED.items()), counts
    actions = Counter(line.split()[-1] for line in said)
    assert all(actions[name] >= 20 for name in WEIGHTS), actions


def test_every_action_is_one_that_there_is() -> None:
    assert all(callable(getattr(World, f"do_{name}")) for name in WEIGHTS)


@pytest.mark.parametrize("seed", REPLAYED)
def test_a_seed_is_the_same_again(seed: int) -> None:
    assert run_seed(seed) == run_seed(seed)


def test_a_seed_is_the_same_in_another_process() -> None:
    """Whatever the order in which that process' sets and dicts come."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(REPLAYED[0])]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == f"seed {REPLAYED[0]}: nothing wrong; trace {run_seed(REPLAYED[0]).trace}\n"


def test_a_failing_seed_is_said_with_what_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.simulation.__main__ import many
    from tests.simulation.faults import FAULTS, planted

    with planted(FAULTS[0]):
        assert many(first=0, count=1, processes=1) == 1
    printed = capsys.readouterr().out
    assert "seed 0 failed: Wrong: a commit at" in printed
    assert "python -m tests.simulation --seed 0 --trace" in printed
    assert "1 seeds from 0: 1 failed" in printed
