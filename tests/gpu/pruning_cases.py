"""The first look: ads whose gates are not read, and answers that are the same to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, int64, uint64
from numpy.typing import NDArray

from kernels.cuda.asked import BINS, bin_of, edge_of
from kernels.cuda.raw import load_u64, store_u64
from kernels.cuda.top_k import top_k
from kernels.cuda.types import Device, TopK, TopKJob, UserVectors
from kernels.precision import Precision
from tests.gpu.ads import (
    Ads,
    all_scores,
    assert_same,
    best,
    make_ads,
    mask_of,
    on_device,
    random_ads,
    random_user,
    slots_of,
    upload,
)
from tests.gpu.cases import case, cases_of

INT8, FLOAT16, FLOAT32 = Precision.INT8, Precision.FLOAT16, Precision.FLOAT32
COUNT, STRONG, K = 512, 64, 20  # one warp has them all, and sees the strong ones first
Job = tuple[NDArray[np.bool_], UserVectors, int, bool]


def _answers(device: Device, ads: Ads, jobs: list[Job]) -> list[TopK]:
    masks = {id(which): mask_of(device, which) for which, *_ in jobs}
    wanted = [TopKJob(masks[id(which)], user, k, by_value) for which, user, k, by_value in jobs]
    return top_k(device, on_device(device, ads), slots_of(ads.count), wanted)


def _poisoned(ads: Ads, first: int) -> Ads:
    """With gates, from a slot on, that make every score NaN."""
    gate_scale = ads.columns.gate_scale.copy()
    gate_scale[first:] = np.nan
    return ads._replace(columns=ads.columns._replace(gate_scale=gate_scale))


@cases_of("gates_not_read", [(INT8, 32, 8, 1.5), (INT8, 96, 16, -1.5), (INT8, 256, 3, 1.5), (FLOAT16, 64, 8, 1.5)])
def check_gates_are_not_read(device: Device, precision: Precision, dim: int, experts: int, temperature: float) -> None:
    """Once k strong ads are scored, the weak ones are passed over: their gates may be anything."""
    rng = np.random.default_rng(dim + experts)
    user = random_user(rng, dim, 16, experts)
    alike = (user.experts[:1] + 0.1 * user.experts).astype(np.float32)  # experts that agree
    user = user._replace(experts=alike, temperature=temperature)
    toward = 6 * user.experts[0] * np.sign(temperature)
    vectors = rng.normal(size=(COUNT, dim)) * 0.1 + np.where(np.arange(COUNT) < STRONG, 1, -1)[:, None] * toward
    ads = make_ads(
        precision, vectors.astype(np.float32), rng.normal(size=(COUNT, 16)).astype(np.float32),
        rng.uniform(1.0, 1.1, COUNT), rng.integers(0, 2**64, COUNT, np.uint64),
    )  # fmt: skip
    scores = all_scores(device, on_device(device, ads), ads, [user])[0]
    everyone = np.ones(COUNT, np.bool_)
    jobs: list[Job] = [(everyone, user, K, True), (everyone, user, 7, False)]
    for job, got in zip(jobs, _answers(device, _poisoned(ads, STRONG), jobs), strict=True):
        assert_same(got, best(ads, scores, everyone, job[2], job[3]))
    reached = _answers(device, _poisoned(ads, 0), jobs)[0]
    assert np.isnan(reached.scores).all()  # so the poison works


def _random_jobs(rng: np.random.Generator, users: list[UserVectors], count: int) -> list[Job]:
    """Several of a user, by value and by score, of masks of their own."""
    everyone, half = np.ones(count, np.bool_), rng.random(count) < 0.5
    jobs: list[Job] = []
    for i, user in enumerate(users):
        jobs += [(everyone, user, 5 + i, True), (half, user, 30, False), (half, user, 3, True)]
    return jobs


@cases_of(
    "pruned",
    [(INT8, 64, 8, 8, 3.0), (INT8, 128, 8, 2, -2.0), (INT8, 64, 5, 5, 0.0), (INT8, 64, 8, 8, 1e25),
     (INT8, 64, 8, 8, 40.0), (FLOAT16, 64, 9, 9, 3.0), (FLOAT32, 32, 8, 8, 3.0)],
)  # fmt: skip
def check_pruned_answers(
    device: Device, precision: Precision, dim: int, experts: int, route: int, temperature: float
) -> None:
    """As without a first look: k of all ads, where nothing is ever asked. At temperature 0 every score is the same, and
    exactly what is asked; at 1e25 there is no look; at 40 most scores are 0 or nearly 1."""
    rng = np.random.default_rng(dim + experts)
    count = 1500
    ads = random_ads(rng, precision, count, dim, 16)
    ads = ads._replace(tie=rng.integers(0, 40, count).astype(np.uint64))
    users = [
        random_user(rng, dim, 16, experts, route)._replace(temperature=temperature, bias=bias) for bias in (-3.0, 1.0)
    ]
    scores = all_scores(device, on_device(device, ads), ads, users)
    jobs = _random_jobs(rng, users, count)
    for (which, user, k, by_value), got in zip(jobs, _answers(device, ads, jobs), strict=True):
        assert_same(got, best(ads, scores[0 if user is users[0] else 1], which, k, by_value))


@cases_of("in_order", [("rising",), ("falling",)])
def check_ads_in_the_order_of_their_scores(device: Device, kind: str) -> None:
    """Rising: each ad is better than all before, and nothing can be passed over."""
    rng = np.random.default_rng(31)
    user = random_user(rng, 32, 16, 4)
    length = np.linspace(-3, 3, COUNT) * (1 if kind == "rising" else -1)
    ads = make_ads(
        INT8, (length[:, None] * user.experts.sum(axis=0)).astype(np.float32), np.zeros((COUNT, 16), np.float32),
        np.ones(COUNT), np.zeros(COUNT, np.uint64),
    )  # fmt: skip
    scores = all_scores(device, on_device(device, ads), ads, [user])[0]
    everyone = np.ones(COUNT, np.bool_)
    (got,) = _answers(device, ads, [(everyone, user, K, False)])
    assert_same(got, best(ads, scores, everyone, K, False))


@cuda.jit
def bins_and_edges(orders: Any, by_value: Any, bins: Any, edges: Any) -> None:
    i = uint64(cuda.grid(1))
    bin_ = bin_of(load_u64(orders, i), uint64(by_value))
    store_u64(bins, i, bin_)
    store_u64(edges, i, edge_of(int64(bin_), uint64(by_value)))


@case
def check_bins_of_orders(device: Device) -> None:
    """Bins rise with the orders, and no order lies below its bin's edge, nor far above it but in the last ones."""
    rng = np.random.default_rng(6)
    scores = np.concatenate(
        [1 / (1 + np.exp(-rng.uniform(-25, 25, 3000))), [0.0, 0.5, 1.0, 1 - 2.0**-24, 2.0**-24, 1e-45]]
    ).astype(np.float32)
    for by_value, drawn in ((1, 10.0 ** rng.uniform(-20, 20, 4000)), (0, scores.astype(np.float64))):
        orders = np.sort(np.resize(drawn, 4096)).view(np.uint64)
        bins, edges = (upload(device, np.zeros(4096, np.uint64)) for _ in range(2))
        device.launch(bins_and_edges, 32, 128, (upload(device, orders), by_value, bins, edges))
        found, edge = device.download(bins), device.download(edges)
        assert (np.diff(found.astype(np.int64)) >= 0).all()
        assert found.max() < BINS
        assert (edge <= orders).all()
        least, values = edge.view(np.float64), orders.view(np.float64)
        inside = (values > 2.0**-39) & (values < 2.0**23) if by_value else (values > 2.0**-23) & (values < 0.999999)
        least, values = least[inside], values[inside]
        near = values if by_value else np.minimum(values, 1 - values)
        assert (values - least <= near / 7).all()
