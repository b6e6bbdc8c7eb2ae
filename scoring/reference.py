"""The score of contract section 4 in float64 NumPy, one line for each of its lines: the truth for the kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scoring.user import User


def score_reference(user: User, embedding: NDArray[np.float64], gate: NDArray[np.float64]) -> NDArray[np.float64]:
    """The scores [ad] of ads with these embeddings [ad, D] and gate vectors [ad, G]."""
    U, K = user.experts.astype(np.float64), user.gates.astype(np.float64)
    z = dots(gate, K) / np.sqrt(K.shape[1]) + user.gate_bias.astype(np.float64)  # [ad, expert]
    order = np.argsort(-z, axis=1, kind="stable")  # of equal logits, the lower-numbered expert comes first
    routed = np.zeros(z.shape, bool)
    np.put_along_axis(routed, order[:, : user.route], True, axis=1)
    weights = np.where(routed, np.exp(z - z.max(axis=1, keepdims=True)), 0.0)
    g = weights / weights.sum(axis=1, keepdims=True)
    y = user.temperature * (g * dots(embedding, U)).sum(axis=1) + user.bias
    return sigmoid(y)


def dots(ads: NDArray[np.float64], users: NDArray[np.float64]) -> NDArray[np.float64]:
    """[ad, expert]; each sum is made in the same order, so equal vectors have equal products."""
    return np.stack([(ads * vector).sum(axis=1) for vector in users], axis=1)


def sigmoid(y: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-y)) without an overflow."""
    small = np.exp(-np.abs(y))
    return np.where(y >= 0, 1.0, small) / (1.0 + small)
