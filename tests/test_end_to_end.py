"""The real thing: `mirach serve` over a real Apache Kafka, and over the embedded broker, asked over HTTP. Whatever it
answers is compared with a plain index folded from the same topic."""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench import ads as bench
from gpu_index.events import Outcome
from gpu_index.targeting import to_json
from ingest.embedded import EmbeddedBroker
from tests import end_to_end_cases as cases
from tests.end_to_end import DIM, GATE_DIM, PARSER, SCHEMA, START_S, STOP_S, WAIT_MS, Client, Json, World, clock_us
from tests.kafka import Broker, EmbeddedKafka, Record, until
from tests.plain import PlainAd

Samples = dict[str, list[tuple[dict[str, str], float]]]  # by name: labels and value

SEED = 20261130
TAKE_UP_S = 30.0  # of a new partition, as the contract has it
CLIENTS = 4
TOKEN = "t0ken"


@pytest.fixture(scope="module", params=["apache_kafka", "embedded_kafka"])
def any_kafka(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker of each kind for all tests of this module."""
    if request.param == "embedded_kafka":
        with EmbeddedBroker({}) as broker:
            yield EmbeddedKafka(broker)
    else:
        yield request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def world(any_kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One service for all tests that can share it; what each publishes stays."""
    folder = tmp_path_factory.mktemp("world")
    world = World(any_kafka, folder, places=cases.write_places(folder))
    world.service.wait_ready()
    yield world
    world.close()
    assert "Traceback" not in world.service.log()
    assert " ERROR " not in world.service.log()


def problem(response: httpx.Response, status: int, kind: str) -> Json:
    """The problem document of a response that must be one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: Json = response.json()
    assert document["type"] == kind
    return document


# The main job.


def test_real_ads_and_real_requests(world: World, tmp_path: Path) -> None:
    """Real targeting specs as ads, real BidRequests, and requests aimed at the ads: sets, order and values are those of
    the plain evaluator. A part of the events is sent by `mirach produce`."""
    r = random.Random(SEED)
    moments = cases.real_events(r)
    past = len(moments) * 2 // 3
    world.publish(moment.record() for moment in moments[:past])
    world.produce([moment.line() for moment in moments[past:]], tmp_path / "events.jsonl")
    world.produce(cases.documented_events(r))
    refused = [bad.fault.code for bad in world.truth.bad.values()]
    assert refused == ["targeting_meta"], "of all specs only one cannot be honoured"
    assert {Outcome.STALE, Outcome.APPLIED, Outcome.BAD} == world.truth.outcomes.keys() - {Outcome.EXPIRE_UNKNOWN}
    assert ask_aimed_requests(world, r, 160) > 0.5, "most reach their ad, or little would be compared"
    documented = [ad for ad in world.truth.ads.values() if ad.ad_id.startswith("documented")]
    assert len(documented) == len(cases.documented_specs()) - 1
    assert sum(ask_aimed_requests(world, r, 4, [ad]) > 0 for ad in documented) > 0.7 * len(documented)


def ask_aimed_requests(world: World, r: random.Random, count: int, ads: Sequence[PlainAd] = ()) -> float:
    """Asks requests aimed at one of these ads each, or at any. -> the share of those without a time of their own that
    reached theirs"""
    ads = ads or list(world.truth.ads.values())
    aimed = hits = 0
    for number in range(count):
        body, ad = cases.aimed_request(r, ads)
        if number % 8 == 0:
            body |= {"user": cases.user(r), "now": cases.random_time(r, ad)}
        answer = world.ask({**body, "k": 1000})
        if "now" not in body and not ad.paused:
            aimed += 1
            hits += any(result["ad_id"] == ad.ad_id for result in answer["results"])
        world.ask(cases.ask_for(r, body, answer))
    return hits / max(aimed, 1)


def test_bid_requests(world: World) -> None:
    r = random.Random(SEED + 1)
    asked = {name: each for name, each in cases.bid_requests().items() if name not in cases.REFUSED_BID_REQUESTS}
    ads = [ad for bid_request in asked.values() for ad in cases.ads_for(r, bid_request, 16)]
    world.publish_events(
        *({"type": "create", "ad_id": f"bid-{number}", "version": 1, "ad": ad} for number, ad in enumerate(ads))
    )
    for name, bid_request in asked.items():
        answer = world.ask_openrtb(bid_request)
        assert answer["results"], name
        assert answer["eligible"] > len(answer["results"]), "what the exchange forbids is left out"
        for _ in range(4):
            world.ask_openrtb(cases.known_user(r, bid_request), k=r.choice([2, 500]), max_per={"advertiser_id": 2})
        assert world.service.post("/v1/retrieve/openrtb", bid_request).json()["results"] == answer["results"]


def test_invalid_bid_requests(world: World) -> None:
    for name, path in cases.REFUSED_BID_REQUESTS.items():
        response = world.service.post("/v1/retrieve/openrtb", cases.bid_requests()[name])
        assert problem(response, 422, "invalid-request")["path"] == path


def test_campaigns_with_random_requests(world: World) -> None:
    """5,000 ads of campaigns, then changes of some, asked with random requests, with users and without."""
    r, now = random.Random(SEED + 2), datetime.now(UTC)
    world.publish_events(*bench.events(SEED, 5_000, vectors=(DIM, GATE_DIM), now=now))
    world.publish_events(*bench.changes(SEED, 1_500, 5_000, vectors=(DIM, GATE_DIM), now=now))
    eligible = 0
    for number, body in enumerate(bench.requests(SEED, 60)):
        if number % 5 == 0:
            body |= {"user": cases.user(r), "now": bench.rfc3339(now)}
        answer = world.ask(body)
        eligible += answer["eligible"]
        world.ask(cases.ask_for(r, body, answer))
    assert eligible > 60 * 20, eligible


# Bad events.


def test_bad_events_are_dead_letters_and_harm_nothing(world: World) -> None:
    """More than twenty kinds: each in the dead-letter topic as it came, with the code that it must have; counted; the
    index is as it was; and the next event is taken."""
    r = random.Random(SEED + 3)
    world.publish_events({"type": "create", "ad_id": "good", "version": 5, "ad": {"bid": 7}})
    before, ads = world.ingest(), dict(world.truth.ads)
    now = {"now": bench.rfc3339(datetime.now(UTC))}
    bodies = [{**cases.aimed_request(r, list(ads.values()))[0], **now} for _ in range(10)]
    answers = [world.ask(body) for body in bodies]
    counted_before = counted(world)
    known = set(world.truth.bad)
    world.publish(Record(bad.key, bad.value) for bad in cases.BAD_EVENTS)
    world.publish_events({"type": "create", "ad_id": "good", "version": 5, "ad": {"bid": -1}})  # stale before it is bad

    new = [bad for place, bad in world.truth.bad.items() if place not in known]
    found = Counter((bad.key, bad.value, bad.fault.code) for bad in new)
    assert found == Counter((bad.key, bad.value, bad.code) for bad in cases.BAD_EVENTS)
    for body, answer in zip(bodies, answers, strict=True):
        after = world.ask(body)
        assert (after["results"], after["eligible"]) == (answer["results"], answer["eligible"])
    assert world.truth.ads == ads
    world.check_dead_letters()

    codes = Counter(bad.code for bad in cases.BAD_EVENTS)
    assert counted(world) - counted_before == codes
    after = world.ingest()
    assert after["outcomes"]["stale"] == before["outcomes"]["stale"] + 1
    assert after["outcomes"]["unknown_ad"] == before["outcomes"]["unknown_ad"] + 1
    assert after["outcomes"]["bad"] == before["outcomes"]["bad"] + len(cases.BAD_EVENTS) - 1
    world.publish_events({"type": "modify", "ad_id": "good", "version": 6, "ad": {"bid": 8}})
    assert world.ask({"filter": {"field": "bid", "between": [8, 8]}})["results"][0]["ad_id"] == "good"


def counted(world: World) -> Counter[str]:
    """Bad events by code, which the admin route and the metrics must tell alike."""
    faults: Counter[str] = Counter(world.ingest()["faults"])
    samples = metrics(world)
    assert faults == {labels["code"]: value for labels, value in samples.get("mirach_bad_events_total", ())}
    return faults


def metrics(world: World) -> Samples:
    families = text_string_to_metric_families(world.service.get("/metrics").text)
    found: Samples = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


# What else the API promises.


def test_an_answer_waits_for_its_offsets(world: World) -> None:
    body: Json = {"attributes": {"geo.country": "XX"}, "k": 3}
    there = {"attr": "geo.country", "in": ["XX"]}
    for bid in (70, 71, 72):
        world.publish_events({"type": "create", "ad_id": f"read-{bid}", "ad": {"bid": bid, "targeting": there}})
        assert world.ask(body)["results"][0]["ad_id"] == f"read-{bid}", "what was written is read"
    answer = world.service.post("/v1/retrieve", body).json()
    assert answer["offsets"] == world.min_offsets["min_offsets"]
    partition, offset = next(iter(world.offsets.items()))
    behind = world.service.post("/v1/retrieve", {"min_offsets": {str(partition): offset + 1}, "wait_ms": 20})
    assert problem(behind, 503, "index-behind")["offsets"] == answer["offsets"]
    assert behind.headers["retry-after"] == "1"
    unknown = world.service.post("/v1/retrieve", {"min_offsets": {"77": 0}})
    assert problem(unknown, 422, "invalid-request")["path"] == 'min_offsets."77"'


def test_a_batch_is_as_its_members(world: World) -> None:
    r = random.Random(SEED + 4)
    world.publish_events(*named("batch", bench.events(SEED + 4, 300)))
    ads = list(world.truth.ads.values())
    bodies = [cases.aimed_request(r, ads)[0] for _ in range(40)]
    began_us = clock_us()
    response = world.service.post("/v1/retrieve/batch", [{**body, **world.min_offsets} for body in bodies])
    assert response.status_code == 200, response.text
    for body, answer in zip(bodies, response.json(), strict=True):
        world.check(httpx.Response(200, json=answer), body, began_us)
    wrong = [*bodies[:2], {**bodies[2], "k": 0}]
    assert problem(world.service.post("/v1/retrieve/batch", wrong), 422, "invalid-request")["path"] == "[2].k"
    late = [bodies[0], {**bodies[1], "min_offsets": {"0": 2**40}, "wait_ms": 20}]
    problem(world.service.post("/v1/retrieve/batch", late), 503, "index-behind")


def test_explain_agrees_with_the_answer(world: World) -> None:
    """For ads in the answer, ads that a filter or k leaves out, and ads that do not match."""
    r = random.Random(SEED + 5)
    world.publish_events(*named("explained", bench.events(SEED + 5, 600, vectors=(DIM, GATE_DIM))))
    ads = list(world.truth.ads.values())
    seen: Counter[str] = Counter()
    for _ in range(12):
        body = cases.aimed_request(r, ads)[0]
        body |= {"k": 5, "filter": cases.FILTERS[0], "now": bench.rfc3339(datetime.now(UTC)), "user": cases.user(r)}
        request = PARSER.parse_object(body)
        assert request.now_us is not None
        eligible = world.truth.eligible(request, request.now_us)
        results = {result["ad_id"]: (rank, result) for rank, result in enumerate(world.ask(body)["results"], 1)}
        matching = r.sample(list(eligible.values()), min(5, len(eligible)))
        for ad in [*(world.truth.ads[ad_id] for ad_id in results), *matching, *r.sample(ads, 5)]:
            explained = world.service.post("/v1/admin/explain", {"ad_id": ad.ad_id, "request": body}).json()
            assert explained["eligible"] == (ad.ad_id in eligible)
            (pathway,) = explained["pathways"]
            rank, result = results.get(ad.ad_id, (None, None))
            assert pathway["rank"] == rank
            if result is not None:
                assert explained["filter"]["result"] is True
                assert pathway["score"] == pytest.approx(result["score"], abs=1e-4)
            seen["in" if rank else "left out" if explained["eligible"] else "no match"] += 1
    assert min(seen.values()) >= 10, seen
    assert len(seen) == 3, seen


def test_an_ad_is_shown_as_it_was_sent(world: World) -> None:
    r = random.Random(SEED + 6)
    world.publish_events(*named("shown", bench.events(SEED + 6, 300)))
    world.wait()
    for ad in r.sample(list(world.truth.ads.values()), 60):
        shown = world.service.get(f"/v1/admin/ads/{ad.ad_id}").json()
        told = shown["ad"]
        assert (told["bid"], told["status"]) == (ad.bid, "paused" if ad.paused else "active")
        assert (shown["version"], told["advertiser_id"], told["campaign_id"]) == (
            ad.version, ad.advertiser_id, ad.campaign_id,
        )  # fmt: skip
        sent = {"all": []} if ad.targeting is None else to_json(ad.targeting.expression, SCHEMA.attribute_list)
        assert in_one_order(told["targeting"]) == in_one_order(sent)
    problem(world.service.get("/v1/admin/ads/nobody"), 404, "unknown-ad")


def in_one_order(node: Any) -> Any:
    """An expression's JSON, its lists of values sorted."""
    if isinstance(node, list):
        return [in_one_order(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {name: sorted(each, key=repr) if name == "in" else in_one_order(each) for name, each in node.items()}


def test_figures_and_pages(world: World) -> None:
    """The metrics are what Prometheus reads and what the truth counts; console and docs bring all that they need."""
    world.wait()
    truth, before = Counter(world.truth.outcomes), outcomes_of(metrics(world))
    world.publish_events(
        {"type": "create", "ad_id": "counted", "version": 1, "ad": {"bid": 1}},
        {"type": "create", "ad_id": "counted", "version": 1, "ad": {"bid": 1}},
        {"type": "modify", "ad_id": "not counted", "version": 1, "ad": {"bid": 1}},
        {"type": "expire", "ad_id": "not counted", "version": 1},
    )
    world.wait()
    samples = metrics(world)
    assert outcomes_of(samples) - before == world.truth.outcomes - truth
    assert (world.truth.outcomes - truth).keys() == {
        Outcome.APPLIED, Outcome.STALE, Outcome.UNKNOWN_AD, Outcome.EXPIRE_UNKNOWN,
    }  # fmt: skip
    assert samples["mirach_index_ads"] == [({}, len(world.truth.ads))]
    assert samples["mirach_ready"] == [({}, 1)]
    positions = {int(labels["partition"]): value for labels, value in samples["mirach_partition_position"]}
    assert positions == {partition: world.truth.positions.get(partition, 0) for partition in positions}
    index = world.service.get("/v1/admin/index").json()
    assert index["ads"] == len(world.truth.ads)
    assert index["zero_embeddings"] == sum(ad.embedding is None for ad in world.truth.ads.values())
    for address in ("/console", "/docs"):
        page = world.service.get(address)
        assert page.headers["content-type"].startswith("text/html")
        names = re.findall(r'"(/pages/[^"]+)"', page.text)
        assert names
        for name in [*names, "/openapi.json"]:
            assert world.service.get(name).status_code == 200, name


def outcomes_of(samples: Samples) -> Counter[Outcome]:
    return Counter({Outcome(labels["outcome"]): int(value) for labels, value in samples["mirach_events_total"]})


# Stops, crashes, a topic that comes late or grows.


def test_it_stops_in_order_and_comes_back_from_a_crash(world: World) -> None:
    """At SIGTERM under load every request that was taken is answered and the process exits 0. After that, and after it
    was killed, twice, once while it catches up, and without its snapshots, it answers nothing before it has caught up,
    and then as if nothing had been."""
    r = random.Random(SEED + 7)
    world.publish_events(*named("crash", bench.events(SEED + 7, 1_000)), {"type": "create", "ad_id": "crash"})
    body = {**next(bench.requests(SEED + 7, 1)), "k": 5, "now": bench.rfc3339(datetime.now(UTC))}
    answer = world.ask(body)
    world.check_dead_letters()
    letters = world.broker.end(world.dlq_topic)
    clients = [Client(world.service, body, answer["eligible"]) for _ in range(CLIENTS)]
    until(lambda: all(client.answered >= 5 or client.failure for client in clients), "load")
    world.service.signal(signal.SIGTERM)
    assert world.service.end() == 0, world.service.log()
    for client in clients:
        client.join(STOP_S)
    assert [client.failure for client in clients] == [""] * CLIENTS
    assert re.search(r"stopped: [0-9]+ requests answered, 0 not", world.service.log())
    start_again(world, body)
    assert "is restored" in world.service.log()

    changes = list(named("crash", bench.changes(SEED + 7, 600, 1_000)))
    world.publish_events(*changes[:300])
    assert world.service.post("/v1/admin/snapshots", None).status_code == 200
    world.publish_events(*changes[300:])
    world.service.kill()
    world.service.start()
    world.service.kill()
    start_again(world, body)
    ask_aimed_requests(world, r, 10)

    world.service.kill()
    world.service.forget()
    start_again(world, body)
    ask_aimed_requests(world, r, 10)
    outcomes = world.ingest()["outcomes"]
    assert outcomes == {outcome.value: world.truth.outcomes[outcome] for outcome in Outcome}
    world.check_dead_letters()
    assert world.broker.end(world.dlq_topic) == letters, "what was committed is not sent again"


def start_again(world: World, body: Json) -> None:
    """Until it has caught up it says so and answers nothing; its first answer is the truth."""
    world.service.start()

    def answered() -> bool:
        began_us = clock_us()
        response = world.service.post("/v1/retrieve", body)
        if response.status_code == 503:
            document = problem(response, 503, "not-ready")
            assert document["detail"]
            return False
        world.check(response, body, began_us)
        return True

    until(answered, "an answer", START_S)
    assert world.service.get("/readyz").status_code == 200


def test_a_service_that_waits_for_its_topic(any_kafka: Broker, tmp_path: Path) -> None:
    """It lives and is not ready; its operator needs the token; once the topic is there it is ready by itself. A second
    SIGTERM ends it at once, whatever waits."""
    world = World(any_kafka, tmp_path, "--admin-token", TOKEN, "--no-console", partitions=0)
    try:
        service, bearer = world.service, {"authorization": f"Bearer {TOKEN}"}
        assert service.get("/healthz").status_code == 200
        until(lambda: world.topic in problem(service.get("/readyz"), 503, "not-ready")["detail"], "kernels", START_S)
        bid_request = next(iter(cases.bid_requests().values()))
        for address, body in (("", {}), ("/batch", [{}]), ("/openrtb", bid_request)):
            assert problem(service.post(f"/v1/retrieve{address}", body), 503, "not-ready")["detail"]
        problem(service.get("/v1/admin/ingest"), 401, "unauthorized")
        problem(service.post("/v1/admin/explain", {}, headers={"authorization": "Bearer wrong"}), 401, "unauthorized")
        assert service.get("/v1/admin/ingest", headers=bearer).json()["problems"]["topic"]
        problem(service.get("/console"), 404, "not-found")

        any_kafka.topic(partitions=2, name=world.topic)
        world.publish_events(*bench.events(SEED + 8, 200))
        service.wait_ready()
        world.ask({})
        waiting = Client(service, {"min_offsets": {"0": 2**40}, "wait_ms": WAIT_MS}, eligible=0)
        until(lambda: service.get("/v1/admin/index", headers=bearer).json()["engine"]["queued"] == 1, "it waits")
        service.signal(signal.SIGTERM)
        until(lambda: "SIGTERM" in service.log(), "the first one is seen")
        service.signal(signal.SIGTERM)
        assert service.end() == 128 + signal.SIGTERM
        waiting.join(STOP_S)
        assert waiting.answered == 0, "its connection was broken"
        assert TOKEN not in service.log()
    finally:
        world.close()


@pytest.mark.parametrize("any_kafka", ["apache_kafka"], indirect=True, scope="module")
def test_new_partitions_are_taken_up(world: World) -> None:
    """While it runs the topic is given more partitions, so that keys move to others: events there are taken up within
    30 s, and a restart replays an ad's events, now in two partitions, in their order."""
    r = random.Random(SEED + 9)
    world.publish_events(*named("moved", bench.events(SEED + 9, 600)))
    old = len(world.ingest()["partitions"])
    world.broker.add_partitions(world.topic, old + 2)
    world.publish_events(*named("at once", bench.events(SEED + 11, 100)))
    assert set(world.offsets) == set(range(old + 2))
    world.wait()  # whoever has a delivery report of a new partition is not told that there is none
    until(lambda: len(world.ingest()["partitions"]) == old + 2, "new partitions", TAKE_UP_S)
    world.publish_events(*named("moved", bench.changes(SEED + 9, 400, 600)))
    world.publish_events(*named("new", bench.events(SEED + 10, 100)))
    assert set(world.offsets) == set(range(old + 2))
    ask_aimed_requests(world, r, 10)
    world.service.kill()
    start_again(world, {})
    ask_aimed_requests(world, r, 10)


def named(prefix: str, events: Iterable[Json]) -> Iterator[Json]:
    """Events of ads that no other test has."""
    return ({**event, "ad_id": f"{prefix}-{event['ad_id']}"} for event in events)
