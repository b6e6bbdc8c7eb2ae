"""The HTTP service from outside: answers, and every error a problem document."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from api import problems
from api.requests import RequestParser
from tests.api.running import Running
from tests.api.test_requests import BAD

Start = Callable[..., Running]

US = {"attributes": {"geo.country": "US"}}


def problem(response: Any, status: int, kind: str) -> dict[str, Any]:
    """The problem document of a response, which must be one in every respect."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["type"] == kind
    assert document["status"] == status
    assert document["detail"]
    assert document["title"]
    assert document["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return document  # type: ignore[no-any-return]


def test_an_answer_has_what_the_contract_says(service: Running) -> None:
    response = service.post("/v1/retrieve", {**US, "k": 2})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert set(answer) == {"request_id", "results", "eligible", "indexed", "offsets", "model", "timings_ms"}
    assert answer["request_id"] == response.headers["x-request-id"]
    assert [result["ad_id"] for result in answer["results"]] == ["5", "4"]
    assert answer["results"][0] == {
        "ad_id": "5", "advertiser_id": "1", "campaign_id": "c", "score": 0.5, "value": 3.0, "pathway": "main",
    }  # fmt: skip
    assert (answer["eligible"], answer["indexed"], answer["offsets"], answer["model"]) == (6, 6, {"0": 5}, None)
    assert answer["timings_ms"]["total"] >= answer["timings_ms"]["parse"] >= 0


def test_a_large_body_is_parsed_beside_the_loop(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that other requests do not wait for it."""
    parse, threads = RequestParser.parse, []

    def noted(self: RequestParser, raw: bytes) -> Any:
        threads.append(threading.get_ident())
        return parse(self, raw)

    monkeypatch.setattr(RequestParser, "parse", noted)
    large = {"attributes": {"geo.country": "US", "audience": [f"audience-{i}" for i in range(9000)]}}
    for body in (US, large, US):
        assert service.post("/v1/retrieve", body).json()["eligible"] == 6
    assert threads[0] == threads[2] != threads[1]
    assert service.post("/v1/retrieve", {**large, "k": 0}).status_code == 422


def test_pathways_caps_and_filters_reach_the_engine(service: Running) -> None:
    body = {
        **US,
        "max_per": {"advertiser_id": 2},
        "pathways": [
            {"name": "cheap", "k": 2, "filter": {"field": "bid", "between": [None, 3]}},
            {"name": "rest", "k": 10},
        ],
    }
    results = service.post("/v1/retrieve", body).json()["results"]
    assert [(each["pathway"], each["ad_id"]) for each in results] == [
        ("cheap", "2"), ("cheap", "1"), ("rest", "5"), ("rest", "4"),
    ]  # fmt: skip


def test_a_batch_is_answered_in_its_order(service: Running) -> None:
    answers = service.post("/v1/retrieve/batch", [{**US, "k": 1}, {"attributes": {"geo.country": "DE"}}, {}]).json()
    assert [answer["eligible"] for answer in answers] == [6, 3, 0]
    assert service.post("/v1/retrieve/batch", []).json() == []
    assert len(service.post("/v1/retrieve/batch", [{}] * 256).json()) == 256


def test_one_bad_member_makes_the_whole_batch_422_and_is_named(service: Running) -> None:
    assert problem(service.post("/v1/retrieve/batch", [US, {"k": 0}]), 422, "invalid-request")["path"] == "[1].k"
    unknown = service.post("/v1/retrieve/batch", [US, {"min_offsets": {"7": 1}}])
    assert problem(unknown, 422, "invalid-request")["path"] == '[1].min_offsets."7"'
    problem(service.post("/v1/retrieve/batch", [{}] * 257), 422, "invalid-request")


def test_an_openrtb_request_has_a_pathway_for_each_imp(service: Running) -> None:
    bid_request = {
        "id": "r", "site": {"domain": "example.com"}, "device": {"geo": {"country": "USA"}},
        "imp": [
            {"id": "a", "banner": {"w": 300, "h": 250}, "bidfloor": 4},
            {"id": "b", "banner": {"w": 300, "h": 250}},
            {"id": "c", "video": {"mimes": ["video/mp4"]}},
        ],
    }  # fmt: skip
    results = service.post("/v1/retrieve/openrtb", bid_request).json()["results"]
    assert [(each["pathway"], each["ad_id"]) for each in results] == [
        ("a", "5"), ("a", "4"), ("a", "3"), ("b", "2"), ("b", "1"), ("b", "0"),
    ]  # fmt: skip


def test_faults_of_an_openrtb_request_are_placed_in_it(service: Running) -> None:
    for more, path in [
        ({"ext": {"mirach": {"k": 0}}}, "ext.mirach.k"),
        ({"ext": {"mirach": {"min_offsets": {"7": 1}}}}, 'ext.mirach.min_offsets."7"'),
        ({"ext": {"mirach": {"kk": 0}}}, "ext.mirach.kk"),
        ({"imp": []}, "imp"),
    ]:
        body = {"id": "r", "imp": [{"id": "a", "banner": {}}], **more}
        assert problem(service.post("/v1/retrieve/openrtb", body), 422, "invalid-request")["path"] == path
    problem(service.post("/v1/retrieve/openrtb", [1]), 422, "invalid-request")


@pytest.mark.parametrize("address", ["/v1/retrieve", "/v1/retrieve/batch", "/v1/retrieve/openrtb", "/v1/admin/explain"])
@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "invalid-json"), (b"{", 400, "invalid-json"), (b"\xff", 400, "invalid-json"),
        (b'{"a": NaN}', 400, "invalid-json"), (b"7", 422, "invalid-request"), (b"null", 422, "invalid-request"),
        (b'"\\ud800"', 422, "invalid-request"), (b'{"nonsense": 1}', 422, "invalid-request"),
        (b"[" * 100_000, 422, "invalid-request"), (b'[[]]', 422, "invalid-request"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_a_problem(
    service: Running, address: str, body: bytes, status: int, kind: str
) -> None:
    problem(service.post(address, body), status, kind)


def test_addresses_and_methods_that_do_not_exist_are_problems(service: Running) -> None:
    problem(service.get("/"), 404, "not-found")
    problem(service.get("/v1/retrieve/"), 404, "not-found")
    problem(service.get("/v1/admin/models"), 404, "not-found")
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        response = service.request(method, "/v1/retrieve")
        problem(response, 405, "method-not-allowed")
        assert response.headers["allow"] == "POST"
    problem(service.post("/healthz"), 405, "method-not-allowed")


def test_allow_names_every_method_of_an_address(service: Running) -> None:
    response = service.request("PUT", "/v1/admin/snapshots")
    assert "takes GET, POST, not PUT" in problem(response, 405, "method-not-allowed")["detail"]
    assert response.headers["allow"] == "GET, POST"


def test_head_is_get_without_a_body(service: Running) -> None:
    assert service.request("HEAD", "/healthz").status_code == 200
    assert service.request("HEAD", "/v1/retrieve").status_code == 405


def test_bodies_are_plain_json(service: Running) -> None:
    body = json.dumps(US).encode()
    for content_type in (None, "application/json", "Application/JSON; charset=UTF-8", "application/vnd.x+json"):
        headers = {} if content_type is None else {"content-type": content_type}
        assert service.post("/v1/retrieve", body, headers=headers).status_code == 200, content_type
    for headers in (
        {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {"content-type": ""},
        {"content-type": "application/json; charset=latin-1"}, {"content-encoding": "gzip"},
        {"content-encoding": "identity, br"},
    ):  # fmt: skip
        problem(service.post("/v1/retrieve", body, headers=headers), 415, "unsupported-media-type")


def test_a_body_beyond_the_bound_is_413_however_it_is_sent(start: Start) -> None:
    running = start(body_bytes_max=1024)

    async def chunks(count: int) -> AsyncIterator[bytes]:
        yield b"{"
        for _ in range(count):
            yield b" " * 100
        yield b"}"

    assert running.post("/v1/retrieve", b"{}" + b" " * 1022).status_code == 200
    problem(running.post("/v1/retrieve", b"{}" + b" " * 1023), 413, "too-large")
    assert running.post("/v1/retrieve", chunks(10)).status_code == 200
    assert problem(running.post("/v1/retrieve", chunks(1000)), 413, "too-large")["limit"] == 1024
    problem(running.post("/v1/admin/explain", chunks(1000)), 413, "too-large")


@pytest.mark.parametrize("given", ["abc", "0" * 128, "with space: and {signs}"])
def test_the_callers_request_id_comes_back(service: Running, given: str) -> None:
    for response in (
        service.post("/v1/retrieve", US, headers={"x-request-id": given}),
        service.post("/v1/retrieve", b"{", headers={"x-request-id": given}),
        service.get("/nowhere", headers={"x-request-id": given}),
    ):
        assert response.headers["x-request-id"] == given
        assert response.json()["request_id"] == given


@pytest.mark.parametrize("given", ["", "0" * 129, "\u00e9".encode("latin-1"), b"a\tb"])
def test_a_request_id_that_is_none_is_replaced(service: Running, given: str | bytes) -> None:
    first, second = (service.post("/v1/retrieve", US, headers={"x-request-id": given}) for _ in range(2))
    assert first.status_code == 200
    assert len(first.headers["x-request-id"]) == 16
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


def test_until_the_index_has_caught_up_retrieval_says_how_far_it_is(start: Start) -> None:
    running = start(ready=False, started=False)
    for address in ("/readyz", "/v1/retrieve", "/v1/retrieve/batch"):
        response = running.get(address) if address == "/readyz" else running.post(address, US)
        document = problem(response, 503, "not-ready")
        assert response.headers["retry-after"] == "1"
        assert document["progress"] == {}
    running.take_up(end_at_start=2)
    assert problem(running.get("/readyz"), 503, "not-ready")["progress"] == {"0": {"position": 0, "end_at_start": 2}}
    running.engine.start()
    running.take({"type": "create", "ad_id": "1", "ad": {"bid": 1}})
    problem(running.post("/v1/retrieve", US), 503, "not-ready")
    running.take({"type": "create", "ad_id": "2", "ad": {"bid": 1}})
    assert running.get("/readyz").status_code == 200
    assert running.post("/v1/retrieve", US).json()["eligible"] == 2
    assert running.get("/healthz").json() == {"status": "alive"}


def test_a_stopping_service_is_not_ready_and_still_answers(start: Start) -> None:
    running = start()
    running.service.stopping = True
    problem(running.get("/readyz"), 503, "not-ready")
    assert running.get("/healthz").status_code == 200
    assert running.post("/v1/retrieve", US).status_code == 200
    running.engine.stop()
    problem(running.post("/v1/retrieve", US), 503, "not-ready")
    problem(running.get("/v1/admin/index"), 503, "not-ready")


def test_an_answer_includes_the_offsets_asked_for_or_says_that_it_is_behind(start: Start) -> None:
    running = start()
    running.take({"type": "create", "ad_id": "1", "ad": {"bid": 1}})
    assert running.post("/v1/retrieve", {"min_offsets": {"0": 0}, "wait_ms": 0}).json()["offsets"] == {"0": 0}
    response = running.post("/v1/retrieve", {"min_offsets": {"0": 1}, "wait_ms": 0})
    assert problem(response, 503, "index-behind")["offsets"] == {"0": 0}
    assert response.headers["retry-after"] == "1"
    problem(running.post("/v1/retrieve/batch", [{}, {"min_offsets": {"0": 9}, "wait_ms": 0}]), 503, "index-behind")
    unknown = running.post("/v1/retrieve", {"min_offsets": {"1": 0}})
    assert problem(unknown, 422, "invalid-request")["path"] == 'min_offsets."1"'


def test_a_partition_that_was_added_just_now_is_looked_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for a whole batch; and where the topic cannot be looked at, nobody is told that it has no such partition."""
    running = start()
    new = {"min_offsets": {"1": 0}, "wait_ms": 20}
    for body in ({}, {"min_offsets": {"0": 0}}):
        running.post("/v1/retrieve", body)
    assert running.looks == 0
    problem(running.post("/v1/retrieve", new), 422, "invalid-request")
    running.topic_partitions = 2
    behind = problem(running.post("/v1/retrieve", new), 503, "index-behind")
    assert behind["offsets"] == {}, "it is known, and nothing of it was read yet"
    looks = running.looks
    problem(running.post("/v1/retrieve/batch", [new, {}, new]), 503, "index-behind")
    assert running.looks == looks + 1
    running.topic_partitions = None
    assert "looked at" in problem(running.post("/v1/retrieve", new), 503, "index-behind")["detail"]
    never: Future[None] = Future()
    monkeypatch.setattr("api.service.LOOK_WAIT_S", 0.02)
    running.service.look_again = lambda: never  # type: ignore[assignment,return-value]
    for _ in range(2):
        assert "looked at" in problem(running.post("/v1/retrieve", new), 503, "index-behind")["detail"]
    assert not never.cancelled(), "others wait for it, too"


def test_beyond_the_queue_requests_are_refused_at_once(start: Start) -> None:
    running = start(request_queue_max=2)
    held = {"min_offsets": {"0": 0}, "wait_ms": 100}
    responses = running.together(*[held] * 5)
    assert sorted(response.json()["type"] for response in responses) == ["index-behind"] * 2 + ["overloaded"] * 3
    for response in responses:
        assert response.headers["retry-after"] == "1"
    assert running.post("/v1/retrieve", US).status_code == 200


def test_a_fault_of_ours_is_a_problem_without_its_insides(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    running = start()
    running.service.parser = None  # type: ignore[assignment]  # the fault
    document = problem(running.post("/v1/retrieve", US, headers={"x-request-id": "find-me"}), 500, "internal-error")
    assert "NoneType" not in json.dumps(document)
    assert "find-me" in caplog.text
    assert 'mirach_http_requests_total{route="/v1/retrieve",status="500"} 1.0' in running.get("/metrics").text


def test_while_the_kernels_are_loaded_it_is_not_ready(start: Start) -> None:
    running = start()
    running.service.loading = True
    problem(running.get("/v1/admin/index"), 503, "not-ready")
    assert "kernels" in problem(running.post("/v1/admin/snapshots"), 503, "not-ready")["detail"]
    assert "kernels" in problem(running.get("/readyz"), 503, "not-ready")["detail"]
    problem(running.post("/v1/retrieve", US), 503, "not-ready")
    running.service.loading = False
    assert running.post("/v1/retrieve", US).status_code == 200


@pytest.mark.parametrize("body", [body for _, body in BAD], ids=[f"{i}-{path}" for i, (path, _) in enumerate(BAD)])
def test_every_kind_of_bad_request_is_a_4xx_problem(service: Running, body: Any) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    for address, sent in (
        ("/v1/retrieve", raw),
        ("/v1/retrieve/batch", b"[{}, %s]" % raw),
        ("/v1/admin/explain", b'{"ad_id": "1", "request": %s}' % raw),
    ):
        response = service.post(address, sent)
        assert response.status_code in (400, 422), response.text
        problem(response, response.status_code, response.json()["type"])


def test_every_problem_is_on_its_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    kinds = [kind for kind in vars(problems).values() if isinstance(kind, problems.ProblemKind)]
    assert len(kinds) == page.count("\n| `") - 1  # the heading
    for kind in kinds:
        assert f"\n| `{kind.type}` | {kind.status} |" in page
