"""A model at work: users' features and ads become vectors, in order, whole, and of the one model that answers name.

The model is a fake whose vectors are drawn from a hash of all that it is told, so that a vector tells of what it was
made: of which model, of which features, of which user.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import pytest

from api.ad_stage import BATCHES_MAX, READ_ADS, AdStage, parts
from api.ad_tower import ADS_MAX, AdTower, AdTowerStatistics
from api.engine import Engine
from api.shared_model import SharedModel
from api.towers import USERS_MAX
from gpu_index.ad_inputs import inputs_at
from gpu_index.events import AdEvent, AdPatch, Batch, EventKind, Outcome
from gpu_index.index import Index
from gpu_index.second_vectors import slots_of, used_slots
from kernels.ads import GIVEN_EMBEDDING, GIVEN_GATE, ZERO_EMBEDDING
from kernels.precision import Precision, dequantise, quantise, row_width, storage_dtype
from scoring.reference import score_reference
from scoring.user import User
from tests import random_cases as cases
from tests.api.conftest import Start
from tests.api.running import SCHEMA, Running
from tests.api.test_http import problem
from tests.fake_model import FakeModel
from tests.plain import PlainIndex
from tests.twins import DIM, EXPIRED_VERSIONS_S, GATE_DIM, START_US, Twins, new_index, vector, whole_patch

WAIT_S = 60
FEATURES = [b"", b'{"title":"a"}', b'{"title":"b","categories":["IAB1"]}']


def stored(index: Index, slot: int) -> tuple[Any, Any]:
    """The vectors at a slot, as numbers."""
    a = index.ads
    return (
        dequantise(a.embedding[slot], a.embedding_scale[slot], index.dim),
        dequantise(a.gate[slot], a.gate_scale[slot], index.gate_dim),
    )


def as_stored(vector: Any, precision: Precision) -> Any:
    row = np.zeros(row_width(len(vector), precision), storage_dtype(precision))
    return dequantise(row, quantise(vector, precision, row), len(vector))


# Ads at ingest.


class Fed:
    """An engine behind a stage, fed with random events; beside it the plain index."""

    def __init__(self, seed: int, model: FakeModel) -> None:
        self.r = random.Random(seed)
        self.model = model
        self.twins = Twins(self.r, ids=12)
        self.plain = PlainIndex(
            cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=Precision.INT8, expired_versions_s=EXPIRED_VERSIONS_S
        )
        self.engine = Engine(new_index(), clock_us=lambda: START_US)
        self.engine.index.model = SharedModel(model).title
        self.stage = AdStage(self.engine)
        self.stage.tower = AdTower(SharedModel(model), cases.SCHEMA, AdTowerStatistics())
        self.engine.start()
        self.stage.start()

    def event(self) -> AdEvent:
        event = self.twins.event(self.r)
        patch = event.patch
        if patch is not None:
            if patch.features is not msgspec.UNSET or self.r.random() < 0.3:
                patch.features = self.r.choice(FEATURES)
            for name, width in (("embedding", DIM), ("gate", GATE_DIM)):
                if getattr(patch, name) is not msgspec.UNSET:
                    given = [None, None, vector(self.r, width), np.zeros(width, np.float32)]
                    setattr(patch, name, self.r.choice(given))
        return event

    def send(self, events: list[AdEvent]) -> tuple[Future[list[Outcome]], list[Outcome]]:
        """What will have become of the events, and what is to become of them."""
        done: Future[list[Outcome]] = Future()
        positions = {partition: self.twins.offset[partition] for partition in {event.partition for event in events}}
        want = [self.plain.apply(event) for event in events]
        assert self.stage.offer(Batch(events, positions, lambda outcomes, _: done.set_result(list(outcomes))), WAIT_S)
        return done, want

    def check(self) -> None:
        def look(index: Index) -> None:
            ads = {index.ad_id(slot): slot for slot in used_slots(index, 0, slots_of(index)).tolist()}
            assert ads.keys() == self.plain.ads.keys()
            for ad_id, slot in ads.items():
                told, ad, flags = inputs_at(index, slot), self.plain.ads[ad_id], int(index.ads.flags[slot])
                assert (told.features, told.fields) == (ad.features, ad.fields)
                made = self.model.of(told, cases.SCHEMA)
                for kind, given in enumerate((ad.embedding, ad.gate)):
                    want = made[kind] if given is None else given
                    np.testing.assert_array_equal(stored(index, slot)[kind], as_stored(want, Precision.INT8))
                assert bool(flags & GIVEN_EMBEDDING) == (ad.embedding is not None)
                assert bool(flags & GIVEN_GATE) == (ad.gate is not None)
                assert bool(flags & ZERO_EMBEDDING) == (ad.embedding is not None and not ad.embedding.any())

        self.engine.call(look).result(WAIT_S)

    def close(self) -> None:
        self.stage.stop(WAIT_S)
        self.engine.stop(WAIT_S)
        assert self.stage.failure is None


@pytest.mark.parametrize("seed", range(6))
def test_after_any_history_an_ads_vectors_are_the_models_or_those_given(seed: int) -> None:
    """Stale, bad and repeated events among them, many of one ad in one batch."""
    fed = Fed(seed, FakeModel("fake", DIM, GATE_DIM))
    try:
        for _ in range(30):
            sizes = [fed.r.choice([0, 1, 3, 30]) for _ in range(fed.r.choice([1, 3]))]
            for got, want in [fed.send([fed.event() for _ in range(size)]) for size in sizes]:
                assert got.result(WAIT_S) == want
            fed.check()
        assert fed.plain.ads
    finally:
        fed.close()


def test_a_batch_is_cut_where_an_ad_must_be_known_as_the_batch_leaves_it() -> None:
    def event(kind: EventKind, ad_id: str, **fields: Any) -> AdEvent:
        patch = None if kind is EventKind.EXPIRE else whole_patch() if kind is EventKind.CREATE else fields["patch"]
        return AdEvent(kind, ad_id, None, 0, 0, 0, patch=patch)

    create = lambda ad_id: event(EventKind.CREATE, ad_id)  # noqa: E731
    told = lambda ad_id: event(EventKind.MODIFY, ad_id, patch=AdPatch(features=b"{}"))  # noqa: E731
    bid = lambda ad_id: event(EventKind.MODIFY, ad_id, patch=AdPatch(bid=2.0))  # noqa: E731
    cut = lambda *events: [len(part) for part in parts(list(events))]  # noqa: E731
    assert cut(create("a"), bid("a"), told("b"), create("b")) == [4]
    assert cut(create("a"), told("a"), told("b"), told("a")) == [1, 2, 1]
    assert cut(told("a"), event(EventKind.EXPIRE, "a"), create("a"), told("a")) == [3, 1]
    assert cut() == [0]


def create(ad_id: str, **ad: Any) -> dict[str, Any]:
    return {"type": "create", "ad_id": ad_id, "ad": {"bid": 1, **ad}}


@pytest.fixture
def fake() -> FakeModel:
    return FakeModel("fake")


@pytest.fixture
def running(start: Start, fake: FakeModel) -> Running:
    return start(model=fake, precision="float32")


def test_others_go_on_while_the_model_is_asked(running: Running, fake: FakeModel) -> None:
    """Requests are answered, and see nothing of the ad that the model has not embedded yet."""
    running.take(create("1"))
    asked, go_on = threading.Event(), threading.Event()

    def wait(ads: Any) -> None:
        asked.set()
        assert go_on.wait(WAIT_S)

    fake.before_ads = wait
    second = running.offer(create("2"))
    assert asked.wait(WAIT_S)
    assert running.post("/v1/retrieve", {}).json()["indexed"] == 1
    go_on.set()
    assert second.result(WAIT_S) == [Outcome.APPLIED]
    assert running.post("/v1/retrieve", {}).json()["indexed"] == 2


def test_a_batch_of_many_modifies_reads_every_ad_back(running: Running, fake: FakeModel) -> None:
    """More than the engine reads at once, and more than the model is asked for at once."""
    count = 3 * READ_ADS + ADS_MAX
    running.take(*(create(str(number), advertiser_id=str(number), features={"n": 0}) for number in range(count)))
    fake.asked.clear()
    running.take(*({"type": "modify", "ad_id": str(number), "ad": {"features": {"n": 1}}} for number in range(count)))
    assert [(ad.ad_id, ad.advertiser_id, ad.features) for ad in fake.asked] == [
        (str(number), str(number), {"n": 1}) for number in range(count)
    ]

    def look(index: Index) -> None:
        for slot in used_slots(index, 0, slots_of(index)).tolist():
            np.testing.assert_array_equal(stored(index, slot)[0], fake.of(inputs_at(index, slot), SCHEMA)[0])

    running.engine.call(look).result(WAIT_S)
    running.take({"type": "modify", "ad_id": "7", "ad": {"bid": 2}})
    assert len(fake.asked) == count, "a bid needs no vector"


def test_the_queue_before_the_ad_tower_has_an_end(running: Running, fake: FakeModel) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def hold(ads: Any) -> None:
        asked.set()
        assert go_on.wait(WAIT_S)

    fake.before_ads = hold
    taken = [running.offer(create("0"))]
    assert asked.wait(WAIT_S)
    taken += [running.offer(create(str(number))) for number in range(1, 1 + BATCHES_MAX)]
    assert not running.stage.offer(Batch([], {}, lambda *_: None), 0.0)
    go_on.set()
    assert [each.result(WAIT_S) for each in taken] == [[Outcome.APPLIED]] * (1 + BATCHES_MAX)


def test_an_ad_that_the_model_fails_on_is_a_bad_event_and_its_neighbours_are_not(
    running: Running, fake: FakeModel
) -> None:
    def fail(ads: Any) -> None:
        if any(ad.ad_id == "2" for ad in ads):
            raise RuntimeError("no")

    fake.before_ads = fail
    assert running.take(create("1"), create("2"), create("3")) == [Outcome.APPLIED, Outcome.BAD, Outcome.APPLIED]
    assert running.get("/v1/admin/ingest").json()["faults"] == {"internal": 1}
    figures = running.get("/v1/admin/model").json()["ad_tower"]
    assert (figures["ads"], figures["failed"]) == (2, 1)


@pytest.mark.parametrize("wrong", [(0, np.nan), (1, np.inf)])
def test_vectors_that_are_none_are_never_stored(
    running: Running, fake: FakeModel, monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, float]
) -> None:
    ads = fake.ads

    def spoilt(asked: Any) -> Any:
        made = ads(asked)
        made[wrong[0]][:, 0] = wrong[1]
        return made

    monkeypatch.setattr(fake, "ads", spoilt)
    assert running.take(create("1")) == [Outcome.BAD]


def test_zero_embeddings_are_counted_only_where_an_event_gave_them(running: Running) -> None:
    running.take(create("1"), create("2", embedding=[0.0] * 8), create("3", embedding=[1.0] * 8))
    assert running.get("/v1/admin/index").json()["zero_embeddings"] == 1
    given = [running.get(f"/v1/admin/ads/{number}").json()["given"] for number in (1, 2)]
    assert given == [{"embedding": False, "gate": False}, {"embedding": True, "gate": False}]
    running.take({"type": "modify", "ad_id": "2", "ad": {"embedding": None}})
    assert running.get("/v1/admin/index").json()["zero_embeddings"] == 0


# Users.


def expected(running: Running, fake: FakeModel, user: User) -> dict[str, float]:
    """The score of each ad in plain float64, from the vectors that the model makes of it."""

    def look(index: Index) -> dict[str, float]:
        scores = {}
        for slot in used_slots(index, 0, slots_of(index)).tolist():
            embedding, gate = stored(index, slot)
            scores[index.ad_id(slot)] = float(score_reference(user, embedding[None], gate[None])[0])
        return scores

    return running.engine.call(look).result(WAIT_S)


def scores(answer: dict[str, Any], pathway: str = "main") -> dict[str, float]:
    return {each["ad_id"]: each["score"] for each in answer["results"] if each["pathway"] == pathway}


def test_features_and_context_become_the_models_user(running: Running, fake: FakeModel) -> None:
    running.take(*(create(str(number), features={"title": str(number)}) for number in range(5)))
    body = {"user": {"features": {"cohort": {"age": 3}}}, "context": {"hour": 7}}
    answer = running.post("/v1/retrieve", body).json()
    (user,) = fake.users([body["user"]["features"]], [body["context"]])
    assert scores(answer) == pytest.approx(expected(running, fake, user), abs=1e-6)
    assert answer["model"] == {"name": "fake", "fingerprint": fake.fingerprint}
    assert answer["timings_ms"]["towers"] > 0
    other = running.post("/v1/retrieve", body | {"context": {"hour": 8}}).json()
    assert scores(other) != scores(answer)
    assert "towers" not in running.post("/v1/retrieve", {}).json()["timings_ms"]
    assert set(scores(running.post("/v1/retrieve", {}).json()).values()) == {0.5}


def test_each_pathway_has_its_user(running: Running, fake: FakeModel) -> None:
    running.take(*(create(str(number)) for number in range(6)))
    body = {
        "user": {"features": {"a": 1}},
        "pathways": [{"name": "one", "k": 2}, {"name": "two", "k": 2, "user": {"features": {"a": 2}}},
                     {"name": "three", "user": {"experts": [[1] * 8]}}],
    }  # fmt: skip
    answer = running.post("/v1/retrieve", body).json()
    first, second = fake.users([{"a": 1}, {"a": 2}], [None, None])
    given = User(np.ones((1, 8), np.float32), np.zeros((1, 4), np.float32), np.zeros(1, np.float32), 1.0, 0.0, 1)
    for name, user in (("one", first), ("two", second), ("three", given)):
        want = expected(running, fake, user)
        assert len(scores(answer, name)) == 2
        assert scores(answer, name) == pytest.approx({ad: want[ad] for ad in scores(answer, name)}, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({"user": {"features": {"bad": 1}}}, "user.features.bad", "unknown_field"),
        ({"user": {"features": {}}, "context": {"bad": 1}}, "context.bad", "unknown_field"),
        ({"user": {"features": {}}, "pathways": [{"name": "a"}, {"name": "b", "user": {"features": {"bad": 1}}}]},
         "pathways[1].user.features.bad", "unknown_field"),
        ({"user": {"features": []}}, "user.features", "wrong_type"),
        ({"user": {"features": {}, "experts": [[0] * 8]}}, "user.experts", "not_both"),
        ({"user": {"experts": [[0] * 9]}}, "user.experts[0]", "wrong_width"),
        ({"user": {"experts": [[0] * 8] * 4}}, "user.experts", "out_of_range"),
        ({"user": {}}, "user.features", "missing"),
    ],
)  # fmt: skip
def test_what_the_model_cannot_read_is_placed(running: Running, body: Any, path: str, code: str) -> None:
    found = problem(running.post("/v1/retrieve", body), 422, "invalid-request")
    assert (found["path"], found["code"]) == (path, code)
    assert problem(running.post("/v1/retrieve/batch", [{}, body]), 422, "invalid-request")["path"] == f"[1].{path}"
    running.take(create("1"))
    explained = running.post("/v1/admin/explain", {"ad_id": "1", "request": body})
    assert problem(explained, 422, "invalid-request")["path"] == f"request.{path}"


def test_a_bid_request_brings_features_too(running: Running, fake: FakeModel) -> None:
    running.take(create("1", fields={"format": "banner"}))
    bid_request = {
        "id": "r", "imp": [{"id": "i", "banner": {}}], "device": {"os": "iOS", "geo": {"country": "USA"}},
        "ext": {"mirach": {"user": {"features": {"a": 1}}}},
    }  # fmt: skip
    answer = running.post("/v1/retrieve/openrtb", bid_request).json()
    assert len(answer["results"]) == 1
    assert answer["timings_ms"]["towers"] > 0
    bid_request["ext"]["mirach"]["user"]["features"] = {"bad": 1}
    found = problem(running.post("/v1/retrieve/openrtb", bid_request), 422, "invalid-request")
    assert found["path"] == "ext.mirach.user.features.bad"


def test_users_that_wait_are_asked_for_together_and_a_bad_one_alone_is_refused(
    running: Running, fake: FakeModel
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        if not asked.is_set():
            asked.set()
            assert go_on.wait(WAIT_S)

    fake.before_users = wait
    towers, model = running.service.towers, running.service.parser.model
    assert model is not None
    first = towers.submit(model, [({"n": 0}, None)])
    assert asked.wait(WAIT_S)
    others = [towers.submit(model, [({"n": number}, None)]) for number in range(1, USERS_MAX + 1)]
    go_on.set()
    for future in (first, *others):
        future.result(WAIT_S)
    assert fake.users_asked == [1, USERS_MAX]
    bodies = [{"user": {"features": {"bad": 1} if number == 3 else {}}} for number in range(6)]
    assert [answer.status_code for answer in running.together(*bodies)] == [200, 200, 200, 422, 200, 200]


def test_with_too_many_users_waiting_more_are_refused(start: Start, fake: FakeModel) -> None:
    running = start(model=fake, request_queue_max=2)
    asked, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        assert go_on.wait(WAIT_S)

    fake.before_users = wait
    towers, model = running.service.towers, running.service.parser.model
    assert model is not None
    waiting = [towers.submit(model, [({}, None)])]
    assert asked.wait(WAIT_S)
    waiting += [towers.submit(model, [({}, None)]) for _ in range(2)]
    found = problem(running.post("/v1/retrieve", {"user": {"features": {}}}), 503, "overloaded")
    assert "request_queue_max" in found["detail"]
    go_on.set()
    for future in waiting:
        future.result(WAIT_S)


def test_explain_tells_the_parts_of_the_models_score(running: Running, fake: FakeModel) -> None:
    running.take(create("1"))
    body = {"user": {"features": {"a": 1}}}
    explained = running.post("/v1/admin/explain", {"ad_id": "1", "request": body}).json()
    (pathway,) = explained["pathways"]
    assert explained["model"]["fingerprint"] == fake.fingerprint
    assert (pathway["temperature"], pathway["bias"], pathway["route"]) == (0.5, -0.25, 2)
    assert len(pathway["experts"]) == 3
    y = 0.5 * sum(expert["weight"] * expert["dot"] for expert in pathway["experts"]) - 0.25
    assert pathway["y"] == pytest.approx(y)
    assert pathway["score"] == pytest.approx(scores(running.post("/v1/retrieve", body).json())["1"], abs=1e-6)


def test_the_models_figures_are_metrics(running: Running, fake: FakeModel) -> None:
    running.take(create("1"), create("2"))
    running.post("/v1/retrieve", {"user": {"features": {}}})
    text = running.get("/metrics").text
    assert f'mirach_model{{fingerprint="{fake.fingerprint}",name="fake"}} 1.0' in text
    for line in ("mirach_ads_embedded_total 2.0", "mirach_user_towers_batch_users_count 1.0"):
        assert line in text


def test_the_document_tells_of_features_where_there_is_a_model(running: Running, start: Start) -> None:
    with_model = running.get("/openapi.json").json()["components"]["schemas"]["User"]["anyOf"]
    without = start().get("/openapi.json").json()["components"]["schemas"]["User"]["anyOf"]
    assert with_model[0]["required"] == ["features"]
    assert all(variant["required"] == ["experts"] for variant in without)
    assert len(with_model) == 1 + 3
