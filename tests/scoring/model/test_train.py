"""Training: it learns, is the same from the same seed, goes on where it stopped, and estimates the full softmax."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")

from scoring.model.config import Architecture, Recipe
from scoring.model.data import TEST, read_dataset, write_dataset
from scoring.model.evaluate import evaluate
from scoring.model.features import FIRST_ITEM, NO_ITEM
from scoring.model.network import table_rows
from scoring.model.ranking import all_logits, encode_catalogue, encode_users, rank_targets, ranking_metrics
from scoring.model.train import Trainer, TrainingError, load_run
from tests.scoring.model.tiny import ARCHITECTURE, RECIPE, dataset


def silent(line: object) -> None:
    """Progress that nobody looks at."""


def changed(settings: Recipe, **values: object) -> Recipe:
    return msgspec.convert(msgspec.to_builtins(settings) | values, Recipe)


@pytest.mark.parametrize("head", ["gate", "dot", "mol"])
def test_it_learns_the_pattern(tmp_path: Path, head: str) -> None:
    data = dataset(tmp_path)
    recipe = changed(RECIPE, epochs=12, patience=12)
    trainer = Trainer(data, msgspec.structs.replace(ARCHITECTURE, head=head), recipe, tmp_path / "run")
    lines: list[dict[str, float]] = []
    trainer.run(lines.append)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    targets = np.flatnonzero(trainer.sequences.split == TEST)
    metrics = ranking_metrics(rank_targets(trainer.network, trainer.table, trainer.sequences, targets))
    assert metrics["mrr"] > 0.3, metrics  # by chance: about 0.2 of the items that are left
    written = [msgspec.json.decode(line) for line in (tmp_path / "run" / "log.jsonl").read_bytes().splitlines()]
    assert written == lines


def test_a_ranker_begins_as_the_model_that_it_is_warm_started_from(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    dot = Trainer(data, msgspec.structs.replace(ARCHITECTURE, head="dot"), RECIPE, tmp_path / "dot")
    dot.run(silent)
    ranker = Trainer(data, msgspec.structs.replace(ARCHITECTURE, head="ranker"), RECIPE, tmp_path / "ranker")
    ranker.warm_start(tmp_path / "dot" / "best.safetensors")
    positions = np.arange(20)
    pairs = [dict(all_logits(each.network, each.table, each.sequences, positions, False)) for each in (dot, ranker)]
    theirs, ours = (torch.cat(list(each.values())) for each in pairs)
    assert (theirs - ours).abs().max() < 1e-4
    ranker.run(silent)
    assert ranker.best_epoch > 0


def test_the_same_seed_gives_the_same_weights_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    whole = Trainer(data, ARCHITECTURE, changed(RECIPE, dropout=0.2), tmp_path / "whole")
    whole.run(silent)
    first = Trainer(data, ARCHITECTURE, changed(RECIPE, dropout=0.2), tmp_path / "parts")
    first.epoch = 1  # as if the recipe asked for one epoch less, at the same learning rates
    first.run(silent)
    first.epoch = first.best_epoch = 1
    first.save()
    second = Trainer(data, ARCHITECTURE, changed(RECIPE, dropout=0.2), tmp_path / "parts")
    second.resume()
    assert second.epoch == 1
    second.run(silent)
    for name, value in whole._weights().items():
        assert torch.equal(value, second._weights()[name]), name


def test_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    Trainer(data, ARCHITECTURE, changed(RECIPE, epochs=1), tmp_path / "run").run(silent)
    other = Trainer(data, ARCHITECTURE, changed(RECIPE, batch=7), tmp_path / "run")
    with pytest.raises(TrainingError, match="another batch"):
        other.resume()
    with pytest.raises(TrainingError, match="on another data set"):
        load_run(dataset(tmp_path / "more", seed=9, shown=True), tmp_path / "run")
    with pytest.raises(TrainingError, match="holds no trained run"):
        load_run(data, tmp_path / "nowhere")
    assert load_run(data, tmp_path / "run").epoch == 1


def test_users_who_engaged_with_all_there_is_leave_nothing_to_judge_by(tmp_path: Path) -> None:
    shown = [{"user_id": user, "item_id": item, "time": time} for user in "uv" for time, item in enumerate("abc")]
    write_dataset(tmp_path, [{"item_id": item} for item in "abc"], [{"user_id": user} for user in "uv"], shown)
    data = read_dataset(tmp_path)
    with pytest.raises(TrainingError, match="nothing is left to judge by"):
        evaluate(Trainer(data, ARCHITECTURE, RECIPE, tmp_path / "run"), data)


def test_training_that_goes_astray_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that are no numbers rank every target first: NDCG@10 alone would call it the best."""
    trainer = Trainer(dataset(tmp_path), ARCHITECTURE, RECIPE, tmp_path / "run")
    with torch.no_grad():
        trainer.network.items.id.weight.fill_(float("nan"))
    with pytest.raises(TrainingError, match="loss of epoch 1 is not a finite number"):
        trainer.run(silent)
    assert not (tmp_path / "run" / "best.safetensors").exists()


