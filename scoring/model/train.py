"""Training: sampled softmax over the whole catalogue, from a seed, resumable.

A step: windows of users' histories, as many positions as they hold; negatives are drawn for the whole batch from the
catalogue by count ** popularity, and each logit is corrected by the log of how often its item is drawn (logQ), so that
the softmax over a few hundred estimates the one over all. Ads' vectors are rounded to int8 and experts are routed as
they will be served. After each epoch the validation's NDCG@10 over the whole catalogue decides whether this was the
best so far; `patience` epochs without a better one end it.

A run's folder: run.json (architecture, recipe, how far it is), vocabularies.json, log.jsonl (a line for each epoch),
last.safetensors (weights, optimizer and random state, from which it resumes) and best.safetensors (weights).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.random import default_rng
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from scoring.model.config import Architecture, Recipe
from scoring.model.data import SPLITS, TEST, TRAIN, VALIDATION, Dataset
from scoring.model.features import FIRST_ITEM, NO_ITEM, ItemTable, Vocabularies, catalogue, make_vocabularies
from scoring.model.heads import UserSide
from scoring.model.metrics import fit_calibration, normalised_entropy
from scoring.model.network import Network, table_rows, user_batch
from scoring.model.ranking import impression_logits, rank_targets, ranking_metrics
from scoring.model.sequences import Sequences, Windows, make_impressions, make_sequences, windows
from scoring.reference import sigmoid

RANKER_POSITIONS = 128  # of a batch, that the ranker is trained on: each of its candidates costs a thousand times more
RANKER_NEGATIVES = 64
VALIDATION_TARGETS_MAX = 1000
VALIDATION_IMPRESSIONS_MAX = 10_000
STATE = ("epoch", "step", "best_epoch", "best", "seconds", "curve", "random")  # of run.json, to go on from
MAY_CHANGE = ("epochs", "minutes", "patience")  # of the recipe, where a run goes on

Json = dict[str, Any]


class Trainer:
    def __init__(self, dataset: Dataset, architecture: Architecture, recipe: Recipe, folder: Path) -> None:
        self.architecture, self.recipe, self.folder = architecture, recipe, folder
        torch.manual_seed(recipe.seed)
        self.rng = default_rng(recipe.seed)
        self.vocabularies: Vocabularies = make_vocabularies(dataset, architecture.word_buckets)
        self.table: ItemTable = catalogue(dataset.items, self.vocabularies)
        self.sequences: Sequences = make_sequences(dataset, self.table, self.vocabularies)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = Network(architecture, self.vocabularies, recipe.dropout).to(self.device)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.98)
        )
        self.trained = trained_positions(self.sequences, recipe, len(dataset.items))
        self.drawn, self.chance = _negative_items(self.sequences, self.trained, recipe, len(dataset.items))
        self.shown = make_impressions(dataset, self.vocabularies)
        self.judged = np.flatnonzero((self.shown.split == TRAIN) & ~_cold_rows(self.shown.item, recipe, dataset))
        clicked = self.shown.engaged[self.judged]
        self.predicts_clicks = bool(recipe.impressions) and bool(clicked.any()) and not clicked.all()
        per_user = np.bincount(self.sequences.user[self.trained])
        self.epoch_steps = math.ceil(np.ceil(per_user / architecture.history).sum() / recipe.batch)
        self.epoch = self.step = self.best_epoch = 0
        self.best = -math.inf
        self.seconds = 0.0
        self.curve: list[Json] = []

    def run(self, progress: Callable[[Json], None]) -> Json:
        """Trains until it is done -> what run.json says. `progress` is told of each epoch."""
        self.check_splits()
        self.folder.mkdir(parents=True, exist_ok=True)
        recipe = self.recipe
        while self.epoch < recipe.epochs and self.epoch - self.best_epoch < recipe.patience:
            if self.seconds > recipe.minutes * 60:
                break
            start = perf_counter()
            loss = self._epoch()
            self.epoch += 1
            self.seconds += perf_counter() - start
            line: Json = {"epoch": self.epoch, "step": self.step, "seconds": round(self.seconds, 1), "loss": loss}
            line |= {f"validation_{name}": value for name, value in self.validate().items()}
            for name, value in line.items():
                if not math.isfinite(value):
                    raise TrainingError(
                        f"{name} of epoch {self.epoch} is not a finite number: training went astray, so nothing of "
                        "this epoch was kept; a lower learning_rate may help"
                    )
            value = -line["validation_entropy"] if self.predicts_clicks else line["validation_ndcg@10"]
            if value > self.best:
                self.best, self.best_epoch = value, self.epoch
                save_file(self._weights(), self.folder / "best.safetensors")
            self.curve.append(line)
            self.save()
            progress(line)
        if not self.best_epoch:
            raise TrainingError(f"{self.folder} holds no best epoch: there is nothing to evaluate or to export")
        self.network.load_state_dict(read_weights(self.folder / "best.safetensors"))
        return self.state()

    def check_splits(self) -> None:
        """Raises TrainingError where training, or judging what it made, lacks what it needs."""
        if not self.trained.any():
            raise TrainingError("the data set has no engagement in the split train: there is nothing to learn from")
        for split in (VALIDATION, TEST):
            if not (self.sequences.split == split).any():
                raise TrainingError(
                    f"the split {SPLITS[split]} has no engagement on the served surface: more data is needed, or a "
                    "column `split` that holds some out"
                )
            if self.predicts_clicks and self.shown.engaged[self.shown.split == split].all():
                raise TrainingError(
                    f"the split {SPLITS[split]} has no impression of label 0, unlike train: hold out impressions of "
                    "both labels, or leave the column `split` out"
                )

    def state(self) -> Json:
        return {
            "architecture": msgspec.to_builtins(self.architecture), "recipe": msgspec.to_builtins(self.recipe),
            "epoch": self.epoch, "step": self.step, "best_epoch": self.best_epoch, "best": self.best,
            "seconds": round(self.seconds, 1), "device": str(self.device), "torch": str(torch.__version__),
            "parameters": sum(weights.numel() for weights in self.network.parameters()), "curve": self.curve,
        }  # fmt: skip

    def _epoch(self) -> float:
        """One pass over all trained positions -> mean loss"""
        self.network.train()
        users, ends = _window_ends(self.sequences, self.trained, self.architecture.history, self.rng)
        order = self.rng.permutation(len(users))
        total, steps = 0.0, 0
        for at in range(0, len(order), self.recipe.batch):
            chosen = order[at : at + self.recipe.batch]
            loss = self._step(users[chosen], ends[chosen])
            total, steps = total + loss, steps + 1
        return total / max(steps, 1)

    def _step(self, users: NDArray[np.int64], ends: NDArray[np.int64]) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * self._rate()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self._loss(users, ends)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def _rate(self) -> float:
        """Of the learning rate: up in a straight line, then down as half a cosine to a tenth at the last epoch."""
        done = min(self.step / (self.epoch_steps * self.recipe.epochs), 1.0)
        return min(1.0, (self.step + 1) / self.recipe.warm_up) * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))

    def _loss(self, users: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
        architecture, recipe = self.architecture, self.recipe
        rows = windows(self.sequences, users, ends, architecture.history, architecture.surface_history)
        rows = self._hide_signals(rows)
        in_row = np.arange(architecture.history) < rows.length[:, None]
        which = np.flatnonzero(in_row & self.trained[rows.position])  # [P]
        count = recipe.negatives
        if architecture.head == "ranker":
            which = np.sort(self.rng.choice(which, min(RANKER_POSITIONS, len(which)), replace=False))
            count = RANKER_NEGATIVES
        target = self.sequences.item[rows.position.ravel()[which]]  # [P] rows of the table
        negative = self._negatives(count)
        user, base, needed = self._encode(rows, which, np.concatenate([target, negative]))
        loss = self._softmax(user, base, needed, target, negative)
        loss = loss + recipe.balance * self.network.head.balance()
        return loss + self._clicks() if self.predicts_clicks else loss

    def _encode(
        self, rows: Windows, which: NDArray[np.int64], items: NDArray[np.int64]
    ) -> tuple[UserSide, Tensor, NDArray[np.int64]]:
        """Users at the places `which` of the windows -> user side, base vectors [needed, D], and the rows of the item
        table that these are of: the windows' own and `items`. Some ids are hidden."""
        tokens = (rows.token.ravel(), rows.surface_token.ravel())
        needed = np.unique(np.concatenate([[NO_ITEM], *tokens, items]))
        hide = torch.from_numpy(self.rng.random(len(needed)) < self.recipe.id_dropout).to(self.device)
        base, text = self.network.items(table_rows(self.table, needed, self.device), hide)
        batch = user_batch(rows, needed, self.device)
        return self.network.users(batch, base, text, torch.from_numpy(which).to(self.device)), base, needed

    def _clicks(self) -> Tensor:
        """Log loss of the clicks of impressions drawn evenly, in units of that of knowing nothing but their share."""
        length, recipe = self.architecture.history, self.recipe
        shown = self.shown.of(self.rng.choice(self.judged, recipe.impressions))
        rows = windows(
            self.sequences, shown.user, shown.position, length, self.architecture.surface_history, shown.asked
        )
        which = np.arange(len(shown.user)) * length + rows.length - 1
        user, base, needed = self._encode(self._hide_signals(rows), which, shown.item)
        places = torch.from_numpy(np.searchsorted(needed, shown.item)).to(self.device)
        logits = self.network.head.logits(user, self.network.ads(base[places], recipe.rounding), paired=True).float()
        share = float(self.shown.engaged[self.judged].mean())
        clicked = torch.from_numpy(shown.engaged.astype(np.float32)).to(self.device)
        offset = math.log(share / (1 - share))  # a logit of 0 says what is said of no ad in particular
        unknowing = -(share * math.log(share) + (1 - share) * math.log(1 - share))
        return binary_cross_entropy_with_logits(logits + offset, clicked) / unknowing

    def _hide_signals(self, rows: Windows) -> Windows:
        """Now and then a signal is missing, so that there is something to fall back to when a request lacks it."""
        share, count = self.recipe.signal_dropout, len(rows.length)
        hidden = self.rng.random((count, rows.cohort.shape[1] + 2)) < share  # [B, signal, context and surfaces]
        context = np.where(hidden[:, -1, None, None], 0, rows.context)
        surface_at = np.where(hidden[:, -2, None], 0, rows.surface_at)
        return rows._replace(cohort=np.where(hidden[:, :-2], 0, rows.cohort), context=context, surface_at=surface_at)

    def _softmax(
        self, user: UserSide, base: Tensor, needed: NDArray[np.int64], target: NDArray[np.int64],
        negative: NDArray[np.int64],
    ) -> Tensor:  # fmt: skip
        """Cross entropy of each target [P] against the negatives [N], or the catalogue where they are all of it."""
        head, rounding = self.network.head, self.recipe.rounding
        places = torch.from_numpy(np.searchsorted(needed, negative)).to(self.device)
        logits = head.logits(user, self.network.ads(base[places], rounding)).float()  # [P, N]
        if len(negative) == len(self.drawn):
            return cross_entropy(logits, torch.from_numpy(np.searchsorted(negative, target)).to(self.device))
        places = torch.from_numpy(np.searchsorted(needed, target)).to(self.device)
        own = head.logits(user, self.network.ads(base[places], rounding), paired=True).float()  # [P]
        same = torch.from_numpy(target[:, None] == negative).to(self.device)  # [P, N] the target itself was drawn
        expected = np.log(len(negative) * self.chance[np.searchsorted(self.drawn, negative)])  # draws of each
        logits = (logits - torch.from_numpy(expected.astype(np.float32)).to(self.device)).masked_fill(same, -1e9)
        return (torch.logaddexp(own, torch.logsumexp(logits, 1)) - own).mean()

    def _negatives(self, count: int) -> NDArray[np.int64]:
        """Rows of the table: `count` draws with replacement; 0, or more than there are: all items."""
        if count == 0 or count >= len(self.drawn):
            return self.drawn
        return self.rng.choice(self.drawn, count, p=self.chance)

    def validate(self) -> dict[str, float]:
        targets = np.flatnonzero(self.sequences.split == VALIDATION)
        if len(targets) > VALIDATION_TARGETS_MAX:
            targets = default_rng(0).choice(targets, VALIDATION_TARGETS_MAX, replace=False)
        limit = 300 if self.architecture.head == "ranker" else None
        ranks = rank_targets(self.network, self.table, self.sequences, np.sort(targets)[:limit], self.recipe.rounding)
        metrics = ranking_metrics(ranks)
        if self.predicts_clicks:
            chosen = np.flatnonzero(self.shown.split == VALIDATION)
            if len(chosen) > VALIDATION_IMPRESSIONS_MAX:
                chosen = default_rng(0).choice(chosen, VALIDATION_IMPRESSIONS_MAX, replace=False)
            shown = self.shown.of(chosen)
            logits = impression_logits(self.network, self.table, self.sequences, shown, self.recipe.rounding)
            temperature, bias = fit_calibration(logits, shown.engaged)
            metrics["entropy"] = normalised_entropy(sigmoid(temperature * logits + bias), shown.engaged)
        return metrics

    def save(self) -> None:
        """All that training goes on from. The state is put in place last, so that it never names what is torn."""
        tensors = {f"network.{name}": value for name, value in self._weights().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value.contiguous() for name, value in state.items()}
        tensors["random"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random_cuda"] = torch.cuda.get_rng_state(self.device)
        (self.folder / "vocabularies.json").write_bytes(msgspec.json.encode(self.vocabularies))
        part = self.folder / "last.part"
        save_file(tensors, part)
        part.replace(self.folder / "last.safetensors")
        held = self.state() | {"random": self.rng.bit_generator.state}
        part.write_bytes(msgspec.json.format(msgspec.json.encode(held)))
        part.replace(self.folder / "run.json")
        (self.folder / "log.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in self.curve))

    def resume(self) -> None:
        """Goes on from what `save` wrote. Raises TrainingError where it was another run."""
        for name in ("run.json", "vocabularies.json", "last.safetensors"):
            if not (self.folder / name).exists():
                raise TrainingError(f"{self.folder} holds no trained run: {name} is missing")
        held = read_state(self.folder)
        for mine, kind in ((self.architecture, Architecture), (self.recipe, Recipe)):
            other = held[kind.__name__.lower()]
            names = [name for name in kind.__struct_fields__ if getattr(mine, name) != getattr(other, name)]
            changed = [name for name in names if name not in MAY_CHANGE]
            if changed:
                raise TrainingError(
                    f"{self.folder} holds a run with another {changed[0]}, {getattr(other, changed[0])}: where a run "
                    f"goes on, only {', '.join(MAY_CHANGE)} may be changed; leave it out, or give another folder"
                )
        kept = msgspec.json.decode((self.folder / "vocabularies.json").read_bytes(), type=Vocabularies)
        mine_without = msgspec.structs.replace(self.vocabularies, columns=[])  # as runs of before had them
        if kept not in (self.vocabularies, mine_without):
            raise TrainingError(f"{self.folder} holds a run on another data set: give that one, or another folder")
        tensors = read_weights(self.folder / "last.safetensors")
        weights = {name: value for name, value in tensors.items() if name.startswith("network.")}
        self.network.load_state_dict({name.removeprefix("network."): value for name, value in weights.items()})
        state: dict[int, Json] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": state})
        torch.set_rng_state(tensors["random"])
        if self.device.type == "cuda" and "random_cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random_cuda"], self.device)
        self.rng.bit_generator.state = held["random"]
        self.epoch, self.step, self.best_epoch, self.best = (
            held[name] for name in ("epoch", "step", "best_epoch", "best")
        )
        self.seconds, self.curve = held["seconds"], held["curve"]

    def warm_start(self, weights: Path) -> None:
        """Takes over what a model of the same towers has learnt, as the ranker does. Raises TrainingError."""
        own = self.network.state_dict()
        taken = {name: value for name, value in read_weights(weights).items() if name in own}
        taken = {name: value for name, value in taken.items() if own[name].shape == value.shape}
        self.network.load_state_dict(own | taken)

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().cpu().contiguous() for name, value in self.network.state_dict().items()}


