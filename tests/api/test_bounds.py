"""Bounds of the service, each reached: it refuses what is too much, says so, and goes on. And what is shown of them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api import bodies, http_protocol
from api.logs import LINES_MAX, WINDOW_S, Thinned
from api.server import HttpServer, http_config
from gpu_index import packing
from gpu_index.events import Outcome
from tests.api.running import Running
from tests.api.test_http import US, problem
from tests.kafka import until

Start = Callable[..., Running]
WAIT_S = 60.0


def limits(running: Running) -> dict[str, tuple[int, int]]:
    shown = running.get("/v1/admin/index").json()["limits"]
    return {name: (each["in_use"], each["limit"]) for name, each in shown.items()}


def test_every_bound_shows_its_limit_and_what_is_in_use(start: Start) -> None:
    running = start(request_queue_max=7)
    empty = limits(running)
    running.take(*({"type": "create", "ad_id": str(number), "version": 1, "ad": {"bid": 1, "campaign_id": str(number),
                    "targeting": {"attr": "geo.city", "in": [f"city {number}"]}}} for number in range(20)))  # fmt: skip
    running.take(*({"type": "expire", "ad_id": str(number), "version": 2} for number in range(5)))
    found = limits(running)
    assert all(0 <= in_use <= limit for in_use, limit in found.values()), found
    for name, more in (("ads", 15), ("targetings", 15), ("terms", 15), ("field_terms", 15), ("expired_versions", 5)):
        assert found[name][0] - empty[name][0] == more, name
    assert found["held_bytes"][0] > empty["held_bytes"][0]
    assert found["requests_waiting"] == (0, 7)
    assert found["cached_targetings"][1] == packing.CACHED_TARGETINGS_MAX
    assert found["http_requests"] == (1, bodies.IN_FLIGHT_MAX), "this one"
    families = text_string_to_metric_families(running.get("/metrics").text)
    samples = {sample.labels["of"]: sample.value for family in families if family.name == "mirach_limit"
               for sample in family.samples}  # fmt: skip
    assert samples == {name: limit for name, (_, limit) in found.items()}


def test_a_full_index_says_so_and_goes_on(start: Start) -> None:
    """Visible in figures and outcomes; ready all the while; room that comes back is used."""
    held = start().get("/v1/admin/index").json()["held_bytes"]
    running = start(index_bytes_max=held + 200_000)
    body = {"bid": 1, "features": {"t": "x" * 400}}
    ads = [{"type": "create", "ad_id": str(number), "ad": body} for number in range(600)]
    outcomes = running.take(*ads)
    taken = outcomes.count(Outcome.APPLIED)
    assert 0 < taken < 600
    assert outcomes == [Outcome.APPLIED] * taken + [Outcome.INDEX_FULL] * (600 - taken)
    assert running.get("/readyz").status_code == 200
    assert running.post("/v1/retrieve", {}).json()["eligible"] == taken
    figures = running.get("/v1/admin/index").json()
    in_use, limit = (figures["limits"]["held_bytes"][name] for name in ("in_use", "limit"))
    assert held < in_use <= limit == figures["capacity"]["held_bytes"] == held + 200_000
    assert 'mirach_events_total{outcome="index_full"}' in running.get("/metrics").text
    change = {"type": "modify", "ad_id": "0", "ad": {"bid": 2}}
    assert running.take(change, {"type": "expire", "ad_id": "1"}) == [Outcome.APPLIED] * 2
    assert running.take(ads[-1]) == [Outcome.APPLIED]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_engine_is_not_ready_and_answers_503(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Never with an empty answer: a load balancer takes it out, a client tries another."""
    running = start()
    running.take({"type": "create", "ad_id": "1", "ad": {"bid": 1}})
    assert running.post("/v1/retrieve", {}).json()["eligible"] == 1

    def broken() -> None:
        raise MemoryError("of the engine's own turn")

    running.engine._apply = broken  # type: ignore[method-assign]
    problem(running.post("/v1/retrieve", {}), 503, "not-ready")
    until(lambda: not running.engine.alive, "it ends")
    for address in ("/v1/retrieve", "/v1/retrieve/batch"):
        body: Any = {} if address == "/v1/retrieve" else [{}]
        assert "engine has failed" in problem(running.post(address, body), 503, "not-ready")["detail"]
    assert "engine has failed" in problem(running.get("/readyz"), 503, "not-ready")["detail"]
    problem(running.get("/v1/admin/index"), 503, "not-ready")
    assert running.get("/healthz").status_code == 200
    assert "the engine stopped on a fault of its own" in caplog.text


# HTTP.


