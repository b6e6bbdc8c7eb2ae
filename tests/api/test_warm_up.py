"""After the warm-up no event and no request waits for the compiler: a kernel that met another type of array then would
be compiled anew, which takes tens of seconds, with everything else waiting."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from numba.core.dispatcher import Dispatcher

from api.config import Settings
from api.requests import RequestParser
from api.warm_up import compile_apart, warm_up
from bench import ads as bench
from gpu_index import inspection
from gpu_index.disk import Folder
from gpu_index.events import AdEvent, Batch, Outcome
from gpu_index.index import Index, Limits
from gpu_index.manifest import Identity
from gpu_index.restore import restore
from gpu_index.schema import Schema
from gpu_index.snapshot import write
from gpu_index.store import Store
from ingest.decode import Decoder
from ingest.meta import compile_meta
from kernels.precision import Precision
from scoring.explain import explain
from scoring.retrieve import retrieve

SCHEMA = Schema.load()
DIM, GATE_DIM = 16, 4
LIMITS = Limits(ads=16_384, targetings=16_384, terms=2**17, expired=1024)
ADS, REQUESTS = 600, 40


def compiled() -> set[str]:
    """Every kernel of this process with every type of arguments that it was compiled for, or loaded."""
    return {
        f"{name}.{kernel.py_func.__name__}: {signature}"
        for name, module in list(sys.modules.items())
        if name.startswith("kernels.")
        for kernel in vars(module).values()
        if isinstance(kernel, Dispatcher)
        for signature in kernel.signatures
    }


class Work:
    """Events and requests of every shape, given to an index as ingest and the engine give them."""

    def __init__(self, precision: Precision, folder: Path) -> None:
        self.index = self._new(precision)
        self._precision, self._folder = precision, folder
        self._decoder = Decoder(SCHEMA, dim=DIM, gate_dim=GATE_DIM, compile_meta=compile_meta)
        self._parser = RequestParser.of(SCHEMA, Settings(dim=DIM, gate_dim=GATE_DIM, experts=2, allow_now=True))
        self._offsets = itertools.count()

    def _new(self, precision: Precision) -> Index:
        return Index(SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=precision, limits=LIMITS, expired_versions_s=60)

    def _batch(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> Sequence[Outcome]:
        events: list[AdEvent] = []
        for key, value in records:
            events.append(self._decoder.decode(key, value, 0, next(self._offsets), len(events)))
        return self.index.apply(Batch(events, {0: next(self._offsets)}, lambda *_: None), 10**15)

    def events(self) -> None:
        now = datetime.now(UTC)
        vectors = (DIM, GATE_DIM)
        made = list(bench.events(1, ADS, vectors=vectors, now=now)) + list(bench.events(2, 3, now=now))
        changed = list(bench.changes(1, ADS // 2, ADS, vectors=vectors, now=now))
        for some in (made[:ADS], made[ADS:], changed):
            self._batch((event["ad_id"].encode(), json.dumps(event).encode()) for event in some)
        assert self._batch([(None, b"{"), (None, None)]) == [Outcome.BAD, Outcome.BAD], "events of no ad"
        assert self._batch([(b"1", None)]) == [Outcome.EXPIRE_UNKNOWN]
        assert self._batch([]) == []

    def requests(self) -> None:
        bodies: list[Any] = [*bench.requests(3, REQUESTS), *bench.requests(4, REQUESTS, vectors=(DIM, GATE_DIM, 2)), {}]
        for number, body in enumerate(bodies):
            if number % 3 == 0:
                banner, bid = {"field": "format", "in": ["banner"]}, {"field": "bid", "between": [1, None]}
                body["filter"] = {"any": [banner, bid]}
            if number % 3 == 1:
                body |= {"exclude_ads": [bench.ad_id(0), "none"], "now": "2026-11-30T00:00:00Z", "rank_by": "score"}
        parsed = [self._parser.parse_object(body) for body in bodies]
        for request in parsed:
            retrieve(self.index, [request])
        retrieve(self.index, parsed)
        self.index.advance_clock(2 * 10**15)

    def operator(self) -> None:
        """What the admin routes do, and a restart from a snapshot."""
        inspection.describe(self.index)
        for ad_id in (bench.ad_id(1), "none"):
            inspection.ad(self.index, ad_id)
            explain(self.index, ad_id, self._parser.parse_object({}))
        store = Store(Folder(self._folder))
        identity = Identity("t", "i", "c", SCHEMA.fingerprint, None, DIM, GATE_DIM, self._precision.value)
        write(self.index, store, store.next_sequence(), identity, 0)
        store.publish(1)
        found = restore(store, identity, lambda: self._new(self._precision), lambda *_: None)
        assert found.index is not None
        assert found.index.count == self.index.count
        self.index = found.index


def compiled_by_work(precision: Precision, folder: Path) -> list[str]:
    """What is compiled after the warm-up, in a process that has compiled nothing else."""
    warm_up(SCHEMA, DIM, GATE_DIM, precision)
    before = compiled()
    assert before
    work = Work(precision, folder)
    for step in (work.events, work.requests, work.operator, work.events, work.requests):
        step()
    return sorted(compiled() - before)


@pytest.mark.parametrize("precision", [Precision.INT8])
def test_nothing_is_compiled_after_the_warm_up(precision: Precision, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as apart:
        assert apart.submit(compiled_by_work, precision, tmp_path).result() == []


@pytest.mark.parametrize(
    ("exit_code", "is_wanted", "goes_on"), [(0, False, True), (1, False, True), (-15, True, True), (-15, False, False)]
)
def test_a_signal_for_all_ends_the_compiling_for_good(
    exit_code: int, is_wanted: bool, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal to the group ends the process that compiles; a service that is to end too does not begin again."""
    mark = tmp_path / "mark"
    monkeypatch.setattr("api.warm_up.compiled_mark", lambda _precision: mark)
    ended = subprocess.CompletedProcess([], exit_code)
    monkeypatch.setattr("api.warm_up.subprocess.run", lambda *_arguments, **_options: ended)
    assert compile_apart(Precision.INT8, lambda: is_wanted) == goes_on
    assert mark.exists() == (exit_code == 0)