def use_threads(count: int) -> None:
    """Of PyTorch; 0: as many as it chooses."""
    if count:
        torch.set_num_threads(count)


def load_run(dataset: Dataset, folder: Path) -> Trainer:
    """A trained run with its best weights. Raises TrainingError."""
    held, best = read_state(folder), read_weights(folder / "best.safetensors")
    trainer = Trainer(dataset, held["architecture"], held["recipe"], folder)
    trainer.resume()
    trainer.network.load_state_dict(best)
    return trainer


def read_state(folder: Path) -> Json:
    """run.json, the architecture and the recipe in it as such. Raises TrainingError."""
    try:
        state: Json = msgspec.json.decode((folder / "run.json").read_bytes(), type=dict[str, Any])
        for name, kind in (("architecture", Architecture), ("recipe", Recipe)):
            state[name] = msgspec.convert(state.get(name), kind)
    except OSError as error:
        raise TrainingError(f"{folder} holds no trained run: run.json cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise TrainingError(f"{folder / 'run.json'} is damaged: {error}") from None
    missing = [name for name in STATE if name not in state]
    if missing:
        raise TrainingError(f"{folder / 'run.json'} is damaged: it has no {missing[0]}")
    return state


def read_weights(path: Path) -> dict[str, Tensor]:
    """Raises TrainingError."""
    if not path.is_file():
        raise TrainingError(f"{path.parent} holds no trained run: {path.name} is missing")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from None


class TrainingError(Exception):
    """Training cannot go on. The message is a sentence that says what to do."""


def cold_items(recipe: Recipe, items: int) -> NDArray[np.bool_]:
    """[item] those that are kept out of training: drawn from the seed."""
    return default_rng(recipe.seed + 7_919).random(items) < recipe.cold


def _cold_rows(rows: NDArray[np.int64], recipe: Recipe, dataset: Dataset) -> NDArray[np.bool_]:
    """Which of these rows of the item table are of cold items."""
    cold: NDArray[np.bool_] = cold_items(recipe, len(dataset.items))[rows - FIRST_ITEM]
    return cold


def trained_positions(sequences: Sequences, recipe: Recipe, items: int) -> NDArray[np.bool_]:
    """[position] whether it is trained on."""
    cold: NDArray[np.bool_] = cold_items(recipe, items)[sequences.item - FIRST_ITEM]
    trained: NDArray[np.bool_] = (sequences.split == TRAIN) & ~cold
    return trained


def _negative_items(
    sequences: Sequences, trained: NDArray[np.bool_], recipe: Recipe, items: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows that negatives are drawn from, and how likely each is drawn."""
    count = np.bincount(sequences.item[trained] - FIRST_ITEM, minlength=items) + 1.0
    drawn = np.flatnonzero(~cold_items(recipe, items))
    chance = count[drawn] ** recipe.popularity
    return drawn + FIRST_ITEM, chance / chance.sum()


def _window_ends(
    sequences: Sequences, trained: NDArray[np.bool_], length: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Windows that cover the trained positions -> user, last position of each. In half of the epochs a user's begin
    up to half a window earlier, so that they do not always part at the same places."""
    user = sequences.user
    places = np.flatnonzero(trained)
    last = np.full(len(sequences.start) - 1, -1, np.int64)
    last[user[places]] = places  # the last write stays
    users: list[NDArray[np.int64]] = []
    ends: list[NDArray[np.int64]] = []
    shifts = rng.integers(0, length // 2 + 1, len(last)) * rng.integers(0, 2, len(last))
    for u in np.flatnonzero(last >= 0).tolist():
        end = np.arange(max(last[u] - shifts[u], sequences.start[u]), sequences.start[u] - 1, -length)
        users.append(np.full(len(end), u))
        ends.append(end)
    return np.concatenate(users), np.concatenate(ends)
