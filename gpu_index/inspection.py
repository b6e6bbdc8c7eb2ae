"""What the index holds, for operators: its counts and memory, and single ads as they are indexed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np

from gpu_index import footprint, packing
from gpu_index.events import ALWAYS_FROM_US, ALWAYS_UNTIL_US
from gpu_index.index import UNLIMITED_BYTES, Index
from gpu_index.record import decode
from gpu_index.targeting import Expression, to_json
from gpu_index.texts import text_at
from gpu_index.values import value_to_json
from gpu_index.zones import Schedule, hour_of_week
from kernels import ads as ads_
from kernels import expired as expired_
from kernels import extents as extents_
from kernels import pool as pool_
from kernels import rows as rows_
from kernels import targetings as targetings_
from kernels.precision import dequantise
from kernels.program import NO_ZONE

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def describe(index: Index) -> dict[str, object]:
    """Counts, capacity, rows and lists, and memory by part in bytes, as far as pages have been touched."""
    a, t, x = index.ads, index.targetings, index.targetings.rows
    terms = 2 * index.terms.vocabulary.highest
    in_rows = int(np.count_nonzero(x.row[:terms]))
    return {
        "ads": index.count,
        "paused": int(a.state[ads_.PAUSED_ADS]),
        "live_now": int(np.bitwise_count(a.live[: _words(index)]).sum()),
        "zero_embeddings": int(a.state[ads_.ZERO_ADS]),
        "targetings": int(t.state[targetings_.LIVE]),
        "targetings_with_program": int(t.state[targetings_.PROGRAMS]),
        "terms": len(index.terms.vocabulary),
        "field_terms": len(index.fields.vocabulary),
        "rows": in_rows,
        "lists": int(np.count_nonzero(x.uses[:terms])) - in_rows,
        "expired_versions": int(index.expired.state[expired_.HELD]),
        "evicted_versions": int(index.expired.evicted[0]),
        "capacity": {
            "ads": index.limits.ads,
            "targetings": index.limits.targetings,
            "terms": index.limits.terms,
            "expired_versions": index.limits.expired,
            "held_bytes": index.limits.held_bytes,
        },
        "limits": limits(index),
        "slots": {
            "ads": int(a.extents.state[extents_.FRONTIER]),
            "targetings": int(t.state[targetings_.FRONTIER]),
        },
        "memory_bytes": footprint.touched(index.parts),
        "device_memory_bytes": {} if index.copy is None else index.copy.memory(),
        "held_bytes": footprint.held(index.parts),
        "precision": str(index.precision),
        "dim": index.dim,
        "gate_dim": index.gate_dim,
        "schema_fingerprint": index.schema.fingerprint,
    }


def limits(index: Index) -> dict[str, tuple[int, int]]:
    """What is in use of each bound of the index, and the bound; of pools and rows, how far they were ever used."""
    a, t, x = index.ads, index.targetings, index.expired
    pools = {"texts": a.texts, "fields": a.fields, "records": t.records, "lists": t.rows.postings,
             "expired_texts": x.texts}  # fmt: skip
    return {
        "ads": (index.count, index.limits.ads),
        "targetings": (int(t.state[targetings_.LIVE]), index.limits.targetings),
        "terms": (len(index.terms.vocabulary), index.limits.terms),
        "field_terms": (len(index.fields.vocabulary), index.limits.terms),
        "expired_versions": (int(x.state[expired_.HELD]), index.limits.expired),
        "held_bytes": (footprint.held(index.parts), index.limits.held_bytes or UNLIMITED_BYTES),
        "rows": (int(t.rows.state[rows_.ROWS_FRONTIER]), len(t.rows.entry_of)),
        "cached_targetings": (index.packer.cached, packing.CACHED_TARGETINGS_MAX),
        **{f"{name}_words": (int(pool.state[pool_.FRONTIER]), len(pool.words)) for name, pool in pools.items()},
    }


def _words(index: Index) -> int:
    return int(index.ads.extents.state[extents_.FRONTIER]) // 64


def targeting_of(index: Index, slot: int) -> tuple[Expression, Schedule | None]:
    """The targeting and schedule of the ad at a slot."""
    t = index.targetings
    words, at = t.records.words, int(t.record[index.ads.targeting[slot]])
    expression = decode(
        words, targetings_.expression_at(words, at), index.schema.attribute_list, index.terms.value
    )
    if words[at + 1] == NO_ZONE:
        return expression, None
    mask = words[at + 2 : at + 8]
    hours = tuple(hour for hour in range(168) if mask[hour >> 5] >> (hour & 31) & 1)
    return expression, Schedule(index.terms.zone_name(int(words[at + 1])), hours)


def ad(index: Index, ad_id: str) -> dict[str, object] | None:
    """The ad as indexed, where it came from, and whether it may be served now; None where there is none."""
    slot = index.slot_of(ad_id)
    if slot is None:
        return None
    a = index.ads
    expression, schedule = targeting_of(index, slot)
    flags = int(a.flags[slot])
    features_at, fields_at = int(a.features_at[slot]), int(a.fields_at[slot])
    fields = index.fields.values(a.fields.words, fields_at) if fields_at else {}
    names = index.schema.field_list
    return {
        "ad_id": ad_id,
        "ad": {
            "advertiser_id": index.advertiser(slot),
            "campaign_id": index.campaign(slot),
            "bid": float(a.bid[slot]),
            "status": "paused" if flags & ads_.PAUSED else "active",
            "start_time": _time(int(a.start_us[slot]), ALWAYS_FROM_US),
            "end_time": _time(int(a.end_us[slot]), ALWAYS_UNTIL_US),
            "schedule": None if schedule is None else {"timezone": schedule.timezone, "hours": list(schedule.hours)},
            "targeting": to_json(expression, index.schema.attribute_list, "attr"),
            "fields": {names[field].name: [value_to_json(value) for value in held] for field, held in fields.items()},
            "features": msgspec.json.decode(text_at(a.texts.words, features_at)) if features_at else None,
            "embedding": dequantise(a.embedding[slot], a.embedding_scale[slot], index.dim).tolist(),
            "gate": dequantise(a.gate[slot], a.gate_scale[slot], index.gate_dim).tolist(),
        },
        "targeting_source": "targeting_meta" if flags & ads_.FROM_META else "targeting",
        "zero_embedding": bool(flags & ads_.ZERO_EMBEDDING),
        "given": {  # by an event; else the model's, or zeros without one
            "embedding": bool(flags & ads_.GIVEN_EMBEDDING),
            "gate": bool(flags & ads_.GIVEN_GATE),
        },
        "slot": slot,
        "targeting_slot": int(a.targeting[slot]),
        "shared_by": int(index.targetings.references[a.targeting[slot]]),
        "version": None if a.version[slot] < 0 else int(a.version[slot]),
        "partition": int(a.partition[slot]),
        "offset": int(a.offset[slot]),
        "created": _time(int(a.created_ms[slot]) * 1000, ALWAYS_FROM_US),
        "eligibility": eligibility(index, slot, index.now_us),
    }


def eligibility(index: Index, slot: int, now_us: int) -> dict[str, object]:
    """What decides at `now_us` before any targeting: status, start and end, schedule."""
    a = index.ads
    _, schedule = targeting_of(index, slot)
    hour = None if schedule is None else hour_of_week(schedule.timezone, now_us)
    reasons = {
        "active": not a.flags[slot] & ads_.PAUSED,
        "started": bool(a.start_us[slot] <= now_us),
        "not_ended": bool(now_us < a.end_us[slot]),
        "scheduled": schedule is None or hour in schedule.hours,
    }
    return {"now": _time(now_us, ALWAYS_FROM_US), "eligible": all(reasons.values()), **reasons, "hour_of_week": hour}


def _time(us: int, open_end: int) -> str | None:
    """RFC 3339, None for an open end. Moments that Python's calendar lacks are given in microseconds since 1970."""
    if us == open_end:
        return None
    try:
        return (EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{us} us"
