"""The best ads of each of many jobs, in one pass over the index: contract section 4, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.scan import (
    BY_VALUE,
    FIRST,
    JOB_ITEMS,
    JOBS_MAX,
    K,
    MARGIN,
    MASK,
    MERGED_FIRST,
    MERGE_THREADS,
    OUT_FIRST,
    ROOM,
    SEGMENT,
    THREADS,
    WARPS,
    merge,
    scan_kernel,
)
from kernels.cuda.types import TOP_K_MAX, Device, DeviceArray, DeviceColumns, TopK, TopKJob, UserVectors
from kernels.cuda.users import Layout, pack_users, tiles_of

SLOTS_STEP = 8192
BLOCKS_MAX = 264  # two for each of an H200's 132 multiprocessors
SPARE_MIN = 1024  # room of a block's buffer beyond k and the margin, at least
ENTRY_BYTES = 16  # order, slot, score
SCRATCH_BYTES_MAX = 1 << 30  # of the jobs of one pass; more of them are done in several


def top_k(device: Device, columns: DeviceColumns, slots: int, jobs: Sequence[TopKJob]) -> list[TopK]:
    """The answers in the order of the jobs. `slots`, a multiple of 8,192, is what the masks have bits for.

    Raises OutOfDeviceMemory where there is no room for the buffers of a pass; nothing has changed then."""
    assert slots > 0 and slots % SLOTS_STEP == 0, slots
    assert columns.slots_log2 >= 13, columns.slots_log2
    blocks = min(-(-slots // (SEGMENT * WARPS)), BLOCKS_MAX)
    order = sorted(range(len(jobs)), key=lambda j: _user_key(jobs[j]))
    out: list[TopK | None] = [None] * len(jobs)
    for group in _passes([jobs[j] for j in order], blocks, slots):
        mine = order[group.start : group.stop]
        for j, answer in zip(mine, _one_pass(device, columns, slots, [jobs[j] for j in mine], blocks), strict=True):
            out[j] = answer
    return [answer for answer in out if answer is not None]


def _user_key(job: TopKJob) -> tuple[bool, int]:
    """Jobs of one user lie side by side, those without a user last."""
    return job.user is None, id(job.user)


def _room(job: TopKJob, slots: int) -> int:
    """Entries of a block's buffer: no more than there can be, and more than k by enough to cut it rarely."""
    k = min(job.k, slots)
    return k + max(k, SPARE_MIN) + MARGIN


def _passes(jobs: Sequence[TopKJob], blocks: int, slots: int) -> list[range]:
    """Runs of jobs that one pass takes."""
    passes, first, held = [], 0, 0
    for j, job in enumerate(jobs):
        assert 1 <= job.k <= TOP_K_MAX, job.k
        needed = blocks * (_room(job, slots) + min(job.k, slots)) * ENTRY_BYTES
        if j > first and (j - first == JOBS_MAX or held + needed > SCRATCH_BYTES_MAX):
            passes.append(range(first, j))
            first, held = j, 0
        held += needed
    return [*passes, range(first, len(jobs))] if jobs else []


def _one_pass(
    device: Device, columns: DeviceColumns, slots: int, jobs: Sequence[TopKJob], blocks: int
) -> list[TopK]:
    table = np.zeros((len(jobs), JOB_ITEMS), np.uint64)
    ks = np.array([min(job.k, slots) for job in jobs], np.int64)
    rooms = np.array([_room(job, slots) for job in jobs], np.int64)
    table[:, MASK] = [job.mask.address for job in jobs]
    table[:, BY_VALUE] = [job.by_value for job in jobs]
    table[:, ROOM], table[:, K] = rooms, ks
    table[:, FIRST] = np.cumsum(rooms) - rooms
    table[:, MERGED_FIRST] = (np.cumsum(ks) - ks) * blocks
    table[:, OUT_FIRST] = np.cumsum(ks) - ks
    for job in jobs:
        assert job.mask.dtype == np.uint32 and job.mask.shape == (slots // 32,), (job.mask.dtype, job.mask.shape)
    users, user_jobs, layout = _users(columns, jobs)
    records = _upload(device, pack_users(users, layout) if users else np.zeros((1, 16), np.uint8))
    job_table, starts = _upload(device, table), _upload(device, user_jobs)
    entries, merged, total = int(rooms.sum()), int(ks.sum()) * blocks, int(ks.sum())
    buffers = _entries(device, blocks * entries)
    merged_entries = _entries(device, merged)
    bounds, ticket = device.zeros(len(jobs), np.uint64), device.zeros(1, np.uint32)
    counts = device.zeros(len(jobs), np.uint32)
    device.launch(
        scan_kernel(layout), blocks, THREADS,
        (columns.embedding.table, columns.embedding_scale.table, columns.gate.table, columns.gate_scale.table,
         columns.bid.table, columns.tie.table, columns.slots_log2, slots // SEGMENT, records, starts, len(users),
         job_table, len(jobs), *buffers, entries, bounds, ticket, *merged_entries, counts),
    )  # fmt: skip
    out = device.empty(total, np.uint32), device.empty(total, np.float32), device.empty(total, np.float64)
    device.launch(
        merge, len(jobs), MERGE_THREADS,
        (job_table, columns.bid.table, columns.tie.table, columns.slots_log2, *merged_entries, counts, *out),
    )  # fmt: skip
    found = np.minimum(device.download(counts).astype(np.int64), ks)
    downloaded = [device.download(array) for array in out]
    starts_out = table[:, OUT_FIRST].astype(np.int64)
    return [
        TopK(*(array[first : first + count] for array in downloaded))
        for first, count in zip(starts_out.tolist(), found.tolist(), strict=True)
    ]


def _users(
    columns: DeviceColumns, jobs: Sequence[TopKJob]
) -> tuple[list[UserVectors], NDArray[np.uint32], Layout]:
    """The distinct users, and where the jobs of each begin: user_jobs[u] : user_jobs[u + 1] are those of user u,
    and from user_jobs[-1] on those without one."""
    users: list[UserVectors] = []
    starts: list[int] = []
    for j, job in enumerate(jobs):
        if job.user is not None and (not users or job.user is not users[-1]):
            users.append(job.user)
            starts.append(j)
    scored = sum(job.user is not None for job in jobs)
    tiles = tiles_of(max((len(user.experts) for user in users), default=1))
    layout = Layout(columns.dim, columns.gate_dim, columns.precision, tiles)
    return users, np.array([*starts, scored], np.uint32), layout


def _entries(device: Device, count: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Room for entries: order, slot, score."""
    return device.empty(count, np.uint64), device.empty(count, np.uint32), device.empty(count, np.float32)


def _upload(device: Device, host: NDArray[Any]) -> DeviceArray:
    array = device.empty(host.shape, host.dtype)
    device.upload(host, array)
    return array
