"""Evaluation of a trained model on held-out engagements, as one JSON object.

Ranking is over the whole catalogue without what the user engaged with before. Probabilities are judged on what was
shown (label 0 and 1) where the data says so; else each held-out engagement is set beside NEGATIVES items drawn evenly
from those that the user never engaged with. Temperature and bias are fitted on the validation and judged on the test.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from kernels.precision import Precision, quantise_rows, row_width, storage_dtype
from kernels.score import ScoreColumns, score
from kernels.threads import threads_max
from scoring.model.config import SERVED_HEADS
from scoring.model.data import TEST, VALIDATION, Dataset
from scoring.model.export import users_of
from scoring.model.features import FIRST_ITEM
from scoring.model.metrics import auc, auc_by_group, calibration, fit_calibration, log_loss, normalised_entropy
from scoring.model.ranker import Ranker
from scoring.model.ranking import (
    all_logits,
    encode_catalogue,
    encode_users,
    impression_logits,
    rank_targets,
    ranking_metrics,
)
from scoring.model.sequences import make_impressions
from scoring.model.train import Trainer, TrainingError, cold_items
from scoring.user import User, pack

NEGATIVES = 19  # beside each held-out engagement, where nothing is known of what was shown
CALIBRATED_MAX = 5000  # engagements
SERVED_USERS_MAX = 500  # whose whole catalogue the kernels score
TOP = 100
TIMED_ADS = 100_000
TIMED_REPETITIONS = 15

Json = dict[str, Any]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Judged(NamedTuple):
    """Logits and what happened."""

    logit: Floats  # [case]
    engaged: NDArray[np.bool_]  # [case]
    group: Ints  # [case] those that one user chose among


def evaluate(trainer: Trainer, dataset: Dataset) -> Json:
    """All metrics of the trainer's network. `ranks` [test engagement] is kept for paired comparisons.
    Raises TrainingError where the data set holds nothing to judge it by."""
    trainer.check_splits()
    start = perf_counter()
    network, table, sequences = trainer.network, trainer.table, trainer.sequences
    targets = np.flatnonzero(sequences.split == TEST)
    ranks = rank_targets(network, table, sequences, targets, rounding=False)
    result: Json = {"ranking": ranking_metrics(ranks), "flops_per_candidate": network.head.flops()}
    fitted = fit_calibration(*_judged(trainer, dataset, VALIDATION)[:2])
    result["probability"] = _probabilities(_judged(trainer, dataset, TEST), fitted)
    result["temperature"], result["bias"] = fitted
    if network.architecture.head in SERVED_HEADS:
        result["served"] = _served(trainer, targets, fitted)
        result["kernel_threads"] = threads_max()
    if trainer.recipe.cold:
        result["cold"] = _cold(trainer)
    result["ranks"] = ranks.tolist()
    result["evaluation_seconds"] = round(perf_counter() - start, 1)
    return result


def _probabilities(judged: Judged, fitted: tuple[float, float]) -> Json:
    logit, engaged, group = judged
    probability = 1 / (1 + np.exp(-(fitted[0] * logit + fitted[1])))
    return {
        "cases": len(logit), "share_engaged": float(engaged.mean()), "auc": auc(logit, engaged),
        "auc_by_user": auc_by_group(logit, engaged, group),
        "log_loss": log_loss(probability, engaged),
        "normalised_entropy": normalised_entropy(probability, engaged),
        "calibration": calibration(probability, engaged),
    }  # fmt: skip


def _judged(trainer: Trainer, dataset: Dataset, split: int) -> Judged:
    shown = make_impressions(dataset, trainer.vocabularies)
    chosen = np.flatnonzero(shown.split == split)
    if not shown.engaged[chosen].all():
        network, table, rounding = trainer.network, trainer.table, trainer.recipe.rounding
        logits = impression_logits(network, table, trainer.sequences, shown.of(chosen), rounding)
        return Judged(logits, shown.engaged[chosen], shown.user[chosen])
    return _drawn_beside(trainer, split)


def _drawn_beside(trainer: Trainer, split: int) -> Judged:
    rng = default_rng(split)
    sequences = trainer.sequences
    targets = np.flatnonzero(sequences.split == split)
    limit = CALIBRATED_MAX if not isinstance(trainer.network.head, Ranker) else CALIBRATED_MAX // 5
    if len(targets) > limit:
        targets = np.sort(rng.choice(targets, limit, replace=False))
    user = sequences.user
    logits, engaged = [], []
    for at, part in all_logits(trainer.network, trainer.table, sequences, targets, trainer.recipe.rounding):
        for row, position in enumerate(targets[at : at + len(part)].tolist()):
            u = user[position]
            own = sequences.item[sequences.start[u] : sequences.start[u + 1]] - FIRST_ITEM
            free = np.setdiff1d(np.arange(part.shape[1]), own)
            drawn = rng.choice(free, min(NEGATIVES, len(free)), replace=False)
            items = np.concatenate([[sequences.item[position] - FIRST_ITEM], drawn])
            logits.append(part[row].cpu().numpy()[items])
            engaged.append(np.arange(len(items)) == 0)
    if all(each.all() for each in engaged):
        raise TrainingError("every user held out has engaged with the whole catalogue: nothing is left to judge by")
    group = np.repeat(np.arange(len(engaged)), [len(each) for each in engaged])
    return Judged(np.concatenate(logits).astype(np.float64), np.concatenate(engaged), group)


def _served(trainer: Trainer, targets: Ints, fitted: tuple[float, float]) -> Json:
    """What the service's kernels make of the model in each precision, against its float32 scores: HR@10, how much of
    the first hundred is the same, and how long a candidate takes on this machine's CPU."""
    network, table, sequences = trainer.network, trainer.table, trainer.sequences
    if len(targets) > SERVED_USERS_MAX:
        targets = np.sort(default_rng(0).choice(targets, SERVED_USERS_MAX, replace=False))
    users_at = sequences.user[targets]
    side = encode_users(network, table, sequences, users_at, targets)
    users = users_of(side, *fitted, network.head.route)
    result: Json = {}
    reference: list[Ints] = []
    for precision in (Precision.FLOAT32, Precision.FLOAT16, Precision.INT8):
        columns = ad_columns(trainer, precision)
        ranks, tops = [], []
        for row, position in enumerate(targets.tolist()):
            scores = kernel_scores(columns, [users[row]], precision)
            own = scores[sequences.item[position] - FIRST_ITEM]
            scores[sequences.item[sequences.start[users_at[row]] : position] - FIRST_ITEM] = -1.0  # seen before
            scores[sequences.item[position] - FIRST_ITEM] = own
            ranks.append(int((scores >= own).sum()))
            tops.append(np.argpartition(-scores, min(TOP, len(scores) - 1))[:TOP])
        reference = reference or tops
        shared = [len(np.intersect1d(a, b)) / len(a) for a, b in zip(tops, reference, strict=True)]
        result[precision.value] = {
            "users": len(targets), "hr@10": float((np.array(ranks) <= 10).mean()),
            "top_100_overlap": float(np.mean(shared)), "ns_per_candidate": _time(columns, users[0], precision),
        }  # fmt: skip
    return result


