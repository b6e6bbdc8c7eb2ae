"""`top_k` on a device: the right ads in the right order, whatever the masks, the ties, the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda import top_k as top_k_module
from kernels.cuda.buffers import Buffers
from kernels.cuda.top_k import top_k
from kernels.cuda.types import TOP_K_MAX, Device, DeviceColumns, TopKJob, UserVectors
from kernels.precision import Precision
from tests.gpu.ads import Ads, all_scores, assert_same, best, mask_of, on_device, random_ads, random_user, slots_of
from tests.gpu.cases import case, cases_of
from tests.gpu.score_cases import assert_right

DIM, GATE_DIM = 32, 16
HALF = np.float32(0.5)


def _ads(precision: Precision, count: int, seed: int = 1) -> Ads:
    return random_ads(np.random.default_rng(seed), precision, count, DIM, GATE_DIM)


def _answers(
    device: Device,
    columns: DeviceColumns,
    ads: Ads,
    wanted: list[tuple[NDArray[np.bool_], UserVectors | None, int, bool]],
) -> Any:
    """Of jobs given by (which ads, user, k, by value); equal masks by identity are one."""
    masks = {id(which): mask_of(device, which) for which, *_ in wanted}
    jobs = [TopKJob(masks[id(which)], user, k, by_value) for which, user, k, by_value in wanted]
    return top_k(device, columns, slots_of(ads.count), jobs)


@cases_of("top_k", [(Precision.INT8, 1000), (Precision.FLOAT16, 333), (Precision.FLOAT32, 65), (Precision.INT8, 9000)])
def check_top_k(device: Device, precision: Precision, count: int) -> None:
    """Users of one and of two tiles' experts, masks from empty to full; the scores are right and ranked right."""
    rng = np.random.default_rng(count)
    ads = _ads(precision, count)
    columns = on_device(device, ads)
    users = [random_user(rng, DIM, GATE_DIM, 4), random_user(rng, DIM, GATE_DIM, 3, 2)]
    if count < 9000:
        scores = all_scores(device, columns, ads, users)
        for user, row in zip(users, scores, strict=True):
            assert_right(row, ads, user)
    else:  # scored in two pages by several blocks: once for a few ads, so that the emulator has little to do
        scores = np.full((2, count), np.nan, np.float32)
    masks = [
        rng.random(count) < share for share in ((1.0, 0.3, 0.0, 0.02) if count < 9000 else (0.01, 0.02, 0.0, 0.03))
    ]
    wanted = [(masks[0], users[0], 17, True), (masks[1], None, 20, True), (masks[3], users[1], 10_000, False),
              (masks[2], users[1], 5, True), (masks[1], users[0], 3, False)]  # fmt: skip
    answers = _answers(device, columns, ads, wanted)
    if count >= 9000:
        everything = _answers(
            device, columns, ads, [(masks[0] | masks[1], users[0], 5000, False), (masks[3], users[1], 5000, False)]
        )
        for row, answer in zip(scores, everything, strict=True):
            row[answer.slots] = answer.scores
    for (which, user, k, by_value), got in zip(wanted, answers, strict=True):
        row = np.full(count, HALF) if user is None else scores[0 if user is users[0] else 1]
        assert not np.isnan(row[which]).any()
        assert_same(got, best(ads, row, which, k, by_value))


@cases_of("batch", [(1,), (2,), (7,), (70,)])
def check_batches(device: Device, size: int) -> None:
    """Each job has its own user, mask and k; some share a user, some have none. 70 take a pass of 64 and one of 6."""
    rng = np.random.default_rng(size)
    ads = _ads(Precision.INT8, 200)
    columns = on_device(device, ads)
    users = [random_user(rng, DIM, GATE_DIM, 1 + i % 5, 1 + i % 2 if i % 5 else 1) for i in range(min(size, 6))]
    scores = all_scores(device, columns, ads, users)
    wanted = []
    for j in range(size):
        user = None if j % 7 == 3 else users[j % len(users)]
        wanted.append((rng.random(ads.count) < rng.random(), user, int(rng.integers(1, 40)), bool(j % 3)))
    for (which, user, k, by_value), got in zip(wanted, _answers(device, columns, ads, wanted), strict=True):
        row = np.full(ads.count, HALF) if user is None else scores[[u is user for u in users].index(True)]
        assert_same(got, best(ads, row, which, k, by_value))


