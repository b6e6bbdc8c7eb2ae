"""What a model's ad tower is told of an ad, and which of the ad's vectors an event gave: these stay as they were given.

Read of the index (`inputs_at`), of an event (`after`), or of both, where an event changes a part of an ad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET

from gpu_index.events import AdEvent, EventKind
from gpu_index.index import Index
from gpu_index.texts import text_at
from gpu_index.values import Values
from kernels.ads import GIVEN_EMBEDDING, GIVEN_GATE


class AdInputs(NamedTuple):
    ad_id: str
    advertiser_id: str | None
    campaign_id: str | None
    fields: Values  # by field index of the schema
    features: bytes  # raw JSON object, b"" if none
    given_embedding: bool
    given_gate: bool


def inputs_at(index: Index, slot: int) -> AdInputs:
    """Of the ad at a slot. On the index's thread."""
    a = index.ads
    features_at, fields_at, flags = int(a.features_at[slot]), int(a.fields_at[slot]), int(a.flags[slot])
    return AdInputs(
        index.ad_id(slot),
        index.advertiser(slot),
        index.campaign(slot),
        index.fields.values(a.fields.words, fields_at) if fields_at else {},
        text_at(a.texts.words, features_at) if features_at else b"",
        bool(flags & GIVEN_EMBEDDING),
        bool(flags & GIVEN_GATE),
    )


def inputs_of(index: Index, ad_ids: Sequence[str]) -> dict[str, AdInputs]:
    """By ad id, of those that there are. On the index's thread."""
    slots = {ad_id: index.slot_of(ad_id) for ad_id in ad_ids}
    return {ad_id: inputs_at(index, slot) for ad_id, slot in slots.items() if slot is not None}


def depends_on_ad(event: AdEvent) -> bool:
    """Whether what the tower is told after the event, or whether it is asked, depends on the ad before it."""
    patch = event.patch
    if event.kind is not EventKind.MODIFY or patch is None:
        return False
    if patch.embedding is None or patch.gate is None:
        return True
    inputs = (patch.advertiser_id, patch.campaign_id, patch.fields, patch.features)
    given = patch.embedding is not UNSET and patch.gate is not UNSET
    return not given and any(each is not UNSET for each in inputs)


def after(event: AdEvent, before: AdInputs | None) -> AdInputs:
    """What the tower is told of the ad after a create or a modify. `before`: the ad as it is, which a create replaces
    as a whole."""
    patch = event.patch
    assert patch is not None
    assert event.ad_id is not None
    ad = before if before is not None and event.kind is EventKind.MODIFY else AdInputs(
        event.ad_id, None, None, {}, b"", False, False
    )  # fmt: skip
    return AdInputs(
        event.ad_id,
        ad.advertiser_id if patch.advertiser_id is UNSET else patch.advertiser_id,
        ad.campaign_id if patch.campaign_id is UNSET else patch.campaign_id,
        ad.fields if patch.fields is UNSET else patch.fields,
        ad.features if patch.features is UNSET else patch.features,
        ad.given_embedding if patch.embedding is UNSET else patch.embedding is not None,
        ad.given_gate if patch.gate is UNSET else patch.gate is not None,
    )
