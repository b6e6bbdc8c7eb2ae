"""One model for another while events and requests go on: every answer is wholly one model's and says which."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from api.ad_stage import READ_ADS, AdStage
from api.ad_tower import AdTower, AdTowerStatistics
from api.config import Settings
from api.engine import Engine
from api.memory_left import memory_left
from api.models import Models
from api.shared_model import SharedModel
from gpu_index.ad_inputs import AdInputs
from gpu_index.events import AdEvent, Batch, EventKind, Outcome
from gpu_index.manifest import Identity
from kernels.ads import GIVEN_EMBEDDING, GIVEN_GATE
from scoring.reference import score_reference
from tests import random_cases as cases
from tests.api.conftest import Start
from tests.api.running import SCHEMA, Running, clock_us, new_index
from tests.api.test_http import problem
from tests.api.test_model_serving import WAIT_S, Fed, create, scores, stored
from tests.fake_model import FakeModel, Shelf
from tests.twins import DIM, GATE_DIM, START_US, whole_patch

USER = {"features": {"history": ["x"]}}
ADS = 40


def modify(ad_id: str, **ad: Any) -> dict[str, Any]:
    return {"type": "modify", "ad_id": ad_id, "ad": ad}


@pytest.fixture
def old() -> FakeModel:
    return FakeModel("old")


@pytest.fixture
def new() -> FakeModel:
    return FakeModel("new", dim=20, gate_dim=6, experts=2)


@pytest.fixture
def shelf(tmp_path: Path, old: FakeModel, new: FakeModel) -> Shelf:
    return Shelf(tmp_path, old, new)


@pytest.fixture
def running(start: Start, shelf: Shelf, old: FakeModel) -> Running:
    return start(model=old, load_model=shelf.load, precision="float32")


def switch(running: Running, path: Path) -> dict[str, Any]:
    """Asks for the switch, and waits for its end. -> how it stands then"""
    response = running.post("/v1/admin/model", {"path": str(path)})
    assert response.status_code == 202, response.text
    return wait(running)


def wait(running: Running) -> dict[str, Any]:
    thread = running.models._thread
    assert thread is not None
    thread.join(WAIT_S)
    figures: dict[str, Any] = running.get("/v1/admin/model").json()
    assert figures["switching"] is None
    return figures


def fold(events: list[dict[str, Any]]) -> dict[str, AdInputs]:
    """What the tower is told of each ad after events that only change titles."""
    ads = {}
    for event in events:
        if event["type"] == "expire":
            ads.pop(event["ad_id"])
        else:
            title = event["ad"]["features"]["title"]
            features = b'{"title":"%s"}' % title.encode()
            ads[event["ad_id"]] = AdInputs(event["ad_id"], None, None, {}, features, False, False)
    return ads


def reference(model: FakeModel, ads: dict[str, AdInputs]) -> dict[str, float]:
    (user,) = model.users([USER["features"]], [None])
    found = {}
    for ad_id, ad in ads.items():
        embedding, gate = (vector[None].astype(np.float64) for vector in model.of(ad, SCHEMA))
        found[ad_id] = float(score_reference(user, embedding, gate)[0])
    return found


def test_every_answer_under_a_live_stream_is_wholly_of_the_model_that_it_names(
    running: Running, shelf: Shelf, old: FakeModel, new: FakeModel
) -> None:
    """Each answer is held to the ads as its offset has them, and to the scores of the model that it names."""
    events = [create(str(number), features={"title": "0"}) for number in range(ADS)]
    running.take(*events)
    enough = threading.Event()

    def stream() -> None:
        number = 0
        while not enough.is_set():
            number += 1
            ad_id = str(number % ADS)
            batch = [modify(ad_id, features={"title": str(number)}),
                     {"type": "expire", "ad_id": f"{number - 1}x"},
                     create(f"{number}x", features={"title": "x"})]  # fmt: skip
            batch = batch if number > 1 else [batch[0], batch[2]]
            events.extend(batch)
            running.offer(*batch)

    thread = threading.Thread(target=stream)
    thread.start()
    answers: list[dict[str, Any]] = []
    try:
        begun = None
        while len({answer["model"]["name"] for answer in answers[-40:]}) != 1 or answers[-1]["model"]["name"] == "old":
            answers.append(running.post("/v1/retrieve", {"user": USER, "k": 100}).json())
            if len(answers) == 5:
                begun = running.post("/v1/admin/model", {"path": str(next(p for p in shelf.models if p.name == "new"))})
                assert begun.status_code == 202
            assert len(answers) < 5000
        answers += [running.post("/v1/retrieve", {"user": USER, "k": 100}).json() for _ in range(5)]
    finally:
        enough.set()
        thread.join(WAIT_S)
    assert wait(running)["active"]["fingerprint"] == new.fingerprint
    by_name = {"old": old, "new": new}
    assert {answer["model"]["name"] for answer in answers} == by_name.keys()
    switched = [answer["model"]["name"] for answer in answers].index("new")
    for answer in answers[:5] + answers[max(5, switched - 5) : switched + 5] + answers[-5:]:
        model = by_name[answer["model"]["name"]]
        assert answer["model"]["fingerprint"] == model.fingerprint
        want = reference(model, fold(events[: answer["offsets"]["0"] + 1]))
        assert scores(answer) == pytest.approx(want, abs=1e-5)
    names = [answer["model"]["name"] for answer in answers]
    assert names == sorted(names, reverse=True), "once switched, no answer is the old model's"


@pytest.mark.parametrize("seed", range(4))
def test_after_a_switch_amid_any_history_all_vectors_are_the_new_models_or_those_given(
    seed: int, tmp_path: Path
) -> None:
    """Ads that come, go, move to other slots and change while the switch goes on."""
    new = FakeModel("new", DIM, GATE_DIM)
    shelf = Shelf(tmp_path, new)
    fed = Fed(seed, FakeModel("old", DIM, GATE_DIM))
    models = Models(
        fed.engine, fed.stage, cases.SCHEMA, SharedModel(fed.model), None, bytes_max=0, clock_us=clock_us,
        load=shelf.load, left=lambda: None,
    )  # fmt: skip
    try:
        for turn in range(20):
            if turn == 5:
                models.begin(next(iter(shelf.models)))
            sizes = [fed.r.choice([1, 3, 30]) for _ in range(4)]
            for got, want in [fed.send([fed.event() for _ in range(size)]) for size in sizes]:
                assert got.result(WAIT_S) == want
            if turn < 5:
                fed.check()
        assert models._thread is not None
        models._thread.join(WAIT_S)
        assert models.figures()["last_failure"] is None
        assert fed.engine.index.model == SharedModel(new).title
        fed.model = new
        for _ in range(5):
            fed.check()
            got, want = fed.send([fed.event() for _ in range(10)])
            assert got.result(WAIT_S) == want
    finally:
        fed.close()


def path_of(shelf: Shelf, name: str) -> Path:
    return next(path for path in shelf.models if path.name == name)


def test_widths_change_with_the_model(running: Running, shelf: Shelf, new: FakeModel) -> None:
    running.take(create("1", features={"title": "a"}), create("2"))
    figures = switch(running, path_of(shelf, "new"))
    assert figures["active"] == {
        "name": "new", "fingerprint": new.fingerprint, "dim": 20, "gate_dim": 6, "experts": 2,
        "path": str(path_of(shelf, "new")),
    }  # fmt: skip
    assert (figures["switched"], figures["failed"]) == (1, 0)
    index = running.get("/v1/admin/index").json()
    assert (index["dim"], index["gate_dim"]) == (20, 6)
    assert running.get("/v1/admin/config").json()["settings"]["dim"]["value"] == 20
    refused = problem(running.post("/v1/retrieve", {"user": {"experts": [[0] * 8]}}), 422, "invalid-request")
    assert refused["path"] == "user.experts[0]"
    assert running.post("/v1/retrieve", {"user": {"experts": [[0] * 20]}}).status_code == 200
    document = running.get("/openapi.json").json()["components"]["schemas"]["User"]["anyOf"]
    assert document[1]["properties"]["experts"]["items"]["maxItems"] == 20
    given = [running.take(create(str(width), embedding=[1.0] * width)) for width in (8, 20)]
    assert given == [[Outcome.BAD], [Outcome.APPLIED]]
    assert running.get("/v1/admin/ingest").json()["faults"] == {"wrong_length": 1}
    refused = problem(running.post("/v1/admin/model", {"path": str(path_of(shelf, "old"))}), 409, "model-refused")
    assert "such as 20" in refused["detail"]


def test_a_request_whose_towers_ran_before_the_switch_is_answered_by_the_new_model(
    running: Running, shelf: Shelf, old: FakeModel, new: FakeModel
) -> None:
    running.take(create("1", features={"title": "a"}))

    def switch_meanwhile() -> None:
        old.before_users = lambda: None
        running.models.begin(path_of(shelf, "new"))
        assert running.models._thread is not None
        running.models._thread.join(WAIT_S)

    old.before_users = switch_meanwhile
    answer = running.post("/v1/retrieve", {"user": USER}).json()
    assert answer["model"]["name"] == "new"
    want = reference(new, {"1": AdInputs("1", None, None, {}, b'{"title": "a"}', False, False)})
    assert scores(answer) == pytest.approx(want, abs=1e-5)
    assert (old.users_asked, new.users_asked[:1]) == ([1], [1])


def test_a_model_that_fails_amid_its_work_leaves_the_old_one(
    running: Running, shelf: Shelf, old: FakeModel, new: FakeModel
) -> None:
    running.take(*(create(str(number), features={"title": "a"}) for number in range(200)))
    before = running.post("/v1/retrieve", {"user": USER}).json()

    def fail(ads: Any) -> None:
        if len(new.asked) + len(ads) >= 150:
            raise RuntimeError("the 150th ad")

    new.before_ads = fail
    figures = switch(running, path_of(shelf, "new"))
    assert figures["active"]["name"] == "old"
    assert figures["last_failure"]["reason"] == "the 150th ad"
    assert figures["last_failure"]["path"] == str(path_of(shelf, "new"))
    after = running.post("/v1/retrieve", {"user": USER}).json()
    assert (after["model"], after["results"]) == (before["model"], before["results"])
    running.take(modify("7", features={"title": "b"}))
    new.before_ads = lambda ads: None
    assert switch(running, path_of(shelf, "new"))["active"]["name"] == "new"
    assert 'mirach_model_switches_total{outcome="failed"} 1.0' in running.get("/metrics").text


def test_a_relative_folder_is_one_of_where_the_service_works(
    start: Start, shelf: Shelf, old: FakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of the setting is; answers and refusals name it whole."""
    monkeypatch.chdir(tmp_path)
    running = start(model=old, load_model=shelf.load)
    set_so = Models(running.engine, running.stage, SCHEMA, None, Path("new"), bytes_max=0, clock_us=clock_us)
    figures = switch(running, Path("new"))
    assert figures["active"]["path"] == set_so.figures()["at_next_start"] == str(tmp_path / "new")
    refused = problem(running.post("/v1/admin/model", {"path": "../none"}), 422, "invalid-request")
    assert str(tmp_path / "../none") in refused["detail"]


