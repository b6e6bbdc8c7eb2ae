"""A model that was exported: the same scores in the service's kernels, checked files, checked requests, fallbacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")

from gpu_index.invalid_input import InvalidInput
from kernels.precision import Precision
from scoring.model.evaluate import ad_columns, evaluate, kernel_scores
from scoring.model.export import TrainedModel, write_export
from scoring.model.features import FIRST_ITEM
from scoring.model.ranking import all_logits
from scoring.model.requests import read_by
from scoring.model.served import AdFeatures, ModelError, load_model
from scoring.model.train import Trainer
from scoring.reference import sigmoid
from scoring.user import TOLD, User, understood_figures
from tests.scoring.model.tiny import ARCHITECTURE, RECIPE, dataset

CALIBRATION = (0.8, -1.5)
TOLERANCE = {Precision.FLOAT32: 1e-5, Precision.FLOAT16: 1e-3, Precision.INT8: 5e-4}  # of a score; int8 is in the loop
DATA: list[Any] = []  # the data set of the trained model below


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    folder = tmp_path_factory.mktemp("model")
    torch.set_num_threads(1)
    DATA[:] = [dataset(folder)]
    trained = Trainer(DATA[0], ARCHITECTURE, RECIPE, folder / "run")
    trained.run(lambda _: None)
    return trained


@pytest.fixture
def exported(trainer: Trainer, tmp_path: Path) -> Path:
    write_export(tmp_path / "m", "tiny", trainer.network, trainer.table, CALIBRATION, {"mrr": 0.5})
    return tmp_path / "m"


def loaded(folder: Path) -> TrainedModel:
    model = load_model(folder)
    assert isinstance(model, TrainedModel)
    return model


def history_of(trainer: Trainer, position: int) -> dict[str, Any]:
    """The user before a position of its history, as a request says it."""
    sequences, data = trainer.sequences, DATA[0]
    u = int(sequences.user[position])
    start = int(sequences.start[u])
    items = sequences.item[start:position] - FIRST_ITEM
    low, high = sequences.surface_start[u], sequences.surface_start[u + 1]
    shop = [e for e in range(low, high) if sequences.surface_time[e] < sequences.time[position]]
    return {
        "history": [{"ad_id": data.items[i].ad_id} for i in items],
        "cohort": {name: values[u] for name, values in data.cohort.items()},
        "surfaces": {"shop": [{"item": data.items[sequences.surface_item[e] - FIRST_ITEM].ad_id} for e in shop]},
    }


@pytest.mark.parametrize("precision", list(Precision))
def test_the_kernels_score_what_the_network_says(trainer: Trainer, exported: Path, precision: Precision) -> None:
    """From the training's own arrays to logits on one side; from a request's JSON through the exported files, packing
    and the fused kernels to scores on the other."""
    model = loaded(exported)
    starts, ends = trainer.sequences.start[:-1], trainer.sequences.start[1:] - 1
    positions = np.concatenate([starts, ends, (starts + ends) // 2])[:100]
    rounding = precision is Precision.INT8
    parts = all_logits(trainer.network, trainer.table, trainer.sequences, positions, rounding)
    logits = torch.cat([part for _, part in parts]).numpy().astype(np.float64)
    names = list(trainer.vocabularies.context)
    contexts = []
    for position in positions:
        numbers = trainer.sequences.context[position]
        signals = zip(names, numbers, strict=True)
        contexts.append({name: trainer.vocabularies.context[name].values[number - 1] for name, number in signals})
    assert names == ["hour"]
    users = model.users([history_of(trainer, position) for position in positions], contexts)
    columns = ad_columns(trainer, precision)
    scores = kernel_scores(columns, users, precision).reshape(logits.shape)
    expected = sigmoid(CALIBRATION[0] * logits + CALIBRATION[1])
    assert np.abs(scores - expected).max() < TOLERANCE[precision]
    assert np.ptp(scores) > 0.01


def test_what_the_loaded_model_says_of_itself(exported: Path, trainer: Trainer) -> None:
    model = loaded(exported)
    assert (model.name, model.dim, model.gate_dim, model.experts) == ("tiny", 16, 4, 4)
    assert model.described.metrics == {"mrr": 0.5}
    assert model.fingerprint == loaded(exported).fingerprint
    write_export(exported, "tiny", trainer.network, trainer.table, (0.9, 0.0), {})
    assert model.fingerprint != loaded(exported).fingerprint
    (user,) = model.users([{}], [None])
    assert (user.temperature, user.route) == (CALIBRATION[0], 2)
    assert user.experts.shape == (4, 16)


def test_half_of_the_bytes_say_nearly_the_same(trainer: Trainer, exported: Path, tmp_path: Path) -> None:
    write_export(tmp_path / "half", "tiny", trainer.network, trainer.table, CALIBRATION, {}, weights="float16")
    whole, half = loaded(exported).ads(DATA[0].items), loaded(tmp_path / "half").ads(DATA[0].items)
    assert np.abs(whole[0] - half[0]).max() < 0.01
    sizes = [(folder / "weights.safetensors").stat().st_size for folder in (exported, tmp_path / "half")]
    assert sizes[1] < 0.7 * sizes[0]


def test_ads_that_nobody_knows_have_vectors(exported: Path) -> None:
    model = loaded(exported)
    known = DATA[0].items[3]
    new = msgspec.structs.replace(known, ad_id="never seen")
    strange = AdFeatures(
        ad_id="x", advertiser_id="\ud800", fields={"categories": [None, 3, {"a": []}], "\ud800": ["x"]},
        features={"title": "\ud800 ☃", "text": 7, "list": ["", "c0"], "deep": {"a": [1]}},
    )  # fmt: skip
    embedding, gate = model.ads([known, new, AdFeatures(ad_id="y"), strange])
    assert embedding.shape == (4, 16)
    assert gate.shape == (4, 4)
    assert np.isfinite(embedding).all()
    assert np.isfinite(gate).all()
    assert np.abs(embedding[0] - embedding[1]).max() > 1e-3  # the id says something
    assert np.abs(embedding[1] - embedding[2]).max() > 1e-3  # and so does content
    assert len(model.ads([])[0]) == 0
    many = model.ads([known] * 1500)[0]
    assert np.abs(many - embedding[0]).max() < 1e-6


def test_an_attribute_has_the_same_vector_wherever_an_event_says_it(exported: Path) -> None:
    ads = [
        AdFeatures("i1", "1", fields={"format": ["video"], "categories": ["c1"]}, features={"text": "word1 other1"}),
        AdFeatures("i1", "1", features={"format": "video", "categories": "c1", "title": "word1 other1"}),
        AdFeatures("i1", features={"format": ["video"], "categories": ["c1"], "advertiser_id": "1",
                                   "text": ["word1", "other1"]}),
        AdFeatures("i1", "1", features={"categories": "c1", "text": "word1 other1"}),
    ]  # fmt: skip
    embedding, gate = loaded(exported).ads(ads)
    for vectors in (embedding, gate):
        np.testing.assert_array_equal(vectors[0], vectors[1])
        np.testing.assert_array_equal(vectors[0], vectors[2])
        assert (vectors[0] != vectors[3]).any(), "the format says something"


def test_what_a_request_lacks_or_the_model_does_not_know_is_no_error(exported: Path) -> None:
    model = loaded(exported)
    features: list[dict[str, Any]] = [
        {},
        {"history": [{"ad_id": "never seen"}], "cohort": {"age": "old", "planet": 3}, "surfaces": {"moon": []}},
        {"history": None, "cohort": None, "semantic": None, "surfaces": None},
        {"semantic": {"texts": ["word1", "other2 word1"]}},
        {"semantic": {"vector": [0.1] * 16}},
        {"history": [{"ad_id": "i1"}] * 5000},
    ]
    users = model.users(features, [None, {"hour": "1"}, {"hour": 7, "x": True}, {}, None, None])
    assert all(np.isfinite(user.experts).all() and np.isfinite(user.bias) for user in users)
    same = np.abs(users[0].experts - users[2].experts).max() + abs(users[0].bias - users[2].bias)
    assert same < 1e-5
    for other in (1, 3, 4, 5):
        assert np.abs(users[0].experts - users[other].experts).max() > 1e-4, other
    assert model.users([], []) == []


def test_what_was_understood_of_a_request_is_counted(exported: Path, trainer: Trainer) -> None:
    model = loaded(exported)
    told = {
        "history": [{"ad_id": "i1"}, {"ad_id": "nobody's"}, {"item": "i2"}],
        "surfaces": {"shop": [{"ad_id": "i3"}, {"ad_id": "new"}], "elsewhere": [{"ad_id": "i3"}]},
        "cohort": {"age": 30, "gender": "x", "height": 2, "none": None},
        "semantic": {"texts": ["word1", "other2 new"]},
    }
    full, empty, wordless, vector = model.users(
        [told, {}, {"semantic": {"texts": ["…"]}}, {"semantic": {"vector": [0.5] * 16}}],
        [{"hour": "1", "weather": "rain"}, None, {"hour": None}, {"hour": "99"}],
    )
    assert figures(full) == {
        "history": (2, 1), "surfaces": (1, 2), "cohort": (1, 2), "semantic": (2, 0), "context": (1, 1),
    }  # fmt: skip
    nothing = dict.fromkeys(TOLD, (0, 0))
    assert figures(empty) == nothing
    assert figures(wordless) == nothing | {"semantic": (0, 1)}
    assert figures(vector) == nothing | {"semantic": (1, 0), "context": (0, 1)}
    assert model.users([], []) == []


def test_what_the_model_has_no_tower_for_is_not_understood(trainer: Trainer) -> None:
    known = trainer.vocabularies
    alone = msgspec.structs.replace(ARCHITECTURE, towers=("surfaces",), experts=("surfaces",), route=1)
    ids_only = msgspec.structs.replace(alone, towers=("sequence",), experts=("sequence",), ids_only=True)
    assert dict(zip(TOLD, read_by(ARCHITECTURE, known), strict=True)) == dict.fromkeys(TOLD, True)
    assert [part for part, read in zip(TOLD, read_by(alone, known), strict=True) if read] == ["surfaces", "context"]
    assert [part for part, read in zip(TOLD, read_by(ids_only, known), strict=True) if read] == ["history"]


def figures(user: User) -> dict[str, tuple[int, int]]:
    assert user.understood is not None
    return {part: (each["known"], each["unknown"]) for part, each in understood_figures(user.understood).items()}


def test_history_is_taken_by_time_where_it_has_one(exported: Path) -> None:
    model = loaded(exported)
    plain = [{"ad_id": f"i{i}"} for i in (3, 7, 11)]
    times = ["2026-11-30T12:00:00Z", "2026-11-30T14:00:00+01:00", "2026-11-30T13:30:00Z"]
    timed = [each | {"time": time} for each, time in zip(plain, times, strict=True)]
    shuffled = [timed[2], timed[0], timed[1]]
    a, b, c = model.users([{"history": plain}, {"history": shuffled}, {"history": plain[::-1]}], [None] * 3)
    assert np.abs(a.experts - b.experts).max() < 1e-6
    assert np.abs(a.experts - c.experts).max() > 1e-4


@pytest.mark.parametrize(
    ("features", "context", "path"),
    [
        ([], None, "[1].features"),
        ({"histroy": []}, None, "[1].features.histroy"),
        ({"history": {}}, None, "[1].features.history"),
        ({"history": [{"ad_id": 3}]}, None, "[1].features.history[0].ad_id"),
        ({"history": [{"item": "a"}, {}]}, None, "[1].features.history[1].ad_id"),
        ({"history": [{"item": "a", "ad_id": "b"}]}, None, "[1].features.history[0].item"),
        ({"history": [{"item": "a", "time": "noon"}]}, None, "[1].features.history[0].time"),
        ({"history": [{"item": "a", "time": "2026-11-30T12:00:00"}]}, None, "[1].features.history[0].time"),
        ({"surfaces": {"shop": [{"item": None}]}}, None, "[1].features.surfaces.shop[0].item"),
        ({"surfaces": []}, None, "[1].features.surfaces"),
        ({"cohort": {"age": [3]}}, None, "[1].features.cohort.age"),
        ({"semantic": {"vector": [1, 2]}}, None, "[1].features.semantic.vector"),
        ({"semantic": {"vector": [1e40] * 16}}, None, "[1].features.semantic.vector"),
        ({"semantic": {"texts": "one"}}, None, "[1].features.semantic.texts"),
        ({"semantic": {"texts": ["x" * 50_000, "y" * 50_001]}}, None, "[1].features.semantic.texts"),
        ({}, [], "[1].context"),
        ({}, {"hour": {}}, "[1].context.hour"),
    ],
)
def test_a_wrong_shape_is_an_error_with_its_place(exported: Path, features: Any, context: Any, path: str) -> None:
    with pytest.raises(InvalidInput) as fault:
        loaded(exported).users([{}, features], [None, context])
    assert fault.value.path == path


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dim", 8, "its dim is not"), ("experts", 3, "its experts is not"), ("route", 99, "its route is not"),
        ("shapes", {"head": "1x2"}, "its shapes is not"), ("name", "", "1 to 200 characters"),
        ("name", "x" * 201, "1 to 200 characters"), ("bias", 1e999, "not a model's description"),
    ],
)  # fmt: skip
def test_a_description_that_is_not_of_its_weights_is_refused(
    exported: Path, name: str, value: object, message: str
) -> None:
    described = json.loads((exported / "model.json").read_bytes())
    load_model(exported)
    (exported / "model.json").write_text(json.dumps(described | {name: value}))
    with pytest.raises(ModelError, match=message):
        load_model(exported)


def test_a_model_that_cannot_be_used_is_refused(
    exported: Path, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="holds no whole model"):
        load_model(tmp_path / "nothing")
    weights = exported / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ModelError, match=r"weights\.safetensors is damaged"):
        load_model(exported)
    (exported / "model.json").write_text("{}")
    with pytest.raises(ModelError, match="not a model's description"):
        load_model(exported)
    ranker = Trainer(DATA[0], msgspec.structs.replace(ARCHITECTURE, head="ranker"), RECIPE, tmp_path / "r")
    with pytest.raises(ModelError, match="cannot be served"):
        write_export(tmp_path / "r", "r", ranker.network, ranker.table, CALIBRATION, {})
    monkeypatch.delitem(sys.modules, "scoring.model.export")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"needs the package torch.*mirach\[model\]"):
        load_model(exported)


def test_evaluation_says_all_of_it(trainer: Trainer) -> None:
    found = evaluate(trainer, DATA[0])
    assert set(found["served"]) == {"float32", "float16", "int8"}
    assert found["served"]["float32"]["top_100_overlap"] == 1.0
    assert len(found["ranks"]) == 40
    assert 0 < found["probability"]["normalised_entropy"] < 1.1
    served = [found["served"][precision]["hr@10"] for precision in ("float32", "int8")]
    assert served[0] == pytest.approx(found["ranking"]["hr@10"])  # the kernels rank as the network does
    assert abs(served[0] - served[1]) < 0.1
    assert found["flops_per_candidate"] == trainer.network.head.flops()


def test_users_are_the_contracts(exported: Path) -> None:
    (user,) = loaded(exported).users([{}], [None])
    assert isinstance(user, User)
    assert user.experts.dtype == user.gates.dtype == user.gate_bias.dtype == np.float32
