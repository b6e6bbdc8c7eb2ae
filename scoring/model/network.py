"""The whole network: towers, context and a head, from windows of histories to logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scoring.model.config import Architecture
from scoring.model.features import NO_ITEM, ItemTable, Vocabularies
from scoring.model.heads import AdSide, Head, MixtureOfLogits, UserSide
from scoring.model.ranker import Ranker
from scoring.model.sequences import Windows
from scoring.model.towers import Context, Items, Rows, UserBatch, UserTowers


class Network(nn.Module):
    def __init__(self, architecture: Architecture, vocabularies: Vocabularies, drop: float = 0.0) -> None:
        super().__init__()
        self.architecture, self.vocabularies = architecture, vocabularies
        contextual = has_context(architecture, vocabularies)
        self.items = Items(architecture, vocabularies)
        self.towers = UserTowers(architecture, vocabularies, drop)
        self.context = Context(architecture, vocabularies) if contextual else None
        made = {"mol": MixtureOfLogits, "ranker": Ranker}.get(architecture.head, Head)
        self.head = made(architecture, contextual)

    @property
    def device(self) -> torch.device:
        return self.items.id.weight.device

    def ads(self, base: Tensor, rounding: bool = False) -> AdSide:
        side: AdSide = self.head.ad(base, rounding)
        return side

    def users(self, batch: UserBatch, base: Tensor, text: Tensor, which: Tensor) -> UserSide:
        """The users at the places `which` [P] of the batch's [B * L] positions. `base`, `text` [item, D]."""
        towers, trunk = self.towers(batch, base, text)
        flat = {name: out.flatten(0, 1)[which] for name, out in towers.items()}
        trunk = trunk.flatten(0, 1)[which]  # [P, D]
        context = None if self.context is None else self.context(batch.context.flatten(0, 1)[which])
        side: UserSide = self.head.user(trunk, flat, context)
        if isinstance(self.head, Ranker):
            history, has = self._histories(batch, base, which)
            side = self.head.user_with_history(side, history, has, trunk)
        return side

    def _histories(self, batch: UserBatch, base: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """What each position may attend to: base vectors [P, L, D] and which of them are items before it [P, L]."""
        length = batch.token.shape[1]
        row, place = which // length, which % length
        token = batch.token[row]  # [P, L]
        before = torch.arange(length, device=token.device) <= place[:, None]
        return base[token], before & (token != NO_ITEM)


def has_context(architecture: Architecture, vocabularies: Vocabularies) -> bool:
    """Whether the serving context takes part."""
    return bool(vocabularies.context) and not architecture.ids_only


def table_rows(table: ItemTable, rows: NDArray[np.int64], device: torch.device) -> Rows:
    return Rows(*(tensor(column[rows], device) for column in table))


def user_batch(windows: Windows, tokens: NDArray[np.int64], device: torch.device) -> UserBatch:
    """`tokens` [item]: the sorted rows of the item table that are encoded; tokens become places among them."""
    return UserBatch(
        length=tensor(windows.length, device),
        token=tensor(np.searchsorted(tokens, windows.token), device),
        shares=tensor(windows.shares, device), total=tensor(windows.total, device),
        cohort=tensor(windows.cohort, device), context=tensor(windows.context, device),
        surface_token=tensor(np.searchsorted(tokens, windows.surface_token), device),
        surface_kind=tensor(windows.surface_kind, device), surface_at=tensor(windows.surface_at, device),
    )  # fmt: skip


def tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
