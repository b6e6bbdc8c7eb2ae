"""The towers: from what is known of a user and of an ad to vectors of width D.

Every user tower is causal: its output at a position knows only what came before, so that one pass over a window trains
all of its positions.
  sequence   a small causal transformer over the items engaged with
  cohort     demographics, and long-term aggregates: which share of all engagements had each frequent label
  semantic   the texts of what was engaged with, as means that forget at two rates; or a vector or texts given
  surfaces   a causal transformer over engagements on other surfaces
An item's vector is its id's, its labels' and its words' together; a hidden or unknown id leaves the content to speak.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention, silu

from scoring.model.config import Architecture
from scoring.model.features import FIRST_ITEM, NO_ITEM, UNKNOWN_ITEM, Vocabularies

FORGET = (0.5, 0.95)  # how much of a text's weight is left one engagement later


class Rows(NamedTuple):
    """Rows of an item table."""

    id: Tensor  # [item]
    labels: Tensor  # [item, LABELS_MAX]
    words: Tensor  # [item, WORDS_MAX]


class UserBatch(NamedTuple):
    """sequences.Windows as tensors, the tokens as places in a list of encoded items."""

    length: Tensor  # [B]
    token: Tensor  # [B, L]
    shares: Tensor  # [B, L, label]
    total: Tensor  # [B, L]
    cohort: Tensor  # [B, signal]
    context: Tensor  # [B, L, name]
    surface_token: Tensor  # [B, S]
    surface_kind: Tensor  # [B, S]
    surface_at: Tensor  # [B, L]
    given: Tensor | None = None  # [B, D] semantic vectors that the request brings; NaN: it brings none


class Items(nn.Module):
    """[item] -> base vector [item, D] and text vector [item, D]"""

    def __init__(self, architecture: Architecture, vocabularies: Vocabularies) -> None:
        super().__init__()
        dim = architecture.dim
        self.ids_only = architecture.ids_only
        self.id = nn.Embedding(len(vocabularies.items) + FIRST_ITEM, dim)
        self.labels = nn.EmbeddingBag(len(vocabularies.labels) + 1, dim, mode="sum", padding_idx=0)
        self.words = nn.EmbeddingBag(architecture.word_buckets, dim, mode="mean", padding_idx=0)
        for table in (self.id, self.labels, self.words):
            nn.init.normal_(table.weight, std=dim**-0.5)
        with torch.no_grad():
            self.labels.weight[0], self.words.weight[0] = 0, 0

    def forward(self, rows: Rows, hide: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`hide` [item]: ids that are not to be known."""
        known = rows.id if hide is None else torch.where(hide & (rows.id != NO_ITEM), UNKNOWN_ITEM, rows.id)
        base = self.id(known)  # [item, D]
        if self.ids_only:
            return base, torch.zeros_like(base)
        count = (rows.labels > 0).sum(1, keepdim=True).clamp(min=1)  # [item, 1]
        text = self.words(rows.words)  # [item, D]
        return base + self.labels(rows.labels) / count.sqrt() + text, text

    def text(self, words: Tensor) -> Tensor:
        """Words [row, word] -> [row, D]"""
        vectors: Tensor = self.words(words)
        return vectors