def ad_columns(trainer: Trainer, precision: Precision) -> ScoreColumns:
    """The whole catalogue as an index stores it."""
    side = encode_catalogue(trainer.network.eval(), trainer.table, rounding=False)
    columns = []
    for vectors in (side.embedding.float().cpu().numpy(), side.gate.float().cpu().numpy()):
        rows = np.zeros((len(vectors), row_width(vectors.shape[1], precision)), storage_dtype(precision))
        scales = np.ones(len(vectors), np.float32)
        quantise_rows(vectors, precision, rows, scales)
        columns += [rows, scales]
    return ScoreColumns(*columns)


def kernel_scores(columns: ScoreColumns, users: list[User], precision: Precision) -> Floats:
    """The scores of all ads for each user, one user after the other."""
    ads = len(columns.embedding)
    slots = np.tile(np.arange(ads, dtype=np.uint32), len(users))
    out = np.empty(len(slots))
    score(columns, slots, np.arange(len(users) + 1, dtype=np.int64) * ads, pack(users, precision), out)
    return out


def _time(columns: ScoreColumns, user: User, precision: Precision) -> float:
    """Nanoseconds for each of TIMED_ADS candidates, the fastest of some passes, with as many threads as numba has."""
    slots = (np.arange(TIMED_ADS) % len(columns.embedding)).astype(np.uint32)
    job_start, users, out = np.array([0, TIMED_ADS], np.int64), pack([user], precision), np.empty(TIMED_ADS)
    best = np.inf
    for _ in range(TIMED_REPETITIONS):
        start = perf_counter()
        score(columns, slots, job_start, users, out)
        best = min(best, perf_counter() - start)
    return best / TIMED_ADS * 1e9


def _cold(trainer: Trainer) -> Json:
    """Engagements with items that training never saw, ranked from their content alone, and the same cases with a hidden
    id for items of the whole catalogue: what even chance would give is beside it."""
    sequences = trainer.sequences
    items = len(trainer.table.id) - FIRST_ITEM
    cold = cold_items(trainer.recipe, items)
    targets = np.flatnonzero(cold[sequences.item - FIRST_ITEM])
    if len(targets) > CALIBRATED_MAX:
        targets = np.sort(default_rng(0).choice(targets, CALIBRATED_MAX, replace=False))
    ranks = rank_targets(trainer.network, trainer.table, sequences, targets, hidden=cold)
    return {"items": int(cold.sum()), "cases": len(targets), "chance_hr@50": 50 / items, **ranking_metrics(ranks)}