def test_what_cannot_be_switched_to_is_refused_at_once(
    running: Running, start: Start, shelf: Shelf, old: FakeModel, new: FakeModel
) -> None:
    ask = lambda service, path: service.post("/v1/admin/model", {"path": str(path)})  # noqa: E731
    assert problem(ask(running, "/nowhere"), 422, "invalid-request")["path"] == "path"
    for body in ({}, {"path": 1}, {"path": ""}, {"pth": "x"}):
        problem(running.post("/v1/admin/model", body), 422, "invalid-request")
    assert problem(ask(running, path_of(shelf, "old")), 409, "model-refused")["code"] == "active"
    new.dim = 10_000
    assert "dim 10000" in problem(ask(running, path_of(shelf, "new")), 422, "invalid-request")["detail"]
    new.dim = 20
    asked, go_on = threading.Event(), threading.Event()

    def hold(ads: Any) -> None:
        asked.set()
        assert go_on.wait(WAIT_S)

    new.before_ads = hold
    running.take(create("1"))
    assert ask(running, path_of(shelf, "new")).json()["switching"]["step"] == "embedding"
    assert asked.wait(WAIT_S)
    assert problem(ask(running, path_of(shelf, "new")), 409, "model-refused")["code"] == "busy"
    go_on.set()
    figures = wait(running)
    assert figures["active"]["name"] == "new"
    assert (figures["last_failure"], figures["failed"], figures["refused"]) == (None, 0, 4), "the callers' answers only"
    little = start(model=old, load_model=shelf.load, memory_left=1500)
    little.take(create("1"))
    detail = problem(ask(little, path_of(shelf, "new")), 409, "model-refused")
    assert detail["code"] == "memory"
    bounded = start(model=old, load_model=shelf.load, model_switch_bytes_max=999)
    assert "model_switch_bytes_max" in problem(ask(bounded, path_of(shelf, "new")), 409, "model-refused")["detail"]
    assert bounded.get("/v1/admin/model").json()["active"]["name"] == "old"
    on_device = start(model=old, load_model=shelf.load)
    on_device.engine.index.copy = SimpleNamespace(widened=lambda dim, gate_dim: (90 * dim, 5))  # type: ignore[assignment]
    detail = problem(ask(on_device, path_of(shelf, "new")), 409, "model-refused")["detail"]
    assert "1,800 bytes on the device, which has 5 for them" in detail
    problem(ask(start(ready=False, started=False), path_of(shelf, "new")), 503, "not-ready")


