"""What the index takes: ad events as ingest decoded them, and what became of each."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from gpu_index.targeting import Expression
from gpu_index.values import Values
from gpu_index.zones import Schedule

ALWAYS_FROM_US = -(2**63)
ALWAYS_UNTIL_US = 2**63 - 1


class EventKind(enum.Enum):
    CREATE = "create"
    MODIFY = "modify"
    EXPIRE = "expire"
    BAD = "bad"  # could not be decoded; travels in order all the same, since a stale bad event is stale


class Outcome(enum.Enum):
    """What became of one event, in the words of the metrics."""

    APPLIED = "applied"
    STALE = "stale"
    DUPLICATE = "duplicate"  # an offset that was applied before
    EXPIRE_UNKNOWN = "expire_unknown"  # an expire of an id that does not exist
    BAD = "bad"  # to the dead-letter topic, with the event's fault
    UNKNOWN_AD = "unknown_ad"  # a modify of an id that does not exist: a bad event
    INDEX_FULL = "index_full"  # no room within the configured capacity: a bad event


class Fault(msgspec.Struct, frozen=True):
    """Why an event is bad: a stable code and a sentence for a person."""

    code: str
    detail: str


class ParsedTargeting(msgspec.Struct, frozen=True, gc=False):
    """A validated targeting. `source` is the raw JSON it was read from, used as a cache key (events of one campaign
    share the very same object where they can)."""

    source: bytes
    expression: Expression
    from_meta: bool = False


class AdPatch(msgspec.Struct):
    """The top-level fields of `ad` that an event sets; UNSET is "leave as it is". A create sets every one."""

    advertiser_id: str | None | UnsetType = UNSET
    campaign_id: str | None | UnsetType = UNSET
    bid: float | UnsetType = UNSET
    paused: bool | UnsetType = UNSET
    start_us: int | UnsetType = UNSET  # microseconds since 1970; ALWAYS_FROM_US if open
    end_us: int | UnsetType = UNSET  # ALWAYS_UNTIL_US if open
    schedule: Schedule | None | UnsetType = UNSET
    targeting: ParsedTargeting | None | UnsetType = UNSET  # None: matches every request (a create without targeting)
    clears_targeting: bool = False  # modify: `"targeting": null`, which clears only a native targeting
    clears_targeting_meta: bool = False  # modify: `"targeting_meta": null`, which clears only a Meta one
    features: bytes | UnsetType = UNSET  # raw JSON object, b"" if none
    embedding: NDArray[np.float32] | None | UnsetType = UNSET  # [dim]
    gate: NDArray[np.float32] | None | UnsetType = UNSET  # [gate_dim]
    fields: Values | UnsetType = UNSET  # by field index of the schema, declared fields only


class AdEvent(msgspec.Struct):
    kind: EventKind
    ad_id: str | None  # None only for a bad event whose ad is unknown
    version: int | None
    partition: int
    offset: int
    timestamp_ms: int  # the record's
    event_time_us: int | None = None
    patch: AdPatch | None = None  # create and modify
    fault: Fault | None = None  # bad
    derives_embedding: bool = False  # the patch's embedding is the model's, not the event's own
    derives_gate: bool = False


class Batch(msgspec.Struct):
    """Events in the order in which they are to be applied, and where each partition stands after them."""

    events: list[AdEvent]
    positions: dict[int, int]  # partition -> the next offset to read after this batch (markers and gaps passed)
    applied: Callable[[Sequence[Outcome], int], None]  # called once on the engine's thread: outcomes, now_us
