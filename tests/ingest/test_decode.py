"""Events decoded: every rule of the contract's section 3, what is wrong with a bad one, and that nothing raises."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

import gpu_index.invalid_input
import ingest.faults
from gpu_index.events import ALWAYS_FROM_US, ALWAYS_UNTIL_US, AdEvent, AdPatch, EventKind
from gpu_index.invalid_input import InvalidInput
from gpu_index.schema import Schema
from gpu_index.targeting import parse_expression
from gpu_index.zones import Schedule
from ingest.decode import Decoder
from ingest.faults import CODES, OUTCOME_FAULTS
from tests.repeated_keys import twice

SCHEMA = Schema.load()
US = {"attr": "geo.country", "in": ["US"]}
FULL = {
    "type": "create",
    "ad_id": "120210001234567890",
    "version": 17,
    "event_time": "2026-11-30T12:00:00Z",
    "ad": {
        "advertiser_id": "77",
        "campaign_id": "900",
        "bid": 1.25,
        "status": "paused",
        "start_time": "2026-11-01T00:00:00Z",
        "end_time": "2026-12-01T01:00:00.5+01:00",
        "schedule": {"timezone": "America/New_York", "hours": [33, 9, 10]},
        "targeting": {"all": [US, {"not": {"attr": "audience", "in": ["a17"]}}]},
        "features": {"title": "Äpfel", "categories": ["IAB2-3"]},
        "embedding": [1, -0.5, 0.25, 1e-40],
        "gate": [0.5, 2],
        "fields": {"format": ["banner", "video"]},
    },
}


def compile_meta(spec: dict[str, object]) -> dict[str, object]:
    if "behaviors" in spec:
        raise InvalidInput("behaviors", "cannot be honoured", "targeting_meta")
    if "crash" in spec:
        raise ZeroDivisionError
    return {"attr": "geo.country", "in": spec["countries"]}


def decoder(**settings: int) -> Decoder:
    return Decoder(SCHEMA, dim=4, gate_dim=2, compile_meta=compile_meta, **settings)


def decode(event: object, key: bytes | None = b"a", by: Decoder | None = None) -> AdEvent:
    value = event if isinstance(event, bytes) or event is None else json.dumps(event).encode()
    return (by or decoder()).decode(key, value, 3, 42, 1_700_000_000_000)


def event(**more: object) -> dict[str, object]:
    return {"type": "create", "ad_id": "a", "ad": {"bid": 1.0}} | more


def ad(**more: object) -> dict[str, object]:
    return event(ad={"bid": 1.0} | more)


def modify(**fields: object) -> dict[str, object]:
    return {"type": "modify", "ad_id": "a", "ad": fields}


def patch_of(event: object) -> AdPatch:
    decoded = decode(event)
    assert decoded.fault is None
    assert decoded.patch is not None
    return decoded.patch


# what is right


def test_a_full_create() -> None:
    decoded = decode(FULL, b"120210001234567890")
    assert (decoded.kind, decoded.ad_id, decoded.version) == (EventKind.CREATE, "120210001234567890", 17)
    assert (decoded.partition, decoded.offset, decoded.timestamp_ms) == (3, 42, 1_700_000_000_000)
    assert decoded.event_time_us == 1_796_040_000_000_000
    patch = decoded.patch
    assert patch is not None
    assert (patch.advertiser_id, patch.campaign_id, patch.bid, patch.paused) == ("77", "900", 1.25, True)
    assert (patch.start_us, patch.end_us) == (1_793_491_200_000_000, 1_796_083_200_500_000)
    assert patch.schedule == Schedule("America/New_York", (9, 10, 33))
    assert patch.targeting.expression == parse_expression(FULL["ad"]["targeting"], SCHEMA.attributes)  # type: ignore[index, union-attr]
    assert not patch.targeting.from_meta  # type: ignore[union-attr]
    assert json.loads(patch.features) == FULL["ad"]["features"]  # type: ignore[arg-type, index]
    np.testing.assert_array_equal(patch.embedding, np.array([1, -0.5, 0.25, 1e-40], np.float32))
    np.testing.assert_array_equal(patch.gate, np.array([0.5, 2], np.float32))
    assert patch.embedding.dtype == np.float32  # type: ignore[union-attr]
    assert patch.fields == {SCHEMA.fields["format"].index: ("banner", "video")}


def test_the_smallest_create_sets_every_field_to_its_default() -> None:
    patch = patch_of(event())
    assert patch == AdPatch(
        advertiser_id=None,
        campaign_id=None,
        bid=1.0,
        paused=False,
        start_us=ALWAYS_FROM_US,
        end_us=ALWAYS_UNTIL_US,
        schedule=None,
        targeting=None,
        features=b"",
        embedding=None,
        gate=None,
        fields={},
    )
    nothing = dict.fromkeys(set(FULL["ad"]) | {"targeting_meta"})  # type: ignore[call-overload]
    assert patch_of(event(ad=nothing | {"bid": 1})) == patch, "in a create a null is as absent"


def test_a_modify_sets_what_it_has_and_nulls_are_defaults() -> None:
    assert patch_of(modify()) == AdPatch()
    assert patch_of(modify(bid=2)) == AdPatch(bid=2.0)
    assert patch_of(modify(status="active", end_time=None)) == AdPatch(paused=False, end_us=ALWAYS_UNTIL_US)
    assert patch_of(modify(status=None)) == AdPatch(paused=False)
    assert patch_of(modify(advertiser_id=None, embedding=None)) == AdPatch(advertiser_id=None, embedding=None)
    cleared = patch_of(modify(start_time=None, schedule=None, features=None, gate=None, fields=None, campaign_id=None))
    assert cleared == AdPatch(
        start_us=ALWAYS_FROM_US, schedule=None, features=b"", gate=None, fields={}, campaign_id=None
    )


@pytest.mark.parametrize(
    ("fields", "targeting", "clears", "clears_meta"),
    [
        ({"targeting": US}, False, False, False),
        ({"targeting_meta": {"countries": ["US"]}}, True, False, False),
        ({"targeting": US, "targeting_meta": None}, False, False, False),
        ({"targeting": None, "targeting_meta": {"countries": ["US"]}}, True, False, False),
        ({"targeting": None}, UNSET, True, False),
        ({"targeting_meta": None}, UNSET, False, True),
        ({"targeting": None, "targeting_meta": None}, UNSET, True, True),
        ({}, UNSET, False, False),
    ],
)
def test_which_targeting_a_modify_sets_or_clears(
    fields: dict[str, object], targeting: object, clears: bool, clears_meta: bool
) -> None:
    patch = patch_of(modify(**fields))
    assert (patch.clears_targeting, patch.clears_targeting_meta) == (clears, clears_meta)
    if targeting is UNSET:
        assert patch.targeting is UNSET
    else:
        assert patch.targeting.from_meta is targeting  # type: ignore[union-attr]
        assert patch.targeting.expression == parse_expression(US, SCHEMA.attributes)  # type: ignore[union-attr]


def test_an_expire_does_not_read_ad() -> None:
    for more in ({}, {"ad": None}, {"ad": {"targetting": 1}}, {"ad": 7}):
        decoded = decode({"type": "expire", "ad_id": "a", "version": 5} | more)
        assert (decoded.kind, decoded.ad_id, decoded.version, decoded.patch) == (EventKind.EXPIRE, "a", 5, None)


def test_a_tombstone_expires_the_ad_of_its_key() -> None:
    decoded = decode(None, "ä".encode())
    assert (decoded.kind, decoded.ad_id, decoded.version) == (EventKind.EXPIRE, "ä", None)


def test_unknown_fields_beside_ad_are_ignored() -> None:
    assert decode(event(trace={"id": [1, None]}, source="x")).kind is EventKind.CREATE


@pytest.mark.parametrize(
    ("version", "read"),
    [
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("17.0", 17),
        ("1e2", 100),
        ("9007199254740992.0", 2**53),
        ("null", None),
    ],
)
def test_versions(version: str, read: int | None) -> None:
    decoded = decode(b'{"type":"create","ad_id":"a","ad":{"bid":1},"version":%s}' % version.encode())
    assert (decoded.kind, decoded.version) == (EventKind.CREATE, read)


@pytest.mark.parametrize("ad_id", ["9007199254740993123", "x" * 64, "ä" * 32, "\0", '"', "😀"])
def test_ad_ids(ad_id: str) -> None:
    assert decode(event(ad_id=ad_id), ad_id.encode()).ad_id == ad_id


def test_text_is_not_normalised_and_escapes_are_the_characters() -> None:
    decoded = decode(b'{"type":"create","ad_id":"\\u00e9","ad":{"bid":1,"campaign_id":"e\\u0301"}}', "é".encode())
    assert decoded.ad_id == "é"
    assert decoded.patch is not None
    assert decoded.patch.campaign_id == "e\u0301"


def test_ads_with_the_same_raw_targeting_share_what_was_parsed() -> None:
    by = decoder()
    first, second = (decode(ad(targeting=US), by=by).patch for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.targeting is second.targeting
    meta = [decode(ad(targeting_meta={"countries": ["US"]}), by=by).patch for _ in range(2)]
    assert meta[0].targeting is meta[1].targeting  # type: ignore[union-attr]
    assert meta[0].targeting.from_meta  # type: ignore[union-attr]


def test_the_caches_are_bounded() -> None:
    by = decoder(targeting_cache_bytes_max=10_000)
    for i in range(1000):
        decode(ad(targeting={"attr": "geo.zip", "in": [f"{i:05}"]}), by=by)
    assert 0 < sum(map(len, list(by._targetings._young) + list(by._targetings._old))) <= 5000 + 100
    decode(ad(targeting={"attr": "geo.zip", "in": ["x" * 6000]}), by=by)
    assert len(by._targetings) > 1, "one that alone would fill it does not push out the others"


def test_a_bad_targeting_is_bad_each_time() -> None:
    by = decoder()
    for _ in range(2):
        assert decode(ad(targeting={"attr": "nowhere", "in": []}), by=by).fault.code == "unknown_attribute"  # type: ignore[union-attr]


# what is wrong

DEEP = {"attr": "age", "between": [1, 2]}
for _ in range(32):
    DEEP = {"not": DEEP}

BAD = [
    ("empty", b"", "not_json", "it is empty"),
    ("blank", b" \n", "not_json", "it is empty"),
    ("not JSON", b'{"type":"create",', "not_json", "not JSON"),
    ("two JSON texts", b"{} {}", "not_json", "not JSON"),
    ("NaN", b'{"type":"create","ad_id":"a","ad":{"bid":NaN}}', "not_json", "not JSON"),
    ("byte order mark", b"\xef\xbb\xbf{}", "not_json", "byte order mark"),
    ("not UTF-8", b'{"type":"create","ad_id":"a","ad":{"bid":1},"x":"\xff"}', "not_utf8", "byte 49"),
    ("UTF-16", '{"type":"create"}'.encode("utf-16"), "not_utf8", "byte 0"),
    ("surrogates as UTF-8", b'{"type":"\xed\xa0\x80"}', "not_utf8", "byte"),
    (
        "lone surrogate",
        b'{"type":"create","ad_id":"a","ad":{"bid":1,"campaign_id":"\\ud800"}}',
        "lone_surrogate",
        "half",
    ),
    ("nested too deep", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_large", "nested"),
    ("not an object", [event()], "wrong_type", "JSON object"),
    ("a number", b"17", "wrong_type", "JSON object"),
    ("no type", {"ad_id": "a", "ad": {"bid": 1}}, "missing", "type: "),
    ("null type", event(type=None), "missing", "type: "),
    ("unknown type", event(type="creat"), "unknown_value", 'did you mean "create"?'),
    ("type of another case", event(type="CREATE"), "unknown_value", 'did you mean "create"?'),
    ("type a number", event(type=1), "wrong_type", "type: type is a string"),
    ("no ad_id", {"type": "create", "ad": {"bid": 1}}, "missing", "ad_id: "),
    ("ad_id a number", event(ad_id=120210001234567890), "wrong_type", "ad_id: ad_id is a string"),
    ("ad_id empty", event(ad_id=""), "wrong_length", "this one has 0"),
    ("ad_id too long", event(ad_id="x" * 65), "wrong_length", "this one has 65"),
    ("ad_id too many bytes", event(ad_id="ä" * 33), "wrong_length", "this one has 66"),
    ("ad_id unlike the key", event(ad_id="b"), "key_mismatch", 'the key "a"'),
    ("version negative", event(version=-1), "out_of_range", "version: "),
    ("version too large", event(version=2**63), "out_of_range", "version: "),
    ("version huge", event(version=10**30), "out_of_range", "version: "),
    ("version a string", event(version="17"), "wrong_type", "version: "),
    ("version a boolean", event(version=True), "wrong_type", "version: "),
    ("version a fraction", event(version=1.5), "wrong_type", "version: "),
    ("version inexact", event(version=2.0**60), "out_of_range", "2^53"),
    ("event_time without offset", event(event_time="2026-11-30T12:00:00"), "bad_time", "event_time: "),
    ("event_time a number", event(event_time=1796062180), "wrong_type", "event_time: "),
    ("event_time that is none", event(event_time="2026-02-30T12:00:00Z"), "bad_time", "event_time: there is no time"),
    ("no ad", {"type": "create", "ad_id": "a"}, "missing", "ad: a create needs"),
    ("modify without ad", {"type": "modify", "ad_id": "a"}, "missing", "ad: a modify needs"),
    ("ad null", event(ad=None), "wrong_type", "ad: expected object, got null"),
    ("ad a list", event(ad=[]), "wrong_type", "ad: expected object, got list"),
    ("misspelt targeting", ad(targetting=US), "unknown_field", 'did you mean "targeting"?'),
    ("unknown field in a modify", modify(bids=1), "unknown_field", 'unknown field "bids", did you mean "bid"?'),
    ("no bid", event(ad={}), "missing", "ad.bid: "),
    ("null bid in a create", event(ad={"bid": None}), "missing", "ad.bid: "),
    ("null bid in a modify", modify(bid=None), "missing", "ad.bid: "),
    ("bid zero", ad(bid=0), "out_of_range", "ad.bid: a bid is a finite number above 0, not 0"),
    ("bid negative", ad(bid=-1.5), "out_of_range", "not -1.5"),
    ("bid underflow", b'{"type":"create","ad_id":"a","ad":{"bid":1e-400}}', "out_of_range", "ad.bid: "),
    ("bid overflow", b'{"type":"create","ad_id":"a","ad":{"bid":1e999}}', "out_of_range", "ad.bid: "),
    ("bid a string", ad(bid="1"), "wrong_type", "ad.bid: expected number | null, got string"),
    ("bid a boolean", ad(bid=True), "wrong_type", "ad.bid: expected number | null, got boolean"),
    ("status unknown", ad(status="stopped"), "unknown_value", "'stopped' is not one of its values"),
    ("advertiser_id a number", ad(advertiser_id=77), "wrong_type", "ad.advertiser_id: expected string | null"),
    ("start_time unreadable", ad(start_time="tomorrow"), "bad_time", "ad.start_time: "),
    ("end_time without offset", ad(end_time="2026-11-30T12:00:00"), "bad_time", "ad.end_time: "),
    (
        "schedule unknown zone",
        ad(schedule={"timezone": "Mars/Base", "hours": []}),
        "unknown_timezone",
        "ad.schedule.timezone",
    ),
    ("schedule hour", ad(schedule={"timezone": "UTC", "hours": [168]}), "out_of_range", "ad.schedule.hours[0]"),
    ("schedule unknown key", ad(schedule={"timezone": "UTC", "hour": []}), "unknown_key", 'did you mean "hours"?'),
    ("schedule a list", ad(schedule=[9]), "wrong_type", "ad.schedule: "),
    ("targeting both", ad(targeting=US, targeting_meta={}), "targeting_twice", "ad.targeting_meta: "),
    (
        "targeting unknown attribute",
        ad(targeting={"all": [{"attr": "geo.contry", "in": []}]}),
        "unknown_attribute",
        "ad.targeting.all[0].attr",
    ),
    (
        "targeting wrong predicate",
        ad(targeting={"attr": "geo.country", "between": [1, 2]}),
        "wrong_predicate",
        "ad.targeting.between",
    ),
    (
        "targeting wrong value",
        ad(targeting={"attr": "geo.country", "in": ["US", 1]}),
        "wrong_type",
        "ad.targeting.in[1]",
    ),
    ("targeting no expression", ad(targeting={"every": []}), "bad_expression", "ad.targeting"),
    ("targeting a list", ad(targeting=[US]), "bad_expression", "ad.targeting"),
    ("targeting too many leaves", ad(targeting={"any": [US] * 1001}), "too_large", "1000 leaves"),
    ("targeting too deep", ad(targeting=DEEP), "too_large", "32 levels"),
    (
        "targeting_meta refused",
        ad(targeting_meta={"behaviors": [1]}),
        "targeting_meta",
        "ad.targeting_meta.behaviors: ",
    ),
    ("targeting_meta a list", ad(targeting_meta=[]), "wrong_type", "ad.targeting_meta: "),
    ("targeting_meta wrong value", ad(targeting_meta={"countries": [1]}), "wrong_type", "ad.targeting_meta.in[0]"),
    ("targeting_meta crashes", ad(targeting_meta={"crash": 1}), "internal", "ZeroDivisionError"),
    ("features a list", ad(features=[]), "wrong_type", "ad.features: expected object, got list"),
    (
        "features not finite",
        b'{"type":"create","ad_id":"a","ad":{"bid":1,"features":{"x":[1e999]}}}',
        "out_of_range",
        "ad.features",
    ),
    ("embedding too short", ad(embedding=[1.0] * 3), "wrong_length", "ad.embedding: the vector has 4 numbers, not 3"),
    ("embedding too long", ad(embedding=[1.0] * 5), "wrong_length", "not 5"),
    ("embedding beyond float32", ad(embedding=[1.0, 3.5e38, 0, 0]), "out_of_range", "float32"),
    (
        "embedding beyond float64",
        b'{"type":"create","ad_id":"a","ad":{"bid":1,"gate":[1,1e999]}}',
        "out_of_range",
        "ad.gate[1]: ",
    ),
    (
        "embedding with a string",
        ad(embedding=[1, 2, 3, "4"]),
        "wrong_type",
        "ad.embedding[3]: expected number, got string",
    ),
    ("embedding with a null", ad(embedding=[1, 2, 3, None]), "wrong_type", "ad.embedding[3]"),
    ("embedding a number", ad(embedding=1), "wrong_type", "ad.embedding"),
    ("gate too long", ad(gate=[1, 2, 3]), "wrong_length", "ad.gate: the vector has 2 numbers, not 3"),
    ("fields unknown", ad(fields={"formats": "banner"}), "unknown_field", 'did you mean "format"?'),
    ("fields wrong type", ad(fields={"format": 1}), "wrong_type", "ad.fields.format"),
    ("fields derived", ad(fields={"bid": 1}), "derived", "ad.fields.bid"),
    ("fields a list", ad(fields=[]), "wrong_type", "ad.fields"),
]


@pytest.mark.parametrize(("value", "code", "detail"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_events(value: object, code: str, detail: str) -> None:
    decoded = decode(value)
    assert decoded.kind is EventKind.BAD
    assert decoded.fault is not None
    assert (decoded.fault.code, decoded.patch) == (code, None)
    assert detail in decoded.fault.detail
    assert (decoded.partition, decoded.offset, decoded.timestamp_ms) == (3, 42, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("key", "code"),
    [(None, "key_mismatch"), (b"", "wrong_length"), (b"x" * 65, "wrong_length"), (b"\xff", "not_utf8")],
)
def test_bad_tombstones(key: bytes | None, code: str) -> None:
    decoded = decode(None, key)
    assert (decoded.kind, decoded.ad_id) == (EventKind.BAD, None)
    assert decoded.fault.code == code  # type: ignore[union-attr]


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"b"])
def test_a_key_unlike_the_id_says_nothing_of_the_ad(key: bytes | None) -> None:
    decoded = decode(event(version=3), key)
    assert (decoded.fault.code, decoded.ad_id, decoded.version) == ("key_mismatch", None, None)  # type: ignore[union-attr]


def test_the_largest_event_is_configurable() -> None:
    value = json.dumps(event(filler="")).encode()
    by = decoder(event_bytes_max=len(value))
    assert decode(value, by=by).kind is EventKind.CREATE
    large = decode(event(filler="x", version=7), by=by)
    assert large.fault.code == "too_large"  # type: ignore[union-attr]
    assert f"at most {len(value)} bytes" in large.fault.detail  # type: ignore[union-attr]
    assert (large.ad_id, large.version) == ("a", 7), "a large event may be a stale one"


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (event(ad={"bid": -1}, version=9), 9),
        (event(ad={"bid": -1}, version=9.0), 9),
        (event(ad={"bid": -1}), None),
        (event(ad={"bid": -1}, version="9"), None),
        (event(version=-9), None),
        (event(type="drop", version=9), 9),
        (event(event_time="?", version=9), 9),
        (b'{"ad_id":"a","version":9,"x":"\\ud800"}', 9),
        (b'{"ad_id":"a","version":9,"type":"create","ad":{"bid":1e999}}', 9),
    ],
)
def test_a_bad_event_has_the_ad_and_version_that_can_be_read(value: object, version: int | None) -> None:
    decoded = decode(value)
    assert decoded.kind is EventKind.BAD
    assert (decoded.ad_id, decoded.version) == ("a", version)


def test_details_are_bounded_and_can_be_written_into_a_header() -> None:
    decoded = decode(ad(**{"x" * 100_000: 1}))
    assert decoded.fault is not None
    assert len(decoded.fault.detail) <= 1000
    decoded.fault.detail.encode()


# the list of codes


def test_every_code_that_a_bad_event_can_have_is_documented() -> None:
    """The codes are read from the source: whatever decoding calls raises InvalidInput with one of them."""
    used = {fault.code for fault in OUTCOME_FAULTS.values()} | {row[2] for row in BAD}
    for folder in (Path(gpu_index.invalid_input.__file__).parent, Path(ingest.faults.__file__).parent):
        for path in folder.glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "InvalidInput":
                    used |= {each.value for each in node.args[2:] if isinstance(each, ast.Constant)}
    assert used <= set(CODES), used - set(CODES)
    assert all(sentence.endswith(".") for sentence in CODES.values())


# whatever comes


def check(decoded: AdEvent) -> None:
    if decoded.kind is EventKind.BAD:
        assert decoded.fault is not None
        assert decoded.fault.code in CODES
        assert decoded.fault.code != "internal", decoded.fault
    else:
        assert decoded.fault is None
        assert decoded.ad_id


@given(st.one_of(st.none(), st.binary(max_size=80)), st.one_of(st.none(), st.binary(max_size=200)))
def test_random_bytes_never_raise(key: bytes | None, value: bytes | None) -> None:
    check(decode(value, key))


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["create", "modify", "US", "a", "2026-11-30T12:00:00Z", "UTC", "active", 10**400, math.inf]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["all", "any", "not", "attr", "in", "between", "within", "is", "lat", "lon", "hours", "timezone"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
PLACES = [("type",), ("ad_id",), ("version",), ("event_time",), ("ad",), *(("ad", name) for name in FULL["ad"])]  # type: ignore[attr-defined]


@given(st.lists(st.tuples(st.sampled_from([*PLACES, ("ad", "targeting_meta"), ("other",)]), VALUES), max_size=3))
def test_events_with_any_values_never_raise(changes: list[tuple[tuple[str, ...], object]]) -> None:
    changed = json.loads(json.dumps(FULL))
    for place, value in changes:
        holder = changed
        for name in place[:-1]:
            holder = holder[name] if isinstance(holder.get(name), dict) else {}
        holder[place[-1]] = value
    if isinstance(changed.get("ad"), dict) and isinstance(changed["ad"].get("targeting_meta"), dict):
        changed["ad"]["targeting_meta"] = {"countries": changed["ad"]["targeting_meta"]}
    check(decode(json.dumps(changed).encode("utf-8", "surrogatepass"), b"120210001234567890"))


@given(st.integers(0, 10**6), st.binary(max_size=3), st.integers(0, 3))
def test_events_with_any_bytes_changed_never_raise(position: int, put: bytes, drop: int) -> None:
    value = bytearray(msgspec.json.encode(FULL))
    position %= len(value)
    value[position : position + drop] = put
    check(decode(bytes(value), b"120210001234567890"))


OTHER = {
    "type": "modify", "ad_id": "another", "version": 99, "event_time": "2026-01-01T00:00:00Z",
    "ad": {"advertiser_id": "1", "campaign_id": "2", "bid": 9, "status": "active", "start_time": None, "end_time": None,
           "schedule": {"timezone": "UTC", "hours": [1]}, "targeting": {"all": [{"all": []}]}, "features": {"title": 1},
           "embedding": [9, 9, 9, 9], "gate": [9, 9], "fields": {"format": "audio"}},
}  # fmt: skip


def test_of_a_repeated_key_the_last_one_counts() -> None:
    key = FULL["ad_id"].encode()
    once, repeated = decode(FULL, key), decode(twice(OTHER, FULL).encode(), key)
    assert repeated.kind is EventKind.CREATE
    assert (repeated.ad_id, repeated.version) == (once.ad_id, once.version)
    for name in AdPatch.__struct_fields__:
        left, right = getattr(once.patch, name), getattr(repeated.patch, name)
        if name == "targeting":
            assert left.expression == right.expression
        elif name == "features":
            assert msgspec.json.decode(left) == msgspec.json.decode(right)
        else:
            assert np.array_equal(left, right), name
    leaf = '{"attr": "age", "attr": "geo.country", "in": ["US"]}'
    event = f'{{"type": "create", "ad_id": "a", "ad": {{"bid": 1, "targeting": {leaf}}}}}'
    assert decode(event.encode()).patch.targeting.expression == parse_expression(US, SCHEMA.attributes)


def test_an_earlier_value_of_a_repeated_field_must_be_of_the_fields_type() -> None:
    assert decode(b'{"type": "create", "ad_id": "a", "ad": {"bid": "1", "bid": 1}}').fault.code == "wrong_type"
