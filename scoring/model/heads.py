"""What makes a logit of a user's side and an ad's side: the gate of contract section 4, and what it is compared with.

  Dot     one user vector, one ad vector
  Gate    E experts of one width, a gate over them, and of these the `route` best take part
  MoL     Mixture-of-Logits: P_Q user vectors and P_X ad vectors, all pairs of them, a dense gate that sees the pair
  Ranker  DCN-v2 and DIN style interaction of everything with everything, on top of a dot product

Each has `user` (trunk and towers -> what is kept of a user), `ad` (base vectors -> what is kept of an ad), `logits`
of all users with all ads, or `paired`, of the users with one ad each, and the FLOPs that one candidate costs.

The context joins the ad's side as a ⊙ (1 + γ) + β, and folds into the user's, so that no stored vector changes:
  U_e · (a ⊙ (1 + γ) + β) = (U_e ⊙ (1 + γ)) · a + U_e · β           v_e := U_e · β
  K_e · (q ⊙ (1 + γ') + β') = (K_e ⊙ (1 + γ')) · q + K_e · β'       c_e grows by K_e · β' / sqrt(G)
  Σ_e g_e v_e = mean(v) + Σ_e g_e (v_e - mean(v)), since Σ_e g_e = 1: mean(v) goes to the bias, and v_e - mean(v) into
  the last element of U_e, divided by ONE, since every ad's last element is the constant ONE where there is a context.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, silu

from scoring.model.config import Architecture
from scoring.model.rounding import round_int8

ONE = (
    0.25  # the last element of an ad's vector: near the largest of the others, so that rounding leaves it exact enough
)

BALANCED = 512  # positions of a batch whose gate weights are balanced
EXPERT_INIT = 1.4  # of what experts have of their own, in units of dim ** -0.5: they begin apart


class UserSide(NamedTuple):
    """What a head keeps of P users."""

    experts: Tensor  # [P, E, D] U
    gates: Tensor  # [P, E, G] K
    gate_bias: Tensor  # [P, E] c
    bias: Tensor  # [P]
    extra: tuple[Tensor, ...] = ()  # of the MoL's and the ranker's own


class AdSide(NamedTuple):
    """What a head keeps of N ads."""

    embedding: Tensor  # [N, D] a
    gate: Tensor  # [N, G] q
    extra: tuple[Tensor, ...] = ()

    def of(self, which: Tensor) -> AdSide:
        """Some of them, in any order."""
        return AdSide(self.embedding[which], self.gate[which], tuple(each[which] for each in self.extra))


class Head(nn.Module):
    """Experts, gates and the folded context, which all heads share. Dot is the case of one expert."""

    def __init__(self, architecture: Architecture, has_context: bool) -> None:
        super().__init__()
        self.architecture, self.has_context = architecture, has_context
        dim, gate_dim = architecture.dim, architecture.gate_dim
        self.homes = architecture.experts if architecture.head == "gate" else ()
        self.count = max(len(self.homes), 1)
        self.route = architecture.route if self.homes else 1
        self.shared = nn.Linear(dim, dim)
        self.expert = nn.Linear(dim, self.count * dim, bias=False) if self.homes else None
        self.own = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in self.homes)
        self.keys = nn.Linear(dim, self.count * (gate_dim + 1)) if self.homes else None
        last = nn.Linear(2 * dim, dim)
        self.ad_mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), last)
        self.query = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, gate_dim)) if self.homes else None
        nn.init.zeros_(last.weight)
        for linear in (self.expert, *self.own):  # those that begin alike stay alike, as one dot product
            if linear is not None:
                nn.init.normal_(linear.weight, std=EXPERT_INIT * dim**-0.5)
        if has_context:
            self.modulation = nn.Linear(dim, 2 * dim + 2 * gate_dim)  # context -> γ, β, γ', β'
            nn.init.normal_(self.modulation.weight, std=0.02)
        self.gate_load: Tensor | None = None  # [E] mean gate weights of the last logits, for the balance

    def user(self, trunk: Tensor, towers: dict[str, Tensor], context: Tensor | None) -> UserSide:  # [P, D] each
        gate_dim = self.architecture.gate_dim
        experts = self.shared(trunk)[:, None]  # [P, 1, D]
        if self.expert is not None:
            experts = experts + self.expert(trunk).unflatten(-1, (self.count, -1))  # [P, E, D]
            own = [linear(towers[home]) for home, linear in zip(self.homes, self.own, strict=True)]
            experts = experts + torch.stack(own, 1)
        gates = trunk.new_zeros(len(trunk), self.count, gate_dim)
        gate_bias = trunk.new_zeros(len(trunk), self.count)
        if self.keys is not None:
            keys = self.keys(trunk).unflatten(-1, (self.count, -1))  # [P, E, G + 1]
            gates, gate_bias = keys[..., :-1], keys[..., -1]
        side = UserSide(experts, gates, gate_bias, trunk.new_zeros(len(trunk)))
        return side if context is None else self.fold(side, context)

    def fold(self, side: UserSide, context: Tensor) -> UserSide:
        """The docstring's algebra. `context` [P, D]"""
        dim, gate_dim = self.architecture.dim, self.architecture.gate_dim
        scale, shift, gate_scale, gate_shift = self.modulation(context)[:, None].split(
            [dim, dim, gate_dim, gate_dim], -1
        )
        offset = (side.experts * shift).sum(-1)  # [P, E] v
        mean = offset.mean(1)  # [P]
        experts = side.experts * (1 + scale)
        last = experts[..., -1:] + ((offset - mean[:, None]) / ONE)[..., None]
        gate_bias = side.gate_bias + (side.gates * gate_shift).sum(-1) / math.sqrt(gate_dim)
        return side._replace(
            experts=torch.cat([experts[..., :-1], last], -1), gates=side.gates * (1 + gate_scale), gate_bias=gate_bias,
            bias=side.bias + mean,
        )  # fmt: skip

    def ad(self, base: Tensor, rounding: bool) -> AdSide:  # [N, D]
        embedding = base + self.ad_mlp(base)
        if self.has_context:
            embedding = torch.cat([embedding[:, :-1], torch.full_like(embedding[:, :1], ONE)], 1)
        gate = base.new_zeros(len(base), self.architecture.gate_dim) if self.query is None else self.query(base)
        return AdSide(round_int8(embedding), round_int8(gate)) if rounding else AdSide(embedding, gate)

    def logits(self, user: UserSide, ad: AdSide, paired: bool = False) -> Tensor:
        """[P, N]; paired: [P], of the users with as many ads, one each"""
        products = [dots(user.experts[:, e], ad.embedding, paired) for e in range(self.count)]
        if self.count == 1:
            return products[0] + along(user.bias, paired)
        weights = self.weights(user, ad, paired)
        total = sum(weights[1:], weights[0])
        mixed, *others = (w * product for w, product in zip(weights, products, strict=True))
        if self.training and not paired:
            self.gate_load = torch.stack([(w[:BALANCED] / total[:BALANCED]).mean() for w in weights])
        return sum(others, mixed) / total + along(user.bias, paired)

    def weights(self, user: UserSide, ad: AdSide, paired: bool) -> list[Tensor]:
        """What the gate weights g of each expert are to each other, [P, N] or [P] each: their softmax but for the sum.
        Where logits tie, the lower-numbered expert is routed to."""
        root = math.sqrt(self.architecture.gate_dim)
        z = [
            dots(user.gates[:, e], ad.gate, paired) / root + along(user.gate_bias[:, e], paired)
            for e in range(self.count)
        ]
        with torch.no_grad():
            largest = z[0]
            for each in z[1:]:
                largest = torch.maximum(largest, each)
        weights = [(each - largest).exp() for each in z]
        if self.route < self.count:
            weights = [w * routed for w, routed in zip(weights, routed_to(z, self.route), strict=True)]
        return weights

    def balance(self) -> Tensor:
        """0 where all experts carry the same load, E - 1 where one carries all."""
        if self.gate_load is None:
            return torch.zeros(())
        return self.count * self.gate_load.square().sum() - 1

    def flops(self) -> int:
        """Of one candidate: gate logits of all experts, comparisons that find those routed to, the products of these,
        their softmax and mixture. A multiplication, an addition, a comparison and an exponential count as one each."""
        dim, gate_dim, experts = self.architecture.dim, self.architecture.gate_dim, self.count
        if experts == 1:
            return 2 * dim
        routing = experts * (experts - 1) // 2 if self.route < experts else 0
        return experts * (2 * gate_dim + 1) + routing + 2 * self.route * dim + 4 * self.route - 1


