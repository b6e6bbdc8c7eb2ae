"""The steps of `bench.gpu`: what each measures, on any device, at sizes that fit it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from kernels.cuda.types import Device, DeviceArray, DeviceColumns, PagedColumn, TopKJob, UserVectors
from kernels.precision import Precision, row_width, storage_dtype

THREADS = 256
ANY = np.uint64(2**64 - 1)
# bits that random vectors may have: without the highest of each exponent they are finite, and below 2
KEPT = {
    Precision.INT8: ANY, Precision.FLOAT16: np.uint64(0xBFFF_BFFF_BFFF_BFFF),
    Precision.FLOAT32: np.uint64(0xBFFF_FFFF_BFFF_FFFF),
}  # fmt: skip
STEPS: dict[str, Callable[[Bench], dict[str, Any]]] = {}


class Sizes(NamedTuple):
    """What is measured; tests with the emulated device have tiny ones."""

    ads: int = 100_000_000  # at most
    peer_ads: int = 20_000_000  # with torch and cuVS, which need float16 or float32 copies
    targetings: int = 256 * 1024 * 1024  # at most, each distinct
    read_bytes: int = 8 << 30
    dim: int = 128
    gate_dim: int = 32
    experts: int = 8
    batch: int = 32
    k: int = 100
    blocks: int = 1056  # of kernels that fill and read
    page_log2: int = 20
    memory_share: float = 0.6  # of what is free
    seconds: float = 4.0  # of repeating one thing, at most
    repeats: int = 30


class Bench:
    """The device, and how long things take on it."""

    def __init__(self, device: Device, sizes: Sizes, deadline: float) -> None:
        self.device, self.sizes, self.deadline = device, sizes, deadline
        self._ads: dict[tuple[Precision, int], tuple[DeviceColumns, int]] = {}

    def forget(self) -> None:
        """Gives back the ads of a step."""
        self._ads.clear()

    def time(self, run: Callable[[], object]) -> dict[str, float]:
        """Runs once for the compiler, then again and again. -> median and shortest seconds, and how often"""
        run()
        self.device.synchronise()
        end = min(perf_counter() + self.sizes.seconds, self.deadline)
        took: list[float] = []
        while len(took) < self.sizes.repeats and (len(took) < 3 or perf_counter() < end):
            started = perf_counter()
            run()
            self.device.synchronise()
            took.append(perf_counter() - started)
        return {"median_s": float(np.median(took)), "shortest_s": min(took), "times": float(len(took))}

    def launch(self, kernel: Any, *arguments: Any) -> None:
        self.device.launch(kernel, self.sizes.blocks, THREADS, arguments)

    def ads(self, precision: Precision, ads_max: int) -> tuple[DeviceColumns, int]:
        """Ads made on the device: as many as fit, at most `ads_max`. -> columns, slots"""
        held = self._ads.get((precision, ads_max))
        if held is None:
            self._ads.clear()
            held = self._ads[precision, ads_max] = self._made(precision, ads_max)
        return held

    def _made(self, precision: Precision, ads_max: int) -> tuple[DeviceColumns, int]:
        from kernels.cuda.probe import fill_bids, fill_random, fill_scales

        sizes, item = self.sizes, storage_dtype(precision).itemsize
        row, gate_row = row_width(sizes.dim, precision) * item, row_width(sizes.gate_dim, precision) * item
        free, _ = self.device.memory()
        fit = int(free * sizes.memory_share) // (row + gate_row + 4 + 4 + 8 + 8)
        page = 1 << sizes.page_log2
        slots = max(min(fit, ads_max) // page, 1) * page
        columns = []
        for bytes_, seed in ((row, 1), (4, 0), (gate_row, 2), (4, 0), (8, -1), (8, 3)):
            data = self.device.empty(slots * bytes_, np.uint8)
            if seed > 0:
                kept = KEPT[precision] if bytes_ != 8 else ANY
                self.launch(fill_random, data, slots * bytes_ // 8, seed, kept)
            elif seed == 0:
                self.launch(fill_scales, data, slots, 2.0**-7 / (1 if precision is Precision.INT8 else 256))
            else:
                self.launch(fill_bids, data, slots, 4)
            pages = np.array([data.address + p * page * bytes_ for p in range(slots // page)], np.uint64)
            table = self.upload(pages)
            columns.append(PagedColumn(table._replace(owner=(table.owner, data.owner)), bytes_))
        return DeviceColumns(sizes.page_log2, precision, sizes.dim, sizes.gate_dim, *columns), slots

    def upload(self, host: Any) -> DeviceArray:
        array = self.device.empty(host.shape, host.dtype)
        self.device.upload(host, array)
        return array

    def mask(self, slots: int, share: float) -> DeviceArray:
        from kernels.cuda.probe import fill_bits

        mask = self.device.empty(slots // 32, np.uint32)
        if share >= 1:
            self.device.upload(np.full(slots // 32, 0xFFFFFFFF, np.uint32), mask)
        else:
            self.launch(fill_bits, mask, slots // 32, float(share), 5)
        return mask

    def user(self, seed: int, experts: int | None = None) -> UserVectors:
        rng, count = np.random.default_rng(seed), experts or self.sizes.experts
        return UserVectors(
            (rng.normal(size=(count, self.sizes.dim)) / self.sizes.dim).astype(np.float32),
            (rng.normal(size=(count, self.sizes.gate_dim)) / self.sizes.gate_dim).astype(np.float32),
            np.zeros(count, np.float32), 1.0, -2.0, count,
        )  # fmt: skip


def step(function: Callable[[Bench], dict[str, Any]]) -> Callable[[Bench], dict[str, Any]]:
    STEPS[function.__name__] = function
    return function


@step
def read_bandwidth(bench: Bench) -> dict[str, Any]:
    """A kernel that does nothing but read: the limit of all that follow."""
    from kernels.cuda.probe import UNROLLED, fill_random, read_units

    whole = bench.sizes.blocks * THREADS * UNROLLED * 16
    size = (
        max(min(bench.sizes.read_bytes, int(bench.device.memory()[0] * bench.sizes.memory_share)) // whole, 1) * whole
    )
    data, out = bench.device.empty(size, np.uint8), bench.device.empty(1, np.uint64)
    bench.launch(fill_random, data, size // 8, 1, ANY)
    took = bench.time(lambda: bench.launch(read_units, data, size // 16, out))
    return {"bytes": size, "read_bytes_s": size / took["median_s"], **took}


def _scan(bench: Bench, precision: Precision, users: int, share: float, plain: bool = False) -> dict[str, Any]:
    from kernels.cuda.buffers import Buffers
    from kernels.cuda.probe import plain_scorer
    from kernels.cuda.score import scorer
    from kernels.cuda.top_k import top_k

    columns, slots = bench.ads(precision, bench.sizes.ads)
    mask, buffers = bench.mask(slots, share), Buffers(bench.device)
    jobs = [TopKJob(mask, bench.user(i, 1 if plain else None), bench.sizes.k, True) for i in range(users)]
    make = plain_scorer if plain else scorer
    took = bench.time(lambda: top_k(bench.device, columns, slots, jobs, buffers, make))
    ad_bytes = columns.embedding.item_bytes + 12.125  # at least: gates are read of those that may reach what is asked
    return {
        "slots": slots, "users": users, "eligible_share": share, "ads_s": slots / took["median_s"],
        "pairs_s": users * slots * share / took["median_s"],
        "read_bytes_s": (slots * share * (ad_bytes - 0.125) + slots / 8) / took["median_s"], **took,
    }  # fmt: skip


@step
def score_every_ad_int8(bench: Bench) -> dict[str, Any]:
    return _scan(bench, Precision.INT8, 1, 1.0)


@step
def plain_dot_of_the_same_bytes(bench: Bench) -> dict[str, Any]:
    return _scan(bench, Precision.INT8, 1, 1.0, plain=True)


@step
def score_every_ad_for_a_batch(bench: Bench) -> dict[str, Any]:
    return _scan(bench, Precision.INT8, bench.sizes.batch, 1.0)


@step
def score_a_tenth(bench: Bench) -> dict[str, Any]:
    return _scan(bench, Precision.INT8, 1, 0.1)


@step
def score_a_hundredth(bench: Bench) -> dict[str, Any]:
    return _scan(bench, Precision.INT8, 1, 0.01)


@step
def score_every_ad_float16(bench: Bench) -> dict[str, Any]:
    return _scan(bench, Precision.FLOAT16, 1, 1.0)


@step
def score_every_ad_float32(bench: Bench) -> dict[str, Any]:
    return _scan(bench, Precision.FLOAT32, 1, 1.0)


@step
def largest_k(bench: Bench) -> dict[str, Any]:
    bench.sizes = bench.sizes._replace(k=10_000)
    try:
        return _scan(bench, Precision.INT8, 1, 1.0)
    finally:
        bench.sizes = bench.sizes._replace(k=100)


def _peer_missing(name: str) -> dict[str, Any] | None:
    return None if importlib.util.find_spec(name) else {"skipped": f"{name} is not installed"}


@step
def torch_matmul_mask_topk(bench: Bench) -> dict[str, Any]:
    """The straightforward way, in float16: a product, a mask, topk."""
    missing = _peer_missing("torch")
    if missing:
        return missing
    import torch

    if not torch.cuda.is_available():
        return {"skipped": "torch sees no GPU"}
    n, dim = bench.sizes.peer_ads, bench.sizes.dim
    ads = torch.randn((n, dim), dtype=torch.float16, device="cuda")
    wanted, user = torch.rand(n, device="cuda") < 0.1, torch.randn((dim, 1), dtype=torch.float16, device="cuda")

    def run() -> None:
        scores = (ads @ user)[:, 0].float().masked_fill_(~wanted, float("-inf"))
        torch.topk(scores, bench.sizes.k)
        torch.cuda.synchronize()

    took = bench.time(run)
    return {"ads": n, "ads_s": n / took["median_s"], **took}


@step
def cuvs_brute_force(bench: Bench) -> dict[str, Any]:
    """cuVS brute force with a bitmap of a tenth of the ads, where it is installed."""
    missing = _peer_missing("cuvs")
    if missing:
        return missing
    import cupy
    from cuvs.neighbors import brute_force, filters

    n, dim = bench.sizes.peer_ads, bench.sizes.dim
    ads = cupy.random.standard_normal((n, dim), dtype=cupy.float32)
    index = brute_force.build(ads, metric="inner_product")
    bits = cupy.random.randint(0, 2**32, n // 32, dtype=cupy.uint32) & cupy.random.randint(
        0, 2**32, n // 32, dtype=cupy.uint32
    )
    user = cupy.random.standard_normal((1, dim), dtype=cupy.float32)
    took = bench.time(lambda: brute_force.search(index, user, bench.sizes.k, prefilter=filters.from_bitmap(bits)))
    return {"ads": n, "ads_s": n / took["median_s"], **took}
