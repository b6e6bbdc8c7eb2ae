"""What `mirach check` finds: lines of each form, good and bad, where the fault is, and the summary."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_index.evaluate import evaluate
from gpu_index.schema import Schema
from gpu_index.targeting import parse_expression
from gpu_index.values import parse_values
from ingest.check import Checker, Finding, Form, Reason, form_of
from ingest.faults import CODES
from ingest.places import Places
from tests.shared import shared

SCHEMA = Schema.load()
PLACES = Places.parse(["kind,key,latitude,longitude", "city,1,50,7"])


def checked(*lines: object, form: Form | None = None, places: Places | None = None) -> tuple[list[Finding], Checker]:
    checker = Checker(SCHEMA, dim=4, gate_dim=2, places=places, form=form)
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    return list(checker.check(raw)), checker


def event(**ad: Any) -> dict[str, Any]:
    return {"type": "create", "ad_id": "a1", "ad": {"bid": 1.5, **ad}}


IN_US = {"attr": "geo.country", "in": ["US"]}


def test_good_events_are_counted_by_type() -> None:
    modify = {"type": "modify", "ad_id": "a1", "ad": {"bid": 2}}
    findings, checker = checked(event(targeting=IN_US), b"\n", modify, {"type": "expire", "ad_id": "é"}, modify)
    assert findings == []
    assert checker.summary.form is Form.EVENTS
    assert checker.summary.lines == checker.summary.good == 4
    assert checker.summary.kinds == {"create": 1, "modify": 2, "expire": 1}


@pytest.mark.parametrize(
    ("line", "path", "code"),
    [
        (b"{", "", "not_json"),
        (b"\xff{}", "", "not_utf8"),
        ([], "", "wrong_type"),
        ({"type": "create", "ad_id": "a1"}, "ad", "missing"),
        ({"type": "create", "ad_id": "x" * 65, "ad": {"bid": 1}}, "ad_id", "wrong_length"),
        (event(bid=None), "ad.bid", "missing"),
        (event(targetting={}), "ad", "unknown_field"),
        (event(embedding=[1, 2, 3]), "ad.embedding", "wrong_length"),
        (event(fields={"size": [1]}), "ad.fields.size[0]", "wrong_type"),
        (
            event(targeting={"any": [IN_US, {"attr": "age", "in": [18, "19"]}]}),
            "ad.targeting.any[1].in[1]",
            "wrong_type",
        ),
        (event(targeting={"attr": "geo.contry", "in": []}), "ad.targeting.attr", "unknown_attribute"),
        (
            event(targeting_meta={"geo_locations": {"cities": [{"key": 1, "radius": 9}]}}),
            "ad.targeting_meta.geo_locations.cities[0]",
            "targeting_meta",
        ),
        (event(targeting=IN_US, targeting_meta={"age_min": 20}), "ad.targeting_meta", "targeting_twice"),
    ],
)
def test_a_bad_event_is_found_with_its_place(line: object, path: str, code: str) -> None:
    findings, checker = checked(event(), line, event())
    (finding,) = findings
    assert (finding.line, finding.code) == (2, code)
    assert finding.path == path
    assert finding.detail
    assert not finding.detail.startswith(finding.path + ":")
    assert code in CODES
    assert (checker.summary.good, checker.summary.bad) == (2, 1)


def test_targetings_bare_and_inside_an_object() -> None:
    findings, checker = checked(
        {"any": []},
        {"id": 7, "targeting": IN_US},
        IN_US,
        {"id": 8, "targeting": {"al": []}},
        [1],
        {"attr": "x", "in": []},
    )
    assert checker.summary.form is Form.TARGETING
    assert [(finding.line, finding.path, finding.code) for finding in findings] == [
        (4, "targeting.al", "bad_expression"),
        (5, "", "bad_expression"),
        (6, "attr", "unknown_attribute"),
    ]
    assert checker.summary.kinds == {"targeting": 3}


def test_meta_specs_bare_and_inside_an_object() -> None:
    city = {"cities": [{"key": 1, "radius": 9}]}
    lines = ({"id": "1", "targeting": {"age_min": 20}}, {"age_max": 12}, {"targeting_meta": {"geo_locations": city}})
    findings, checker = checked(*lines)
    assert checker.summary.form is Form.META
    assert [(finding.line, finding.path) for finding in findings] == [
        (2, "age_max"),
        (3, "targeting_meta.geo_locations.cities[0]"),
    ]
    assert {finding.code for finding in findings} == {"targeting_meta"}
    assert len(checked(*lines, places=PLACES)[0]) == 1


def test_a_meta_spec_whose_attribute_the_schema_lacks() -> None:
    checker = Checker(Schema.parse('[attributes.age]\ntype = "integer"'), dim=4, gate_dim=2)
    (finding,) = checker.check([b'{"genders": [1]}'])
    assert finding.code == "unknown_attribute"
    assert '"gender"' in finding.detail


def test_the_form_is_told_by_the_first_object_and_said() -> None:
    findings, checker = checked(b"nonsense", [], {"targeting": {"age_min": 20}})
    assert [finding.line for finding in findings] == [1, 2]
    assert (checker.summary.form, checker.summary.form_line) == (Form.META, 3)
    assert checked()[1].summary.form is None


def test_the_caller_may_say_the_form() -> None:
    findings, checker = checked({"targeting": {"age_min": 20}}, form=Form.EVENTS)
    assert len(findings) == 1
    assert (checker.summary.form, checker.summary.form_line) == (Form.EVENTS, 0)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (event(), Form.EVENTS),
        ({"ad_id": "x"}, Form.EVENTS),
        ({}, Form.EVENTS),
        ({"all": []}, Form.TARGETING),
        ({"attr": "age", "between": [1, 2]}, Form.TARGETING),
        ({"targeting": {"not": {}}}, Form.TARGETING),
        ({"targeting": {"geo_locations": {}}}, Form.META),
        ({"targeting": {}}, Form.META),
        ({"targeting_meta": {}}, Form.META),
        ({"genders": [1]}, Form.META),
    ],
)
def test_forms(value: dict[str, Any], form: Form) -> None:
    assert form_of(value) is form


def test_the_summary_counts_alike_faults_together() -> None:
    def spec(age: int, *genders: int) -> dict[str, Any]:
        return {"age_min": age, "genders": list(genders)}

    findings, checker = checked(spec(12), spec(20, 1, 0), spec(20, 0), spec(20, 1))
    ages, genders = Reason("targeting_meta", "age_min"), Reason("targeting_meta", "genders[]")
    assert checker.summary.reasons == {ages: 1, genders: 2}
    assert checker.summary.examples == {ages: findings[0], genders: findings[1]}
    assert (checker.summary.good, checker.summary.bad) == (1, 3)


def test_real_ads_have_no_targeting_that_is_refused() -> None:
    checker = Checker(SCHEMA, dim=4, gate_dim=2)
    with shared("data/real-ads.jsonl").open("rb") as lines:
        assert list(checker.check(lines)) == []
    assert (checker.summary.form, checker.summary.form_line, checker.summary.good) == (Form.META, 1, 1749)


@pytest.mark.parametrize(
    ("leaf", "place", "word"),
    [
        ({"attr": "age", "between": [40, 18]}, "between", "lower bound"),
        ({"attr": "age", "between": [66, None]}, "between", "at most 65"),
        ({"attr": "age", "between": [None, 12]}, "between", "at least 13"),
        ({"attr": "device.os_version", "between": ["17.1", "17.0.9"]}, "between", "lower bound"),
        ({"attr": "custom.score", "between": [0.5, 0.25]}, "between", "lower bound"),
        ({"attr": "age", "in": [12, 66]}, "in", "at least 13 and at most 65"),
        ({"attr": "geo.country", "in": []}, "in", "empty list"),
    ],
)
def test_what_holds_for_no_value_is_a_warning_of_a_good_line(leaf: dict[str, Any], place: str, word: str) -> None:
    """As it is in the index: no request has a value that it is true of."""
    (alone,), checker = checked(leaf)
    assert (alone.path, alone.code, alone.warning) == (place, "matches_nothing", True)
    assert word in alone.detail
    assert (checker.summary.good, checker.summary.bad) == (1, 0)
    assert checker.summary.warnings == {Reason("matches_nothing", place): 1}
    (inside,), _ = checked({"targeting": {"any": [IN_US, {"not": leaf}]}})
    assert inside.path == f"targeting.any[1].not.{place}"
    (in_event,), _ = checked(event(targeting=leaf))
    assert in_event.path == f"ad.targeting.{place}"
    attribute = SCHEMA.attributes[leaf["attr"]]
    expression = parse_expression(leaf, SCHEMA.attributes)
    sent: list[Any] = {"age": list(range(101)), "custom.score": [0.25, 0.375, 0.5], "geo.country": ["US"]}.get(
        attribute.name, ["17", "17.0.9", "17.0.10", "17.1"]
    )
    for value in sent:
        values = {attribute.index: parse_values(attribute, value)}
        assert not evaluate(expression, values), value


@pytest.mark.parametrize(
    "leaf",
    [
        {"attr": "age", "between": [65, 90]}, {"attr": "age", "between": [18, 18]}, {"attr": "age", "in": [1, 65]},
        {"attr": "age", "between": [None, None]}, {"attr": "device.os_version", "between": ["17", "17.0"]},
    ],
)  # fmt: skip
def test_what_may_hold_is_no_warning(leaf: dict[str, Any]) -> None:
    assert checked(leaf)[0] == []


NOON, LATER = "2026-12-01T12:00:00Z", "2026-12-01T13:00:00.5+01:00"


@pytest.mark.parametrize(
    ("ad", "place", "word"),
    [
        ({"schedule": {"timezone": "UTC", "hours": []}}, "ad.schedule.hours", "no hour"),
        ({"start_time": LATER, "end_time": NOON}, "ad.end_time", "not after"),
        ({"start_time": NOON, "end_time": "2026-12-01T13:00:00+01:00"}, "ad.end_time", "not after"),
    ],
)
@pytest.mark.parametrize("kind", ["create", "modify"])
def test_an_ad_that_can_never_be_shown_is_a_warning_of_a_good_line(
    kind: str, ad: dict[str, Any], place: str, word: str
) -> None:
    (finding,), checker = checked({**event(**ad, targeting=IN_US), "type": kind})
    assert (finding.path, finding.code, finding.warning) == (place, "matches_nothing", True)
    assert word in finding.detail
    assert checker.summary.kinds == {kind: 1}
    assert checker.summary.warnings == {Reason("matches_nothing", place): 1}


@pytest.mark.parametrize(
    "ad",
    [
        {"start_time": NOON, "end_time": LATER}, {"start_time": NOON}, {"end_time": NOON},
        {"start_time": LATER, "end_time": None}, {"schedule": {"timezone": "UTC", "hours": [0]}}, {"schedule": None},
    ],
)  # fmt: skip
def test_an_ad_that_may_be_shown_is_no_warning(ad: dict[str, Any]) -> None:
    assert checked(event(**ad), {**event(**ad), "type": "modify"})[0] == []


def test_a_warning_of_a_meta_spec_is_placed_at_the_spec() -> None:
    spec = {"user_os": ["iOS_ver_9.0_to_8.0"]}
    (of_spec,), _ = checked({"targeting_meta": spec})
    (of_event,), _ = checked(event(targeting_meta=spec))
    assert (of_spec.path, of_event.path) == ("targeting_meta", "ad.targeting_meta")
    assert of_spec.detail == of_event.detail
    assert "lower bound" in of_spec.detail


def test_a_repeated_key_is_a_warning() -> None:
    line = b'{"type": "create", "ad_id": "a1", "ad": {"bid": 2, "bid": 1, "features": {"m": 1, "n": 7}, "bid": 3}}'
    (finding,), checker = checked(line)
    assert (finding.code, finding.warning, finding.path) == ("repeated_key", True, "")
    assert '"bid"' in finding.detail
    assert (checker.summary.good, checker.summary.bad) == (1, 0)
    assert checked(event(features={"a": {"a": [{"a": 1}, {"a": 1}]}}))[0] == []
