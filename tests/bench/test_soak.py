"""The parts of a soak, in seconds: its stream's fold is the contract's, its network fails as told, its judge finds what
it shall find and nothing else."""

from __future__ import annotations

import http.server
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from bench.soak import judge, run
from bench.soak.judge import Sample
from bench.soak.load import BROKEN, DOWN, Load, kind_of
from bench.soak.proxy import PIECE_BYTES, Proxy
from bench.soak.report import plot, write_result, write_samples
from bench.soak.stream import COUNTRIES, EVENT_BYTES_MAX, Stream
from gpu_index.events import Outcome
from gpu_index.schema import Schema
from gpu_index.values import parse_attributes
from ingest.decode import Decoder
from scoring.request import Pathway, Request
from tests.kafka import until
from tests.plain import PlainIndex

SCHEMA = Schema.load()
NOW_US = 1_796_000_000_000_000
WAIT_S = 30.0


# The stream.


@pytest.mark.parametrize("seed", range(4))
def test_the_fold_of_a_stream_is_the_plain_index(seed: int) -> None:
    """What the soak believes of its events is what the contract says of them, events that are bad or stale too."""
    stream, plain = Stream(seed, live=60), PlainIndex(SCHEMA, dim=16, gate_dim=4)
    decoder = Decoder(SCHEMA, dim=16, gate_dim=4, compile_meta=lambda spec: spec, event_bytes_max=EVENT_BYTES_MAX)
    outcomes: Counter[Outcome] = Counter()
    lines = [*stream.first(), *(stream.next() for _ in range(3000))]
    for offset, line in enumerate(lines):
        outcomes[plain.apply(decoder.decode(json.loads(line)["ad_id"].encode(), line, 0, offset, 0))] += 1
    assert outcomes[Outcome.BAD] == stream.bad > 20
    assert outcomes[Outcome.STALE] > 20
    assert outcomes.keys() == {Outcome.APPLIED, Outcome.BAD, Outcome.STALE}
    assert 50 <= len(stream.ads) <= 70
    assert plain.ads.keys() == stream.ads.keys()
    for country in COUNTRIES:
        request = Request(parse_attributes(SCHEMA, {"geo.country": country}), (Pathway("main", 10_000),))
        answer = plain.retrieve(request, NOW_US)
        assert {result.ad_id: result.value for result in answer.results} == stream.expected(country)
        results = [{"ad_id": result.ad_id, "value": result.value} for result in answer.results]
        said = {"indexed": answer.indexed, "eligible": answer.eligible, "results": results}
        assert run.difference(said, stream, country) is None


def test_a_wrong_answer_is_told_from_a_right_one() -> None:
    stream = Stream(1, live=40)
    for _ in stream.first():
        pass
    results = [{"ad_id": ad_id, "value": value} for ad_id, value in stream.expected("US").items()]
    results.sort(key=lambda result: -result["value"])  # type: ignore[operator]
    right = {"indexed": len(stream.ads), "eligible": len(results), "results": results}
    assert run.difference(right, stream, "US") is None
    wrong = [
        {**right, "indexed": 39},
        {**right, "results": results[1:]},
        {**right, "results": [], "eligible": 0},
        {**right, "results": [*results, {"ad_id": "another", "value": 0.5}], "eligible": len(results) + 1},
        {**right, "results": [{**results[0], "value": 1e9}, *results[1:]]},
        {**right, "results": results[::-1]},
    ]
    assert all(run.difference(answer, stream, "US") for answer in wrong)


def test_a_schedule_has_every_fault_and_restarts_apart() -> None:
    chosen = run.schedule(7, 40)
    assert len(chosen) == 40
    assert chosen == run.schedule(7, 40) != run.schedule(8, 40)
    assert set(chosen) == set(run.FAULTS | run.RESTART_FAULTS)
    restarts = [slot for slot, fault in enumerate(chosen) if fault in run.RESTART_FAULTS]
    assert len(restarts) >= 5
    assert all(later - before >= 4 for before, later in pairwise(restarts))


# The network.


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy before a server that sends back what it is sent."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    with Proxy(server.getsockname()[1]) as proxy:
        yield proxy
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    accepting.join(WAIT_S)


def received(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(1 << 16)):
        data += more
    return data


def ends(connection: socket.socket) -> bool:
    """Waits for the end of a connection, orderly or not; what was on its way may come before it."""
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


def test_a_network_fails_as_it_is_told_and_is_well_again(echo: Proxy) -> None:
    sent = bytes(range(256)) * 40
    with socket.create_connection(("127.0.0.1", echo.port), WAIT_S) as connection:
        connection.sendall(sent)
        assert received(connection, len(sent)) == sent
        echo.stall()
        connection.sendall(sent)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(WAIT_S)
        echo.heal()
        assert received(connection, len(sent)) == sent
        echo.trickle()
        connection.sendall(sent)
        assert len(connection.recv(1 << 16)) <= 4 * PIECE_BYTES
        echo.heal()
        echo.cut()
        assert ends(connection)
    until(lambda: not echo._connections)
    with socket.create_connection(("127.0.0.1", echo.port), WAIT_S) as connection:
        assert ends(connection)
    echo.heal()
    with socket.create_connection(("127.0.0.1", echo.port), WAIT_S) as connection:
        connection.sendall(sent)
        assert received(connection, len(sent)) == sent


