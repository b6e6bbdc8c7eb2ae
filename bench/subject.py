"""The process that is measured: it holds an index of so many ads, and nothing that makes them or asks it.

It is loaded as the service loads (decoded, batched, applied by the engine), then measured from inside (memory, match,
score, whole answers), and then serves HTTP and reads a topic, to be measured from outside. Events are made in another
process; the parent (run.py) drives what comes over HTTP and Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from bench.ads import EPOCH, requests
from bench.feed import feed
from bench.machine import resident_bytes
from bench.traffic import match_bytes
from gpu_index.events import Batch, Outcome
from gpu_index.index import Index
from gpu_index.schema import Schema
from gpu_index.values import RequestAttributes, parse_attributes
from ingest.decode import Decoder
from kernels.match import BATCH_MAX
from kernels.precision import Precision
from scoring.request import Pathway, Request
from scoring.retrieve import retrieve
from scoring.user import parse_user

NOW_US = int(EPOCH.timestamp() * 1e6)
LOAD_PARTITION = 65_000  # of the ads loaded beforehand: none that a topic has
EVENTS_OF_BATCH = 1_000
WARM_ADS = 2_000


class Options(msgspec.Struct, frozen=True):
    """What is measured, at which size, for how long."""

    ads: int = 1_000_000
    campaigns: bool = True
    seed: int = 1
    dim: int = 64
    gate_dim: int = 16
    experts: int = 8
    precision: str = "int8"
    vectors: bool = True  # ads bring an embedding and a gate
    seconds: float = 5.0  # of each measurement

    @property
    def vector_widths(self) -> tuple[int, int] | None:
        return (self.dim, self.gate_dim) if self.vectors else None


class Subject:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.schema = Schema.load(None)
        self.index = Index(
            self.schema, dim=options.dim, gate_dim=options.gate_dim, precision=Precision(options.precision)
        )
        self.decoder = Decoder(
            self.schema, dim=options.dim, gate_dim=options.gate_dim, compile_meta=lambda spec: spec
        )  # the ads have no Meta targeting
        self.offset = 0

    def load(self, seed: int, count: int) -> float:
        """Seconds that decoding and applying `count` creates took, the waits for their maker left out."""
        spent = 0.0
        chunks = feed(seed, count, campaigns=self.options.campaigns, vectors=self.options.vector_widths)
        for chunk in chunks:
            began = time.perf_counter()
            for start in range(0, len(chunk), EVENTS_OF_BATCH):
                self._apply(chunk[start : start + EVENTS_OF_BATCH])
            spent += time.perf_counter() - began
        return spent

    def _apply(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        events = [
            self.decoder.decode(key, value, LOAD_PARTITION, self.offset + number, NOW_US // 1000)
            for number, (key, value) in enumerate(records)
        ]
        self.offset += len(events)
        outcomes = self.index.apply(Batch(events, {LOAD_PARTITION: self.offset}, lambda *_: None), NOW_US)
        assert all(outcome is Outcome.APPLIED for outcome in outcomes), outcomes


def measure_inside(options: Options) -> tuple[Subject, dict[str, Any]]:
    """A loaded subject, and what can be measured without a network."""
    warm = Subject(msgspec.structs.replace(options, ads=WARM_ADS))
    warm.load(options.seed, WARM_ADS)
    measure_retrieve(warm, seconds=0.0)  # compiles or loads every kernel: their memory is not the ads'
    del warm
    before = resident_bytes()
    subject = Subject(options)
    seconds = subject.load(options.seed, options.ads)
    found: dict[str, Any] = {
        "load": {"events_per_s": options.ads / seconds},
        "memory": {
            "resident_bytes": resident_bytes(),
            "bytes_per_ad": (resident_bytes() - before) / options.ads,
            "parts": subject.index.describe() if hasattr(subject.index, "describe") else {},
        },
        "match": measure_match(subject, options.seconds),
        "retrieve": measure_retrieve(subject, options.seconds),
    }
    return subject, found


def measure_match(subject: Subject, seconds: float) -> dict[str, Any]:
    """Match and expansion, for requests one at a time and in full passes."""
    index, options = subject.index, subject.options
    asked: list[tuple[RequestAttributes, int | None]] = [
        (parse_attributes(subject.schema, body["attributes"], body.get("timezone")), None)
        for body in requests(options.seed, 16 * BATCH_MAX)
    ]
    found: dict[str, Any] = {}
    for size in (1, BATCH_MAX):
        index.select(asked[:size])
        spent: list[float] = []
        deadline = time.perf_counter() + seconds / 2
        while not spent or time.perf_counter() < deadline:
            for start in range(0, len(asked), size):
                began = time.perf_counter()
                index.select(asked[start : start + size])
                spent.append((time.perf_counter() - began) / size)
        found[f"of_{size}"] = {"ads_per_s": options.ads / float(np.mean(spent)), "ms": float(np.mean(spent)) * 1e3}
    eligible = [len(index.select([request]).slots) for request in asked]
    sample = range(0, len(asked), 16)
    found["eligible_mean"] = float(np.mean(eligible))
    found["bytes_per_request"] = float(np.mean([match_bytes(index, asked[i][0], eligible[i]) for i in sample]))
    return found


def measure_retrieve(subject: Subject, seconds: float) -> dict[str, float]:
    """Whole answers in the process: match, filter, score, rank, full passes."""
    options = subject.options
    asked = []
    for body in requests(options.seed, 8 * BATCH_MAX, vectors=(options.dim, options.gate_dim, options.experts)):
        attributes = parse_attributes(subject.schema, body["attributes"], body.get("timezone"))
        user = parse_user(body["user"], options.dim, options.gate_dim, options.experts, "user")
        asked.append(Request(attributes, (Pathway("main", body["k"], user=user),), body.get("max_per", {})))
    answered, scored, score_ms = 0, 0, 0.0
    retrieve(subject.index, asked[:BATCH_MAX])
    began = time.perf_counter()
    while not answered or time.perf_counter() - began < seconds:
        for start in range(0, len(asked), BATCH_MAX):
            answers = retrieve(subject.index, asked[start : start + BATCH_MAX])
            answered += len(answers)
            scored += sum(answer.eligible for answer in answers)
            score_ms += answers[0].timings_ms["score"]
    elapsed = time.perf_counter() - began
    return {
        "requests_per_s": answered / elapsed,
        "scored_per_s": scored / (score_ms / 1e3) if score_ms else 0.0,
        "score_share_of_time": score_ms / 1e3 / elapsed,
    }
