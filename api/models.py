"""The model in use, and its switch to another one while the service runs.

A switch goes in steps: (1) the new model is loaded and checked, and the memory that it takes beside the old one is
accounted for; (2) in the background every ad of the index gets the new model's vectors, beside those in use; what
events change meanwhile is done again, pass by pass; (3) once a pass found little to do, the ad stage stops between two
batches: the rest is done with no event between, and the engine takes the new vectors between two passes of requests. Up
to that moment everything is the old model's, from then on the new one's: vectors, widths, towers, names. Whatever fails
before leaves the old model where it was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from api.ad_stage import READ_ADS, AdStage
from api.ad_tower import AdTower, AdTowerStatistics
from api.engine import Engine, Stopped
from api.memory_left import folder_bytes, memory_left
from api.shared_model import LoadModel, SharedModel, load_shared
from gpu_index.index import Index
from gpu_index.manifest import moment
from gpu_index.schema import Schema
from gpu_index.second_vectors import SecondVectors, Unusable, second_bytes, slots_of
from scoring.model.served import ModelError, load_model

SCAN_SLOTS = 1 << 18  # looked at by the engine at once
LAST_ADS = 1024  # with no more left to do, events may wait for them
PASSES_MAX = 16  # then events wait for whatever is left
log = logging.getLogger("mirach.model")


class SwitchRefused(Exception):
    """There is no switch to this model; the message says why. `code`: busy, active, memory or given_vectors."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(slots=True)
class Switch:
    """One that is going on."""

    path: Path
    began: float  # by the monotonic clock
    step: str = "loading"  # embedding, switching
    model: SharedModel | None = None
    ads: int = 0  # at its beginning
    embedded: int = 0  # those done again count again
    passes: int = 0
    bytes: int = 0  # that the new model and its vectors take


