"""The best ads of each of many jobs, in one pass over the index: contract section 4, on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.cuda.ads import zero_units
from kernels.cuda.asked import BINS, BY_VALUE, FIRST, JOB_ITEMS, MASK, MERGED_FIRST, OUT_FIRST, ROOM, K
from kernels.cuda.buffers import Buffers
from kernels.cuda.look import WAITING_ADS
from kernels.cuda.merge import MERGE_THREADS, RANK_THREADS, merge, rank
from kernels.cuda.scan import (
    JOBS_MAX,
    MARGIN,
    SEGMENT,
    THREADS,
    WARPS,
    blocks_at_once,
    scan_kernel,
)
from kernels.cuda.score import scorer
from kernels.cuda.types import TOP_K_MAX, Device, DeviceArray, DeviceColumns, TopK, TopKJob, UserVectors
from kernels.cuda.users import Layout, pack_users, tiles_of

SLOTS_STEP = 8192
SPARE_MIN = 1024  # room of a block's buffer beyond k and the margin, at least
ENTRY_BYTES = 16  # order, slot, score
SCRATCH_BYTES_MAX = 1 << 30  # of the jobs of one pass; more of them are done in several


def top_k(
    device: Device, columns: DeviceColumns, slots: int, jobs: Sequence[TopKJob], buffers: Buffers | None = None,
    make: Callable[[Layout], Any] = scorer,
) -> list[TopK]:  # fmt: skip
    """The answers in the order of the jobs. `slots`, a multiple of 8,192, is what the masks have bits for. Who asks
    often gives `buffers` to keep the working memory in. `make`: see scan_kernel.

    Raises OutOfDeviceMemory where there is no room for the buffers of a pass."""
    assert slots > 0 and slots % SLOTS_STEP == 0, slots
    assert columns.slots_log2 >= 13, columns.slots_log2
    layout = Layout(columns.dim, columns.gate_dim, columns.precision, 1)
    blocks = min(-(-slots // (SEGMENT * WARPS)), device.multiprocessors * blocks_at_once(layout))
    order = sorted(range(len(jobs)), key=lambda j: _user_key(jobs[j]))
    buffers = Buffers(device) if buffers is None else buffers
    out: list[TopK | None] = [None] * len(jobs)
    for group in _passes([jobs[j] for j in order], blocks, slots):
        mine = order[group.start : group.stop]
        answers = _one_pass(device, columns, slots, [jobs[j] for j in mine], blocks, buffers, make)
        for j, answer in zip(mine, answers, strict=True):
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


def _job_table(jobs: Sequence[TopKJob], slots: int, blocks: int) -> NDArray[np.uint64]:
    table = np.zeros((len(jobs), JOB_ITEMS), np.uint64)
    ks = np.array([min(job.k, slots) for job in jobs], np.int64)
    rooms = np.array([_room(job, slots) for job in jobs], np.int64)
    for job in jobs:
        assert job.mask.dtype == np.uint32 and job.mask.shape == (slots // 32,), (job.mask.dtype, job.mask.shape)
    table[:, MASK] = [job.mask.address for job in jobs]
    table[:, BY_VALUE] = [job.by_value for job in jobs]
    table[:, ROOM], table[:, K] = rooms, ks
    table[:, FIRST] = np.cumsum(rooms) - rooms
    table[:, MERGED_FIRST] = (np.cumsum(ks) - ks) * blocks
    table[:, OUT_FIRST] = np.cumsum(ks) - ks
    return table


def _one_pass(
    device: Device, columns: DeviceColumns, slots: int, jobs: Sequence[TopKJob], blocks: int, buffers: Buffers,
    make: Callable[[Layout], Any],
) -> list[TopK]:  # fmt: skip
    count, table = len(jobs), _job_table(jobs, slots, blocks)
    total, room = int(table[:, K].sum()), int(table[:, ROOM].sum())
    users, user_jobs, layout = _users(columns, jobs)
    records, job_table, starts, bounds, ticket = buffers.send(
        "jobs", pack_users(users, layout), table, user_jobs, np.zeros(count, np.uint64), np.zeros(1, np.uint32)
    )
    histogram = buffers.get("histogram", count * BINS, np.uint32)
    device.launch(zero_units, -(-count * BINS // (4 * THREADS)), THREADS, (histogram, count * BINS // 4))
    waiting = buffers.get("waiting", max(blocks * WARPS * len(users) * WAITING_ADS, 1), np.uint32)
    held, merged = _entries(buffers, "held", blocks * room), _entries(buffers, "merged", blocks * total)
    answer = buffers.get("answer", total * ENTRY_BYTES + count * 4, np.uint8)  # values, slots, scores, counts
    parts = _parts(answer, total, count)
    device.upload(np.zeros(count, np.uint32), parts[3])
    tables = [column.table for column in (columns.embedding, columns.embedding_scale, columns.gate, columns.gate_scale)]
    device.launch(
        scan_kernel(layout, make), blocks, THREADS,
        (*tables, columns.bid.table, columns.tie.table, columns.slots_log2, slots // SEGMENT, records, starts,
         len(users), job_table, count, len({job.mask.address for job in jobs}), waiting, *held, room, histogram, bounds,
         ticket, *merged, parts[3]),
    )  # fmt: skip
    device.launch(merge, count, MERGE_THREADS, (job_table, columns.tie.table, columns.slots_log2, *merged, parts[3]))
    rank_parts = -(-int(table[:, K].max()) // RANK_THREADS)
    device.launch(
        rank, count * rank_parts, RANK_THREADS,
        (job_table, rank_parts, columns.bid.table, columns.tie.table, columns.slots_log2, *merged, parts[3],
         *(parts[i] for i in (1, 2, 0))),
    )  # fmt: skip
    return _answers(device.download(answer), table, total, count)


def _parts(answer: DeviceArray, total: int, count: int) -> list[DeviceArray]:
    """Values [total], slots, scores, and counts [job], one after another."""
    starts = (0, 8 * total, 12 * total, 16 * total)
    kinds = (np.float64, np.uint32, np.float32, np.uint32)
    return [
        DeviceArray(answer.address + start, (items,), np.dtype(kind), answer.owner)
        for start, items, kind in zip(starts, (total, total, total, count), kinds, strict=True)
    ]


def _answers(answer: NDArray[np.uint8], table: NDArray[np.uint64], total: int, count: int) -> list[TopK]:
    values, slots = answer[: 8 * total].view(np.float64), answer[8 * total : 12 * total].view(np.uint32)
    scores = answer[12 * total : 16 * total].view(np.float32)
    found = np.minimum(answer[16 * total :].view(np.uint32), table[:, K].astype(np.int64))
    assert len(found) == count
    firsts = table[:, OUT_FIRST].astype(np.int64)
    return [
        TopK(slots[first : first + n], scores[first : first + n], values[first : first + n])
        for first, n in zip(firsts.tolist(), found.tolist(), strict=True)
    ]


def _users(columns: DeviceColumns, jobs: Sequence[TopKJob]) -> tuple[list[UserVectors], NDArray[np.uint32], Layout]:
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


def _entries(buffers: Buffers, name: str, count: int) -> list[DeviceArray]:
    """Room for entries: order, slot, score."""
    kinds = (("orders", np.uint64), ("slots", np.uint32), ("scores", np.float32))
    return [buffers.get(f"{name} {part}", count, kind) for part, kind in kinds]