class MixtureOfLogits(Head):
    def __init__(self, architecture: Architecture, has_context: bool) -> None:
        super().__init__(architecture, has_context)
        dim = architecture.dim
        self.users, self.ads = architecture.mol_user_vectors, architecture.mol_ad_vectors
        pairs = self.users * self.ads
        self.user_vectors, self.ad_vectors = nn.Linear(dim, self.users * dim), nn.Linear(dim, self.ads * dim)
        self.user_gate, self.ad_gate = nn.Linear(dim, pairs), nn.Linear(dim, pairs)
        self.pair_in, self.pair_out = nn.Linear(pairs, 2 * pairs), nn.Linear(2 * pairs, pairs)

    def user(self, trunk: Tensor, towers: dict[str, Tensor], context: Tensor | None) -> UserSide:
        side = super().user(trunk, towers, context)
        vectors = self.user_vectors(trunk).unflatten(-1, (self.users, -1)) + side.experts  # [P, P_Q, D]
        return side._replace(extra=(vectors, self.user_gate(trunk)))

    def ad(self, base: Tensor, rounding: bool) -> AdSide:
        side = super().ad(base, rounding)
        vectors = self.ad_vectors(base).unflatten(-1, (self.ads, -1)) + side.embedding[:, None]  # [N, P_X, D]
        return side._replace(extra=(vectors, self.ad_gate(base)))

    def logits(self, user: UserSide, ad: AdSide, paired: bool = False) -> Tensor:
        (vectors, user_gate), (ad_vectors, ad_gate) = user.extra, ad.extra
        pairs = [dots(vectors[:, i], ad_vectors[:, j], paired) for i in range(self.users) for j in range(self.ads)]
        logits = torch.stack(pairs, -1)  # [P, N, pair]
        crossed = self.pair_out(silu(self.pair_in(logits)))
        gate = user_gate + ad_gate if paired else user_gate[:, None] + ad_gate
        weights = dropout(torch.softmax(gate + crossed, -1), 0.1, self.training)
        return (weights * logits).sum(-1) + along(user.bias, paired)

    def flops(self) -> int:
        pairs = self.users * self.ads
        return 2 * pairs * self.architecture.dim + 8 * pairs * pairs + 8 * pairs


def dots(left: Tensor, right: Tensor, paired: bool) -> Tensor:
    """[P, D] and [N, D] -> [P, N]; paired, both [P, D] -> [P]"""
    return (left * right).sum(-1) if paired else left @ right.T


def along(users: Tensor, paired: bool) -> Tensor:
    """[P] as it is added to [P], or to [P, N]."""
    return users if paired else users[:, None]


def routed_to(z: list[Tensor], route: int) -> list[Tensor]:
    """1 where fewer than `route` experts come before an expert: of a larger logit, or as large with a lower number."""
    with torch.no_grad():
        before = [torch.zeros_like(each, dtype=torch.int8) for each in z]
        for high in range(len(z)):
            for low in range(high):
                wins = z[low] >= z[high]
                before[high] += wins
                before[low] += ~wins
        return [(count < route).to(each.dtype) for count, each in zip(before, z, strict=True)]
