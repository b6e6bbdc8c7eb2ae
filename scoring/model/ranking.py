"""Ranks of held-out engagements among the whole catalogue, and the metrics of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scoring.model.features import FIRST_ITEM, NO_ITEM, ItemTable
from scoring.model.heads import AdSide, UserSide
from scoring.model.network import Network, table_rows, user_batch
from scoring.model.ranker import Ranker
from scoring.model.sequences import Asked, Impressions, Sequences, windows

USERS_AT_ONCE = 128
RANKER_USERS_AT_ONCE = 4
CUTS = (10, 50)

Ints = NDArray[np.int64]


def rank_targets(
    network: Network, table: ItemTable, sequences: Sequences, positions: Ints, rounding: bool = False,
    hidden: NDArray[np.bool_] | None = None,
) -> Ints:  # fmt: skip
    """[position] the rank, from 1, of each position's item among all items that the user has not engaged with before;
    those of an equal score come before it. `hidden` [item]: those whose id is not to be known, as if they were new."""
    ranks = [
        _ranks(sequences, positions[at : at + len(logits)], logits)
        for at, logits in all_logits(network, table, sequences, positions, rounding, hidden)
    ]
    return np.concatenate(ranks) if ranks else np.zeros(0, np.int64)


@torch.no_grad()
def all_logits(
    network: Network, table: ItemTable, sequences: Sequences, positions: Ints, rounding: bool,
    hidden: NDArray[np.bool_] | None = None,
) -> Iterator[tuple[int, Tensor]]:  # fmt: skip
    """Logits of the whole catalogue [position, item], some positions at once -> where they begin, logits"""
    network.eval()
    ad = encode_catalogue(network, table, rounding, hidden)
    at_once = RANKER_USERS_AT_ONCE if isinstance(network.head, Ranker) else USERS_AT_ONCE
    for at in range(0, len(positions), at_once):
        own = positions[at : at + at_once]
        users = np.searchsorted(sequences.start, own, side="right") - 1
        yield at, network.head.logits(encode_users(network, table, sequences, users, own), ad)


@torch.no_grad()
def impression_logits(
    network: Network, table: ItemTable, sequences: Sequences, shown: Impressions, rounding: bool
) -> NDArray[np.float64]:
    """[impression] the logit of each"""
    network.eval()
    out = np.empty(len(shown.user))
    ad = encode_catalogue(network, table, rounding)
    for at in range(0, len(out), USERS_AT_ONCE):
        part = np.arange(at, min(at + USERS_AT_ONCE, len(out)))
        user = encode_users(network, table, sequences, shown.user[part], shown.position[part], shown.asked.of(part))
        own = torch.from_numpy(shown.item[part] - FIRST_ITEM).to(network.device)
        out[part] = network.head.logits(user, ad.of(own), paired=True).cpu().numpy()
    return out


@torch.no_grad()
def encode_catalogue(
    network: Network, table: ItemTable, rounding: bool, hidden: NDArray[np.bool_] | None = None
) -> AdSide:
    rows = np.arange(FIRST_ITEM, len(table.id))
    hide = None if hidden is None else torch.from_numpy(hidden).to(network.device)
    base, _ = network.items(table_rows(table, rows, network.device), hide)
    return network.ads(base, rounding)


@torch.no_grad()
def encode_users(
    network: Network, table: ItemTable, sequences: Sequences, users: Ints, positions: Ints, asked: Asked | None = None,
    given: Tensor | None = None,
) -> UserSide:  # fmt: skip
    """Each user as it was before the position's engagement. `given` [user, D]: towers.UserBatch's."""
    architecture = network.architecture
    length = architecture.history
    rows = windows(sequences, users, positions, length, architecture.surface_history, asked)
    needed = np.unique(np.concatenate([[NO_ITEM], rows.token.ravel(), rows.surface_token.ravel()]))
    base, text = network.items(table_rows(table, needed, network.device))
    which = torch.from_numpy(np.arange(len(rows.length)) * length + rows.length - 1).to(network.device)
    batch = user_batch(rows, needed, network.device)._replace(given=given)
    return network.users(batch, base, text, which)


def _ranks(sequences: Sequences, positions: Ints, logits: Tensor) -> Ints:
    target = torch.from_numpy(sequences.item[positions] - FIRST_ITEM).to(logits.device)
    own = logits.gather(1, target[:, None])  # [position, 1]
    above = logits >= own
    for row, position in enumerate(positions.tolist()):
        first = sequences.start[np.searchsorted(sequences.start, position, side="right") - 1]
        above[row, torch.from_numpy(sequences.item[first:position] - FIRST_ITEM)] = False
        above[row, target[row]] = False
    ranks: Ints = (1 + above.sum(1)).cpu().numpy()
    return ranks


def ranking_metrics(ranks: Ints) -> dict[str, float]:
    """One relevant item for each rank: HR@K, NDCG@K, MRR."""
    metrics = {}
    for cut in CUTS:
        metrics[f"hr@{cut}"] = float((ranks <= cut).mean())
        metrics[f"ndcg@{cut}"] = float(gains(ranks, cut).mean())
    return metrics | {"mrr": float((1.0 / ranks).mean())}


def gains(ranks: Ints, cut: int) -> NDArray[np.float64]:
    """[rank] the NDCG@cut of each"""
    return np.where(ranks <= cut, 1.0 / np.log2(ranks + 1.0), 0.0)
