"""convert, train, evaluate and the report, as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")
pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `model`")

import pyarrow
import pyarrow.parquet as parquet
from numpy.random import default_rng

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
    for unsaid in ("ML-1M", "ads log", "shared with"):  # which the files do not say
        assert unsaid not in report, unsaid
    assert Path("report/data.svg").read_text().startswith("<?xml")


def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("data"))
    make(Path("others"), seed=5)
    assert main(["train", "data", "--run", "run", *SETTINGS]) == 0
    capsys.readouterr()
    for arguments, told in (
        (["train", "data", "--run", "run", *SETTINGS], "holds a run already"),
        (["train", "data", "--run", "run", "--set", "batch=5", "--resume"], "another batch, 16: where a run goes on"),
        (["train", "data", "--run", "run", "--set", "head=mol", "--resume"], "another head, gate"),
        (["train", "data", "--run", "run", "--set", "epochs=0", "--resume"], "epochs 0 is not 1 or more"),
        (["train", "data", "--run", "run", "--set", "epoch=3", "--resume"], "nearest is epochs"),
        (["train", "data", "--run", "other", "--set", "hed=dot"], "nearest is head"),
        (["train", "data", "--run", "other", "--set", "head"], "takes NAME=VALUE"),
        (["train", "data", "--run", "other", "--set", "route=9"], "route 9 is not 1 to 4"),
        (["train", "data", "--run", "other", "--set", "epochs=many"], "--set"),
        (["train", "data", "--run", "other", "--set", "seed=-1"], "seed -1 is not 0 or more"),
        (["train", "data", "--run", "other", "--set", "dim=0"], "dim 0 is not 1 or more"),
        (["train", "data", "--run", "other", "--set", "dropout=1"], "dropout 1.0 is not 0 or more and below 1"),
        (["train", "data", "--run", "other", "--set", "learning_rate=nan"], "learning_rate nan is not"),
        (["train", "data", "--run", "other", "--set", "towers="], "towers"),
        (["train", "data", "--run", "other", "--set", "head=mol", "--export", "model"], "leave --export out"),
        (["train", "data", "--run", "other", "--warm-start", "nope"], "nope holds no trained run"),
        (["train", "data", "--run", "other", "--resume"], "other holds no trained run"),
        (["evaluate", "run", "others"], "another data set"),
        (["train", "nowhere", "--run", "other"], "cannot be read"),
        (["evaluate", "nowhere", "data"], "holds no trained run"),
        (["evaluate"], "takes the folder of a run"),
        (["convert", "clicklog", "nowhere.csv", "out"], "missing"),
        (["convert", "synthetic", "x", "out"], "its seed"),
    ):
        assert main(arguments) == 2, arguments
        assert told in capsys.readouterr().err, arguments
    Path("run/best.safetensors").unlink()
    for arguments in (["evaluate", "run", "data"], ["train", "data", "--run", "run", "--resume"]):
        assert main(arguments) == 2, arguments
        assert "best.safetensors is missing" in capsys.readouterr().err
    shutil.copy("run/last.safetensors", "run/best.safetensors")
    state = json.loads(Path("run/run.json").read_text())
    del state["curve"]
    for text in ("{", "{}", json.dumps(state)):
        Path("run/run.json").write_text(text)
        assert main(["evaluate", "run", "data"]) == 2
        assert "run.json is damaged" in capsys.readouterr().err


def test_a_run_goes_on_as_what_it_was_begun_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("data"))
    begun = [*SETTINGS, "--set", "towers=sequence,semantic", "--set", "experts=sequence,semantic"]
    assert main(["train", "data", "--run", "run", *begun]) == 0
    first = json.loads(Path("run/run.json").read_text())
    shutil.copytree("run", "again")
    capsys.readouterr()
    on = ["--threads", "1", "--resume", "--set", "epochs=3", "--set", "patience=9"]
    assert main(["train", "data", "--run", "run", *on]) == 0
    said = capsys.readouterr().out
    assert "epoch   3" in said
    assert "epoch   2" not in said
    last = json.loads(Path("run/run.json").read_text())
    assert last["architecture"] == first["architecture"]
    assert last["architecture"]["towers"] == ["sequence", "semantic"]
    assert last["recipe"] == first["recipe"] | {"epochs": 3, "patience": 9}
    repeated = [*begun, "--set", "epochs=3", "--set", "patience=9", "--resume"]  # as one had to
    assert main(["train", "data", "--run", "again", *repeated]) == 0
    assert Path("again/last.safetensors").read_bytes() == Path("run/last.safetensors").read_bytes()


def test_a_click_log_without_splits_trains_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the users click on banners, half on videos; every warning is an error in these tests."""
    monkeypatch.chdir(tmp_path)
    rng = default_rng(7)
    lines = ["user_id,item_id,time,label,format,context.page,user.age"]
    for time in range(2000):
        user, item = int(rng.integers(60)), int(rng.integers(20))
        clicks = rng.random() < (0.8 if user % 2 == item % 2 else 0.05)
        kind = ("banner", "video")[item % 2]
        lines.append(f"u{user},i{item},{time},{int(clicks)},{kind},{('home', 'news')[time % 2]},{20 + 30 * (user % 2)}")
    Path("log.csv").write_text("\n".join(lines) + "\n")
    assert main(["convert", "clicklog", "log.csv", "data"]) == 0
    own = ["--set", "epochs=8", "--set", "layers=1", "--set", "warm_up=5", "--set", "learning_rate=0.01"]
    assert main(["train", "data", "--run", "run", *SETTINGS, *own, "--export", "model"]) == 0
    assert not capsys.readouterr().err
    metrics = json.loads(Path("model/model.json").read_text())["metrics"]["probability"]
    assert metrics["cases"] == 200
    assert metrics["normalised_entropy"] < 0.85
    assert metrics["auc"] > 0.75


def test_impressions_that_hold_no_click_back_are_an_error_and_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("data"), shown=True)
    table = parquet.read_table("data/interactions.parquet").to_pylist()
    for lost, told in (
        (("validation", 0), "validation has no impression of label 0"),
        (("test", 1), "test has no engagement"),
        (("train", 1), "no engagement in the split train"),
    ):
        rows = [row for row in table if (row["split"], row["label"]) != lost]
        parquet.write_table(pyarrow.Table.from_pylist(rows), "data/interactions.parquet")
        assert main(["train", "data", "--run", "run", *SETTINGS, "--export", "model"]) == 2
        assert told in capsys.readouterr().err
        assert not Path("model").exists()
