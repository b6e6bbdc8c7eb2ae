"""`make soak`: the real service as a process, a constant stream of events and requests, and a fault in every slot.

1. The broker and the service start, the first ads are sent.
2. Slot by slot: events at a steady rate; meanwhile a fault, chosen by the seed, for a part of the slot; then the stream
   is held and the service, waiting for the last offsets, must answer for every country with exactly the ads and values
   that the stream's own fold has (stream.py).
3. Every few seconds a sample: memory, handles, threads, latency, freshness, lag (judge.Sample).
4. At the end every bad event must be in the dead-letter topic, and what was seen is judged (judge.py): exit code 1 with
   a sentence for each thing that is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np

from bench.machine import describe_machine
from bench.service import Service, wait_until
from bench.soak import judge
from bench.soak.brokers import DLQ_TOPIC, TOPIC, Broker, start_broker
from bench.soak.judge import Sample
from bench.soak.load import Load
from bench.soak.report import plot, write_result, write_samples
from bench.soak.stream import COUNTRIES, EVENT_BYTES_MAX, Stream
from ingest.clients import new_admin
from ingest.config import IngestConfig
from ingest.produce import produce
from ingest.watch import TopicWatcher

SLOTS = 40
SLOT_S_MIN = 12.0
FAULT_S = 8.0
SAMPLES = 900
SAMPLE_S_MIN = 0.5
RESTARTS = 5
CATCH_UP_S = 120.0
WAIT_MS = 10_000
K = 10_000
FILE_BYTES = 512  # while the disk is full: no chunk is as small
BURST_CONNECTIONS, BURST_REQUESTS = 64, 8
BODY_BYTES_MAX = 65_536
FLAGS = (
    "--snapshot-interval-s", "10", "--snapshots-kept", "2", "--event-bytes-max", str(EVENT_BYTES_MAX),
    "--body-bytes-max", str(BODY_BYTES_MAX), "--request-queue-max", "32", "--ads-max", "262144",
    "--targetings-max", "262144", "--expired-versions-s", "60", "--dim", "16", "--gate-dim", "4", "--threads", "1",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    minutes: float = 30.0
    seed: int = 20_261_130
    ads: int = 4000
    events_per_s: float = 100.0
    requests_per_s: float = 40.0
    embedded: bool = False
    out: Path = Path("mirach-soak")

    @property
    def slot_s(self) -> float:
        return max(SLOT_S_MIN, self.minutes * 60 / SLOTS)

    @property
    def slots(self) -> int:
        return max(1, int(self.minutes * 60 / self.slot_s))

    @property
    def sample_s(self) -> float:
        return max(SAMPLE_S_MIN, self.minutes * 60 / SAMPLES)


@dataclass
class Seen:
    """What came of it so far."""

    samples: list[Sample] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    checks: int = 0
    faults: list[str] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)  # after each restart


def schedule(seed: int, slots: int) -> list[str]:
    """The fault of each slot: now and then a restart, else all of the others in turn, in random order."""
    r = random.Random(seed)  # noqa: S311
    every = max(3, slots // (RESTARTS + 1))
    chosen: list[str] = []
    bag: list[str] = []
    for slot in range(slots):
        if slot % every == every - 1:
            chosen.append(("kill", "stop")[slot // every % 2])
            continue
        if not bag:
            bag = sorted(FAULTS)
            r.shuffle(bag)
        chosen.append(bag.pop())
    return chosen


class Soak:
    def __init__(self, options: Options, broker: Broker, folder: Path) -> None:
        self.options, self.broker = options, broker
        self.seen = Seen()
        self.stream = Stream(options.seed, options.ads)
        self.service = Service(broker.service_address, folder / "data", *FLAGS)
        self.load = Load(options.requests_per_s, self.service)
        self.fault = ""
        self.config = IngestConfig(bootstrap_servers=broker.address, topic=TOPIC, dlq_topic=DLQ_TOPIC)
        self.offsets: dict[int, int] = {}
        self._began = time.monotonic()
        self._ended = threading.Event()

    def run(self) -> None:
        for again in (False, True):  # the first start may compile kernels, and is larger for it
            self.service.start()
            self.service.wait_ready()
            if not again:
                self.stop_service()
        self.offsets |= produce(self.stream.first(), self.config)
        self.check("at first")
        self._began = time.monotonic()
        sampler = threading.Thread(target=self._sample_all, name="soak-sampler", daemon=True)
        sampler.start()
        self.load.start()
        try:
            for number, fault in enumerate(schedule(self.options.seed, self.options.slots), 1):
                self.slot(fault)
                say(f"slot {number} of {self.options.slots}: {fault}; {self.stream.events:,} events, "
                    f"{self.load.kinds['200']:,} answers, {len(self.seen.wrong)} wrong")  # fmt: skip
        finally:
            self._ended.set()
            self.load.stop()
            sampler.join()
        self.check_dead_letters()
        self.stop_service()

    def stop_service(self) -> None:
        if (code := self.service.end(signal.SIGTERM)) != 0:
            self.seen.wrong.append(f"it ended with exit code {code} at SIGTERM")

    def slot(self, fault: str) -> None:
        """Events all the while; the fault; then what is answered must be what the events say."""
        ends = time.monotonic() + self.options.slot_s
        failed: list[BaseException] = []

        def send() -> None:
            try:
                self.offsets |= produce(self._paced(ends), self.config)
            except BaseException as error:
                failed.append(error)

        sending = threading.Thread(target=send, name="soak-stream", daemon=True)
        sending.start()
        time.sleep(min(2.0, self.options.slot_s / 8))
        self.fault = fault
        self.seen.faults.append(fault)
        try:
            (FAULTS | RESTART_FAULTS)[fault](self)
        finally:
            self.fault = ""
        sending.join()
        if failed:
            raise failed[0]
        self.check(fault)

    def _paced(self, ends: float) -> Iterator[bytes]:
        due = time.monotonic()
        while due < ends:
            time.sleep(max(0.0, due - time.monotonic()))
            yield self.stream.next()
            due += 1 / self.options.events_per_s

    # What must be true.

    def check(self, after: str) -> None:
        """With the stream held: every country's answer."""
        deadline = time.monotonic() + CATCH_UP_S
        offsets = {str(partition): offset for partition, offset in self.offsets.items()}
        asked = {"min_offsets": offsets, "wait_ms": WAIT_MS, "k": K}
        for country in COUNTRIES:
            response = self.service.post("/v1/retrieve", {"attributes": {"geo.country": country}, **asked})
            while response.status_code == 503 and time.monotonic() < deadline:
                response = self.service.post("/v1/retrieve", {"attributes": {"geo.country": country}, **asked})
            self.seen.checks += 1
            if response.status_code != 200:
                self.seen.wrong.append(f"after {after}: {response.status_code} {response.text[:300]}")
                continue
            problem = difference(response.json(), self.stream, country)
            if problem is not None:
                self.seen.wrong.append(f"after {after}: {problem}")

    def check_dead_letters(self) -> None:
        """As many as there were bad events, or more: a restart may send some again."""
        watcher = TopicWatcher(
            IngestConfig(bootstrap_servers=self.broker.address, topic=DLQ_TOPIC, dlq_topic=TOPIC),
            new_admin(self.config, lambda _: None), lambda _: None,
        )  # fmt: skip
        wait_until(lambda: self._pending() == 0, "all dead letters are sent", CATCH_UP_S)
        watcher.turn()
        sent = 0 if watcher.view is None else watcher.view.bounds[0][1]
        if sent < self.stream.bad:
            self.seen.wrong.append(f"of {self.stream.bad} bad events {sent} are in the dead-letter topic")

    def _pending(self) -> int:
        return int(self.service.get("/v1/admin/ingest").json()["dead_letters"]["pending"])

    # Samples.

    def _sample_all(self) -> None:
        while not self._ended.wait(self.options.sample_s):
            self.seen.samples.append(self._sample())

    def _sample(self) -> Sample:
        at_s, start, fault = time.monotonic() - self._began, self.service.starts, self.fault
        answers = self.load.taken()
        good = [answer.seconds * 1e3 for answer in answers if answer.status == 200]
        p50, p99 = (float(each) for each in np.percentile(good, (50, 99))) if good else (None, None)
        ours: dict[str, int | None] = {"resident_bytes": None, "handles": None, "threads": None}
        ingest: dict[str, Any] = {}
        ads = None
        try:
            ingest = self.service.get("/v1/admin/ingest").json()
            ads = self.service.get("/v1/admin/index").json().get("ads")
            ours |= self.service.figures()
        except (OSError, httpx.HTTPError, RuntimeError, KeyError):
            ads = None  # it is not there
        fresh = ingest.get("freshness", {}).get("produce_time", {})
        return Sample(
            round(at_s, 2), start, fault, ours["resident_bytes"], ours["handles"], ours["threads"], len(good), p50, p99,
            len(answers) - len(good), fresh.get("p50_ms"), fresh.get("p99_ms"), ingest.get("lag"), ads,
            ingest.get("dead_letters", {}).get("pending"),
        )  # fmt: skip


