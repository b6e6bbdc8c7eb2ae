"""What a model is (Architecture) and how it is trained (Recipe). Both are written beside what they made."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from kernels.score import DIM_MAX, EXPERTS_MAX

Head = Literal["gate", "dot", "mol", "ranker"]
Tower = Literal["sequence", "cohort", "semantic", "surfaces"]
SERVED_HEADS = ("gate", "dot")  # what section 4 of the contract can say


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    head: Head = "gate"
    dim: int = 64  # D: of embeddings and of every tower
    gate_dim: int = 4  # G
    towers: tuple[Tower, ...] = ("sequence", "cohort", "semantic")
    experts: tuple[Tower, ...] = ("sequence", "sequence", "cohort", "semantic")  # the home tower of each expert
    route: int = 2  # R, 1 .. E
    ids_only: bool = False  # of an ad, only its id is known
    layers: int = 2
    attention_heads: int = 2
    history: int = 50  # engagements that the sequence tower sees, the newest
    surface_history: int = 20  # the same for other surfaces
    word_buckets: int = 4096  # words of texts are hashed into as many
    mol_user_vectors: int = 4  # P_Q
    mol_ad_vectors: int = 2  # P_X

    def __post_init__(self) -> None:
        _require(1, None, self, "dim", "gate_dim", "layers", "attention_heads", "history", "surface_history",
                 "mol_user_vectors", "mol_ad_vectors")  # fmt: skip
        _require(2, None, self, "word_buckets")  # word 0 is none
        if not self.towers or not self.experts or len(set(self.towers)) < len(self.towers):
            raise ValueError("towers and experts are one or more, and each tower is named once")
        if not 1 <= self.route <= len(self.experts):
            raise ValueError(f"route {self.route} is not 1 to {len(self.experts)}, the number of experts")
        if len(self.experts) > EXPERTS_MAX or max(self.dim, self.gate_dim) > DIM_MAX:
            raise ValueError(f"the kernels take up to {EXPERTS_MAX} experts, and vectors up to {DIM_MAX} wide")
        homeless = set(self.experts) - set(self.towers)
        if homeless and self.head == "gate":
            raise ValueError(f"experts of towers that there are not: {sorted(homeless)}")
        if self.dim % self.attention_heads:
            raise ValueError(f"dim {self.dim} does not divide among {self.attention_heads} attention heads")


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seed: int = 1
    epochs: int = 12
    patience: int = 4  # epochs without a better validation NDCG@10 before it stops
    batch: int = 64  # windows of users' histories
    negatives: int = 256  # shared by a batch; 0: the whole catalogue
    learning_rate: float = 4e-3
    warm_up: int = 50  # steps
    weight_decay: float = 1e-4
    dropout: float = 0.35
    id_dropout: float = 0.1  # how often an ad's id is hidden, so that content alone makes a vector too
    signal_dropout: float = 0.1  # how often a cohort signal, the context or other surfaces are missing
    impressions: int = 256  # of a batch, whose clicks are predicted too, where the data says what was shown
    balance: float = 0.005  # weight of the load balance between experts
    rounding: bool = True  # int8 rounding of ads' vectors in the loop
    popularity: float = 0.5  # negatives are drawn by count ** popularity
    cold: float = 0.0  # share of the items that are kept out of training, to measure a cold start
    minutes: float = 30.0  # of training, at most

    def __post_init__(self) -> None:
        _require(1, None, self, "epochs", "patience", "batch")
        _require(0, 2**63, self, "seed")
        _require(0, None, self, "negatives", "learning_rate", "warm_up", "weight_decay", "impressions", "balance",
                 "popularity", "minutes")  # fmt: skip
        _require(0, 1, self, "dropout", "id_dropout", "signal_dropout", "cold")


def _require(least: float, below: float | None, settings: msgspec.Struct, *names: str) -> None:
    """Raises ValueError unless each is `least` or more, and less than `below` where that is given."""
    for name in names:
        value = getattr(settings, name)
        if not least <= value < (math.inf if below is None else below):
            raise ValueError(f"{name} {value} is not {least} or more" + (f" and below {below}" if below else ""))
