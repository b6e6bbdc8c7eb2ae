"""`mirach serve` in a process of its own over a topic of its own, and beside it the truth: a plain index folded from
the records of that topic, decoded by ingest's own decoder.

A World has both. What is published through it is in the truth when the call returns, and every request asked through
it waits for that point of the topic (`min_offsets`) and must be answered as the truth answers it, to the last digit.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import httpx
import msgspec
from confluent_kafka import Consumer, Message, TopicPartition

from api.config import Settings
from api.openrtb import map_request
from api.requests import RequestParser
from gpu_index.events import AdEvent, Fault, Outcome, ParsedTargeting
from gpu_index.schema import Schema
from gpu_index.values import Values
from ingest.decode import Decoder
from ingest.faults import OUTCOME_FAULTS
from ingest.meta import compile_meta
from ingest.places import Places
from kernels.precision import Precision
from scoring.request import Request
from tests.kafka import DEADLINE_S, Broker, Record, until
from tests.plain import PlainIndex

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = Schema.load()
DIM, GATE_DIM, EXPERTS = 24, 6, 3
EVENT_BYTES_MAX = 65_536
SETTINGS = Settings(dim=DIM, gate_dim=GATE_DIM, experts=EXPERTS, allow_now=True)
PARSER = RequestParser.of(SCHEMA, SETTINGS)
START_S = 600.0  # the first start of a machine compiles the kernels
STOP_S = 30.0
WAIT_MS = 30_000
K_MAX = 10_000
CLOCK_US = 1_000_000  # start and end of an ad decide to within one second
SCORE_TOLERANCE = 1e-4  # of int8, the default: the truth has the ads as they are stored, but not requests in 16 bits
HEADERS = ["mirach-error", "mirach-detail", "mirach-topic", "mirach-partition", "mirach-offset"]
BY_KEY = -1  # a record's partition: the partitioner decides

Figures = tuple[list[Any], int, int, dict[str, int]]  # results, eligible, indexed, offsets


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MIRACH_")}


def clock_us() -> int:
    return time.time_ns() // 1000


class Service:
    """`mirach serve`. May be killed or stopped, and started again over the same topic and the same snapshots."""

    def __init__(self, broker: Broker, topic: str, dlq_topic: str, data_dir: Path, *flags: str) -> None:
        self.topic, self._data_dir = topic, data_dir
        self._command = [
            sys.executable, "-m", "api.cli", "serve", "--port", "0", "--kafka-bootstrap-servers", broker.address,
            "--topic", topic, "--dlq-topic", dlq_topic, "--group-id", f"group-of-{topic}", "--dim", str(DIM),
            "--data-dir", str(data_dir), "--snapshot-interval-s", "0",
            "--gate-dim", str(GATE_DIM), "--experts", str(EXPERTS), "--event-bytes-max", str(EVENT_BYTES_MAX),
            "--ads-max", "32768", "--allow-now", *flags,
        ]  # fmt: skip
        self.lines: list[str] = []  # of the log, of all starts
        self.start()

    def start(self) -> None:
        """Returns when it listens."""
        self.process = subprocess.Popen(self._command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
        listening = threading.Event()  # or its end
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr, listening), daemon=True)
        self._reader.start()
        assert listening.wait(START_S), self.lines
        self.address = re.findall(r"listening on (\S+),", "".join(self.lines))[-1]
        self.http = httpx.Client(base_url=self.address, timeout=2 * WAIT_MS / 1000)

    def _read(self, log: IO[str], listening: threading.Event) -> None:
        for line in log:
            self.lines.append(line)
            if "listening on" in line:
                listening.set()
        listening.set()

    def wait_ready(self) -> None:
        until(lambda: self.get("/readyz").status_code == 200, "ready", START_S)

    def get(self, address: str, **more: Any) -> httpx.Response:
        return self.http.get(address, **more)

    def post(self, address: str, body: object, **more: Any) -> httpx.Response:
        return self.http.post(address, json=body, **more)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Waits for the process's end, which must be near. -> its exit code"""
        code = self.process.wait(STOP_S)
        self._reader.join(STOP_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.http.close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def forget(self) -> None:
        """Removes the snapshots, between two runs."""
        shutil.rmtree(self._data_dir)

    def log(self) -> str:
        return "".join(self.lines)


class BadEvent(NamedTuple):
    """What must be in the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    fault: Fault


class Truth(PlainIndex):
    """The topic, folded as far as it was followed."""

    def __init__(self, broker: Broker, topic: str, places: Places | None) -> None:
        super().__init__(SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=Precision.INT8)
        self._decoder = Decoder(
            SCHEMA,
            dim=DIM,
            gate_dim=GATE_DIM,
            compile_meta=partial(compile_meta, places=places),
            event_bytes_max=EVENT_BYTES_MAX,
        )
        self._topic = topic
        settings = {"bootstrap.servers": broker.address, "group.id": "truth", "enable.auto.commit": False}
        self._consumer = Consumer({**settings, "fetch.wait.max.ms": 10})
        self._read = 0
        self._asked: Values | None = None  # whose matches these are:
        self._matches: dict[int, bool] = {}
        self.outcomes: Counter[Outcome] = Counter()
        self.bad: dict[tuple[int, int], BadEvent] = {}  # by partition and offset

    def follow(self, last: Mapping[int, int]) -> None:
        """Applies everything up to these offsets; new records of several partitions in the order of their times."""
        for message in heapq.merge(*self._new(last).values(), key=lambda message: message.timestamp()[1]):
            self._apply(message)

    def _new(self, last: Mapping[int, int]) -> dict[int, list[Message]]:
        """By partition, what was not read yet."""
        found: dict[int, list[Message]] = {}
        wanted = {partition: offset + 1 - self.positions.get(partition, 0) for partition, offset in last.items()}
        wanted = {partition: count for partition, count in wanted.items() if count > 0}
        self._consumer.assign(
            [TopicPartition(self._topic, partition, self.positions.get(partition, 0)) for partition in wanted]
        )
        end = time.monotonic() + DEADLINE_S
        while any(len(found.get(partition, ())) < count for partition, count in wanted.items()):
            assert time.monotonic() < end, f"{self._topic}: {wanted}"
            for message in self._consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                found.setdefault(message.partition(), []).append(message)  # type: ignore[arg-type]
        assert {partition: len(held) for partition, held in found.items()} == wanted, "nobody else produces"
        self._consumer.unassign()
        return found

    def _apply(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        event = self._decoder.decode(message.key(), message.value(), partition, offset, message.timestamp()[1])
        outcome = self.apply(event)
        self.outcomes[outcome] += 1
        fault = _fault(event, outcome)
        if fault is not None:
            self.bad[partition, offset] = BadEvent(message.key(), message.value(), fault)

    def matches(self, targeting: ParsedTargeting, values: Values) -> bool:
        """As it is, but each targeting that ads share once a request."""
        if self._asked is not values:
            self._asked, self._matches = values, {}
        found = self._matches.get(id(targeting))
        if found is None:
            found = self._matches[id(targeting)] = super().matches(targeting, values)
        return found

    def close(self) -> None:
        self._consumer.close()


def _fault(event: AdEvent, outcome: Outcome) -> Fault | None:
    return event.fault if outcome is Outcome.BAD else OUTCOME_FAULTS.get(outcome)


class World:
    """A service, its topic, and the truth about it."""

    def __init__(
        self, broker: Broker, folder: Path, *flags: str, partitions: int = 3, places: Path | None = None
    ) -> None:
        """`folder`: for snapshots. `partitions` 0: there is no topic yet."""
        self.broker = broker
        self.topic = broker.topic(partitions) if partitions else broker.new_name()
        self.dlq_topic = broker.topic()
        flags = flags if places is None else ("--places", str(places), *flags)
        self.truth = Truth(broker, self.topic, None if places is None else Places.load(places))
        self.service = Service(broker, self.topic, self.dlq_topic, folder / "data", *flags)
        self.offsets: dict[int, int] = {}  # partition -> the last that was published

    def close(self) -> None:
        """Whatever is printed here is shown where a test failed."""
        self.truth.close()
        self.service.kill()
        print(self.service.log())

    # Events.

    def publish(self, records: Iterable[Record]) -> None:
        """Sends records, each to the partition of its key, as `mirach produce` would."""
        records = [record._replace(partition=BY_KEY) for record in records]
        last = self.broker.send(self.topic, records, partitioner="murmur2_random", **{"compression.type": "lz4"})
        self._published(last)

    def publish_events(self, *events: Json) -> None:
        self.publish(Record(event["ad_id"].encode(), msgspec.json.encode(event)) for event in events)

    def produce(self, events: Sequence[Json], file: Path | None = None) -> None:
        """The same with `mirach produce`, from a file or from its standard input."""
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        if file is not None:
            file.write_bytes(lines)
        done = subprocess.run(
            [sys.executable, "-m", "api.cli", "produce", "-" if file is None else str(file),
             "--kafka-bootstrap-servers", self.broker.address, "--topic", self.topic],
            cwd=ROOT, env=environment(), input=lines, capture_output=True, timeout=START_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done
        assert f"{len(events):,} events are in topic {self.topic}" in " ".join(done.stderr.decode().split()), done
        self._published({int(partition): offset for partition, offset in json.loads(done.stdout).items()})

    def _published(self, last: Mapping[int, int]) -> None:
        self.offsets |= last
        self.truth.follow(last)

    @property
    def min_offsets(self) -> Json:
        """For a request that shall see all that was published."""
        return {
            "min_offsets": {str(partition): offset for partition, offset in self.offsets.items()},
            "wait_ms": WAIT_MS,
        }

    def wait(self) -> None:
        """Until the service has taken in all that was published."""
        assert self.service.post("/v1/retrieve", self.min_offsets).status_code == 200

    # Requests.

    def ask(self, body: Json) -> Json:
        """The answer to a body of /v1/retrieve, which must be the truth."""
        body = {**body, **self.min_offsets}
        began_us = clock_us()
        response = self.service.post("/v1/retrieve", body)
        self.check(response, body, began_us)
        return response.json()  # type: ignore[no-any-return]

    def ask_openrtb(self, bid_request: Json, **parameters: object) -> Json:
        """The same for a BidRequest."""
        extended = {**bid_request, "ext": {**bid_request.get("ext", {}), "mirach": {**parameters, **self.min_offsets}}}
        began_us = clock_us()
        response = self.service.post("/v1/retrieve/openrtb", extended)
        self.check(response, map_request(extended, SCHEMA, SETTINGS, began_us), began_us)
        return response.json()  # type: ignore[no-any-return]

    def check(self, response: httpx.Response, body: Json, began_us: int) -> None:
        """That a response is the truth about a body, at one of the times that the service's clock may have had."""
        assert response.status_code == 200, (response.text, body)
        ended_us = clock_us()
        got = figures(response.json())
        wants = self.answers(body, (began_us, ended_us, began_us - CLOCK_US, ended_us + CLOCK_US))
        wanted = next(wants)
        if got != wanted and got not in wants:
            raise AssertionError(f"{difference(got, wanted)}\nto {body}\nof {self.service.address}")

    def answers(self, body: Json, times_us: Iterable[int]) -> Iterator[Figures]:
        """The true answers to a body by times."""
        request = PARSER.parse_object(body)
        scores = self.scores(body, request) if "user" in body else None
        for now_us in times_us:
            answer = self.truth.retrieve(request, now_us, None if scores is None else lambda _, ad: scores[ad.ad_id])
            yield figures(msgspec.to_builtins(answer, str_keys=True))

    def scores(self, body: Json, request: Request) -> dict[str, float]:
        """The service's own scores of all ads that match a request with a user and a time of its own, each of which
        must be near the score in float64. What follows from them can then be compared exactly."""
        assert request.now_us is not None
        kept: Json = {name: body[name] for name in ("attributes", "timezone", "user", "now") if name in body}
        results = self.service.post("/v1/retrieve", {**kept, "k": K_MAX, **self.min_offsets}).json()["results"]
        scores = {result["ad_id"]: result["score"] for result in results}
        eligible = self.truth.eligible(request, request.now_us)
        assert scores.keys() == eligible.keys(), (scores.keys() ^ eligible.keys(), body)
        user = request.pathways[0].user
        wrong = {
            ad_id: (score, self.truth.score(user, eligible[ad_id]))
            for ad_id, score in scores.items()
            if abs(score - self.truth.score(user, eligible[ad_id])) > SCORE_TOLERANCE
        }
        assert not wrong, wrong
        return scores

    # Dead letters.

    def check_dead_letters(self) -> None:
        """Every bad event is in the dead-letter topic with its key, its value and all headers; nothing else is."""
        until(lambda: self.ingest()["dead_letters"]["pending"] == 0, "dead letters are sent")
        found: dict[tuple[int, int], BadEvent] = {}
        for letter in self.broker.records(self.dlq_topic, self.broker.end(self.dlq_topic)):
            given: Any = letter.headers()
            headers = {name: value.decode() for name, value in given}
            assert [name for name, _ in given] == HEADERS
            assert headers["mirach-topic"] == self.topic
            place = int(headers["mirach-partition"]), int(headers["mirach-offset"])
            fault = Fault(headers["mirach-error"], headers["mirach-detail"])
            found[place] = BadEvent(letter.key(), letter.value(), fault)
        assert found == self.truth.bad, "a kill may send one twice, so they are compared by their place"

    def ingest(self) -> Json:
        return self.service.get("/v1/admin/ingest").json()  # type: ignore[no-any-return]


def figures(answer: Json) -> Figures:
    """What of an answer must be the same each time."""
    return answer["results"], answer["eligible"], answer["indexed"], answer["offsets"]


def difference(got: Figures, wanted: Figures) -> str:
    """What is wrong with an answer, in a few lines."""
    if got[1:] != wanted[1:]:
        return f"eligible, indexed, offsets: {got[1:]}, but {wanted[1:]}"
    for place, (one, other) in enumerate(zip(got[0], wanted[0], strict=False)):
        if one != other:
            return f"result {place}: {one}, but {other}"
    return f"{len(got[0])} results, but {len(wanted[0])}"


class Client(threading.Thread):
    """Asks one thing after the other for as long as the service takes it."""

    def __init__(self, service: Service, body: Json, eligible: int) -> None:
        super().__init__()
        self._address, self._body, self._eligible = service.address, body, eligible
        self.answered = 0
        self.failure = ""
        self.start()

    def run(self) -> None:
        taken = False  # the connection, by the service: one that it never took is reset when it listens no longer
        with httpx.Client(base_url=self._address, timeout=STOP_S) as session:
            while True:
                try:
                    response = session.post("/v1/retrieve", json=self._body)
                except httpx.HTTPError as error:
                    if taken or not isinstance(error, httpx.ConnectError | httpx.ReadError):
                        self.failure = repr(error)
                    return
                if response.status_code != 200 or response.json()["eligible"] != self._eligible:
                    self.failure = response.text
                    return
                self.answered += 1
                taken = response.headers.get("connection") != "close"