def test_given_vectors_of_another_width_need_features_or_stop_the_switch(
    running: Running, shelf: Shelf, old: FakeModel, new: FakeModel
) -> None:
    running.take(create("1", embedding=[1.0] * 8, features={"title": "a"}), create("2", gate=[1.0] * 4), create("3"))
    refused = problem(running.post("/v1/admin/model", {"path": str(path_of(shelf, "new"))}), 409, "model-refused")
    assert refused["code"] == "given_vectors"
    assert "1 ads" in refused["detail"]
    assert "such as 2" in refused["detail"]
    assert running.get("/v1/admin/model").json()["last_failure"] is None
    running.take(modify("2", gate=None))
    assert switch(running, path_of(shelf, "new"))["active"]["name"] == "new"

    def look(index: Any) -> None:
        slot = index.slot_of("1")
        ad = AdInputs("1", None, None, {}, b'{"title": "a"}', False, False)
        np.testing.assert_array_equal(stored(index, slot)[0], new.of(ad, SCHEMA)[0])
        assert not index.ads.flags[slot] & (GIVEN_EMBEDDING | GIVEN_GATE)

    running.engine.call(look).result(WAIT_S)


def test_an_ad_that_gets_vectors_of_the_old_width_meanwhile_stops_the_switch(
    running: Running, shelf: Shelf, new: FakeModel
) -> None:
    running.take(create("1"))

    def give(ads: Any) -> None:
        new.before_ads = lambda ads: None
        running.take(create("2", embedding=[1.0] * 8))

    new.before_ads = give
    figures = switch(running, path_of(shelf, "new"))
    assert figures["active"]["name"] == "old"
    assert "such as 2" in figures["last_failure"]["reason"]


