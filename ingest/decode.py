"""From a record's bytes to an AdEvent (contract, section 3). A bad one comes out as an event too, with its fault.

A create or modify is decoded in three steps: the outer object, then `ad` as JSON types, then each field's meaning.
Targeting, schedules and everything else that an ad shares with its neighbours is parsed once and found again by its
raw bytes, so that the ads of a campaign cost a look-up each.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType
from numpy.typing import NDArray

from gpu_index.events import (
    ALWAYS_FROM_US,
    ALWAYS_UNTIL_US,
    AdEvent,
    AdPatch,
    EventKind,
    Fault,
    ParsedTargeting,
)
from gpu_index.invalid_input import InvalidInput, shown
from gpu_index.json_input import decode_json
from gpu_index.schema import Schema
from gpu_index.targeting import parse_expression
from gpu_index.values import Values, parse_fields
from gpu_index.zones import Schedule, parse_schedule, parse_time
from ingest.bytes_cache import BytesCache
from ingest.envelope import (
    AdFields,
    Envelope,
    ad_id_of_key,
    check_ad_id,
    check_features,
    identify,
    read_ad,
    read_envelope,
)
from ingest.faults import fault_of

EVENT_BYTES_MAX = 1 << 20
TARGETING_CACHE_BYTES_MAX = 8 << 20  # of raw targetings; parsed they are some five times as large
SCHEDULE_CACHE_BYTES_MAX = 1 << 18

CompileMeta: TypeAlias = Callable[[dict[str, object]], dict[str, object]]

_KINDS = {"create": EventKind.CREATE, "modify": EventKind.MODIFY, "expire": EventKind.EXPIRE}
_LOG = logging.getLogger("mirach.ingest")


class Decoder:
    """Not for several threads at once: it has caches."""

    def __init__(
        self,
        schema: Schema,
        *,
        dim: int,
        gate_dim: int,
        compile_meta: CompileMeta,
        event_bytes_max: int = EVENT_BYTES_MAX,
        targeting_cache_bytes_max: int = TARGETING_CACHE_BYTES_MAX,
    ) -> None:
        """`dim`, `gate_dim`: widths of embedding and gate. `compile_meta`: a Meta targeting spec to the JSON of an
        expression, raising InvalidInput. `event_bytes_max`: of a record's value."""
        self._schema = schema
        self._compile_meta = compile_meta
        self._event_bytes_max = event_bytes_max
        self._embedding = _VectorReader("ad.embedding", dim)
        self._gate = _VectorReader("ad.gate", gate_dim)
        self._targetings = BytesCache[ParsedTargeting](targeting_cache_bytes_max // 2)
        self._metas = BytesCache[ParsedTargeting](targeting_cache_bytes_max // 2)
        self._schedules = BytesCache[Schedule](SCHEDULE_CACHE_BYTES_MAX)

    def set_widths(self, dim: int, gate_dim: int) -> None:
        """From now on vectors have these widths, those of another model. Any thread may say so."""
        self._embedding = _VectorReader("ad.embedding", dim)
        self._gate = _VectorReader("ad.gate", gate_dim)

    def decode(self, key: bytes | None, value: bytes | None, partition: int, offset: int, timestamp_ms: int) -> AdEvent:
        """Never raises: a bad event has kind BAD, its fault, and ad_id and version where these can be read."""
        try:
            if value is None:
                return AdEvent(EventKind.EXPIRE, ad_id_of_key(key), None, partition, offset, timestamp_ms)
            return self._event(key, value, partition, offset, timestamp_ms)
        except InvalidInput as error:
            fault = fault_of(error)
        except Exception as error:  # whatever a record holds, the next one must be read
            _LOG.exception("event at partition %d, offset %d could not be decoded", partition, offset)
            fault = Fault("internal", f"{type(error).__name__} while decoding")
        ad_id, version = (None, None) if value is None else identify(key, value)
        return AdEvent(EventKind.BAD, ad_id, version, partition, offset, timestamp_ms, fault=fault)

    def _event(self, key: bytes | None, value: bytes, partition: int, offset: int, timestamp_ms: int) -> AdEvent:
        if len(value) > self._event_bytes_max:
            detail = f"an event has at most {self._event_bytes_max} bytes, this one has {len(value)}"
            raise InvalidInput("", detail, "too_large")
        envelope = read_envelope(value)
        check_ad_id(envelope.ad_id, key)
        time_us = None if envelope.event_time is None else parse_time(envelope.event_time, "event_time")
        kind = _KINDS[envelope.type]
        patch = None if kind is EventKind.EXPIRE else self._patch(_ad_of(envelope), kind is EventKind.CREATE)
        return AdEvent(kind, envelope.ad_id, envelope.version, partition, offset, timestamp_ms, time_us, patch)

    def _patch(self, ad: AdFields, create: bool) -> AdPatch:
        """What the event sets. A field that is null gets its default, in a create one that is absent, too."""
        targeting, clears, clears_meta = self._targeting(ad, create)
        return AdPatch(
            advertiser_id=None if create and ad.advertiser_id is UNSET else ad.advertiser_id,
            campaign_id=None if create and ad.campaign_id is UNSET else ad.campaign_id,
            bid=_bid(ad.bid, create),
            paused=UNSET if ad.status is UNSET and not create else ad.status == "paused",
            start_us=_time(ad.start_time, "ad.start_time", ALWAYS_FROM_US, create),
            end_us=_time(ad.end_time, "ad.end_time", ALWAYS_UNTIL_US, create),
            schedule=self._schedule(ad.schedule, create),
            targeting=targeting,
            clears_targeting=clears,
            clears_targeting_meta=clears_meta,
            features=_features(ad.features, create),
            embedding=self._embedding.read(ad.embedding, create),
            gate=self._gate.read(ad.gate, create),
            fields=self._fields(ad.fields, create),
        )

    def _targeting(self, ad: AdFields, create: bool) -> tuple[ParsedTargeting | UnsetType | None, bool, bool]:
        """The targeting set (UNSET: none is), and whether a modify's null clears a native or a Meta one."""
        native, meta = _given(ad.targeting), _given(ad.targeting_meta)
        if native and meta:
            detail = "an ad has targeting or targeting_meta, not both"
            raise InvalidInput("ad.targeting_meta", detail, "targeting_twice")
        if native:
            return self._native(native), False, False
        if meta:
            return self._meta(meta), False, False
        if create:
            return None, False, False
        return UNSET, native is None, meta is None

    def _native(self, source: bytes) -> ParsedTargeting:
        found = self._targetings.get(source)
        if found is None:
            expression = parse_expression(_json(source, "ad.targeting"), self._schema.attributes, path="ad.targeting")
            found = ParsedTargeting(source, expression)
            self._targetings.put(source, found)
        return found

    def _meta(self, source: bytes) -> ParsedTargeting:
        found = self._metas.get(source)
        if found is None:
            spec = _json(source, "ad.targeting_meta")
            if not isinstance(spec, dict):
                detail = f"a Meta targeting spec is an object, not {shown(spec)}"
                raise InvalidInput("ad.targeting_meta", detail, "wrong_type")
            try:
                compiled = self._compile_meta(spec)
            except InvalidInput as error:
                if not error.path.startswith("targeting_meta"):
                    error.under("targeting_meta")
                error.under("ad")
                raise
            expression = parse_expression(compiled, self._schema.attributes, path="ad.targeting_meta")
            found = ParsedTargeting(source, expression, from_meta=True)
            self._metas.put(source, found)
        return found

    def _schedule(self, raw: Raw | UnsetType, create: bool) -> Schedule | UnsetType | None:
        source = _given(raw)
        if not source:
            return None if create or source is None else UNSET
        found = self._schedules.get(source)
        if found is None:
            found = parse_schedule(_json(source, "ad.schedule"), "ad.schedule")
            self._schedules.put(source, found)
        return found

    def _fields(self, raw: Raw | UnsetType, create: bool) -> Values | UnsetType:
        source = _given(raw)
        if not source:
            return {} if create or source is None else UNSET
        return parse_fields(self._schema, _json(source, "ad.fields"), "ad.fields")


class _VectorReader:
    """Lists of `width` numbers to float32 arrays."""

    def __init__(self, path: str, width: int) -> None:
        self._path = path
        self._width = width
        self._pack = struct.Struct(f"={width}f").pack  # "=": this conversion refuses what float32 cannot hold

    def read(self, given: list[float] | UnsetType | None, create: bool) -> NDArray[np.float32] | UnsetType | None:
        if given is None or given is UNSET:
            return None if create else given
        if len(given) != self._width:
            raise InvalidInput(self._path, *wrong_length(self._width, len(given)))
        try:
            return np.frombuffer(self._pack(*given), dtype=np.float32)  # [width], read-only
        except OverflowError:
            raise InvalidInput(self._path, "a number is beyond what float32 holds", "out_of_range") from None


def wrong_length(width: int, given: int) -> tuple[str, str]:
    """Detail and code of the fault of a vector that has not the width of the index."""
    return f"the vector has {width} numbers, not {given}", "wrong_length"


def _ad_of(envelope: Envelope) -> AdFields:
    if isinstance(envelope.ad, UnsetType):
        raise InvalidInput("ad", f"a {envelope.type} needs the object ad", "missing")
    return read_ad(envelope.ad)


def _given(raw: Raw | UnsetType) -> bytes | None:
    """The raw JSON of a field: b"" if the field is not there, None if it is null."""
    if isinstance(raw, UnsetType):
        return b""
    source = bytes(raw)
    return None if source == b"null" else source


def _json(source: bytes, path: str) -> object:
    try:
        return decode_json(source)
    except InvalidInput as error:
        error.under(path)
        raise


def _bid(given: float | UnsetType | None, create: bool) -> float | UnsetType:
    if given is UNSET and not create:
        return UNSET
    if given is None or given is UNSET:
        raise InvalidInput("ad.bid", "an ad needs a bid, it has no default", "missing")
    if not 0 < given < float("inf"):
        raise InvalidInput("ad.bid", f"a bid is a finite number above 0, not {shown(given)}", "out_of_range")
    return given


def _time(given: str | UnsetType | None, path: str, default_us: int, create: bool) -> int | UnsetType:
    if given is None or given is UNSET:
        return default_us if create or given is None else UNSET
    return parse_time(given, path)


def _features(raw: Raw | UnsetType, create: bool) -> bytes | UnsetType:
    source = _given(raw)
    if not source:
        return b"" if create or source is None else UNSET
    check_features(msgspec.Raw(source))
    return source
