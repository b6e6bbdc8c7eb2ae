"""`merge` and `rank`: from lists of entries to the k best in their order, whatever is equal among them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.asked import JOB_ITEMS, MERGED_FIRST, OUT_FIRST, K
from kernels.cuda.merge import MERGE_THREADS, RANK_THREADS, merge, rank
from kernels.cuda.types import TOP_K_MAX, Device
from kernels.precision import Precision
from tests.gpu.ads import Ads, on_device, random_ads, upload
from tests.gpu.cases import cases_of

KINDS = ("different", "all equal", "few", "zeros", "near")
COUNTS = ((1, 1), (5, 1), (7, 20), (255, 255), (256, 300), (300, 256), (257, 257), (900, 513), (0, 9))


class List(NamedTuple):
    slots: NDArray[np.uint32]
    orders: NDArray[np.float64]
    scores: NDArray[np.float32]
    k: int


def random_list(rng: np.random.Generator, ads: Ads, kind: str, count: int, k: int) -> List:
    orders = {
        "different": rng.lognormal(size=count), "all equal": np.full(count, 0.75), "zeros": np.zeros(count),
        "few": rng.choice([0.0, 0.25, 3.0], count), "near": 1.0 + rng.integers(0, count + 1, count) * 2.0**-52,
    }[kind]  # fmt: skip
    slots = rng.permutation(ads.count)[:count].astype(np.uint32)
    return List(slots, orders, rng.random(count).astype(np.float32), k)


def check_lists(device: Device, ads: Ads, lists: list[List]) -> None:
    columns, table = on_device(device, ads), np.zeros((len(lists), JOB_ITEMS), np.uint64)
    ks, counts = np.array([each.k for each in lists]), np.array([len(each.slots) for each in lists])
    rooms = np.maximum(ks, counts)
    table[:, K], table[:, OUT_FIRST] = ks, np.cumsum(ks) - ks
    table[:, MERGED_FIRST] = np.cumsum(rooms) - rooms
    entries = [np.full(rooms.sum(), 0xFF, kind) for kind in (np.float64, np.uint32, np.float32)]
    for first, each in zip(table[:, MERGED_FIRST].tolist(), lists, strict=True):
        for whole, part in zip(entries, (each.orders, each.slots, each.scores), strict=True):
            whole[first : first + len(part)] = part
    merged = [upload(device, part) for part in entries]
    jobs, held = upload(device, table), upload(device, counts.astype(np.uint32))
    device.launch(merge, len(lists), MERGE_THREADS, (jobs, columns.tie.table, columns.slots_log2, *merged, held))
    out = [device.empty(int(ks.sum()), kind) for kind in (np.uint32, np.float32, np.float64)]
    parts = -(-int(ks.max()) // RANK_THREADS)
    device.launch(
        rank, len(lists) * parts, RANK_THREADS,
        (jobs, parts, columns.bid.table, columns.tie.table, columns.slots_log2, *merged, held, *out),
    )  # fmt: skip
    slots, scores, values = (device.download(part) for part in out)
    for first, each in zip(table[:, OUT_FIRST].tolist(), lists, strict=True):
        right = np.lexsort((each.slots, ads.tie[each.slots], -each.orders))[: each.k]
        mine = slice(first, first + len(right))
        assert np.array_equal(slots[mine], each.slots[right])
        assert np.array_equal(scores[mine], each.scores[right])
        assert np.array_equal(values[mine], each.scores[right].astype(np.float64) * ads.bid[each.slots[right]])


@cases_of("merge_and_rank", [(kind, ties) for kind in KINDS for ties in ("different", "few", "equal")])
def check_merge_and_rank(device: Device, kind: str, ties: str) -> None:
    """Jobs of several sizes together: k of 1, lists that are empty, shorter and longer than k, whole parts and not."""
    rng = np.random.default_rng(len(kind) + len(ties))
    ads = random_ads(rng, Precision.INT8, 1000, 32, 16)
    if ties != "different":
        ads = ads._replace(tie=rng.integers(0, 5 if ties == "few" else 1, ads.count).astype(np.uint64))
    check_lists(device, ads, [random_list(rng, ads, kind, *counts) for counts in COUNTS])


@cases_of("largest_rank", [("different", TOP_K_MAX), ("all equal", 3000)])
def check_the_largest_ranks(device: Device, kind: str, k: int) -> None:
    rng = np.random.default_rng(3)
    ads = random_ads(rng, Precision.INT8, k, 32, 16)
    ads = ads._replace(tie=rng.integers(0, 100, ads.count).astype(np.uint64))
    check_lists(device, ads, [random_list(rng, ads, kind, k, k)])