def difference(answer: dict[str, Any], stream: Stream, country: str) -> str | None:
    """What is wrong with an answer; None: nothing."""
    if answer["indexed"] != len(stream.ads):
        return f"{answer['indexed']} ads are indexed, {len(stream.ads)} live"
    wanted = stream.expected(country)
    got = {result["ad_id"]: result["value"] for result in answer["results"]}
    if answer["eligible"] != len(wanted) or got.keys() != wanted.keys():
        missing, more = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
        return f"{country}: {len(got)} ads in place of {len(wanted)}; missing {missing[:5]}, too many {more[:5]}"
    wrong = [ad_id for ad_id, value in got.items() if value != wanted[ad_id]]
    if wrong:
        return f"{country}: ad {wrong[0]} has the value {got[wrong[0]]}, not {wanted[wrong[0]]}"
    values = [result["value"] for result in answer["results"]]
    return None if values == sorted(values, reverse=True) else f"{country}: the results are not in order"


# Faults. Each returns when it is over.


def kill(soak: Soak) -> None:
    soak.service.end(signal.SIGKILL)
    _start_again(soak)


def stop(soak: Soak) -> None:
    soak.stop_service()
    _start_again(soak)


def _start_again(soak: Soak) -> None:
    soak.service.start()
    soak.seen.ready_s.append(soak.service.wait_ready())