class Block(nn.Module):
    """A causal transformer block, normalised first."""

    def __init__(self, dim: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, drop
        self.norm_attention, self.norm_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.in_projection, self.out_projection = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:  # [B, L, D]
        q, k, v = self.in_projection(self.norm_attention(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))  # [B, head, L, D / heads]
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + dropout(self.out_projection(mixed), self.drop, self.training)
        wide = silu(self.up(self.norm_mlp(x)))
        out: Tensor = x + dropout(self.down(wide), self.drop, self.training)
        return out


class Sequence(nn.Module):
    def __init__(self, architecture: Architecture, length: int, layers: int, drop: float, kinds: int = 0) -> None:
        super().__init__()
        dim = architecture.dim
        self.drop = drop
        self.position = nn.Parameter(torch.randn(length, dim) * dim**-0.5)
        self.kind = nn.Embedding(kinds + 1, dim) if kinds else None
        self.blocks = nn.ModuleList(Block(dim, architecture.attention_heads, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, items: Tensor, kind: Tensor | None = None) -> Tensor:  # [B, L, D]
        x = items * items.shape[-1] ** 0.5 + self.position[: items.shape[1]]
        if self.kind is not None and kind is not None:
            x = x + self.kind(kind)
        x = dropout(x, self.drop, self.training)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


class Cohort(nn.Module):
    def __init__(self, architecture: Architecture, vocabularies: Vocabularies, drop: float) -> None:
        super().__init__()
        dim = architecture.dim
        signals = vocabularies.cohort.values()
        self.signals = nn.ModuleList(nn.Embedding(signal.size, dim) for signal in signals)
        self.shares = nn.Linear(vocabularies.aggregates + 1, dim)
        self.mlp = mlp(dim, dim, drop)

    def forward(self, cohort: Tensor, shares: Tensor, total: Tensor) -> Tensor:  # [B, L, D]
        x = self.shares(torch.cat([shares, 0.2 * total[..., None]], -1))  # [B, L, D]
        for s, table in enumerate(self.signals):
            x = x + table(cohort[:, s])[:, None]
        out: Tensor = self.mlp(x)
        return out


class Semantic(nn.Module):
    def __init__(self, architecture: Architecture, drop: float) -> None:
        super().__init__()
        self.mlp = mlp(len(FORGET) * architecture.dim, architecture.dim, drop)

    def forward(self, texts: Tensor, token: Tensor, given: Tensor | None) -> Tensor:  # [B, L, D]
        length = token.shape[1]
        age = torch.arange(length)[:, None] - torch.arange(length)  # [L, L]
        has = (token != NO_ITEM).to(texts.dtype)[:, None, :]  # [B, 1, L]
        means = []
        for rate in FORGET:
            weight = torch.where(age >= 0, rate ** age.clamp(min=0), 0.0).to(texts) * has  # [B, L, L]
            means.append(weight @ texts / weight.sum(-1, keepdim=True).clamp(min=1e-6))
        if given is not None:
            means = [torch.where(given.isnan()[:, None], mean, given[:, None]) for mean in means]
        out: Tensor = self.mlp(torch.cat(means, -1) * texts.shape[-1] ** 0.5)
        return out


class UserTowers(nn.Module):
    """-> the output of each tower [B, L, D], and the trunk [B, L, D], which is made of all of them"""

    def __init__(self, architecture: Architecture, vocabularies: Vocabularies, drop: float) -> None:
        super().__init__()
        made: dict[str, nn.Module] = {}
        for name in architecture.towers:
            if name == "sequence":
                made[name] = Sequence(architecture, architecture.history, architecture.layers, drop)
            elif name == "cohort":
                made[name] = Cohort(architecture, vocabularies, drop)
            elif name == "semantic":
                made[name] = Semantic(architecture, drop)
            else:
                kinds = len(vocabularies.surfaces)
                made[name] = Sequence(architecture, architecture.surface_history, 1, drop, kinds)
        self.towers = nn.ModuleDict(made)
        dim = architecture.dim
        self.join = nn.Linear(len(made) * dim, dim)
        self.mlp = mlp(dim, dim, drop)
        self.norm = nn.LayerNorm(dim)

    def forward(self, batch: UserBatch, base: Tensor, text: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """`base`, `text` [item, D]: the encoded items that the tokens name."""
        out: dict[str, Tensor] = {}
        for name, tower in self.towers.items():
            if name == "sequence":
                out[name] = tower(base[batch.token])
            elif name == "cohort":
                out[name] = tower(batch.cohort, batch.shares, batch.total)
            elif name == "semantic":
                out[name] = tower(text[batch.token], batch.token, batch.given)
            else:
                states = tower(base[batch.surface_token], batch.surface_kind)  # [B, S, D]
                out[name] = states.gather(1, batch.surface_at[..., None].expand(-1, -1, states.shape[-1]))
        joined = self.join(torch.cat(list(out.values()), -1))
        return out, self.norm(joined + self.mlp(joined))


class Context(nn.Module):
    """The serving context as one vector [.., D], zeros where nothing of it is known."""

    def __init__(self, architecture: Architecture, vocabularies: Vocabularies) -> None:
        super().__init__()
        self.names = nn.ModuleList(
            nn.Embedding(signal.size, architecture.dim) for signal in vocabularies.context.values()
        )

    def forward(self, context: Tensor) -> Tensor:  # [.., name] -> [.., D]
        return torch.stack([table(context[..., n]) for n, table in enumerate(self.names)]).sum(0)


def mlp(width_in: int, dim: int, drop: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width_in, 2 * dim), nn.SiLU(), nn.Dropout(drop), nn.Linear(2 * dim, dim))
