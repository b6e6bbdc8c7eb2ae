"""A model that needs no training: its vectors are drawn from a hash of all that it is told, so that two ads, two users
or two models that differ in anything have other vectors."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from api.shared_model import NEW_AD
from gpu_index.ad_inputs import AdInputs
from gpu_index.invalid_input import InvalidInput
from gpu_index.schema import Schema
from gpu_index.values import value_to_json
from scoring.model.served import AdFeatures, ModelError
from scoring.user import User


class FakeModel:
    def __init__(self, name: str, dim: int = 8, gate_dim: int = 4, experts: int = 3) -> None:
        self.name, self.fingerprint = name, blake2b(name.encode(), digest_size=8).hexdigest()
        self.dim, self.gate_dim, self.experts = dim, gate_dim, experts
        self.asked: list[AdFeatures] = []
        self.users_asked: list[int] = []  # how many at once
        self.before_ads: Callable[[Sequence[AdFeatures]], None] = lambda ads: None  # may wait, or raise
        self.before_users: Callable[[], None] = lambda: None

    def users(self, features: Sequence[dict[str, Any]], contexts: Sequence[dict[str, Any] | None]) -> list[User]:
        self.before_users()
        self.users_asked.append(len(features))
        made = []
        for place, (told, context) in enumerate(zip(features, contexts, strict=True)):
            if "bad" in told:
                raise InvalidInput(f"[{place}].features.bad", "no such signal", "unknown_field")
            if "bad" in (context or {}):
                raise InvalidInput(f"[{place}].context.bad", "no such name", "unknown_field")
            drawn = self._drawn(["user", told, context], self.experts * (self.dim + self.gate_dim + 1))
            experts, gates, bias = np.split(drawn, [self.experts * self.dim, self.experts * (self.dim + self.gate_dim)])
            made.append(
                User(experts.reshape(-1, self.dim), gates.reshape(-1, self.gate_dim), bias, 0.5, -0.25,
                     route=min(2, self.experts))
            )  # fmt: skip
        return made

    def ads(self, ads: Sequence[AdFeatures]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if list(ads) != [NEW_AD]:
            self.before_ads(ads)
            self.asked += ads
        drawn = np.stack([self._drawn(["ad", msgspec.structs.astuple(ad)], self.dim + self.gate_dim) for ad in ads])
        return drawn[:, : self.dim], drawn[:, self.dim :]

    def _drawn(self, told: object, count: int) -> NDArray[np.float32]:
        seed = blake2b(msgspec.json.encode([self.name, told], order="sorted"), digest_size=8).digest()
        r = random.Random(seed)
        return np.array([r.uniform(-1, 1) for _ in range(count)], np.float32)

    def of(self, ad: AdInputs, schema: Schema) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The vectors of one ad, by what the index says of it."""
        names = [field.name for field in schema.field_list]
        fields = {names[field]: [value_to_json(value) for value in held] for field, held in ad.fields.items()}
        features = msgspec.json.decode(ad.features) if ad.features else {}
        told = AdFeatures(ad.ad_id, ad.advertiser_id, ad.campaign_id, fields, features)
        drawn = self._drawn(["ad", msgspec.structs.astuple(told)], self.dim + self.gate_dim)
        return drawn[: self.dim], drawn[self.dim :]


class Shelf:
    """Folders of models, to load from."""

    def __init__(self, folder: Path, *models: FakeModel) -> None:
        self.models = {folder / model.name: model for model in models}
        for path in self.models:
            path.mkdir()
            (path / "weights").write_bytes(bytes(1000))

    def load(self, path: Path) -> FakeModel:
        if path not in self.models:
            raise ModelError(f"there is no model in {path}")
        return self.models[path]