def stalled(soak: Soak) -> None:
    soak.broker.proxy.stall()
    time.sleep(FAULT_S)
    soak.broker.proxy.heal()


def slow(soak: Soak) -> None:
    soak.broker.proxy.trickle()
    time.sleep(FAULT_S)
    soak.broker.proxy.heal()


def cut_off(soak: Soak) -> None:
    soak.broker.proxy.cut()
    time.sleep(FAULT_S / 2)
    soak.broker.proxy.heal()


def dead_letters(soak: Soak) -> None:
    soak.broker.dead_letters_writable(False)
    time.sleep(FAULT_S)
    soak.broker.dead_letters_writable(True)


def full_disk(soak: Soak) -> None:
    """Snapshots fail, and say so; the rest goes on, and so do they once there is room."""
    failed = _snapshots(soak)["failed"]
    soak.service.limit_files(FILE_BYTES)
    soak.service.post("/v1/admin/snapshots", None)
    soak.service.limit_files(None)
    after = _snapshots(soak)
    if after["failed"] == failed or after["problem"] is None:
        soak.seen.wrong.append(f"a snapshot was written on a full disk: {after}")
    if (written := soak.service.post("/v1/admin/snapshots", None)).status_code != 200:
        soak.seen.wrong.append(f"no snapshot once there is room: {written.text}")


def _snapshots(soak: Soak) -> dict[str, Any]:
    figures: dict[str, Any] = soak.service.get("/v1/admin/snapshots").json()
    return figures


def burst(soak: Soak) -> None:
    """More at once than may wait: the rest is refused, and all is well after it."""
    found = soak.load.burst(BURST_CONNECTIONS, BURST_REQUESTS)
    if sum(found.values()) != BURST_CONNECTIONS * BURST_REQUESTS:
        soak.seen.wrong.append(f"requests of a burst were lost: {dict(found)}")


