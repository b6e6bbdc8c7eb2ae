"""A model that several threads ask: the user towers, the ad tower, each in its turn, the first come first; and how one
is loaded and agrees with the settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from api.config import ConfigError, Loaded
from gpu_index.index import ModelName
from kernels.score import EXPERTS_MAX
from scoring.model.served import AdFeatures, Model, ModelError, load_model
from scoring.user import User

WIDTHS = {"dim": 4096, "gate_dim": 4096, "experts": EXPERTS_MAX}  # settings that a model brings, and the most of each
NEW_AD = AdFeatures("a new ad")  # what a model is asked for when it is loaded

LoadModel = Callable[[Path], Model]
log = logging.getLogger("mirach.model")


class SharedModel:
    """Itself a Model. In turns, so that requests wait for one batch of ads at most while many are embedded."""

    def __init__(self, model: Model) -> None:
        self.name, self.fingerprint = model.name, model.fingerprint
        self.dim, self.gate_dim, self.experts = model.dim, model.gate_dim, model.experts
        self._model = model
        self._changed = threading.Condition()
        self._tickets = 0  # given out
        self._turn = 0  # the ticket whose turn it is

    @property
    def title(self) -> ModelName:
        """What answers and snapshots call it."""
        return ModelName(self.name, self.fingerprint)

    def users(self, features: Sequence[dict[str, Any]], contexts: Sequence[dict[str, Any] | None]) -> list[User]:
        with self._in_turn():
            return self._model.users(features, contexts)

    def ads(self, ads: Sequence[AdFeatures]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with self._in_turn():
            return self._model.ads(ads)

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        with self._changed:
            mine = self._tickets
            self._tickets += 1
            self._changed.wait_for(lambda: self._turn == mine)
        try:
            yield
        finally:
            with self._changed:
                self._turn += 1
                self._changed.notify_all()


def load_shared(path: Path, load: LoadModel = load_model) -> SharedModel:
    """The model of a folder, fit for this engine, and asked once, which also makes its first requests as quick as later
    ones. Raises ModelError."""
    model = load(path)
    for name, most in WIDTHS.items():
        if not 1 <= getattr(model, name) <= most:
            raise ModelError(f"the model in {path} has {name} {getattr(model, name)}; from 1 to {most} can be served")
    (user,) = model.users([{}], [None])
    embedding, gate = model.ads([NEW_AD])
    made = (user.experts.shape[1:], user.gates.shape[1:], embedding.shape, gate.shape)
    if made != ((model.dim,), (model.gate_dim,), (1, model.dim), (1, model.gate_dim)):
        raise ModelError(f"the model in {path} makes vectors of other widths than it says: {made}; export it again")
    return SharedModel(model)


def with_model(loaded: Loaded) -> tuple[Loaded, SharedModel | None]:
    """The settings, with the model's widths where there is a model, and the model. Raises ModelError, ConfigError."""
    if loaded.settings.model is None:
        return loaded, None
    model = load_shared(loaded.settings.model)
    check_widths(loaded, model)
    log.info(
        "model %s (%s): D = %d, G = %d, E = %d", model.name, model.fingerprint, model.dim, model.gate_dim, model.experts
    )
    return of_model(loaded, model, f"model {loaded.settings.model}"), model


def of_model(loaded: Loaded, model: SharedModel, source: str) -> Loaded:
    """The settings with the model's widths."""
    widths = {name: getattr(model, name) for name in WIDTHS}
    return Loaded(replace(loaded.settings, **widths), loaded.sources | dict.fromkeys(WIDTHS, source))


def check_widths(loaded: Loaded, model: SharedModel) -> None:
    """Raises ConfigError where widths are set that are not the model's."""
    for name in WIDTHS:
        given, held = getattr(loaded.settings, name), getattr(model, name)
        if loaded.sources[name] != "default" and given != held:
            raise ConfigError(
                f"{name} is set to {given} ({loaded.sources[name]}) and that of model {model.name} is {held}: leave "
                f"{name} out, since a model brings its own"
            )
