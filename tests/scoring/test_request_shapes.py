"""Requests of every shape that the contract allows, large and empty, one by one and together, on one thread and two."""

from __future__ import annotations

import random
from functools import cache

import pytest

from gpu_index.events import AdEvent, EventKind, Outcome
from gpu_index.targeting import DEPTH_MAX, LEAVES_MAX, parse_expression
from gpu_index.values import RequestAttributes, parse_attributes
from kernels import filter as filter_
from kernels import match as match_
from kernels.match import BATCH_MAX
from kernels.threads import threads, threads_max
from scoring.request import K_MAX, PATHWAYS_MAX, Pathway, Request
from scoring.retrieve import retrieve
from tests import random_cases as cases
from tests.consistent import assert_consistent
from tests.twins import START_US, Twins, parsed, whole_patch

ANYONE = RequestAttributes({})


def filled(r: random.Random, ads: int, **fixed: object) -> Twins:
    """Twins of so many random ads; `fixed` fields are the same for all."""
    twins = Twins(r, ids=ads, partitions=1)
    events = []
    for i in range(ads):
        patch = twins.create_patch(r)
        for name, value in fixed.items():
            setattr(patch, name, value)
        events.append(AdEvent(EventKind.CREATE, twins.ids[i], None, 0, i, START_US // 1000, patch=patch))
    twins.offset[0] = ads
    assert set(twins.send(events)) == {Outcome.APPLIED}
    return twins


def conjunctions(r: random.Random, leaves: int) -> dict[str, object]:
    """An expression of just so many leaves that is true now and then: any of many alls."""
    names = [name for name in cases.SCHEMA.attribute_list if name.name != "hour"]
    groups, left = [], leaves
    while left:
        count = min(left, r.randrange(4, 7))
        groups.append({"all": [cases.leaf(r, r.choice(names), "attr") for _ in range(count)]})
        left -= count
    return {"any": groups}


def deep(r: random.Random, depth: int) -> object:
    """An expression of just this depth, a leaf at every level."""
    names = list(cases.SCHEMA.attribute_list)
    made: object = cases.leaf(r, r.choice(names), "attr")
    for level in range(depth - 1):
        other = cases.leaf(r, r.choice(names), "attr")
        made = {"not": made} if level % 5 == 4 else {r.choice(["all", "any"]): r.sample([made, other], 2)}
    return made


def test_ten_thousand_values_in_one_request() -> None:
    r = random.Random(1)
    twins = filled(r, 1500)
    many = [f"a{i}" for i in range(10_000)]
    r.shuffle(many)
    requests = []
    for carried in (many, many[:5000] * 2, [*many[:100], "unknown " * 100]):
        attributes = parse_attributes(cases.SCHEMA, cases.attributes(r) | {"audience": carried}, "UTC")
        requests.append(Request(attributes, (Pathway("main", 100),)))
    assert len(requests[0].attributes.values[cases.SCHEMA.attributes["audience"].index]) == 10_000
    for _ in range(2):  # scratch was left as it was found
        answers = twins.ask(requests * 2)
        assert all(0 < answer.eligible < 1500 for answer in answers)
        assert_consistent(twins.index)


def test_ten_thousand_results() -> None:
    """In value order with many ties, over several pathways of one request, beyond what there is."""
    r = random.Random(2)
    twins = filled(r, 11_000, targeting=None, paused=False, schedule=None)
    user = twins.users[1]
    [one] = twins.ask([Request(ANYONE, (Pathway("main", K_MAX, "value", user),))])
    assert len(one.results) == min(K_MAX, one.eligible)
    assert one.eligible > 9000, one.eligible
    pathways = (Pathway("a", K_MAX // 2), Pathway("b", K_MAX, "score", user), Pathway("c", K_MAX, "value", user))
    [several] = twins.ask([Request(ANYONE, pathways)])
    assert len({result.ad_id for result in several.results}) == len(several.results) == several.eligible
    [capped] = twins.ask([Request(ANYONE, (Pathway("main", K_MAX, "value", user),), max_per={"campaign_id": 20})])
    assert 2000 < len(capped.results) < several.eligible, "those without a campaign are not capped"
    many = tuple(Pathway(str(i), 20, r.choice(["value", "score"]), r.choice(twins.users)) for i in range(PATHWAYS_MAX))
    [all_filled] = twins.ask([Request(ANYONE, many, max_per={"advertiser_id": 1000})])
    assert len(all_filled.results) == 20 * PATHWAYS_MAX


@pytest.mark.parametrize("shape", ["wide", "deep"])
def test_the_largest_targetings_and_filters(shape: str) -> None:
    r = random.Random(3)
    twins, made = Twins(r, ids=80, partitions=1), []
    for i in range(80):
        raw = conjunctions(r, LEAVES_MAX) if shape == "wide" else deep(r, DEPTH_MAX)
        patch = whole_patch(targeting=parsed(raw), fields=twins.create_patch(r).fields)
        made.append(AdEvent(EventKind.CREATE, twins.ids[i], None, 0, i, START_US // 1000, patch=patch))
    twins.offset[0] = 80
    assert set(twins.send(made)) == {Outcome.APPLIED}
    requests = []
    for _ in range(12):
        names = list(cases.SCHEMA.field_list)
        leaves = [cases.leaf(r, r.choice(names), "field") for _ in range(LEAVES_MAX if shape == "wide" else DEPTH_MAX)]
        raw = {r.choice(["any", "all"]): [{"not": leaf} for leaf in leaves]}
        if shape == "deep":
            raw = leaves[0]
            for leaf in leaves[1:]:
                raw = {r.choice(["any", "all"]): [raw, leaf]}
        filter_expression = parse_expression(raw, cases.SCHEMA.fields, "field")
        attributes = parse_attributes(cases.SCHEMA, cases.attributes(r), r.choice(cases.ZONES))
        requests.append(Request(attributes, (Pathway("main", 100), Pathway("more", 9, filter=filter_expression))))
    answers = twins.ask(requests)
    assert 0 < sum(answer.eligible for answer in answers) < 12 * 80
    twins.check()


def test_an_empty_index() -> None:
    r = random.Random(4)
    twins = Twins(r, ids=5)
    for _ in range(2):
        answers = twins.ask([twins.request(r) for _ in range(20)])
        assert all((answer.eligible, answer.indexed, answer.results) == (0, 0, []) for answer in answers)
        twins.send(
            [twins.event(r, EventKind.CREATE, ad_id) for ad_id in twins.ids]
        )  # and one that was not always empty
        twins.send([twins.event(r, EventKind.EXPIRE, ad_id) for ad_id in list(twins.plain.ads)])
        while twins.plain.ads:
            twins.send([twins.event(r, EventKind.EXPIRE, ad_id) for ad_id in list(twins.plain.ads)])
    assert retrieve(twins.index, []) == []


def test_all_ads_paused() -> None:
    r = random.Random(5)
    twins = filled(r, 300, paused=True, targeting=None)
    answers = twins.ask([twins.request(r) for _ in range(20)])
    assert all((answer.eligible, answer.indexed) == (0, 300) for answer in answers)


def test_no_ad_in_its_time() -> None:
    r = random.Random(6)
    twins = filled(r, 300, start_us=START_US + 5, targeting=None, schedule=None, end_us=START_US + 6, paused=False)
    assert [answer.eligible for answer in twins.ask([Request(ANYONE, (Pathway("main", 500),))])] == [0]
    twins.advance(5)
    assert [answer.eligible for answer in twins.ask([Request(ANYONE, (Pathway("main", 500),))])] == [300]
    own = [Request(ANYONE, (Pathway("main", 500),), now_us=START_US + at) for at in (4, 5, 6)]
    assert [answer.eligible for answer in twins.ask(own)] == [0, 300, 0]


@cache
def random_twins() -> tuple[Twins, list[Request]]:
    """3,000 ads and requests for three passes, one of them not full."""
    r = random.Random(7)
    twins = filled(r, 3000)
    return twins, [twins.request(r) for _ in range(2 * BATCH_MAX + 5)]


def test_a_batch_answers_as_its_members_do_one_by_one() -> None:
    twins, requests = random_twins()
    together = twins.ask(requests)
    assert sum(len(answer.results) for answer in together) > 1000
    for request, answer in zip(requests, together, strict=True):
        [alone] = retrieve(twins.index, [request])
        assert (alone.results, alone.eligible, alone.offsets) == (answer.results, answer.eligible, answer.offsets)
    reverse = retrieve(twins.index, requests[::-1])
    assert [answer.results for answer in reverse[::-1]] == [answer.results for answer in together]
    same = retrieve(twins.index, [requests[0]] * BATCH_MAX)
    assert all(answer.results == together[0].results for answer in same)


def test_answers_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With enough rows in three blocks and enough ads that every kernel shares its work."""
    if threads_max() < 2:
        pytest.skip("this process has one thread: NUMBA_NUM_THREADS, or a machine of one core")
    monkeypatch.setattr(filter_, "ONE_THREAD_ADS_MAX", 100)
    r = random.Random(8)
    twins = Twins(r, ids=100, partitions=1)
    values, events = [f"v{i}" for i in range(400)], []
    for i in range(17_000):
        targeting = parsed({"attr": "audience", "in": r.sample(values, 20)})
        patch = whole_patch(targeting=targeting, bid=float(r.randrange(1, 9)), fields=twins.create_patch(r).fields)
        events.append(AdEvent(EventKind.CREATE, str(i), None, 0, i, START_US // 1000, patch=patch))
    twins.offset[0] = len(events)
    assert set(twins.send(events)) == {Outcome.APPLIED}
    requests = []
    for _ in range(BATCH_MAX):
        attributes = parse_attributes(cases.SCHEMA, {"audience": r.sample(values, 300)})
        wanted = parse_expression(cases.filter_(r), cases.SCHEMA.fields, "field")
        pathways = (Pathway("main", 1000, "value", r.choice(twins.users)), Pathway("more", 100, filter=wanted))
        requests.append(Request(attributes, pathways))
    answers = []
    for count in (1, 2, 1, threads_max()):
        with threads(count):
            answers.append([(answer.results, answer.eligible) for answer in retrieve(twins.index, requests)])
    assert all(each == answers[0] for each in answers)
    assert all(eligible > 16_000 for _, eligible in answers[0])
    assert 3 * BATCH_MAX * 300 > match_.ONE_THREAD_ROWS_MAX
    assert_consistent(twins.index)