def large_bodies(soak: Soak) -> None:
    body = json.dumps({"exclude_ads": ["x" * BODY_BYTES_MAX]}).encode()
    for _ in range(20):
        answer = soak.load.send(body)
        if answer.status != 413:
            soak.seen.wrong.append(f"a body that is too large was answered {answer.status} {answer.kind}")


Fault = Callable[[Soak], None]
RESTART_FAULTS: dict[str, Fault] = {"kill": kill, "stop": stop}
FAULTS: dict[str, Fault] = {
    "stalled": stalled, "slow": slow, "cut off": cut_off, "dead letters": dead_letters, "full disk": full_disk,
    "burst": burst, "large bodies": large_bodies,
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    options = parsed(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    failure = None
    with TemporaryDirectory() as folder, ExitStack() as ends:
        broker = start_broker(Path(folder) / "kafka", embedded=options.embedded)
        ends.callback(broker.close)
        soak = Soak(options, broker, Path(folder))
        say(f"{options.minutes:g} minutes over {broker.name}, seed {options.seed}")
        try:
            soak.run()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            say("\n".join(soak.service.lines[-40:]))
        finally:
            if soak.service.runs:
                soak.service.end(signal.SIGKILL)
    problems = [*([] if failure is None else [failure]), *judged(soak)]
    for line in written(soak, broker.name, problems):
        say(line)
    return 1 if problems else 0


def judged(soak: Soak) -> list[str]:
    """A sentence for each thing that is wrong."""
    errors = [line for line in soak.service.errors if "no snapshot is written" not in line]
    return [
        *soak.seen.wrong[:20],
        *judge.unexpected(soak.load.kinds),
        *judge.growing(soak.seen.samples),
        *(f"the service logged: {line}" for line in errors[:5]),
    ]


def written(soak: Soak, broker: str, problems: list[str]) -> Iterator[str]:
    """Writes the files; what a person wants to read."""
    options, seen = soak.options, soak.seen
    settled = [sample for sample in seen.samples if sample.p50_ms is not None and not sample.fault]
    result = {
        "minutes": options.minutes, "seed": options.seed, "broker": broker, "machine": describe_machine(),
        "events": soak.stream.events, "bad_events": soak.stream.bad, "checks": seen.checks, "faults": seen.faults,
        "restarts_ready_s": [round(each, 2) for each in seen.ready_s], "answers": dict(soak.load.kinds),
        "growth": {figure: judge.growth(seen.samples, figure) for figure in judge.LIMITS},
        "median_of_samples": {
            name: float(np.median([value for sample in settled if (value := getattr(sample, name)) is not None] or [0]))
            for name in ("p50_ms", "p99_ms", "freshness_p50_ms", "freshness_p99_ms", "resident_bytes")
        },
        "problems": problems,
    }  # fmt: skip
    write_samples(seen.samples, options.out / "soak.csv")
    write_result(result, options.out / "soak.json")
    counts = f"{soak.stream.events:,} events, {soak.load.kinds['200']:,} answers"
    title = f"{options.minutes:g} minutes over {broker}: {counts}"
    if not plot(seen.samples, title, options.out / "soak.png"):
        yield "no picture: matplotlib is not installed (pip install mirach[soak])"
    yield json.dumps({name: value for name, value in result.items() if name not in ("machine", "faults", "problems")})
    yield f"written to {options.out}/: soak.csv, soak.json, soak.png"
    yield from (f"WRONG: {problem}" for problem in problems)
    if not problems:
        yield f"all is well: {seen.checks} answers were exact after {len(seen.faults)} faults"


def parsed(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="make soak", description="The service under events, requests and faults.")
    parser.add_argument("--minutes", type=float, default=Options.minutes)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--ads", type=int, default=Options.ads)
    parser.add_argument("--events-per-s", type=float, default=Options.events_per_s)
    parser.add_argument("--requests-per-s", type=float, default=Options.requests_per_s)
    parser.add_argument("--embedded", action="store_true", help="the embedded broker, whatever is at hand")
    parser.add_argument("--out", type=Path, default=Options.out, help="folder of the results")
    return Options(**vars(parser.parse_args(arguments)))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
