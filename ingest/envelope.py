"""An event's outer object and its `ad`, as JSON types; what the values mean is decode.py's.

The typed decoders are the fast way and accept what is right. What they refuse is read once more, field by field, for
the fault's code and path, and because an integer may be written as `17.0`, which they do not take.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gpu_index.invalid_input import InvalidInput, nearest, shown
from gpu_index.json_input import decode_json, parse_integer

AD_ID_BYTES_MAX = 64
VERSION_MAX = 2**63 - 1
INTEGER_DIGITS_MAX = 4000  # Python's own limit on reading an integer is a little higher

TYPES = ("create", "modify", "expire")
Type = Literal["create", "modify", "expire"]
Struct = TypeVar("Struct")


class Envelope(msgspec.Struct, gc=False):
    """The outer object; fields beside these are ignored."""

    type: Type
    ad_id: str
    version: Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)] | None = None
    event_time: str | None = None
    ad: Raw | UnsetType = UNSET


class AdFields(msgspec.Struct, forbid_unknown_fields=True):
    """`ad` of a create or a modify. None is a null, UNSET a field that is not there."""

    advertiser_id: str | UnsetType | None = UNSET
    campaign_id: str | UnsetType | None = UNSET
    bid: float | UnsetType | None = UNSET
    status: Literal["active", "paused"] | UnsetType | None = UNSET
    start_time: str | UnsetType | None = UNSET
    end_time: str | UnsetType | None = UNSET
    schedule: Raw | UnsetType = UNSET
    targeting: Raw | UnsetType = UNSET
    targeting_meta: Raw | UnsetType = UNSET
    features: Raw | UnsetType = UNSET
    embedding: list[float] | UnsetType | None = UNSET
    gate: list[float] | UnsetType | None = UNSET
    fields: Raw | UnsetType = UNSET


class _Loose(msgspec.Struct, gc=False):
    """The outer object with nothing decided about its fields."""

    type: Raw | UnsetType = UNSET
    ad_id: Raw | UnsetType = UNSET
    version: Raw | UnsetType = UNSET
    event_time: Raw | UnsetType = UNSET
    ad: Raw | UnsetType = UNSET


AD_FIELD_NAMES = AdFields.__struct_fields__
_ENVELOPE = msgspec.json.Decoder(Envelope)
_LOOSE = msgspec.json.Decoder(_Loose)
_AD = msgspec.json.Decoder(AdFields)
_FEATURES = msgspec.json.Decoder(dict[str, object])


def read_envelope(value: bytes) -> Envelope:
    """The outer object of an event's bytes. Raises InvalidInput."""
    if not value.isascii():
        try:
            value.decode()  # texts that no type asks for are not looked into by the decoder
        except UnicodeDecodeError as error:
            raise InvalidInput("", f"not UTF-8: byte {error.start} is wrong", "not_utf8") from None
    try:
        return _ENVELOPE.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return _read_slowly(value)


def _read_slowly(value: bytes) -> Envelope:
    try:
        loose = _LOOSE.decode(value)
    except msgspec.ValidationError:
        raise InvalidInput("", "an event is a JSON object", "wrong_type") from None
    except (msgspec.DecodeError, RecursionError):
        decode_json(value)  # says what is wrong
        raise InvalidInput("", "not JSON", "not_json") from None
    kind = _given(loose.type, "type")
    if kind is None:
        raise InvalidInput("type", f"an event needs a type: {', '.join(TYPES)}", "missing")
    if not isinstance(kind, str):
        raise InvalidInput("type", f"type is a string, not {shown(kind)}", "wrong_type")
    if kind not in TYPES:
        detail = f"type is one of {', '.join(TYPES)}, not {shown(kind)}{nearest(kind, TYPES)}"
        raise InvalidInput("type", detail, "unknown_value")
    ad_id = _given(loose.ad_id, "ad_id")
    if ad_id is None:
        raise InvalidInput("ad_id", "an event needs the ad_id of its ad", "missing")
    if not isinstance(ad_id, str):
        raise InvalidInput("ad_id", f"ad_id is a string, not {shown(ad_id)}", "wrong_type")
    event_time = _given(loose.event_time, "event_time")
    if event_time is not None and not isinstance(event_time, str):
        raise InvalidInput("event_time", f"event_time is a string, not {shown(event_time)}", "wrong_type")
    return Envelope(kind, ad_id, _version(loose.version), event_time, loose.ad)  # type: ignore[arg-type]


def _given(raw: Raw | UnsetType, name: str) -> object:
    """A decoded field; None where it is absent or null."""
    if isinstance(raw, UnsetType):
        return None
    try:
        return decode_json(raw)
    except InvalidInput as error:
        error.under(name)
        raise


