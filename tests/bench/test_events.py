"""`bench.events` runs at a small size and finds every step."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from bench.events import STEPS, main


def test_every_step_has_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import apply as apply_

    monkeypatch.setattr(apply_, "apply_events", apply_.apply_events)  # what the bench puts in its place goes again
    device = [] if importlib.util.find_spec("numba_cuda") else ["--no-device"]
    found = tmp_path / "found.json"
    assert main(["--ads", "300", "--events", "90", "--batch", "30", "--json", str(found), *device]) == 0
    report = json.loads(found.read_bytes())
    assert all(report[step] > 0 for step in STEPS if step != "delta" or not device)
    assert bool(report["bytes"]) is not bool(device)