# Requests.


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if asked["k"] == 0:
            self.close_connection = True
            return
        body = b"{}" if asked["k"] == 1 else b'{"type": "overloaded"}'
        self.send_response(200 if asked["k"] == 1 else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Target:
    port: int | None = None
    stopping = False


@pytest.fixture
def target() -> Iterator[Target]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    made = Target()
    made.port = server.server_address[1]
    yield made
    server.shutdown()
    server.server_close()
    serving.join(WAIT_S)


def test_answers_are_counted_by_kind(target: Target) -> None:
    load = Load(100, target)
    ask = {name: json.dumps({"k": k}).encode() for name, k in (("none", 0), ("good", 1), ("full", 2))}
    assert kind_of(load.send(ask["good"])) == "200"
    assert kind_of(load.send(ask["full"])) == "503 overloaded"
    assert load.send(ask["none"]).kind == BROKEN
    target.stopping = True
    assert load.send(ask["none"]).kind == DOWN, "a connection that it never answered on, while it stops"
    target.port = None
    assert load.send(ask["good"]).kind == DOWN
    assert load.kinds == {"200": 1, "503 overloaded": 1, BROKEN: 1, DOWN: 2}
    assert list(judge.unexpected(load.kinds)) == ["1 requests were answered broken"]
    assert list(judge.unexpected(Counter({"500 internal-error": 3, "200": 5}))) == [
        "3 requests were answered 500 internal-error"
    ]


def test_a_load_is_steady_and_bursts_come_on_top(target: Target) -> None:
    load = Load(400, target)
    load._bodies = [b'{"k": 1}']
    load.start()
    until(lambda: load.kinds["200"] >= 20)
    assert load.burst(8, 5) == {"200": 40}
    load.stop()
    answers = load.taken()
    assert len(answers) >= 20
    assert load.kinds == {"200": len(answers) + 40}
    assert load.taken() == []


# The judge.


def samples(memory: list[float], handles: int = 40, periods: int = 3) -> list[Sample]:
    """Periods of two minutes; the memory of each from the first value to the last, with noise."""
    r, found = random.Random(1), []
    for start in range(1, periods + 1):
        first, last = memory[start - 1], memory[start]
        for number in range(60):
            at_s = start * 130 + number * 2.0
            resident = int(first + (last - first) * number / 59 + r.randrange(1_000_000))
            found.append(
                Sample(at_s, start, "", resident, handles + r.randrange(2), 20, 80, 2.0, 5.0, 0, 20.0, 90.0, 0, 4000, 0)
            )
        found.append(found[-1]._replace(at_s=start * 130 + 125.0, ads=None, resident_bytes=None, handles=None))
    return found


def test_what_does_not_grow_is_not_said_to() -> None:
    assert list(judge.growing(samples([200e6] * 4))) == []
    assert list(judge.growing(samples([200e6, 204e6, 201e6, 203e6]))) == []
    assert judge.growth(samples([200e6] * 4), "handles").periods == 3  # type: ignore[union-attr]
    assert judge.growth([], "handles") is None
    assert list(judge.growing(samples([200e6] * 4)[:5])) == [], "too short to say"


def test_what_grows_is_found() -> None:
    steadily = list(judge.growing(samples([200e6, 260e6, 320e6, 380e6])))
    assert len(steadily) == 2
    assert "within its median period: bytes" in steadily[0]
    assert "from its first start to its last" in steadily[1]
    leaking = samples([200e6] * 4)
    leaking = [
        sample if sample.handles is None else sample._replace(handles=40 + number % 61 // 4)
        for number, sample in enumerate(leaking)
    ]
    assert ["file handles" in said for said in judge.growing(leaking)] == [True]


def test_results_are_files_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs the extra `soak`")
    taken = samples([200e6] * 4)
    taken[20:30] = [sample._replace(fault="stalled") for sample in taken[20:30]]
    write_samples(taken, tmp_path / "soak.csv")
    write_result({"problems": []}, tmp_path / "soak.json")
    assert plot(taken, "a test", tmp_path / "soak.png")
    assert len((tmp_path / "soak.csv").read_text().splitlines()) == len(taken) + 1
    assert json.loads((tmp_path / "soak.json").read_text()) == {"problems": []}
    picture = (tmp_path / "soak.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000


def test_options_scale_with_the_minutes() -> None:
    short, whole = run.parsed(["--minutes", "2", "--embedded"]), run.parsed([])
    assert (whole.slots, whole.slot_s) == (run.SLOTS, 45.0)
    assert (short.slots, short.slot_s) == (10, run.SLOT_S_MIN)
    assert short.embedded
    assert not whole.embedded
