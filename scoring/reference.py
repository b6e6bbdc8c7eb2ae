"""The score of contract section 4 in float64 NumPy, one line for each of its lines: the truth for the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # so that this needs only NumPy
    from scoring.user import User


class ScoreParts(NamedTuple):
    """What a score is made of, for each ad, in the contract's letters."""

    z: NDArray[np.float64]  # [ad, expert] gate logits
    g: NDArray[np.float64]  # [ad, expert] gate weights, 0 for experts that are not routed to
    products: NDArray[np.float64]  # [ad, expert] U_e . a
    y: NDArray[np.float64]  # [ad]
    score: NDArray[np.float64]  # [ad]


def score_reference(user: User, embedding: NDArray[np.float64], gate: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scores [ad] of ads with these embeddings [ad, D] and gate vectors [ad, G]."""
    return score_parts(user, embedding, gate).score


def score_parts(user: User, embedding: NDArray[np.float64], gate: NDArray[np.float64]) -> ScoreParts:
    U, K, c = (array.astype(np.float64) for array in (user.experts, user.gates, user.gate_bias))
    z = dots(gate, K) / np.sqrt(K.shape[1]) + c
    best_first = np.argsort(-z, axis=1, kind="stable")  # of equal logits, the lower-numbered expert comes first
    routed = np.zeros(z.shape, bool)
    np.put_along_axis(routed, best_first[:, : user.route], True, axis=1)
    weights = np.where(routed, np.exp(z - z.max(axis=1, keepdims=True)), 0.0)
    g = weights / weights.sum(axis=1, keepdims=True)
    products = dots(embedding, U)
    y = user.temperature * (g * products).sum(axis=1) + user.bias
    return ScoreParts(z, g, products, y, sigmoid(y))


def dots(ads: NDArray[np.float64], vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """[ad, vector]; each sum is made in the same order, so that equal vectors have equal products."""
    return np.stack([(ads * vector).sum(axis=1) for vector in vectors], axis=1)


def sigmoid(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-y)), without an overflow."""
    small = np.exp(-np.abs(y))
    return np.where(y >= 0, 1.0, small) / (1.0 + small)
