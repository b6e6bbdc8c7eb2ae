"""The newest snapshot that is whole and of this topic, schema and model, as an index."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from gpu_index.index import Index
from gpu_index.manifest import Damaged, Identity, Manifest, difference
from gpu_index.snapshot import DoesNotFit, load
from gpu_index.store import Store

_LOG = logging.getLogger("mirach.snapshots")

Progress = Callable[[int, int], None]  # bytes read, bytes in all


class PassedOver(NamedTuple):
    sequence: int
    reason: str


@dataclass(frozen=True, slots=True)
class Restored:
    index: Index
    manifest: Manifest | None  # None: there is no usable snapshot, the index is empty
    passed_over: list[PassedOver]


def restore(
    store: Store, identity: Identity, new_index: Callable[[], Index], progress: Progress = lambda *_: None
) -> Restored:
    """Each snapshot that cannot be used is logged with its reason. Raises DoesNotFit."""
    passed_over: list[PassedOver] = []
    for sequence in store.sequences():
        index = new_index()
        try:
            manifest = store.manifest(sequence)
            other = difference(manifest.identity, identity)
            if other is None:
                total = manifest.bytes
                load(store, manifest, index, lambda read, total=total: progress(read, total))  # type: ignore[misc]
                return Restored(index, manifest, passed_over)
            reason = f"it is {other}"
        except Damaged as damage:
            reason = str(damage)
        except DoesNotFit as error:
            raise DoesNotFit(f"snapshot {sequence} does not fit: {error}") from None
        passed_over.append(PassedOver(sequence, reason))
        _LOG.warning("snapshot %d is passed over: %s", sequence, reason)
    return Restored(new_index(), None, passed_over)