def test_bodies_together_are_bounded(start: Start) -> None:
    """A body is given back with its answer, whatever the answer is."""
    running = start()
    running.service.bodies.bytes_max = 1000
    inside = running.service.bodies

    async def slowly() -> AsyncIterator[bytes]:
        yield b" " * 900
        refused = await running._client.post("/v1/retrieve", content=b"{}" + b" " * 200)
        assert refused.status_code == 503
        assert refused.json()["type"] == "overloaded"
        assert "retry-after" in refused.headers
        taken = await running._client.post("/v1/retrieve", content=b"{}")
        assert taken.status_code == 200
        assert inside.bytes == 900
        yield b"{}"

    assert running.post("/v1/retrieve", slowly()).status_code == 200
    assert inside.bytes == 0
    problem(running.post("/v1/retrieve", b"nonsense"), 400, "invalid-json")
    problem(running.post("/v1/retrieve", b" " * 1001), 503, "overloaded")
    assert inside.bytes == 0


def test_more_requests_than_may_be_answered_at_once_are_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.door.IN_FLIGHT_MAX", 3)
    running = start()
    waiting = {"min_offsets": {"0": 0}, "wait_ms": 200}
    kinds = sorted(response.json()["type"] for response in running.together(*[waiting] * 8))
    assert kinds == ["index-behind"] * 3 + ["overloaded"] * 5
    assert running.post("/v1/retrieve", US).status_code == 200
    assert running.service.metrics.in_flight == 0
    running.service.metrics.in_flight = 3
    problem(running.post("/v1/retrieve", US), 503, "overloaded")
    assert running.get("/readyz").status_code == 200, "probes are always answered"


@pytest.fixture
def listening(start: Start) -> Any:
    """Runs a client (host, port) beside a service that listens."""
    running = start()

    def run(client: Callable[[int], Any]) -> Any:
        async def both() -> Any:
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            server = HttpServer(http_config(running.app, running.loaded.settings))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                return await asyncio.to_thread(client, listener.getsockname()[1])
            finally:
                server.should_exit = True
                await serving

        return running._loop.run(both())

    return run


def test_a_head_that_is_too_large_is_refused(listening: Any) -> None:
    def client(port: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as session:
            assert session.get("/healthz", headers={"x-filler": "x" * 60_000}).status_code == 200
            for _ in range(3):  # a head of its own for every request of a connection
                assert session.get("/healthz", headers={"x-filler": "x" * 30_000}).status_code == 200
            assert session.get("/healthz", headers={"x-filler": "x" * 66_000}).status_code == 400
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /healthz?" + b"x" * 66_000)
                assert connection.recv(100).startswith(b"HTTP/1.1 400")
            many = {f"x-{number}": "x" * 100 for number in range(700)}
            assert session.get("/healthz", headers=many).status_code == 400
            assert session.get("/healthz").status_code == 200

    listening(client)


def test_connections_beyond_the_limit_are_closed(listening: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "connections_max", lambda: 3)

    def client(port: int) -> None:
        held = [httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) for _ in range(3)]
        for session in held:
            assert session.get("/healthz").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=WAIT_S)
        for session in held:
            assert session.get("/healthz").status_code == 200
        held.pop().close()
        until(lambda: answered(port), "there is room for another")
        for session in held:
            session.close()

    listening(client)


def answered(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=WAIT_S).status_code == 200
    except httpx.TransportError:
        return False


def test_connections_leave_handles_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for handles, most in ((1024, 824), (100, 16), (1 << 20, http_protocol.CONNECTIONS_MAX),
                          (http_protocol.resource.RLIM_INFINITY, http_protocol.CONNECTIONS_MAX)):  # fmt: skip
        monkeypatch.setattr(http_protocol.resource, "getrlimit", lambda _, handles=handles: (handles, handles))
        assert http_protocol.connections_max() == most


# The log.


def test_lines_that_repeat_are_thinned() -> None:
    now = 0.0
    thinned = Thinned(lambda: now)

    def say(text: str, *values: object) -> str | None:
        record = logging.LogRecord("mirach.x", logging.WARNING, "", 0, text, values, None)
        return record.getMessage() if thinned.filter(record) else None

    said = [say("broker %s: %d%% lost", "b", number) for number in range(1000)]
    assert said[:LINES_MAX] == [f"broker b: {number}% lost" for number in range(LINES_MAX)]
    assert set(said[LINES_MAX:]) == {None}
    assert say("another") == "another"
    now = WINDOW_S
    assert say("broker %s: %d%% lost", "b", 7) == f"broker b: 7% lost [{1000 - LINES_MAX} more like it were left out]"
    assert say("broker %s: %d%% lost", "b", 8) == "broker b: 8% lost"
    for number in range(5000):
        say(f"kind {number}")
    assert len(thinned._kinds) <= 1000
