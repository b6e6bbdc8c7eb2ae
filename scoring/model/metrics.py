"""Metrics of scores against what happened, and the intervals of differences between two models."""

from __future__ import annotations

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

BINS = 10
BOOTSTRAPS = 2000

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def auc(score: Floats, engaged: Flags) -> float:
    """How often an engagement scores above what was not engaged with; a tie counts half."""
    values, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # of equal scores, the mean rank
    positive, negative = int(engaged.sum()), int((~engaged).sum())
    assert len(values) and positive and negative, (positive, negative)
    return float((rank[engaged].sum() - positive * (positive + 1) / 2) / (positive * negative))


def auc_by_group(score: Floats, engaged: Flags, group: NDArray[np.int64]) -> float:
    """The mean AUC within each group that has both; unlike `auc` it does not compare one user's scores with another's,
    of which a softmax over the ads of each user alone says nothing. NaN (null in JSON) where no group has both."""
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    both = [part for part in parts if engaged[part].any() and not engaged[part].all()]
    if not both:
        return float("nan")
    return float(np.mean([auc(score[part], engaged[part]) for part in both]))


def normalised_entropy(probability: Floats, engaged: Flags) -> float:
    """Log loss, divided by that of always saying the mean: below 1 is better than knowing nothing."""
    mean = engaged.mean()
    nothing = -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    return float(log_loss(probability, engaged) / nothing)


def log_loss(probability: Floats, engaged: Flags) -> float:
    p = np.clip(probability, 1e-12, 1 - 1e-12)
    return float(-np.where(engaged, np.log(p), np.log1p(-p)).mean())


def calibration(probability: Floats, engaged: Flags) -> dict[str, object]:
    """In tenths of the probabilities: what was said and what happened; `ratio`: said / happened, of all; `error`: the
    mean distance of the two."""
    order = np.argsort(probability, kind="stable")
    said, happened, weight = [], [], []
    for part in np.array_split(order, BINS):
        if len(part):
            said.append(float(probability[part].mean()))
            happened.append(float(engaged[part].mean()))
            weight.append(len(part) / len(order))
    error = float(np.abs(np.array(said) - happened) @ np.array(weight))
    return {"said": said, "happened": happened, "ratio": float(probability.mean() / engaged.mean()), "error": error}


def fit_calibration(logit: Floats, engaged: Flags) -> tuple[float, float]:
    """Temperature and bias of the least log loss (logistic regression of one variable, by Newton's method)."""
    center, width = float(logit.mean()), float(logit.std()) or 1.0
    x = np.stack([(logit - center) / width, np.ones(len(logit))], 1)
    weights = np.array([1.0, np.log(engaged.mean() / (1 - engaged.mean()))])
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -40, 40)))
        gradient = x.T @ (p - engaged) / len(x) + 1e-6 * weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x) + 1e-6 * np.eye(2)
        change = np.linalg.solve(hessian, gradient)
        weights -= change / max(1.0, float(np.abs(change).max()))
        if np.abs(change).max() < 1e-10:
            break
    temperature = float(weights[0]) / width
    return temperature, float(weights[1]) - temperature * center


def paired_interval(ours: Floats, theirs: Floats, seed: int = 0, share: float = 0.95) -> tuple[float, float, float]:
    """Mean of a metric [case] of ours against theirs on the same cases, as the gain (ours / theirs - 1), and the
    interval that holds `share` of its bootstraps, in which cases are drawn with replacement."""
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    rng = default_rng(seed)
    gains = np.empty(BOOTSTRAPS)
    for b in range(BOOTSTRAPS):
        drawn = rng.integers(0, len(ours), len(ours))
        gains[b] = ours[drawn].mean() / max(theirs[drawn].mean(), 1e-12) - 1
    low, high = np.quantile(gains, [(1 - share) / 2, (1 + share) / 2])
    return float(ours.mean() / max(theirs.mean(), 1e-12) - 1), float(low), float(high)
