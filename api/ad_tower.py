"""A model's ad tower as the service asks it: from what the index or an event says of ads to vectors, in batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpu_index.ad_inputs import AdInputs
from gpu_index.schema import Schema
from gpu_index.values import value_to_json
from scoring.model.served import AdFeatures, Model

ADS_MAX = 64  # asked at once: users that come meanwhile wait for them
log = logging.getLogger("mirach.model")

Vectors = tuple[NDArray[np.float32], NDArray[np.float32]]  # embedding [dim] and gate [gate_dim], or a line for each ad


class WrongVectors(Exception):
    """A model made vectors that are none."""


@dataclass(slots=True)
class AdTowerStatistics:
    """Counts since the start. Written by the threads that ask, read by anyone."""

    ads: int = 0
    batches: int = 0
    failed: int = 0  # ads
    seconds: float = 0.0


class AdTower:
    """Of one model. One thread at a time asks."""

    def __init__(self, model: Model, schema: Schema, statistics: AdTowerStatistics) -> None:
        self.model = model
        self._names = [field.name for field in schema.field_list]
        self._statistics = statistics

    def embed(self, ads: Sequence[AdInputs]) -> Vectors:
        """[ad, dim] and [ad, gate_dim]. Raises WrongVectors, and whatever the model raises: a fault of ours."""
        began = time.monotonic()
        embeddings, gates = self.model.ads([self._told(ad) for ad in ads])
        for vectors, width in ((embeddings, self.model.dim), (gates, self.model.gate_dim)):
            if vectors.shape != (len(ads), width) or vectors.dtype != np.float32:
                raise WrongVectors(f"{vectors.shape} {vectors.dtype} in place of {(len(ads), width)} float32")
            if not np.isfinite(vectors).all():
                raise WrongVectors("a number that is not finite")
        self._statistics.ads += len(ads)
        self._statistics.batches += 1
        self._statistics.seconds += time.monotonic() - began
        return embeddings, gates

    def embed_each(self, ads: Sequence[AdInputs]) -> Iterator[Vectors | None]:
        """For each ad embedding and gate; None where the model fails on it, whoever is beside it."""
        for first in range(0, len(ads), ADS_MAX):
            some = ads[first : first + ADS_MAX]
            try:
                yield from zip(*self.embed(some), strict=True)
            except Exception:
                for ad in some:
                    yield self._embed_alone(ad)

    def _embed_alone(self, ad: AdInputs) -> Vectors | None:
        try:
            embeddings, gates = self.embed([ad])
        except Exception:
            log.exception("model %s failed on ad %r", self.model.name, ad.ad_id)
            self._statistics.failed += 1
            return None
        return embeddings[0], gates[0]

    def _told(self, ad: AdInputs) -> AdFeatures:
        fields = {self._names[field]: [value_to_json(value) for value in held] for field, held in ad.fields.items()}
        features = msgspec.json.decode(ad.features) if ad.features else {}
        return AdFeatures(ad.ad_id, ad.advertiser_id, ad.campaign_id, fields, features)