def test_only_an_event_that_changes_what_the_tower_sees_has_an_ad_embedded_again(
    start: Start, tmp_path: Path
) -> None:
    old, new = FakeModel("old"), FakeModel("new")  # of one width, so that given vectors stay
    shelf = Shelf(tmp_path, new)
    running = start(model=old, load_model=shelf.load, precision="float32")
    given = {str(number): [float(number + 1)] * 8 for number in (3, 4)}
    running.take(*(create(str(n), features={"title": "a"}, embedding=given.get(str(n))) for n in range(READ_ADS + 9)))

    def meanwhile(ads: Any) -> None:
        """Once the first batch of ads is done."""
        if new.asked:
            new.before_ads = lambda ads: None
            running.take(
                modify("0", bid=9), modify("1", features={"title": "b"}), modify("2", advertiser_id="7"),
                modify("3", bid=9), modify("4", embedding=[0.5] * 8), modify("5", features={"title": "a"}),
                modify("6", status="paused"), modify("7", schedule={"timezone": "UTC", "hours": [1]}),
            )  # fmt: skip

    new.before_ads = meanwhile
    figures = switch(running, path_of(shelf, "new"))
    assert figures["active"]["name"] == "new"
    asked = Counter(ad.ad_id for ad in new.asked)
    assert {ad_id for ad_id, count in asked.items() if count > 1} - {"7"} == {"1", "2", "4"}, "7 is in another slot"
    assert len(asked) == READ_ADS + 9

    def look(index: Any) -> None:
        for ad_id, embedding in [("3", given["3"]), ("4", [0.5] * 8)]:
            np.testing.assert_array_equal(stored(index, index.slot_of(ad_id))[0], np.float32(embedding))
        for ad_id, advertiser, title in [("0", None, "a"), ("1", None, "b"), ("2", "7", "a"), ("5", None, "a")]:
            ad = AdInputs(ad_id, advertiser, None, {}, b'{"title": "%s"}' % title.encode(), False, False)
            np.testing.assert_array_equal(stored(index, index.slot_of(ad_id))[0], new.of(ad, SCHEMA)[0])

    running.engine.call(look).result(WAIT_S)


