"""The steps of `bench.gpu` that match: rows over targetings, expansion to ads, the whole pipeline, events beside it.

Rows are random: each of the attributes is constrained by one in 16 targetings, and of those few pass, so that about a
tenth of all are left at the end and hardly a warp may stop before."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from bench.gpu_steps import THREADS, Bench, step
from kernels.cuda.types import DeviceArray, TopKJob
from kernels.plan import SERVICE_CLOCK, STEP_BEGINS, STEP_ENDS, STEP_GROUP
from kernels.precision import Precision
from kernels.rows import USED_ROW

ATTRIBUTES = 40
VALUES = 2  # rows of values of each
CONSTRAINED, VALUE = 1 / 16, 1 / 32  # shares of bits
ADS_PER_TARGETING = 30
PATCH_UNITS = 12  # of 16 bytes that the create of an ad writes
EVENTS_S = 1_000_000


class Rows(NamedTuple):
    table: DeviceArray
    units_log2: int
    units: int
    steps: DeviceArray
    starts: DeviceArray
    rows: int
    data: DeviceArray


def _rows(bench: Bench, targetings: int) -> Rows:
    """One page for each row."""
    from kernels.cuda.probe import fill_bits

    rows = ATTRIBUTES * (1 + VALUES) + USED_ROW + 1
    free, _ = bench.device.memory()
    block = 32_768
    fit = int(free * bench.sizes.memory_share) // rows * 8
    targetings = max(min(targetings, fit) // block, 1) * block
    units_log2 = (targetings // 128 - 1).bit_length()
    stride = (1 << units_log2) * 16
    while stride * rows > free * bench.sizes.memory_share and units_log2 > 8:
        units_log2, stride = units_log2 - 1, stride // 2
    units = min(targetings // 128, 1 << units_log2)
    data = bench.device.empty(rows * stride, np.uint8)
    listed, at = [], USED_ROW + 1
    for r in range(rows):
        share = 1.0 if r == USED_ROW else CONSTRAINED if (r - at) % (1 + VALUES) == 0 else VALUE
        part = data.at(r * stride, stride)
        bench.launch(fill_bits, part, stride // 4, share, r)
    for a in range(ATTRIBUTES):
        first = at + a * (1 + VALUES)
        listed += [first | STEP_BEGINS, *(first + v for v in range(1, VALUES)), first + VALUES | STEP_ENDS]
    listed += [USED_ROW] * (-len(listed) % STEP_GROUP)
    table = bench.upload(np.array([data.address + r * stride for r in range(rows)], np.uint64))
    steps = bench.upload(np.array(listed, np.uint32))
    return Rows(table, units_log2, units, steps, bench.upload(np.array([0, len(listed)], np.int64)), rows, data)


def _match(bench: Bench, rows: Rows, matched: DeviceArray) -> None:
    from kernels.cuda.match import MATCH_BLOCK, match

    blocks = -(-rows.units * 128 // MATCH_BLOCK)
    bench.device.launch(
        match, blocks, THREADS,
        (rows.table, 1, rows.units_log2, matched, rows.units, rows.steps, rows.starts, 1, rows.units, matched),
    )  # fmt: skip


@step
def match_every_targeting_distinct(bench: Bench) -> dict[str, Any]:
    rows = _rows(bench, bench.sizes.targetings)
    matched = bench.device.empty(rows.units * 4, np.uint32)
    took = bench.time(lambda: _match(bench, rows, matched))
    left = int(np.bitwise_count(bench.device.download(matched.at(0, min(rows.units, 1 << 18) * 4))).sum())
    read = (ATTRIBUTES * (1 + VALUES) + 1) * rows.units * 16
    return {
        "targetings": rows.units * 128, "left_share": left / (min(rows.units, 1 << 18) * 128),
        "ads_s": rows.units * 128 / took["median_s"], "read_bytes_s": read / took["median_s"], **took,
    }  # fmt: skip


class _Pipeline:
    """From the rows of a thirtieth as many targetings to the best ads."""

    def __init__(self, bench: Bench) -> None:
        from kernels.cuda.buffers import Buffers
        from kernels.cuda.probe import fill_bits, fill_quotients

        self.bench, device = bench, bench.device
        self.columns, self.slots = bench.ads(Precision.INT8, bench.sizes.ads)
        self.rows = _rows(bench, -(-self.slots // ADS_PER_TARGETING))
        self.matched = device.empty(self.rows.units * 4, np.uint32)
        self.mask, self.counts = device.empty(self.slots // 32, np.uint32), device.zeros(64, np.uint32)
        divisor = max(ADS_PER_TARGETING, -(-self.slots // (self.rows.units * 128)))
        targeting = device.empty(self.slots, np.uint32)
        bench.launch(fill_quotients, targeting, self.slots, divisor)
        live = device.empty(self.slots // 32, np.uint32)
        bench.launch(fill_bits, live, self.slots // 32, 1.0, 0)
        page = 1 << bench.sizes.page_log2
        self.tables = [
            bench.upload(np.array([data.address + p * page * bits // 8 for p in range(self.slots // page)], np.uint64))
            for data, bits in ((targeting, 32), (live, 1))
        ]
        self.now = bench.upload(np.array([SERVICE_CLOCK], np.int64))
        self.held = (targeting, live)
        self.job = TopKJob(self.mask, bench.user(0), bench.sizes.k, True)
        self.buffers = Buffers(device)

    def expand(self) -> None:
        from kernels.cuda.ads import ELIGIBLE_BLOCK, eligible

        targeting, live = self.tables
        self.bench.device.launch(
            eligible, self.slots // ELIGIBLE_BLOCK, THREADS,
            (self.bench.sizes.page_log2, targeting, live, live, live, live, self.matched, self.rows.units, 1, self.now,
             self.mask, self.slots // 32, self.counts),
        )  # fmt: skip

    def run(self) -> None:
        from kernels.cuda.top_k import top_k

        _match(self.bench, self.rows, self.matched)
        self.expand()
        top_k(self.bench.device, self.columns, self.slots, [self.job], self.buffers)

    def eligible_share(self) -> float:
        words = self.bench.device.download(self.mask.at(0, min(self.slots // 32, 1 << 20)))
        return float(np.bitwise_count(words).sum() / (32 * len(words)))

    def report(self, took: dict[str, Any]) -> dict[str, Any]:
        share = self.eligible_share()
        return {"slots": self.slots, "ads_s": self.slots / took["median_s"], "eligible_share": share, **took}


@step
def match_and_expand_30_ads_a_targeting(bench: Bench) -> dict[str, Any]:
    whole = _Pipeline(bench)

    def run() -> None:
        _match(bench, whole.rows, whole.matched)
        whole.expand()

    return whole.report(bench.time(run))


@step
def whole_pipeline(bench: Bench) -> dict[str, Any]:
    whole = _Pipeline(bench)
    return whole.report(bench.time(whole.run))


@step
def events_beside_queries(bench: Bench) -> dict[str, Any]:
    """The delta of as many creates as a million a second make in the time of a pass, uploaded and written before each
    pass of the pipeline; and passes with nothing beside."""
    from kernels.cuda.ads import patch

    whole = _Pipeline(bench)
    alone = _passes(bench, whole.run)
    events = max(int(np.median(alone) * EVENTS_S), 1)
    units = events * PATCH_UNITS
    rng = np.random.default_rng(0)
    places = rng.choice(whole.slots * whole.columns.embedding.item_bytes // 16, units, replace=False)
    first = int(bench.device.download(whole.columns.embedding.table.at(0, 1))[0])
    addresses, data = (
        places.astype(np.uint64) * np.uint64(16) + np.uint64(first),
        rng.integers(0, 2**64, 2 * units, np.uint64),
    )
    to, values = bench.device.empty(units, np.uint64), bench.device.empty(2 * units, np.uint64)

    def run() -> None:
        bench.device.upload(addresses, to)
        bench.device.upload(data, values)
        bench.device.launch(patch, -(-units // THREADS), THREADS, (to, values, units))
        whole.run()

    beside = _passes(bench, run)
    return {
        "events_a_pass": events, "events_s": events / float(np.median(beside)),
        "p50_alone_s": float(np.median(alone)), "p99_alone_s": float(np.percentile(alone, 99)),
        "p50_beside_s": float(np.median(beside)), "p99_beside_s": float(np.percentile(beside, 99)),
    }  # fmt: skip


def _passes(bench: Bench, run: Any) -> list[float]:
    run()
    end = min(perf_counter() + bench.sizes.seconds, bench.deadline)
    took: list[float] = []
    while len(took) < 10 * bench.sizes.repeats and (len(took) < 3 or perf_counter() < end):
        started = perf_counter()
        run()
        bench.device.synchronise()
        took.append(perf_counter() - started)
    return took
