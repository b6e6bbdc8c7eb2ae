"""Bodies of retrieval: what is accepted, what it becomes, and where a fault is said to be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.config import Settings
from api.requests import RequestParser, check_partitions
from gpu_index.invalid_input import InvalidInput
from gpu_index.schema import Schema
from gpu_index.targeting import Between, In, Not
from tests.repeated_keys import twice

SCHEMA = Schema.load()
PARSER = RequestParser.of(
    SCHEMA, Settings(dim=2, gate_dim=1, experts=2, allow_now=True, batch_max=3, results_max=640_000)
)


def parse(**body: Any) -> Any:
    return PARSER.parse(json.dumps(body).encode())


def fault(body: Any, parser: RequestParser = PARSER) -> tuple[str, str]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(InvalidInput) as caught:
        parser.parse(raw)
    assert caught.value.detail
    assert "\n" not in caught.value.detail
    return caught.value.path, caught.value.code


def test_an_empty_request_has_the_defaults() -> None:
    request = parse()
    (pathway,) = request.pathways
    assert (pathway.name, pathway.k, pathway.rank_by, pathway.user, pathway.filter) == (
        "main",
        100,
        "value",
        None,
        None,
    )
    assert (request.max_per, request.exclude_ads, request.filter, request.now_us) == ({}, (), None, None)
    assert (request.min_offsets, request.wait_ms) == ({}, 500)
    assert request.attributes.values == {}


def test_null_leaves_a_field_out() -> None:
    names = ("attributes", "timezone", "user", "context", "k", "rank_by", "max_per", "exclude_ads", "filter",
             "pathways", "now", "min_offsets", "wait_ms")  # fmt: skip
    assert parse(**dict.fromkeys(names)) == parse()


def test_every_field_of_the_contract_is_read() -> None:
    request = parse(
        attributes={"geo.country": "US", "age": 70, "audience": ["a1", "a2", "a1"]},
        timezone="America/New_York",
        user={"experts": [[1, 2], [3, 4]], "gates": [[1], [2]], "gate_bias": [0, 1]},
        context={"page": 7},
        k=5,
        rank_by="score",
        max_per={"advertiser_id": 3, "campaign_id": None},
        exclude_ads=["1", "2"],
        filter={"not": {"field": "categories", "in": ["IAB7-39"]}},
        now="2026-11-30T12:00:00Z",
        min_offsets={"0": 1234, "12": 0},
        wait_ms=0,
    )
    assert request.attributes.timezone == "America/New_York"
    assert request.attributes.values[SCHEMA.attributes["age"].index] == (65,)
    assert request.attributes.values[SCHEMA.attributes["audience"].index] == ("a1", "a2")
    assert request.pathways[0].user.experts.tolist() == [[1, 2], [3, 4]]
    assert (request.pathways[0].k, request.pathways[0].rank_by) == (5, "score")
    assert request.max_per == {"advertiser_id": 3}
    assert request.exclude_ads == ("1", "2")
    assert request.filter == Not(In(SCHEMA.fields["categories"].index, ("IAB7-39",)))
    assert request.now_us == 1_796_040_000_000_000
    assert (request.min_offsets, request.wait_ms) == ({0: 1234, 12: 0}, 0)


def test_a_pathway_takes_from_the_request_what_it_does_not_give() -> None:
    request = parse(
        k=7,
        rank_by="score",
        user={"experts": [[1, 2]]},
        pathways=[
            {"name": "main"},
            {"name": "fresh", "k": 20, "rank_by": "value", "user": {"experts": [[3, 4]]},
             "filter": {"field": "age_s", "between": [None, 86400]}},
        ],
    )  # fmt: skip
    main, fresh = request.pathways
    assert (main.name, main.k, main.rank_by, main.filter) == ("main", 7, "score", None)
    assert main.user.experts.tolist() == [[1, 2]]
    assert (fresh.name, fresh.k, fresh.rank_by) == ("fresh", 20, "value")
    assert fresh.user.experts.tolist() == [[3, 4]]
    assert fresh.filter == Between(SCHEMA.fields["age_s"].index, None, 86400.0)
    assert request.filter is None


def test_numbers_with_an_integral_value_are_integers() -> None:
    assert PARSER.parse(b'{"k": 1e2, "wait_ms": 10.0}').pathways[0].k == 100


BAD = [
    ("", []), ("", 7), ("", "x"), ("", None), ("", b""), ("", b"{"), ("", b'{"k": NaN}'), ("", b'{"\xff": 1}'),
    ("atributes", {"atributes": {}}), ('"a b"', {"a b": 1}),
    ("attributes", {"attributes": []}), ('attributes."geo.country"', {"attributes": {"geo.country": True}}),
    ('attributes."geo.country"[1]', {"attributes": {"geo.country": ["US", 1]}}),
    ("attributes.agee", {"attributes": {"agee": 1}}), ("attributes.age", {"attributes": {"age": 1.5}}),
    ("attributes.age", {"attributes": {"age": "34"}}),
    ('attributes."user.hour_of_week"', {"attributes": {"user.hour_of_week": 3}}),
    ('attributes."geo.point".lat', {"attributes": {"geo.point": {"lat": 91, "lon": 0}}}),
    ("timezone", {"timezone": "Mars/Olympus"}), ("timezone", {"timezone": 1}),
    ("user", {"user": []}), ("user.experts", {"user": {}}), ("user.features", {"user": {"features": {}}}),
    ("user.experts[0]", {"user": {"experts": [[1, 2, 3]]}}), ("user.experts", {"user": {"experts": [[1, 2]] * 3}}),
    ("user.experts[0][1]", {"user": {"experts": [[1, "2"]]}}), ("user", b'{"user": {"experts": [[1, 1e999]]}}'),
    ("user.gates", {"user": {"experts": [[1, 2]], "gates": [[1], [2]]}}),
    ("context", {"context": "x"}),
    ("k", {"k": 0}), ("k", {"k": 10_001}), ("k", {"k": 1.5}), ("k", {"k": True}), ("k", {"k": "10"}),
    ("k", b'{"k": 99999999999999999999999999}'),
    ("rank_by", {"rank_by": "bid"}), ("rank_by", {"rank_by": []}),
    ("max_per", {"max_per": 3}), ("max_per.advertiser", {"max_per": {"advertiser": 3}}),
    ("max_per.campaign_id", {"max_per": {"campaign_id": 0}}),
    ("exclude_ads", {"exclude_ads": "1"}), ("exclude_ads[1]", {"exclude_ads": ["1", 2]}),
    ("filter", {"filter": []}), ("filter.not", {"filter": {"not": []}}),
    ("filter.all[1].field", {"filter": {"all": [{"any": []}, {"field": "bidd", "in": []}]}}),
    ("filter.attr", {"filter": {"attr": "bid", "between": [0, 1]}}),
    ("pathways", {"pathways": {}}), ("pathways", {"pathways": []}), ("pathways[0]", {"pathways": ["main"]}),
    ("pathways[0].name", {"pathways": [{"k": 1}]}), ("pathways[0].name", {"pathways": [{"name": ""}]}),
    ("pathways[0].name", {"pathways": [{"name": "n" * 257}]}),
    ("pathways[1].k", {"pathways": [{"name": "a"}, {"name": "b", "k": 0}]}),
    ("pathways[1].name", {"pathways": [{"name": "a"}, {"name": "a"}]}),
    ("pathways[0].filtr", {"pathways": [{"name": "a", "filtr": {}}]}),
    ("pathways[0].filter.not", {"pathways": [{"name": "a", "filter": {"not": 1}}]}),
    ("pathways", {"pathways": [{"name": str(i)} for i in range(65)]}),
    ("now", {"now": "yesterday"}), ("now", {"now": "2026-11-30T12:00:00"}), ("now", {"now": 1}),
    ("min_offsets", {"min_offsets": [1]}), ("min_offsets.x", {"min_offsets": {"x": 1}}),
    ('min_offsets."00"', {"min_offsets": {"00": 1}}), ('min_offsets."-1"', {"min_offsets": {"-1": 1}}),
    ('min_offsets."0"', {"min_offsets": {"0": -1}}), ('min_offsets."0"', {"min_offsets": {"0": 2**63}}),
    ("wait_ms", {"wait_ms": -1}), ("wait_ms", {"wait_ms": 60_001}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), BAD, ids=[f"{i}-{path}" for i, (path, _) in enumerate(BAD)])
def test_a_bad_body_is_refused_with_the_place_of_its_fault(path: str, body: Any) -> None:
    assert fault(body)[0] == path


def test_now_is_refused_where_the_operator_does_not_allow_it() -> None:
    parser = RequestParser.of(SCHEMA, Settings())
    assert fault({"now": "2026-11-30T12:00:00Z"}, parser) == ("now", "not_allowed")


def test_a_filter_has_the_limits_of_a_targeting() -> None:
    deep: dict[str, Any] = {"field": "bid", "between": [0, 1]}
    for _ in range(31):
        deep = {"not": deep}
    assert parse(filter=deep).filter is not None
    assert fault({"filter": {"not": deep}})[1] == "too_large"
    leaf = {"field": "bid", "between": [0, 1]}
    assert parse(filter={"any": [leaf] * 1000}).filter is not None
    assert fault({"filter": {"any": [leaf] * 1001}})[1] == "too_large"


def test_json_nested_without_end_is_refused() -> None:
    assert fault(b'{"context":' + b"[" * 100_000)[0] == ""
    assert fault(b'{"attributes":{"age":' + b"[" * 100_000 + b"]" * 100_000 + b"}}")[1] == "too_large"


def test_a_batch_names_its_bad_member() -> None:
    assert PARSER.parse_batch(b"[]") == []
    assert [request.pathways[0].k for request in PARSER.parse_batch(b'[{"k": 1}, {"k": 2}]')] == [1, 2]
    for raw, path in [
        (b'[{"k": 1}, {"k": 0}]', "[1].k"), (b"[{}, 7]", "[1]"), (b"{}", ""), (b"[{}, {}, {}, {}]", ""), (b"[{}", ""),
        (b'[{"pathways": [{"name": "a", "k": "1"}]}]', "[0].pathways[0].k"),
    ]:  # fmt: skip
        with pytest.raises(InvalidInput) as caught:
            PARSER.parse_batch(raw)
        assert caught.value.path == path, raw


def test_a_batch_asks_for_a_bounded_number_of_results() -> None:
    member = {"pathways": [{"name": str(i), "k": 10_000} for i in range(64)]}
    assert PARSER.parse_batch(json.dumps([member]).encode())
    with pytest.raises(InvalidInput) as caught:
        PARSER.parse_batch(json.dumps([member, {"k": 1}]).encode())
    assert caught.value.code == "too_many"


def test_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    check_partitions(parse(min_offsets={"0": 1, "1": 2}), range(2))
    with pytest.raises(InvalidInput) as caught:
        check_partitions(parse(min_offsets={"0": 1, "2": 2}), range(2))
    assert caught.value.path == 'min_offsets."2"'


def test_of_a_repeated_key_the_last_one_counts() -> None:
    last = {
        "attributes": {"geo.country": "US", "geo.point": {"lat": 1, "lon": 2}}, "k": 7, "max_per": {"campaign_id": 2},
        "user": {"experts": [[1, 2]], "gates": [[1]]}, "filter": {"not": {"field": "format", "in": ["audio"]}},
    }  # fmt: skip
    first = {"attributes": {"geo.country": 5, "geo.point": 1}, "k": "x", "user": {"experts": 1}, "filter": {"not": []}}
    once, repeated = parse(**last), PARSER.parse(twice(first, last).encode())
    assert (repeated.attributes, repeated.filter, repeated.max_per) == (once.attributes, once.filter, once.max_per)
    (left,), (right,) = once.pathways, repeated.pathways
    assert (left.k, left.user.experts.tolist()) == (right.k, right.user.experts.tolist()) == (7, [[1, 2]])