@case
def check_equal_ads(device: Device) -> None:
    """Every ad alike: buffers fill and are cut many times, and the ties decide, equal ties by slot."""
    count = 8192
    rng = np.random.default_rng(9)
    for ties in (rng.integers(0, 2**64, count, np.uint64), rng.integers(0, 3, count).astype(np.uint64)):
        ads = _ads(Precision.INT8, count)._replace(bid=np.full(count, 1.25), tie=ties)
        columns = on_device(device, ads)
        everyone, half = np.ones(count, np.bool_), rng.random(count) < 0.5
        wanted = [(everyone, None, 7, True), (half, None, 300, False)]
        for (which, _, k, by_value), got in zip(wanted, _answers(device, columns, ads, wanted), strict=True):
            assert_same(got, best(ads, np.full(count, HALF), which, k, by_value))


@cases_of("order", [("rising",), ("falling",), ("narrow",), ("far",)])
def check_bids_in_any_order(device: Device, kind: str) -> None:
    """Bids that rise or fall with the slot, that differ in their last bits, that span the range of float64."""
    count = 8192 + 2048
    rng = np.random.default_rng(2)
    bid = {
        "rising": np.arange(1, count + 1, dtype=np.float64),
        "falling": np.arange(count, 0, -1, dtype=np.float64),
        "narrow": 1.0 + rng.integers(0, 40, count) * 2.0**-52,
        "far": 10.0 ** rng.uniform(-320, 308, count),
    }[kind]
    ads = _ads(Precision.INT8, count)._replace(bid=bid)
    columns = on_device(device, ads)
    everyone = np.ones(count, np.bool_)
    wanted = [(everyone, None, 40, True), (everyone, None, 1, True), (everyone, None, 2000, True)]
    for (which, _, k, by_value), got in zip(wanted, _answers(device, columns, ads, wanted), strict=True):
        assert_same(got, best(ads, np.full(count, HALF), which, k, by_value))


@case
def check_kept_buffers(device: Device) -> None:
    """Passes of one, many and one job again, with working memory that others have used."""
    rng = np.random.default_rng(8)
    ads = _ads(Precision.INT8, 500)
    columns, buffers = on_device(device, ads), Buffers(device)
    for size, k in ((1, 300), (5, 7), (1, 20), (3, 500)):
        masks = [rng.random(500) < 0.6 for _ in range(size)]
        jobs = [TopKJob(mask_of(device, which), None, k + j, True) for j, which in enumerate(masks)]
        for j, got in enumerate(top_k(device, columns, slots_of(500), jobs, buffers)):
            assert_same(got, best(ads, np.full(500, HALF), masks[j], k + j, True))


@case
def check_largest_k(device: Device) -> None:
    ads = _ads(Precision.INT8, 777)
    columns = on_device(device, ads)
    wanted = [(np.ones(777, np.bool_), None, TOP_K_MAX, True), (np.arange(777) % 97 == 5, None, 10_000, False)]
    for (which, _, k, by_value), got in zip(wanted, _answers(device, columns, ads, wanted), strict=True):
        assert_same(got, best(ads, np.full(777, HALF), which, k, by_value))


@case
def check_passes_within_the_scratch(device: Device) -> None:
    """Jobs that need more scratch together than is allowed are done in several passes, a job that needs more alone in
    one of its own."""
    jobs = [TopKJob(mask_of(device, np.ones(8192, np.bool_)), None, k, True) for k in (1000, 10_000, 10_000, 5)]
    runs = top_k_module._passes(jobs, 8, 1 << 20)
    assert runs == [range(4)]
    limit = top_k_module.SCRATCH_BYTES_MAX
    top_k_module.SCRATCH_BYTES_MAX = 8 * (10_000 * 3 + 256) * 16 + 1
    try:
        runs = top_k_module._passes(jobs, 8, 1 << 20)
    finally:
        top_k_module.SCRATCH_BYTES_MAX = limit
    assert runs == [range(1), range(1, 2), range(2, 3), range(3, 4)]
