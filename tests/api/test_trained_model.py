"""Trained models end to end: exported, loaded, asked through HTTP, switched to; and in a process of its own."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")

from api import demo
from api.cli import main
from api.config import ConfigError, load
from api.shared_model import with_model
from bench.ads import events
from scoring.model.export import write_export
from scoring.model.served import AdFeatures, Model, ModelError, load_model
from scoring.model.train import Trainer
from scoring.reference import score_reference
from tests.api.conftest import Start
from tests.api.running import Running
from tests.api.test_http import problem
from tests.api.test_model_serving import scores
from tests.api.test_model_switch import wait
from tests.api.test_server import Served, serve
from tests.kafka import until
from tests.scoring.model.tiny import ARCHITECTURE, RECIPE, dataset

__all__ = ["serve"]  # a fixture

DEMO = demo.MODEL
FEATURES = {
    "history": [{"ad_id": "120210000000000000", "time": "2026-11-30T11:00:00Z"},
                {"item": "never seen", "time": "2026-11-30T11:30:00Z"}],
    "cohort": {"age": 34, "gender": "female", "shoe size": 38},
    "semantic": {"texts": ["Autumn sale"]},
    "surfaces": {"shop": [{"ad_id": "120210000000015838"}]},
}  # fmt: skip
CONTEXT = {"placement": "feed", "device": "mobile", "weather": "rain"}
EVENTS = [
    {**event, "ad": {name: event["ad"][name] for name in ("advertiser_id", "campaign_id", "bid", "fields", "features")}}
    for event in events(demo.SEED, 60)
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of other widths, not trained for long."""
    folder = tmp_path_factory.mktemp("tiny")
    trainer = Trainer(dataset(folder), ARCHITECTURE, RECIPE, folder / "run")
    write_export(folder / "model", "tiny", trainer.network, trainer.table, (0.9, -1.0), {})
    return folder / "model"


def reference(model: Model, features: dict[str, Any], context: dict[str, Any] | None) -> dict[str, float]:
    """The score of each ad of EVENTS, in plain float64 from the model's own vectors."""
    (user,) = model.users([features], [context])
    told = []
    for event in EVENTS:
        ad = event["ad"]
        fields = {name: value if isinstance(value, list) else [value] for name, value in ad["fields"].items()}
        told.append(AdFeatures(event["ad_id"], ad["advertiser_id"], ad["campaign_id"], fields, ad["features"]))
    embedding, gate = (vectors.astype(np.float64) for vectors in model.ads(told))
    found = score_reference(user, embedding, gate)
    return {event["ad_id"]: score for event, score in zip(EVENTS, found.tolist(), strict=True)}


def test_scores_through_http_are_the_trained_models_before_and_after_a_switch(start: Start, tiny: Path) -> None:
    model = load_model(DEMO)
    running = start(model=model, precision="float32")
    running.take(*EVENTS)
    body = {"user": {"features": FEATURES}, "context": CONTEXT, "k": 100, "rank_by": "score"}
    answer = running.post("/v1/retrieve", body).json()
    assert len(answer["results"]) == len(EVENTS)
    assert scores(answer) == pytest.approx(reference(model, FEATURES, CONTEXT), abs=1e-5)
    cold = running.post("/v1/retrieve", {"user": {"features": {}}, "k": 100}).json()
    assert scores(cold) == pytest.approx(reference(model, {}, None), abs=1e-5)
    refused = problem(running.post("/v1/retrieve", {"user": {"features": {"history": [1]}}}), 422, "invalid-request")
    assert refused["path"].startswith("user.features.history[0]")
    openrtb = {"id": "r", "imp": [{"id": "i", "banner": {}}], "site": {"domain": "x"}, "device": {"os": "iOS"}}
    ask = {**openrtb, "ext": {"mirach": {"user": {"features": FEATURES}}}}
    assert running.post("/v1/retrieve/openrtb", ask).json()["model"]["name"] == "demo"
    assert running.post("/v1/admin/model", {"path": str(tiny)}).status_code == 202
    assert wait(running)["active"]["name"] == "tiny"
    switched = running.post("/v1/retrieve", body).json()
    assert scores(switched) == pytest.approx(reference(load_model(tiny), FEATURES, CONTEXT), abs=1e-5)


def test_what_the_model_understood_is_told(start: Start) -> None:
    """Of a request by explain, of all by the metrics."""
    running = start(model=load_model(DEMO))
    running.take(EVENTS[0])
    ask = {"user": {"features": FEATURES}, "context": CONTEXT}
    explained = running.post("/v1/admin/explain", {"ad_id": EVENTS[0]["ad_id"], "request": ask}).json()
    (pathway,) = explained["pathways"]
    assert pathway["understood"] == {
        "history": {"known": 1, "unknown": 1}, "surfaces": {"known": 1, "unknown": 0},
        "cohort": {"known": 2, "unknown": 1}, "semantic": {"known": 1, "unknown": 0},
        "context": {"known": 2, "unknown": 1},
    }  # fmt: skip
    running.post("/v1/retrieve/batch", [ask, ask, {}])
    metrics = running.get("/metrics").text
    for part, kind, count in (("history", "unknown", 3), ("cohort", "known", 6), ("surfaces", "unknown", 0)):
        assert f'mirach_user_feature_values_total{{kind="{kind}",part="{part}"}} {count}.0' in metrics
    assert running.get("/v1/admin/model").json()["user_towers"]["understood"]["cohort"] == {"known": 6, "unknown": 3}
    plain = running.post("/v1/admin/explain", {"ad_id": EVENTS[0]["ad_id"], "request": {}}).json()
    assert plain["pathways"][0]["understood"] is None


