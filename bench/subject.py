"""The process that is measured: the service with so many ads in its index, and nothing that makes them or asks it.

It is wired as `mirach serve` wires it and loaded as ingest loads it (decoded, batched, applied), then measured from
inside (memory, match, score, whole answers), and then runs, serving HTTP and reading a topic, to be measured from
outside. Events and requests come from other processes; the parent (run.py) says what to do over a pipe.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from api.config import load
from api.server import Run, runner, wire
from api.warm_up import compile_apart, warm_up
from bench.ads import requests
from bench.feed import feed
from bench.machine import resident_bytes
from bench.traffic import match_bytes
from gpu_index.events import Batch, Outcome
from gpu_index.index import Index
from gpu_index.inspection import describe
from gpu_index.values import RequestAttributes, parse_attributes
from ingest.decode import Decoder
from kernels.match import BATCH_MAX
from kernels.precision import Precision
from kernels.stream import read_bandwidth
from scoring.request import Pathway, Request
from scoring.retrieve import retrieve
from scoring.user import parse_user

LOAD_PARTITION = 65_000  # of the ads loaded beforehand: none that a topic has
EVENTS_OF_BATCH = 1_000
BANDWIDTH_S = 1.0


class Options(msgspec.Struct, frozen=True):
    """What is measured, at which size, for how long."""

    ads: int = 1_000_000
    campaigns: bool = True
    seed: int = 1
    dim: int = 64
    gate_dim: int = 16
    experts: int = 8
    precision: str = "int8"
    seconds: float = 5.0  # of each measurement
    now_s: float = 0.0  # the ads' start and end times lie about it
    bootstrap_servers: str = ""
    topic: str = "ad-events"

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)

    def flags(self) -> dict[str, str]:
        """The service's settings, as they stand on a command line."""
        return {
            "port": "0",
            "kafka_bootstrap_servers": self.bootstrap_servers,
            "topic": self.topic,
            "dlq_topic": f"{self.topic}-dlq",
            "dim": str(self.dim),
            "gate_dim": str(self.gate_dim),
            "experts": str(self.experts),
            "precision": self.precision,
            "log_level": "error",  # warnings speak of the partition that was loaded beforehand
        }


def run_subject(pipe: Connection, raw: bytes) -> None:
    """Loads, measures from inside, serves. Sends what it found, then its port, then the answers to the parent's words:
    b"ingest" the figures of /v1/admin/ingest, b"stop" ends it."""
    options = msgspec.json.decode(raw, type=Options)
    with TemporaryDirectory() as folder:
        _run_subject(pipe, options, {**options.flags(), "data_dir": folder, "snapshot_interval_s": "0"})