def test_an_event_decoded_before_a_switch_and_applied_after_it_is_a_bad_one_if_its_vectors_have_the_old_width() -> None:
    engine = Engine(new_index(settings_of()), clock_us=lambda: START_US)
    stage = AdStage(engine)
    stage.tower = AdTower(SharedModel(FakeModel("new", 64, 16)), SCHEMA, AdTowerStatistics())
    engine.start()
    stage.start()
    try:
        patch = whole_patch(embedding=np.ones(8, np.float32))
        event = AdEvent(EventKind.CREATE, "1", None, 0, 0, 0, patch=patch)
        done: list[Outcome] = []
        applied = threading.Event()

        def note(outcomes: Any, now_us: int) -> None:
            done.extend(outcomes)
            applied.set()

        assert stage.offer(Batch([event], {0: 1}, note), WAIT_S)
        assert applied.wait(WAIT_S)
        assert done == [Outcome.BAD]
        assert event.fault is not None
        assert event.fault.code == "wrong_length"
        assert event.kind is EventKind.CREATE, "who counts bad events counts those that were handed on as such"
    finally:
        stage.stop(WAIT_S)
        engine.stop(WAIT_S)


def test_a_service_without_a_model_takes_one(start: Start, shelf: Shelf, new: FakeModel) -> None:
    running = start(load_model=shelf.load)
    running.take(create("1", features={"title": "a"}), create("2"))
    assert running.get("/v1/admin/index").json()["zero_embeddings"] == 2
    assert running.post("/v1/retrieve", {}).json()["model"] is None
    figures = running.get("/v1/admin/model").json()
    assert figures["active"] is None
    assert switch(running, path_of(shelf, "new"))["active"]["name"] == "new"
    assert running.get("/v1/admin/index").json()["zero_embeddings"] == 0
    assert running.post("/v1/retrieve", {"user": USER}).json()["model"]["name"] == "new"