class Models:
    def __init__(
        self,
        engine: Engine,
        stage: AdStage,
        schema: Schema,
        active: SharedModel | None,
        path: Path | None,
        *,
        bytes_max: int,
        clock_us: Callable[[], int],
        load: LoadModel = load_model,
        left: Callable[[], int | None] = memory_left,
    ) -> None:
        """`path`: of the active model; a relative one, here and in `begin`, is relative to where this process works.
        `bytes_max`: that a switch may take; 0: what `left` says is there."""
        self.statistics = AdTowerStatistics()
        self.on_switch: Callable[[SharedModel, Path], None] = lambda _model, _path: None  # on the engine's thread
        self.set_widths: Callable[[int, int], None] = lambda _dim, _gate_dim: None  # of the events to be decoded
        self._engine, self._stage, self._schema = engine, stage, schema
        self._setting = None if path is None else path.absolute()
        self._active, self._path = active, self._setting
        self._bytes_max, self._clock_us = bytes_max, clock_us
        self._load, self._left = load, left
        self._lock = threading.Lock()
        self._switch: Switch | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._failure: dict[str, Any] | None = None
        self._counts = {"switched": 0, "failed": 0, "refused": 0}
        if active is not None:
            stage.tower = self.tower(active)

    @property
    def batches_waiting(self) -> int:
        """Batches of events that wait for the ad tower."""
        return self._stage.waiting

    @property
    def active(self) -> SharedModel | None:
        return self._active

    def tower(self, model: SharedModel) -> AdTower:
        return AdTower(model, self._schema, self.statistics)

    def begin(self, path: Path) -> None:
        """Loads and checks a model, and begins the switch to it in the background. Raises ModelError, SwitchRefused,
        AddressSpaceError, Stopped."""
        with self._lock:
            if self._switch is not None:
                self._counts["refused"] += 1
                raise SwitchRefused("busy", f"the switch to {self._switch.path} is going on; wait for its end")
            switch = self._switch = Switch(path.absolute(), time.monotonic())
        try:
            second, model = self._prepare(switch)
            switch.step = "embedding"
            self._thread = threading.Thread(
                target=self._run, args=(switch, second, model), name="mirach-model-switch", daemon=True
            )
            self._thread.start()
        except Exception as error:
            self._not_begun(switch, error)
            raise

    def stop(self) -> None:
        """Ends a switch that is going on."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()

    # -- a switch

    def _prepare(self, switch: Switch) -> tuple[SecondVectors, SharedModel]:
        """Everything that may be refused before any work is done."""
        try:
            self._account(switch, folder_bytes(switch.path) if switch.path.is_dir() else 0)
        except (OSError, ValueError) as error:
            raise ModelError(f"{switch.path} cannot be read: {error}") from None
        model = load_shared(switch.path, self._load)
        active = self._active
        if active is not None and active.fingerprint == model.fingerprint:
            raise SwitchRefused("active", f"model {model.name} ({model.fingerprint}) is in use already")
        switch.model = model
        index = self._engine.index
        loaded = switch.bytes
        self._account(switch, second_bytes(slots_of(index), model.dim, model.gate_dim, index.precision), loaded)
        second = SecondVectors(index, model.dim, model.gate_dim)
        try:
            self._engine.call(second.check_given).result()
        except Unusable as unusable:
            raise _refused(unusable, model) from None
        self._engine.call(lambda index: _account_device(index, model)).result()
        switch.ads = index.count
        return second, model

    def _account(self, switch: Switch, more: int, loaded: int = 0) -> None:
        """Notes what a switch takes, of which `loaded` bytes are taken already. Raises SwitchRefused."""
        switch.bytes = more + loaded
        left = self._left()
        if self._bytes_max:
            room, named = self._bytes_max - loaded, "the setting model_switch_bytes_max allows"
        elif left is not None:
            room, named = left, "this machine has available"
        else:
            return
        if more > room:
            raise SwitchRefused(
                "memory",
                f"the new model and its vectors take another {more:,} bytes beside those in use, and {named} "
                f"{max(room, 0):,}",
            )

    def _run(self, switch: Switch, second: SecondVectors, model: SharedModel) -> None:
        """On a thread of its own."""
        tower = self.tower(model)
        log.info("switching to model %s (%s): %d ads to embed", model.name, model.fingerprint, switch.ads)
        try:
            while self._pass(switch, second, tower) > LAST_ADS and switch.passes < PASSES_MAX:
                pass
            switch.step = "switching"
            self._stage.between(lambda: self._finish(switch, second, tower, model)).result()
        except Unusable as unusable:
            self._failed(switch, _refused(unusable, model))
            return
        except Exception as error:
            if not isinstance(error, Stopped):
                log.exception("the switch to model %s failed", model.name)
            self._failed(switch, error)
            return
        self._counts["switched"] += 1
        log.info(
            "model %s (%s) is in use after %.1f s; the setting model decides at the next start",
            model.name, model.fingerprint, time.monotonic() - switch.began,
        )  # fmt: skip
        with self._lock:
            self._switch = None

    def _pass(self, switch: Switch, second: SecondVectors, tower: AdTower) -> int:
        """Embeds the ads that the new vectors are not of. -> how many there were"""
        found = 0
        slots = slots_of(self._engine.index)
        for first in range(0, slots, SCAN_SLOTS):
            end = min(first + SCAN_SLOTS, slots)
            stale = self._on_engine(lambda index, first=first, end=end: second.stale(index, first, end))  # type: ignore[misc]
            found += len(stale)
            for at in range(0, len(stale), READ_ADS):
                self._embed(switch, second, tower, stale[at : at + READ_ADS])
        switch.passes += 1
        return found

    def _embed(self, switch: Switch, second: SecondVectors, tower: AdTower, slots: NDArray[np.int64]) -> None:
        ads = self._on_engine(lambda index: second.read(index, slots))
        if ads.inputs:
            second.write(ads, *tower.embed(ads.inputs))
            switch.embedded += len(ads.inputs)

    def _finish(self, switch: Switch, second: SecondVectors, tower: AdTower, model: SharedModel) -> None:
        """On the ad stage's thread, so that no event comes between: what it handed on goes first."""
        self._engine.call_after(lambda _: None).result()
        while self._pass(switch, second, tower):
            pass

        def take(index: Index) -> None:
            second.take(index, model.title)
            self._active, self._path = model, switch.path
            self.on_switch(model, switch.path)

        self._on_engine(take)
        self._stage.tower = tower
        self.set_widths(model.dim, model.gate_dim)

    def _on_engine(self, function: Callable[[Index], Any]) -> Any:
        """Raises Stopped, at the end of the service too."""
        if self._stopping:
            raise Stopped
        return self._engine.call(function).result()

    def _failed(self, switch: Switch, error: Exception) -> None:
        reason = self._reason(error)
        self._counts["failed"] += 1
        self._failure = {"path": str(switch.path), "reason": reason, "at": moment(self._clock_us())}
        level = logging.INFO if self._is_end(error) else logging.ERROR
        log.log(level, "there is no switch to the model in %s, the one in use stays: %s", switch.path, reason)
        with self._lock:
            self._switch = None

    def _not_begun(self, switch: Switch, error: Exception) -> None:
        """It never began: whoever asked for it is answered so, and nothing is kept but a count."""
        level = logging.INFO if self._is_end(error) else logging.WARNING
        log.log(level, "no switch to the model in %s was begun: %s", switch.path, self._reason(error))
        with self._lock:
            self._counts["refused"] += 1
            self._switch = None

    def _is_end(self, error: Exception) -> bool:
        """Whether nothing went wrong: the service stops in order."""
        return isinstance(error, Stopped) and not self._engine.failed

    def _reason(self, error: Exception) -> str:
        if self._is_end(error):
            return "the service is stopping"
        return "the engine has failed" if isinstance(error, Stopped) else str(error) or type(error).__name__

    # -- what is shown

    def figures(self) -> dict[str, Any]:
        """As JSON types."""
        active, switch = self._active, self._switch
        return {
            "active": None if active is None else {**shown(active), "path": str(self._path)},
            "at_next_start": None if self._setting is None else str(self._setting),
            "switching": None if switch is None else shown_switch(switch),
            "last_failure": self._failure,
            **self._counts,
            "ad_tower": {
                "ads": self.statistics.ads,
                "batches": self.statistics.batches,
                "failed": self.statistics.failed,
                "seconds": round(self.statistics.seconds, 6),
            },
        }


