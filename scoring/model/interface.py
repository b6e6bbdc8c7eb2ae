"""A trained model as serving sees it: users and ads in, the vectors of contract section 4 out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from scoring.user import User


class ModelError(Exception):
    """A model cannot be used. The message is a sentence that says what to do."""


class AdFeatures(msgspec.Struct, frozen=True):
    """What the ad tower may know of an ad. All but the id may be missing."""

    ad_id: str
    advertiser_id: str | None = None
    campaign_id: str | None = None
    fields: dict[str, list[Any]] = {}  # the declared ad fields, by name
    features: dict[str, Any] = {}  # the event's `features`


class Model(Protocol):
    """A loaded model. It does not change, and its methods may be called from any one thread at a time."""

    name: str
    fingerprint: str  # BLAKE2b of the exported files, in hexadecimal
    dim: int  # D
    gate_dim: int  # G
    experts: int  # E

    def users(
        self, features: Sequence[dict[str, Any]], contexts: Sequence[dict[str, Any] | None]
    ) -> list[User]:  # one for each, the context folded in
        """Each says what of it was understood. Raises InvalidInput where features or a context have the wrong shape;
        its path begins `[i].features` or `[i].context`, i the place in the batch."""

    def ads(self, ads: Sequence[AdFeatures]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embeddings [ad, D] and gate queries [ad, G]. Unknown ids and missing signals have trained fallbacks: it never
        raises for what an ad holds."""
