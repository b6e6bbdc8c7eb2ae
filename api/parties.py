"""The engine, who feeds it and who writes what it holds to disk: the order in which they begin and end.

Written once for the service and for tests/simulation, where any operation between two of these steps may be the last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from api.ad_stage import AdStage
from api.engine import Engine
from api.snapshots import Snapshots
from gpu_index.index import Index
from gpu_index.manifest import Identity
from ingest.source import Ingest
from ingest.watch import TopicView

STOP_S = 10.0  # for each


@dataclass(slots=True)
class Parties:
    engine: Engine
    ingest: Ingest
    snapshots: Snapshots
    stage: AdStage | None = None  # None: the reader hands on to the engine itself

    def start(self) -> None:
        """The engine, with an empty index; events come later. The folder must be locked."""
        self.engine.start()
        if self.stage is not None:
            self.stage.start()

    def begin(
        self, view: TopicView, identity: Identity, new_index: Callable[[], Index],
        restored: Callable[[dict[int, int]], None] = lambda _offsets: None,
    ) -> None:  # fmt: skip
        """Once the topic was seen: restores a snapshot of it, and reads on from its offsets, which `restored` is told
        first. Raises DoesNotFit, Stopped."""
        offsets = self.snapshots.restore(identity, new_index)
        restored(offsets)
        self.ingest.start(offsets, view.topic_id)
        self.snapshots.start()

    @property
    def failure(self) -> str | None:
        """Why one that feeds the engine has ended by itself."""
        return self.ingest.failure or (None if self.stage is None else self.stage.failure)

    def end(self) -> None:
        """In order: what was read is applied, what was applied is committed, and a last snapshot written."""
        self.snapshots.stop()
        self.ingest.stop(STOP_S)
        if self.stage is not None:
            self.stage.stop(STOP_S)
        self.engine.stop(STOP_S)
        self.snapshots.finish()