def _run_subject(pipe: Connection, options: Options, flags: dict[str, str]) -> None:
    process = wire(load(flags, [], {}, None))
    index = process.service.engine.index
    compile_apart(index.precision)
    warm_up(index.schema, options.dim, options.gate_dim, Precision(options.precision))
    pipe.send_bytes(msgspec.json.encode(measure_inside(index, options)))

    async def obey(run: Run) -> None:
        pipe.send_bytes(msgspec.json.encode(process.listener.getsockname()[1]))
        while (word := await asyncio.to_thread(pipe.recv_bytes)) != b"stop":
            assert word == b"ingest", word
            snapshot = process.service.statistics.snapshot(time.time_ns() // 1000)
            pipe.send_bytes(msgspec.json.encode({**snapshot, "resident_bytes": resident_bytes()}))
        run.stop()

    with runner() as running:
        running.run(Run(process).serve(obey))


def measure_inside(index: Index, options: Options) -> dict[str, Any]:
    """Loads the index; then what can be measured without a network."""
    bandwidth = read_bandwidth(BANDWIDTH_S)
    before = resident_bytes()
    seconds = load_ads(index, options)
    resident = resident_bytes()
    return {
        "read_bytes_per_s": bandwidth,
        "load_events_per_s": options.ads / seconds,
        "resident_bytes": resident,
        "bytes_per_ad": (resident - before) / options.ads,
        "index": describe(index),
        "match": measure_match(index, options, bandwidth),
        "retrieve": measure_retrieve(index, options),
    }


def load_ads(index: Index, options: Options) -> float:
    """Seconds that decoding and applying the creates took, the waits for their maker left out."""
    decoder = Decoder(
        index.schema, dim=options.dim, gate_dim=options.gate_dim, compile_meta=lambda spec: spec
    )  # the ads have no Meta targeting
    now_us = int(options.now_s * 1e6)
    vectors = options.dim, options.gate_dim
    spent, offset = 0.0, 0
    for chunk in feed(options.seed, options.ads, campaigns=options.campaigns, vectors=vectors, now=options.now):
        began = time.perf_counter()
        for start in range(0, len(chunk), EVENTS_OF_BATCH):
            events = [
                decoder.decode(key, value, LOAD_PARTITION, offset + number, now_us // 1000)
                for number, (key, value) in enumerate(chunk[start : start + EVENTS_OF_BATCH])
            ]
            offset += len(events)
            outcomes = index.apply(Batch(events, {LOAD_PARTITION: offset}, lambda *_: None), now_us)
            assert all(outcome is Outcome.APPLIED for outcome in outcomes), outcomes
        spent += time.perf_counter() - began
    return spent


def measure_match(index: Index, options: Options, bandwidth: float) -> dict[str, Any]:
    """Match and expansion, for requests one at a time and in full passes. `bandwidth`: bytes a second, the limit."""
    asked: list[tuple[RequestAttributes, int | None]] = [
        (parse_attributes(index.schema, body["attributes"], body.get("timezone")), None)
        for body in requests(options.seed, 16 * BATCH_MAX)
    ]
    found: dict[str, Any] = {}
    for size in (1, BATCH_MAX):
        index.select(asked[:size])
        spent: list[float] = []
        deadline = time.perf_counter() + options.seconds / 2
        while not spent or time.perf_counter() < deadline:
            for start in range(0, len(asked), size):
                began = time.perf_counter()
                index.select(asked[start : start + size])
                spent.append((time.perf_counter() - began) / size)
        mean_s = float(np.mean(spent))
        found[f"of_{size}"] = {"ads_per_s": options.ads / mean_s, "request_ms": mean_s * 1e3}
    eligible = [len(index.select([request]).slots) for request in asked]
    sample = range(0, len(asked), BATCH_MAX)
    moved = float(np.mean([match_bytes(index, asked[i][0], eligible[i]) for i in sample]))
    found["eligible_mean"], found["bytes_per_request"] = float(np.mean(eligible)), moved
    for size in (1, BATCH_MAX):
        found[f"of_{size}"]["stream_share"] = moved / found[f"of_{size}"]["request_ms"] * 1e3 / bandwidth
    return found


def measure_retrieve(index: Index, options: Options) -> dict[str, float]:
    """Whole answers in the process: match, filter, score, rank, full passes."""
    asked = []
    for body in requests(options.seed, 8 * BATCH_MAX, vectors=(options.dim, options.gate_dim, options.experts)):
        attributes = parse_attributes(index.schema, body["attributes"], body.get("timezone"))
        user = parse_user(body["user"], options.dim, options.gate_dim, options.experts, "user")
        asked.append(Request(attributes, (Pathway("main", body["k"], user=user),), body.get("max_per", {})))
    answered, scored, score_ms = 0, 0, 0.0
    retrieve(index, asked[:BATCH_MAX])
    began = time.perf_counter()
    while not answered or time.perf_counter() - began < options.seconds:
        for start in range(0, len(asked), BATCH_MAX):
            answers = retrieve(index, asked[start : start + BATCH_MAX])
            answered += len(answers)
            scored += sum(answer.eligible for answer in answers)
            score_ms += answers[0].timings_ms["score"]
    elapsed = time.perf_counter() - began
    return {
        "requests_per_s": answered / elapsed,
        "scored_per_s": scored / (score_ms / 1e3) if score_ms else 0.0,
        "bytes_per_score": float(sum(column.nbytes // len(column) for column in index.score_columns)),
        "score_share_of_time": score_ms / 1e3 / elapsed,
    }
