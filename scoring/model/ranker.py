"""The ranker, which the others are held against: everything of a user with everything of an ad, for each candidate.

On top of the dot product that it is warm-started from: (1) DIN style attention, in which the candidate looks at every
item of the history through a small network of the history's item, the candidate and their product; (2) DCN-v2 cross
layers of full rank over user, ad, what the attention found, and products; (3) a small MLP.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from scoring.model.config import Architecture
from scoring.model.heads import AdSide, Head, UserSide, along

UNITS = 8  # of the attention's hidden layer
CROSS_LAYERS = 2
PARTS = 5  # of D each, which are crossed
MASKED = -1e4  # the logit of no item


class Ranker(Head):
    def __init__(self, architecture: Architecture, has_context: bool) -> None:
        super().__init__(architecture, has_context)
        dim = architecture.dim
        width = PARTS * dim
        self.of_history, self.of_ad = nn.Linear(dim, UNITS), nn.Linear(dim, UNITS, bias=False)
        self.of_product = nn.Parameter(torch.randn(UNITS, dim) * dim**-0.5)
        self.attention_out = nn.Linear(UNITS, 1)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(CROSS_LAYERS))
        last = nn.Linear(2 * dim, 1)
        self.deep = nn.Sequential(nn.Linear(width, 2 * dim), nn.SiLU(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def user_with_history(self, side: UserSide, history: Tensor, has: Tensor, trunk: Tensor) -> UserSide:
        """`history` [P, L, D] the base vectors of the items engaged with, `has` [P, L] where there is one"""
        return side._replace(extra=(history, has, trunk))

    def ad(self, base: Tensor, rounding: bool) -> AdSide:
        return super().ad(base, rounding)._replace(extra=(base,))

    def logits(self, user: UserSide, ad: AdSide, paired: bool = False) -> Tensor:
        history, has, trunk = user.extra
        (base,) = ad.extra
        if paired:  # [P, 1, D]: each user with its own ad
            base, embedding = base[:, None], ad.embedding[:, None]
        else:  # [P, N, D]
            base = base.expand(len(trunk), -1, -1)
            embedding = ad.embedding.expand(len(trunk), -1, -1)
        experts = user.experts.expand(-1, embedding.shape[1], -1)  # [P, N, D] of one expert
        found = self.attend(history, has, base)  # [P, N, D]
        scale = embedding.shape[-1] ** 0.5  # base vectors have a norm near 1, user vectors elements near 1
        parts = [trunk[:, None].expand_as(experts), scale * embedding, scale * found, experts * embedding,
                 scale * found * embedding]  # fmt: skip
        x0 = x = torch.cat(parts, -1)  # [P, N, PARTS * D]
        for layer in self.cross:
            x = x0 * layer(x) + x
        y = self.deep(x)[..., 0] + (experts * embedding).sum(-1)
        out: Tensor = (y[:, 0] if paired else y) + along(user.bias, paired)
        return out

    def attend(self, history: Tensor, has: Tensor, base: Tensor) -> Tensor:
        """What each candidate `base` [P, N, D] finds in the history -> [P, N, D]"""
        scale = history.shape[-1] ** 0.5
        keyed = history[:, :, None] * self.of_product  # [P, L, unit, D]
        product = scale * torch.einsum("plud,pnd->pnlu", keyed, base)
        hidden = silu(self.of_history(scale * history)[:, None] + self.of_ad(scale * base)[:, :, None] + product)
        logits = self.attention_out(hidden)[..., 0].masked_fill(~has[:, None], MASKED)  # [P, N, L]
        return torch.softmax(logits, -1) @ history

    def flops(self) -> int:
        dim, length = self.architecture.dim, self.architecture.history
        width = PARTS * dim
        attention = 2 * dim * UNITS + length * (2 * dim * UNITS + 6 * UNITS + 2 * dim + 4)
        return attention + CROSS_LAYERS * (2 * width * width + 2 * width) + 4 * width * dim + 4 * dim + 6 * dim
