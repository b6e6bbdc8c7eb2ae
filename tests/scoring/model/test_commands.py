"""convert, train, evaluate and the report, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")
pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `model`")

from api.cli import main
from scoring.model.served import load_model
from tests.scoring.model.tiny import make

SETTINGS = ["--threads", "1", "--set", "dim=16", "--set", "history=8", "--set", "epochs=2", "--set", "batch=16",
            "--set", "word_buckets=64", "--set", "negatives=10"]  # fmt: skip


def test_from_data_to_a_model_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("data"))
    heads = {"gate": [], "gate-dense": ["route=4"], "dot": ["head=dot"], "ids": ["head=dot", "ids_only=true"]}
    for name, changes in heads.items():
        own = [part for change in changes for part in ("--set", change)]
        assert main(["train", "data", "--run", f"runs/{name}", *SETTINGS, *own, "--export", f"models/{name}"]) == 0
        assert load_model(Path("models") / name).name == name
        assert main(["evaluate", f"runs/{name}", "data", "--to", f"results/{name}.json", "--threads", "1"]) == 0
    own = ["--set", "head=ranker", "--warm-start", "runs/dot", "--set", "epochs=1"]
    assert main(["train", "data", "--run", "runs/ranker", *SETTINGS, *own]) == 0
    assert main(["evaluate", "runs/ranker", "data", "--to", "results/ranker.json"]) == 0
    assert main(["train", "data", "--run", "runs/cold", *SETTINGS, "--set", "cold=0.3"]) == 0
    assert main(["evaluate", "runs/cold", "data", "--to", "results/cold.json"]) == 0
    said = capsys.readouterr()
    assert "epoch   2" in said.out
    assert not said.err
    result = json.loads(Path("results/gate.json").read_text())
    assert result["command"] == ["mirach", *result["command"][1:]]
    assert result["training"]["recipe"]["epochs"] == 2
    assert len(result["training"]["curve"]) == 2
    assert main(["evaluate", "--report", "results", "--to", "report.md"]) == 0
    report = Path("report.md").read_text()
    for said_of in ("| gate, routed | 1 |", "## Cold start", "Not run yet: Mixture-of-Logits", "| gate.json |"):
        assert said_of in report, said_of
    assert Path("report/data.svg").read_text().startswith("<?xml")


def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("data"))
    assert main(["train", "data", "--run", "run", *SETTINGS]) == 0
    capsys.readouterr()
    for arguments, told in (
        (["train", "data", "--run", "run", *SETTINGS], "holds a run already"),
        (["train", "data", "--run", "run", *SETTINGS, "--set", "batch=5", "--resume"], "another batch"),
        (["train", "data", "--run", "other", "--set", "hed=dot"], "nearest is head"),
        (["train", "data", "--run", "other", "--set", "head"], "takes NAME=VALUE"),
        (["train", "data", "--run", "other", "--set", "route=9"], "route 9 is not 1 to 4"),
        (["train", "data", "--run", "other", "--set", "epochs=many"], "--set"),
        (["train", "nowhere", "--run", "other"], "cannot be read"),
        (["evaluate", "nowhere", "data"], "holds no trained run"),
        (["evaluate"], "takes the folder of a run"),
        (["convert", "clicklog", "nowhere.csv", "out"], "missing"),
        (["convert", "synthetic", "x", "out"], "its seed"),
    ):
        assert main(arguments) == 2, arguments
        assert told in capsys.readouterr().err, arguments
    assert main(["train", "data", "--run", "run", *SETTINGS, "--set", "epochs=3", "--resume"]) == 0
    assert "epoch   3" in capsys.readouterr().out