def test_a_damaged_model_is_refused_and_the_one_in_use_stays(start: Start, tiny: Path, tmp_path: Path) -> None:
    running: Running = start(model=load_model(DEMO))
    shutil.copytree(tiny, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
    refused = problem(running.post("/v1/admin/model", {"path": str(tmp_path / "damaged")}), 422, "invalid-request")
    assert (refused["path"], refused["code"]) == ("path", "bad_model")
    assert "checksum" in refused["detail"]
    assert running.get("/v1/admin/model").json()["active"]["name"] == "demo"


def test_a_model_brings_its_widths_and_others_are_an_error() -> None:
    loaded, model = with_model(load({"model": str(DEMO)}, [], {}, None))
    assert model is not None
    settings = loaded.settings
    assert (settings.dim, settings.gate_dim, settings.experts) == (model.dim, model.gate_dim, model.experts)
    assert loaded.sources["dim"] == f"model {DEMO}"
    same, _ = with_model(load({"model": str(DEMO), "dim": str(model.dim)}, [], {}, None))
    assert same.settings.dim == model.dim
    with pytest.raises(ConfigError, match=r"dim is set to 64 \(environment MIRACH_DIM\) and that of model demo is 32"):
        with_model(load({"model": str(DEMO)}, [], {"MIRACH_DIM": "64"}, None))
    with pytest.raises(ModelError):
        with_model(load({"model": "/nowhere"}, [], {}, None))


def test_the_demo_without_a_model_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load({}, [], {}, None)
    taken, without = demo.with_demo_model(loaded)
    assert (taken.settings.model, without) == (DEMO, None)
    own = load({"model": "/own"}, [], {}, None)
    assert demo.with_demo_model(own) == (own, None)
    assert demo.with_demo_model(load({"dim": "8"}, [], {}, None))[1] == "dim is set"

    def missing(path: Path) -> Model:
        raise ModelError("a model needs the package torch")

    monkeypatch.setattr(demo, "load_shared", missing)
    assert demo.with_demo_model(loaded) == (loaded, "a model needs the package torch")


def test_a_restart_takes_the_snapshot_of_its_model_and_no_other(
    serve: Callable[..., Served], tiny: Path, tmp_path: Path
) -> None:
    """A service that has switched starts with the model that is set: from a snapshot of that one, or the topic."""
    body: dict[str, Any] = {"user": {"features": FEATURES}, "context": CONTEXT, "k": 100, "wait_ms": 60_000}

    def ask(served: Served) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.post(served.address + "/v1/retrieve", json=body, timeout=90).json()
        return answer

    def end(served: Served) -> str:
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        served._reader.join()
        return "".join(served.lines)

    flags = "--data-dir", str(tmp_path / "data"), "--precision", "float32"
    first = serve("--model", str(DEMO), *flags)
    body["min_offsets"] = first.produce(*EVENTS)
    assert scores(ask(first)) == pytest.approx(of_live(first, reference(load_model(DEMO), FEATURES, CONTEXT)), abs=1e-5)
    assert httpx.post(first.address + "/v1/admin/model", json={"path": str(tiny)}, timeout=60).status_code == 202
    until(lambda: first.get("/v1/admin/model").json()["active"]["name"] == "tiny", "switched", 60)
    assert ask(first)["model"]["name"] == "tiny"
    assert "the setting model decides at the next start" in end(first)
    flags = "--topic", first.topic, "--dlq-topic", first.dlq_topic, *flags
    again = serve("--model", str(DEMO), *flags)
    assert scores(ask(again)) == pytest.approx(of_live(again, reference(load_model(DEMO), FEATURES, CONTEXT)), abs=1e-5)
    assert again.get("/v1/admin/snapshots").json()["restored"] is None
    assert "another model" in end(again)
    switched = serve("--model", str(tiny), *flags)
    assert switched.get("/v1/admin/snapshots").json()["restored"] == 1
    assert scores(ask(switched)) == pytest.approx(
        of_live(switched, reference(load_model(tiny), FEATURES, CONTEXT)), abs=1e-5
    )
    assert switched.get("/v1/admin/model").json()["ad_tower"]["ads"] == 0, "vectors came with the snapshot"
    end(switched)


def of_live(served: Served, found: dict[str, float]) -> dict[str, float]:
    """The events have neither status, times nor targeting: every ad is live."""
    assert served.get("/v1/admin/index").json()["live_now"] == len(found)
    return found


def test_check_holds_vectors_against_a_models_widths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model(DEMO)
    file = tmp_path / "events.jsonl"
    lines = [
        {"type": "create", "ad_id": "1", "ad": {"bid": 1, "embedding": [1.0] * width}}
        for width in (model.dim, model.dim + 1)
    ]
    file.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    assert main(["check", str(file), "--model", str(DEMO)]) == 1
    assert capsys.readouterr().out.startswith("line 2: ad.embedding: ")
    damaged = shutil.copytree(DEMO, tmp_path / "damaged")
    (damaged / "weights.safetensors").write_bytes(b"")
    assert main(["check", str(file), "--model", str(damaged)]) == 2
    assert "weights.safetensors is damaged" in capsys.readouterr().err