def test_it_stops_where_validation_gets_no_better(tmp_path: Path) -> None:
    trainer = Trainer(dataset(tmp_path), ARCHITECTURE, changed(RECIPE, epochs=50, patience=2, learning_rate=0.0),
                      tmp_path / "run")  # fmt: skip
    assert trainer.run(silent)["epoch"] == 3


def test_the_sampled_loss_estimates_that_over_the_whole_catalogue(tmp_path: Path) -> None:
    """With many draws, and none of what is random else, corrected samples give nearly the full softmax."""
    trainer = Trainer(dataset(tmp_path), ARCHITECTURE, changed(RECIPE, popularity=1.0), tmp_path / "run")
    network = trainer.network.eval()
    positions = np.arange(10)
    target = trainer.sequences.item[positions]
    users = np.searchsorted(trainer.sequences.start, positions, side="right") - 1
    user = encode_users(network, trainer.table, trainer.sequences, users, positions)
    user = user._replace(experts=4 * user.experts)  # an untrained model says much the same of every item
    logits = network.head.logits(user, encode_catalogue(network, trainer.table, rounding=True))
    full = torch.nn.functional.cross_entropy(logits, torch.from_numpy(target - FIRST_ITEM)).item()
    trainer.chance = np.arange(1.0, len(trainer.drawn) + 1)
    trainer.chance /= trainer.chance.sum()
    needed = np.concatenate([[NO_ITEM], trainer.drawn])
    with torch.no_grad():
        base, _ = network.items(table_rows(trainer.table, needed, trainer.device))
        drawn = trainer.rng.choice(trainer.drawn, 50_000, p=trainer.chance)
        sampled = trainer._softmax(user, base, needed, target, drawn).item()
        exact = trainer._softmax(user, base, needed, target, trainer.drawn).item()
        trainer.chance = np.full(len(trainer.drawn), 1 / len(trainer.drawn))
        uncorrected = trainer._softmax(user, base, needed, target, drawn).item()
    assert exact == pytest.approx(full, abs=1e-5)
    assert sampled == pytest.approx(full, abs=0.03)
    assert abs(uncorrected - full) > max(0.03, 3 * abs(sampled - full))


def test_cold_items_are_not_trained_on(tmp_path: Path) -> None:
    trainer = Trainer(dataset(tmp_path), ARCHITECTURE, changed(RECIPE, cold=0.3), tmp_path / "run")
    trained = np.unique(trainer.sequences.item[trainer.trained])
    cold = np.setdiff1d(np.arange(FIRST_ITEM, FIRST_ITEM + 24), trainer.drawn)
    assert 0 < len(cold) < 24
    assert not np.intersect1d(trained, cold).size


def test_an_architecture_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="route 5"):
        Architecture(route=5)
    with pytest.raises(ValueError, match="up to 16 experts"):
        Architecture(experts=("sequence",) * 17)
    with pytest.raises(ValueError, match="surfaces"):
        Architecture(experts=("surfaces", "sequence"))