def shown(model: SharedModel) -> dict[str, Any]:
    names = ("name", "fingerprint", "dim", "gate_dim", "experts")
    return {name: getattr(model, name) for name in names}


def shown_switch(switch: Switch) -> dict[str, Any]:
    model = switch.model
    return {
        "path": str(switch.path),
        "model": None if model is None else shown(model),
        "step": switch.step,
        "ads": switch.ads,
        "embedded": switch.embedded,
        "passes": switch.passes,
        "bytes": switch.bytes,
        "seconds": round(time.monotonic() - switch.began, 3),
    }


def _account_device(index: Index, model: SharedModel) -> None:
    """Raises SwitchRefused where the copy on a device has no room for the model's vectors."""
    if index.copy is None:
        return
    more, room = index.copy.widened(model.dim, model.gate_dim)
    if more > room:
        room = max(room, 0)
        raise SwitchRefused(
            "memory", f"the new model's vectors take another {more:,} bytes on the device, which has {room:,} for them"
        )


def _refused(unusable: Unusable, model: SharedModel) -> SwitchRefused:
    examples = ", ".join(unusable.examples)
    return SwitchRefused(
        "given_vectors",
        f"{unusable.count:,} ads have vectors of their own of another width than model {model.name} has "
        f"(D = {model.dim}, G = {model.gate_dim}) and no features to make new ones of, such as {examples}: send them "
        "features, or null in place of the vectors",
    )