def _version(raw: Raw | UnsetType) -> int | None:
    given = _given(raw, "version")
    if given is None:
        return None
    try:
        version = parse_integer(given, "version")
    except InvalidInput as error:
        error.under("version")
        raise
    if version < 0:
        raise InvalidInput("version", f"version is from 0 to 2^63-1, not {version}", "out_of_range")
    return version


def identify(key: bytes | None, value: bytes) -> tuple[str | None, int | None]:
    """Whose event this is, and its version, as far as a bad event lets these be read: a bad event that is stale counts
    as stale. No ad where the key is not its id."""
    try:
        loose = _LOOSE.decode(value)
        ad_id, version = _readable(loose.ad_id), _readable(loose.version)
    except (msgspec.DecodeError, RecursionError):
        ad_id, version = _identify_plainly(value)
    if not isinstance(ad_id, str) or ad_id.encode("utf-8", "surrogatepass") != key or not _fits(key):
        return None, None
    try:
        number = parse_integer(version, "version")
    except InvalidInput:
        return ad_id, None
    return ad_id, number if number >= 0 else None


def _readable(raw: Raw | UnsetType) -> object:
    try:
        return _given(raw, "")
    except InvalidInput:
        return None


def _identify_plainly(value: bytes) -> tuple[object, object]:
    """Of a text that is JSON but for a lone surrogate somewhere, which the other decoders refuse as a whole."""
    try:
        event = json.loads(value, parse_constant=_not_json, parse_int=_integer)
    except (ValueError, RecursionError):
        return None, None
    return (event.get("ad_id"), event.get("version")) if isinstance(event, dict) else (None, None)


def _not_json(text: str) -> NoReturn:
    raise ValueError(text)  # NaN and Infinity


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else float("inf")


def _fits(key: bytes | None) -> bool:
    return key is not None and 1 <= len(key) <= AD_ID_BYTES_MAX


def check_ad_id(ad_id: str, key: bytes | None) -> None:
    """Raises InvalidInput unless the id has a length that is accepted and is the record's key."""
    encoded = ad_id.encode()
    if not _fits(encoded):
        detail = f"ad_id is 1 to {AD_ID_BYTES_MAX} bytes of UTF-8, this one has {len(encoded)}"
        raise InvalidInput("ad_id", detail, "wrong_length")
    if encoded != key:
        held = "no key" if key is None else f"the key {shown(key.decode('utf-8', 'backslashreplace'))}"
        raise InvalidInput(
            "ad_id", f"the record's key is the ad_id, {shown(ad_id)}; this one has {held}", "key_mismatch"
        )


def ad_id_of_key(key: bytes | None) -> str:
    """The ad that a tombstone is for. Raises InvalidInput."""
    if key is None:
        raise InvalidInput("", "a record with neither key nor value is of no ad", "key_mismatch")
    if not _fits(key):
        detail = f"a tombstone's key is an ad_id, 1 to {AD_ID_BYTES_MAX} bytes of UTF-8; this one has {len(key)}"
        raise InvalidInput("", detail, "wrong_length")
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput("", f"the key is not UTF-8: byte {error.start} is wrong", "not_utf8") from None


def read_ad(raw: Raw) -> AdFields:
    """Raises InvalidInput."""
    return _typed(_AD, raw, "ad")


def check_features(raw: Raw) -> None:
    """`features` must be an object whose numbers are finite. Raises InvalidInput."""
    _typed(_FEATURES, raw, "ad.features")


def _typed(decoder: msgspec.json.Decoder[Struct], raw: Raw, path: str) -> Struct:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), path) from None
    except (msgspec.DecodeError, RecursionError):
        try:
            decode_json(raw)  # says what is wrong
        except InvalidInput as fault:
            fault.under(path)
            raise
        raise InvalidInput(path, "not JSON", "not_json") from None


JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def _refusal(message: str, path: str) -> InvalidInput:
    """What msgspec refused, in the words of JSON: "Expected `str | null`, got `int` - at `$.status`"."""
    said, _, place = message.partition(" - at `$")
    path += place.removesuffix("`")
    name = re.search("unknown field `(.*)`", said, re.DOTALL)
    if name:
        detail = f"unknown field {shown(name[1])}{nearest(name[1], AD_FIELD_NAMES)}"
        return InvalidInput(path, detail, "unknown_field")
    if said.startswith("Number out of range"):
        return InvalidInput(path, "a number is beyond what float64 holds", "out_of_range")
    value = re.fullmatch("Invalid enum value (.*)", said, re.DOTALL)
    if value:
        return InvalidInput(path, f"{value[1]} is not one of its values, active and paused", "unknown_value")
    words = re.sub(
        r"\w+", lambda word: JSON_NAMES.get(word[0], word[0]), said.replace("`", "").replace("array", "list")
    )
    return InvalidInput(path, words[:1].lower() + words[1:], "wrong_type")
