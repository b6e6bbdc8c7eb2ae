"""`mirach bench`: what this machine does, each figure beside its limit from the same run.

For each mix of ads (campaigns that share targeting; every targeting distinct) a process holds the index and is measured
from inside, then over HTTP and Kafka from here:

1. `inside`: loading, memory, match and expansion, scoring, whole answers (bench/subject.py);
2. `http`: a client process asks as fast as it is answered, on one connection and on several;
3. `fresh`: events at a steady rate while requests come at a steady rate: how old an event is when it is searchable;
4. `applied`: events as fast as they are taken, while requests come.

`mirach bench serving` measures a trained model at work in their place (bench/serving.py).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from bench import scoring
from bench.ads import changes, requests
from bench.http_load import in_a_process
from bench.machine import describe_machine
from bench.report import lines_of
from bench.subject import Options, run_subject
from ingest.config import IngestConfig
from ingest.embedded import EmbeddedBroker
from ingest.produce import produce

PARTITIONS = 16  # the embedded broker keeps 5 MiB of each
CONNECTIONS = 16
BODIES = 512
REQUESTS_PER_S = 50.0  # while events are measured
FRESH_EVENTS_PER_S = 2_000
BEHIND_MAX = 20_000  # events on their way to the index; more would be lost by the embedded broker
POLL_S = 0.02


@dataclass(frozen=True)
class Running:
    """A subject that serves, and where."""

    pipe: Connection
    port: int
    options: Options

    def ingest(self) -> dict[str, Any]:
        self.pipe.send_bytes(b"ingest")
        answer: dict[str, Any] = msgspec.json.decode(self.pipe.recv_bytes())
        return answer


def main(arguments: Sequence[str]) -> int:
    """Measures, prints a table, writes the figures as JSON. -> exit code"""
    if arguments and arguments[0] == "serving":
        from bench import serving  # and with it what a demo needs

        return serving.main(arguments[1:])
    given = _parser().parse_args(arguments)
    mixes = {"campaigns": (True,), "distinct": (False,), "both": (True, False)}[given.mix]
    report: dict[str, Any] = {
        "machine": describe_machine(), "command": ["mirach", "bench", *arguments], "ads": given.ads, "mixes": {}
    }  # fmt: skip
    for campaigns in mixes:
        name = "campaigns" if campaigns else "distinct"
        _say(f"{name}: loading {given.ads:,} ads (a minute or so for a million)")
        options = Options(ads=given.ads, campaigns=campaigns, seed=given.seed, seconds=given.seconds,
                          precision=given.precision, now_s=time.time())  # fmt: skip
        report["mixes"][name] = measure(options)
    _say("scoring alone")
    report["scoring"] = scoring.run(2 * given.seconds, given.ads)
    print("\n".join(lines_of(report)))
    given.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    _say(f"figures written to {given.json}")
    return 0


def _parser() -> argparse.ArgumentParser:
    described = "The benchmarks of this machine. `mirach bench serving` has those of a trained model."
    parser = argparse.ArgumentParser(prog="mirach bench", description=described)
    parser.add_argument("--ads", type=int, default=1_000_000, help="ads in the index. Default: 1000000.")
    parser.add_argument("--mix", choices=("both", "campaigns", "distinct"), default="both",
                        help="10 to 50 ads share a targeting, or none do. Default: both in turn.")  # fmt: skip
    parser.add_argument("--precision", choices=("int8", "float16", "float32"), default="int8")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement. Default: 5.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, default=Path("mirach-bench.json"), metavar="FILE",
                        help="where the figures go. Default: mirach-bench.json.")  # fmt: skip
    return parser


def measure(options: Options) -> dict[str, Any]:
    """All figures of one mix. The broker lives here, the index in a process of its own."""
    topics = {options.topic: PARTITIONS, f"{options.topic}-dlq": 1}
    with EmbeddedBroker(topics) as broker:
        options = msgspec.structs.replace(options, bootstrap_servers=broker.bootstrap_servers)
        context = multiprocessing.get_context("spawn")
        here, there = multiprocessing.Pipe()
        subject = context.Process(target=run_subject, args=(there, msgspec.json.encode(options)))
        subject.start()
        there.close()
        try:
            found: dict[str, Any] = {"inside": msgspec.json.decode(here.recv_bytes())}
            running = Running(here, msgspec.json.decode(here.recv_bytes()), options)
            found |= measure_outside(running)
            here.send_bytes(b"stop")
            subject.join()
        finally:
            subject.terminate()  # nothing to do where it has ended
    return found


def measure_outside(running: Running) -> dict[str, Any]:
    """What a client and a producer see."""
    options, seconds = running.options, running.options.seconds
    _until(lambda: bool(running.ingest()["caught_up"]))
    widths = options.dim, options.gate_dim, options.experts
    bodies = [msgspec.json.encode(body) for body in requests(options.seed, BODIES, vectors=widths)]
    target = running.port, bodies
    found: dict[str, Any] = {"http": {}}
    for connections in (1, CONNECTIONS):
        _say(f"HTTP, {connections} connections")
        load = in_a_process(target, {"connections": connections, "seconds": seconds})()
        found["http"][f"of_{connections}"] = load._asdict()
    rate = min(REQUESTS_PER_S, load.requests_per_s / 4)
    count = min(options.ads, int(seconds * 25_000))
    events = [msgspec.json.encode(event) for event in changes(options.seed, count, options.ads, now=options.now,
                                                              vectors=(options.dim, options.gate_dim))]  # fmt: skip
    steady = events[: int(2 * seconds * FRESH_EVENTS_PER_S)][: count // 2]
    _say("events at a steady rate, requests at a steady rate")
    asking = in_a_process(target, {"connections": 4, "seconds": len(steady) / FRESH_EVENTS_PER_S, "rate": rate})
    produce(_paced(steady, FRESH_EVENTS_PER_S, running), _config(options))
    found["fresh"] = {
        "events_per_s": FRESH_EVENTS_PER_S, "requests": asking()._asdict(),
        "ingest": _when_applied(running, len(steady)),
    }  # fmt: skip
    _say("events as fast as they are taken, requests at a steady rate")
    rest = events[len(steady) :]
    asking = in_a_process(target, {"connections": 4, "seconds": seconds, "rate": rate})
    began = time.perf_counter()
    produce(_as_taken(rest, running, len(steady)), _config(options))
    ingest = _when_applied(running, count)
    elapsed = time.perf_counter() - began
    found["applied"] = {"events_per_s": len(rest) / elapsed, "requests": asking()._asdict(), "ingest": ingest}
    return found


def _config(options: Options) -> IngestConfig:
    return IngestConfig(
        bootstrap_servers=options.bootstrap_servers, topic=options.topic, dlq_topic=f"{options.topic}-dlq",
        properties={"compression.type": "lz4"},
    )  # fmt: skip


def _paced(events: Sequence[bytes], per_s: float, running: Running) -> Iterator[bytes]:
    """The events, each when it is due; the first well before, while the producer finds the broker."""
    yield events[0]
    _when_applied(running, 1)
    began = time.perf_counter()
    for number, event in enumerate(events[1:]):
        wait = began + number / per_s - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        yield event


def _as_taken(events: Sequence[bytes], running: Running, before: int) -> Iterator[bytes]:
    """The events, never more than BEHIND_MAX ahead of the index, which has `before` already."""
    for number, event in enumerate(events):
        if number % 2_000 == 0:
            sent = before + number
            _until(lambda sent=sent: sent - running.ingest()["events"] < BEHIND_MAX)  # type: ignore[misc]
        yield event


def _when_applied(running: Running, count: int) -> dict[str, Any]:
    """The figures of ingest once `count` events are in the index."""
    _until(lambda: running.ingest()["events"] >= count)
    return running.ingest()


def _until(done: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the subject did not get there within {limit_s:.0f} s")
        time.sleep(POLL_S)


def _say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr)
