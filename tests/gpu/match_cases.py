"""Matching, eligibility and what moves bitmaps, kernel by kernel, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.ads import (
    ELIGIBLE_BLOCK,
    THREADS,
    copy_units,
    eligible,
    exclude,
    patch,
    zero_units,
)
from kernels.cuda.match import MATCH_BLOCK, match, scatter
from kernels.cuda.types import Device, DeviceArray
from kernels.plan import SERVICE_CLOCK, STEP_BEGINS, STEP_ENDS, STEP_EXCLUDES, STEP_GROUP, STEP_ROW, STEP_SCRATCH
from tests.gpu.cases import case, cases_of

NOW_US = 1_000_000


def upload(device: Device, host: NDArray[Any]) -> DeviceArray:
    array = device.empty(max(host.size, 1), host.dtype)
    if host.size:
        device.upload(host.reshape(-1), array)
    return array


def in_pages(device: Device, rng: np.random.Generator, host: NDArray[Any], page_bytes: int) -> tuple[DeviceArray, Any]:
    """Rows of bytes in pages that lie in any order. -> table [row, page], and what keeps them"""
    data = host.reshape(len(host), -1).view(np.uint8)
    pages = -(-data.shape[1] // page_bytes)
    held = device.empty(len(host) * pages * page_bytes, np.uint8)
    order = rng.permutation(len(host) * pages)
    for place, number in enumerate(order.tolist()):
        row, page = divmod(place, pages)
        part = data[row, page * page_bytes : (page + 1) * page_bytes]
        device.upload(part, held.at(number * page_bytes, len(part)))
    addresses = np.uint64(held.address) + order.astype(np.uint64) * np.uint64(page_bytes)
    return upload(device, addresses), held


def matched(rows: NDArray[np.uint64], scratch: NDArray[np.uint64], steps: list[int]) -> NDArray[np.uint64]:
    """What the steps leave of row 0."""
    left, group = rows[0].copy(), np.zeros_like(rows[0])
    for step in steps:
        row = (scratch if step & STEP_SCRATCH else rows)[step & STEP_ROW]
        if step & STEP_BEGINS:
            group = ~row
        elif step & STEP_EXCLUDES:
            left &= ~row
        else:
            group |= row
        if step & STEP_ENDS:
            left &= group
    return left


def random_steps(rng: np.random.Generator, rows: int, scratch: int, groups: int) -> list[int]:
    """Groups of a row that constrains and some values, the last step of each ending it; then what is excluded."""
    steps: list[int] = []
    for _ in range(groups):
        steps.append(int(rng.integers(1, rows)) | STEP_BEGINS)
        for _ in range(rng.integers(0, 4)):
            one_of_scratch = scratch and rng.random() < 0.3
            steps.append(int(rng.integers(scratch)) | STEP_SCRATCH if one_of_scratch else int(rng.integers(1, rows)))
        steps[-1] |= STEP_ENDS
    steps += [int(rng.integers(1, rows)) | STEP_EXCLUDES for _ in range(rng.integers(0, 3))]
    if scratch and rng.random() < 0.5:
        steps.append(int(rng.integers(scratch)) | STEP_SCRATCH | STEP_EXCLUDES)
    return steps + [0] * (-len(steps) % STEP_GROUP)


@cases_of("check_match", [(1,), (2,), (63,), (64,), (65,), (255,), (256,), (257,), (600,)])
def check_match(device: Device, units: int) -> None:
    """Rows of `units` units; requests without a step, with a few, and with more than a block has room for at once."""
    rng = np.random.default_rng(units)
    count, places = 24, 3
    shares = np.where(np.arange(count) == 0, 0.9, rng.choice([0.0, 0.02, 0.5, 0.97, 1.0], count))
    bits = rng.random((count, units * 128)) < shares[:, None]
    rows = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    scratch = np.packbits(rng.random((places, units * 128)) < 0.3, axis=1, bitorder="little").view(np.uint64)
    asked = [[], *(random_steps(rng, count, places, groups) for groups in (1, 2, 3, 9)), [3] * 1028]
    asked[-1][-1] |= STEP_EXCLUDES  # beyond two rounds of addresses
    starts = np.cumsum([0, *map(len, asked)])
    page_log2 = 8
    table, held = in_pages(device, rng, rows, 16 << page_log2)
    sent = [upload(device, np.concatenate([np.array(steps, np.uint32) for steps in asked]))]
    sent.append(upload(device, starts.astype(np.int64)))
    out = device.empty((len(asked), units * 2), np.uint64)
    device.launch(
        match, len(asked) * -(-units * 128 // MATCH_BLOCK), THREADS,
        (
            table, -(-units // (1 << page_log2)), page_log2, upload(device, scratch), units,
            *sent, len(asked), units, out,
        ),
    )  # fmt: skip
    got = device.download(out)
    for row, steps in zip(got, asked, strict=True):
        assert np.array_equal(row, matched(rows, scratch, steps))
    assert held


@case
def check_scatter(device: Device) -> None:
    rng = np.random.default_rng(1)
    words_log2, stride, rows = 6, 64, 5
    postings = rng.integers(0, stride * 32, 900).astype(np.uint32)
    chunks = np.zeros((60, 4), np.uint32)
    chunks[:, 1] = rng.choice([0, 1, 2, 31, 32, 33, 100], 60)
    chunks[:, 0] = rng.integers(0, 900 - chunks[:, 1].astype(np.int64))
    chunks[:, 2] = rng.integers(0, rows, 60)
    table, held = in_pages(device, rng, postings[None], 4 << words_log2)
    scratch = device.empty(rows * stride, np.uint32)
    device.launch(zero_units, 1, THREADS, (scratch, rows * stride // 4))
    blocks, sent = -(-60 * 32 // THREADS), upload(device, chunks)
    device.launch(scatter, blocks, THREADS, (table, words_log2, sent, 60, scratch, stride))
    want = np.zeros((rows, stride * 32), np.bool_)
    for at, length, row, _ in chunks.tolist():
        want[row, postings[at : at + length]] = True
    got = np.unpackbits(device.download(scratch).view(np.uint8), bitorder="little").reshape(rows, -1)
    assert np.array_equal(got.astype(np.bool_), want)
    assert held


@cases_of("check_eligible", [(1, 1), (3, 2), (64, 1)])
def check_eligible(device: Device, requests: int, segments: int) -> None:
    """Requests of the service's clock and of their own, over segments of slots, each in a page of its own."""
    rng = np.random.default_rng(requests)
    slots, units = segments * ELIGIBLE_BLOCK, 65
    targeting = rng.integers(0, units * 128, slots).astype(np.uint32)
    live, active = rng.random(slots) < 0.5, rng.random(slots) < 0.7
    start, end = rng.integers(NOW_US - 5, NOW_US + 5, (2, slots))
    matches = rng.random((requests, units * 128)) < rng.choice([0.0, 0.05, 1.0], requests)[:, None]
    now_us = np.where(np.arange(requests) % 2 == 0, SERVICE_CLOCK, NOW_US - np.arange(requests) % 3).astype(np.int64)
    columns = [targeting, *(np.packbits(bits, bitorder="little") for bits in (live, active)), start, end]
    paged = [in_pages(device, rng, column[None], column.nbytes // segments) for column in columns]
    out = device.empty((requests, slots // 32), np.uint32)
    counts = device.zeros(64, np.uint32)
    bits = np.packbits(matches, axis=1, bitorder="little")
    device.launch(
        eligible, segments, THREADS,
        (
            13, *(table for table, _ in paged), upload(device, bits.view(np.uint64)), units, requests,
            upload(device, now_us), out, slots // 32, counts,
        ),
    )  # fmt: skip
    got = np.unpackbits(device.download(out).view(np.uint8).reshape(requests, -1), axis=1, bitorder="little")
    for r in range(requests):
        mine = live if now_us[r] == SERVICE_CLOCK else active & (start <= now_us[r]) & (now_us[r] < end)
        assert np.array_equal(got[r].astype(np.bool_), mine & matches[r, targeting]), r
    assert np.array_equal(device.download(counts)[:requests], got.sum(axis=1))


@case
def check_bitmaps_are_copied_cleared_and_patched(device: Device) -> None:
    rng = np.random.default_rng(2)
    for units in (1, 255, 256, 257):
        source = rng.integers(0, 2**32, units * 4).astype(np.uint32)
        held, copy = upload(device, source), device.empty(units * 4, np.uint32)
        device.launch(copy_units, -(-units // THREADS), THREADS, (held, copy, units))
        assert np.array_equal(device.download(copy), source)
        slots = rng.integers(0, units * 128, 300).astype(np.uint32)
        masks = np.full(300, copy.address, np.uint64)
        device.launch(exclude, 2, THREADS, (upload(device, masks), upload(device, slots), 300))
        bits = np.unpackbits(source.view(np.uint8), bitorder="little")
        bits[slots] = 0
        assert np.array_equal(np.unpackbits(device.download(copy).view(np.uint8), bitorder="little"), bits)
        some = rng.permutation(units)[: units // 2 + 1]
        addresses = (np.uint64(held.address) + some.astype(np.uint64) * np.uint64(16)).astype(np.uint64)
        data = rng.integers(0, 2**63, 2 * len(some)).astype(np.uint64)
        sent = upload(device, addresses), upload(device, data)
        device.launch(patch, -(-len(some) // THREADS), THREADS, (*sent, len(some)))
        want = source.view(np.uint64).reshape(-1, 2).copy()
        want[some] = data.reshape(-1, 2)
        assert np.array_equal(device.download(held).view(np.uint64), want.reshape(-1))