def test_a_snapshot_is_of_the_model_in_use(running: Running, shelf: Shelf, old: FakeModel, new: FakeModel) -> None:
    running.begin()
    running.take(create("1", features={"title": "a"}))
    identity = running.post("/v1/admin/snapshots").json()
    switch(running, path_of(shelf, "new"))
    assert not running.snapshots._is_written(), "no event came, and yet the next one is due"
    running.post("/v1/admin/snapshots")
    listed = running.get("/v1/admin/snapshots").json()["snapshots"]
    assert [each["identity"]["model_fingerprint"] for each in listed] == [new.fingerprint, old.fingerprint]
    assert (listed[0]["identity"]["dim"], listed[1]["identity"]["dim"]) == (20, 8)
    assert identity["offsets"] == {"0": 1}
    for model, sequence in ((new, 2), (old, 1), (FakeModel("third", 20, 6, 2), None)):
        shared = SharedModel(model)
        again = Running(model=model, started=False)
        again.snapshots.store = running.snapshots.store
        given = again.loaded.settings
        again.engine.start()
        want = Identity(
            "t", "i", "c", SCHEMA.fingerprint, model.fingerprint, model.dim, model.gate_dim, "float32"
        )
        settings = settings_of(precision="float32", dim=model.dim, gate_dim=model.gate_dim)
        again.snapshots.restore(want, lambda shared=shared, settings=settings: new_index(settings, shared))
        figures = again.snapshots.figures()
        assert figures["restored"] == sequence
        if sequence is not None:
            answer = again.post("/v1/retrieve", {"user": USER}).json()
            ads = {"1": AdInputs("1", None, None, {}, b'{"title": "a"}', False, False)}
            assert answer["model"]["fingerprint"] == model.fingerprint
            assert scores(answer) == pytest.approx(reference(model, ads), abs=1e-5)
        else:
            assert all("another model" in each["reason"] for each in figures["passed_over"])
        assert given.dim == model.dim
        again.close()


def settings_of(**more: Any) -> Settings:
    return replace(Settings(), **more)


def test_what_memory_is_left_is_the_least_that_the_system_says(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    assert memory_left(meminfo, group) is None
    meminfo.write_text("MemTotal:       9 kB\nMemAvailable:       5 kB\n")
    assert memory_left(meminfo, group) == 5120
    group.mkdir()
    (group / "memory.max").write_text("max\n")
    assert memory_left(meminfo, group) == 5120
    (group / "memory.max").write_text("4000\n")
    (group / "memory.current").write_text("1000\n")
    assert memory_left(meminfo, group) == 3000


def test_an_orderly_end_ends_a_switch(
    running: Running, shelf: Shelf, new: FakeModel, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no error, and no warning."""
    caplog.set_level(logging.INFO, "mirach")
    asked, go_on = threading.Event(), threading.Event()

    def hold(ads: Any) -> None:
        asked.set()
        assert go_on.wait(WAIT_S)

    new.before_ads = hold
    running.take(*(create(str(number)) for number in range(100)))
    running.post("/v1/admin/model", {"path": str(path_of(shelf, "new"))})
    assert asked.wait(WAIT_S)
    running.models._stopping = True
    go_on.set()
    running.models.stop()
    figures = running.get("/v1/admin/model").json()
    assert (figures["active"]["name"], figures["last_failure"]["reason"]) == ("old", "the service is stopping")
    assert "there is no switch to the model in" in caplog.text
    running.engine.stop(WAIT_S)
    problem(running.post("/v1/admin/model", {"path": str(path_of(shelf, "new"))}), 503, "not-ready")
    assert "was begun: the service is stopping" in caplog.text
    assert {record.levelname for record in caplog.records if record.name == "mirach.model"} == {"INFO"}
