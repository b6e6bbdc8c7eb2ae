"""The whole benchmark at a small size: every figure is there, and nothing was refused or lost on the way."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench.run import main

ADS = 3_000


@pytest.mark.parametrize("mix", ["campaigns", "distinct"])
def test_a_small_run(mix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert main(["--ads", str(ADS), "--mix", mix, "--seconds", "0.3", "--json", str(file)]) == 0
    report = msgspec.json.decode(file.read_bytes())
    found = report["mixes"][mix]
    assert found["inside"]["index"]["ads"] == ADS
    targetings = found["inside"]["index"]["targetings"]
    assert targetings < ADS / 8 if mix == "campaigns" else targetings >= ADS
    for load in (*found["http"].values(), found["fresh"]["requests"], found["applied"]["requests"]):
        assert load["requests"] > 0
        assert load["refused"] == 0
    outcomes = found["applied"]["ingest"]["outcomes"]
    assert outcomes["applied"] == sum(outcomes.values()) == ADS
    assert found["applied"]["ingest"]["gaps"] == []
    table = capsys.readouterr().out
    for figure in ("ads matched", "ads scored", "HTTP requests", "events applied", "searchable", "memory of an ad"):
        assert figure in table
