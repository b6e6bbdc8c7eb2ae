"""The benchmark of a model at work, at a small size: every figure is there, every answer of one of the two."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")

from bench.run import main

ADS, ALONE = 1_500, 30


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serving.json"
    flags = ["--ads", str(ADS), "--alone", str(ALONE), "--seconds", "0.5", "--rate", "40", "--json", str(file)]
    assert main(["serving", *flags]) == 0
    report = msgspec.json.decode(file.read_bytes())
    ingest, alone, switch = report["ingest"], report["alone"], report["switch"]
    assert 0 < ingest["tower_s"] < ingest["seconds"]
    assert ingest["ads_per_s"] < ingest["tower_ads_per_s"]
    assert (alone["requests"], alone["refused"]) == (ALONE, 0)
    assert 0 < alone["towers_ms"]["p50"] < alone["service_ms"]["p50"] < alone["p50"]
    assert (switch["ads"], switch["models"]) == (ADS, ["demo", "demo-again"])
    assert switch["before"]["requests"] > 0
    assert switch["after"]["requests"] > 0
    assert [switch[when]["refused"] for when in ("before", "during", "after")] == [0, 0, 0]
    table = capsys.readouterr().out
    for figure in ("ads embedded", "the model's towers", "switch of 1,500 ads", "requests/s during it"):
        assert figure in table
