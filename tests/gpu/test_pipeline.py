"""Whole answers from an emulated device, held against the plain index; the copy, held against the host's arrays."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")

from gpu_index.events import AdEvent, EventKind, Outcome
from gpu_index.index import Limits, ModelName
from gpu_index.values import parse_attributes
from kernels.ads import BITS, FACTS, SERVING, VECTORS, note_slot
from kernels.cuda.ads import THREADS, patch
from kernels.cuda.buffers import Buffers
from kernels.cuda.mirror import Mirror
from kernels.cuda.paged import Delta, Grant, Paged, Slabs, grant_all, one_row
from kernels.cuda.types import DeviceArray, OutOfDeviceMemory
from kernels.precision import row_width
from scoring.request import Pathway, Request
from scoring.retrieve import retrieve
from scoring.seam import TooMuchAtOnce
from tests import random_cases as cases
from tests.gpu.emulated import EmulatedDevice
from tests.gpu.twins import DeviceTwins, assert_mirrored, new_mirror
from tests.twins import DIM, GATE_DIM, parsed, whole_patch


def test_an_empty_index_answers() -> None:
    r = random.Random(1)
    twins = DeviceTwins(r, EmulatedDevice(), ids=10)
    assert [answer.results for answer in twins.ask([twins.request(r), twins.request(r)])] == [[], []]
    twins.send([twins.event(r, EventKind.CREATE) for _ in range(3)])
    twins.ask([Request(parse_attributes(cases.SCHEMA, {}), (Pathway("main", 10),))])


def create(twins: DeviceTwins, ad_id: str, **fields: object) -> AdEvent:
    partition = 0
    event = AdEvent(EventKind.CREATE, ad_id, None, partition, twins.offset[partition], twins.clock_ms[partition])
    twins.offset[partition] += 1
    event.patch = whole_patch(**fields)
    return event


def test_targetings_and_ads_across_blocks_and_pages_and_a_request_of_ten_thousand_values() -> None:
    """8,193 distinct targetings and more than a page of ads; lists, rows, excluded values, two batches of requests."""
    r = random.Random(5)
    twins = DeviceTwins(r, EmulatedDevice(), ids=10)
    for first in range(0, 8200, 1000):
        events = [
            create(
                twins, f"ad {i}", advertiser_id=str(i % 5), bid=1.0 + i % 3,
                targeting=parsed(
                    {"all": [
                        {"attr": "audience", "in": [f"a{i}", f"b{i % 50}"]},
                        {"not": {"attr": "country", "in": [f"C{i % 3}" if i % 2 else f"D{i}"]}},
                    ]}
                ),
            )
            for i in range(first, min(first + 1000, 8200))
        ]  # fmt: skip
        assert set(twins.send(events)) == {Outcome.APPLIED}
    many = [f"a{i}" for i in range(0, 8200, 7)] + [f"no{i}" for i in range(8900)]
    attributes = [
        {"audience": many, "country": "C1"}, {"audience": ["b7", "b8"], "country": ["C0", "D2"]}, {"audience": "a8192"},
        {"audience": [f"b{i}" for i in range(50)]}, {"country": "C1"},
    ]  # fmt: skip
    asked = [Request(parse_attributes(cases.SCHEMA, each), (Pathway("main", 100),)) for each in attributes]
    caps = {"advertiser_id": 1}  # hardly any of the ranked ads is taken: the ranking is asked for more, again and again
    asked.append(Request(asked[1].attributes, (Pathway("main", 7), Pathway("more", 7)), max_per=caps))
    answers = retrieve(twins.index, asked)
    assert [answer.eligible > 0 for answer in answers] == [True, True, True, True, False, True]
    twins.index.copy = None  # the CPU's, since the plain index would take a minute for ten thousand values
    for answer, want in zip(answers, retrieve(twins.index, asked), strict=True):
        assert (answer.eligible, answer.results) == (want.eligible, want.results)
    assert_mirrored(twins.mirror)


def test_a_restored_index_is_copied_whole() -> None:
    r = random.Random(8)
    twins = DeviceTwins(r, EmulatedDevice(), ids=100)
    twins.send([twins.event(r) for _ in range(200)])
    twins.index.copy = twins.mirror = new_mirror(twins.device, twins.index)
    assert_mirrored(twins.mirror)
    twins.ask([twins.request(r)])


def test_a_log_that_overflows_has_all_of_its_arrays_sent() -> None:
    r = random.Random(9)
    twins = DeviceTwins(r, EmulatedDevice(), ids=60, touched_max=8)
    for _ in range(3):
        twins.send([twins.event(r) for _ in range(40)])
        twins.advance(20_000_000)
        assert_mirrored(twins.mirror)
    twins.ask([twins.request(r)])


def test_what_finds_no_room_on_the_device_is_refused_and_queries_go_on() -> None:
    r = random.Random(10)
    device = EmulatedDevice(256 << 20)
    twins = DeviceTwins(r, device, ids=3000)
    twins.send([twins.event(r) for _ in range(150)])
    assert not twins.outcomes[Outcome.INDEX_FULL]
    twins.mirror._slabs._left.clear()
    device.capacity = device.arena.used + twins.mirror._reserved
    for _ in range(5):
        twins.send([twins.event(r) for _ in range(150)])
    assert twins.outcomes[Outcome.INDEX_FULL] > 100
    twins.ask([twins.request(r), twins.request(r)])
    twins.send([twins.event(r, kind) for kind in [EventKind.EXPIRE] * 40 + [EventKind.MODIFY] * 40])
    twins.check()


def paged_of(device: EmulatedDevice, slabs: Slabs, page_bytes: int) -> Paged:
    return Paged(device, slabs, np.zeros((1, 64 * page_bytes), np.uint8), page_bytes // 16)


def filled_slabs(r: random.Random, device: EmulatedDevice) -> Slabs:
    """With some left of several slabs."""
    slabs = Slabs(device)
    for _ in range(40):
        slabs.take(256 * r.choice([1, 3, 40, 170]))
    return slabs


@pytest.mark.parametrize("seed", range(8))
def test_growth_takes_what_is_left_of_slabs_and_the_rest_of_the_device_to_the_byte(seed: int) -> None:
    """Pages of several sizes in slabs of two kinds. With as many bytes to spare as are missing all are granted and just
    these are taken; with fewer nothing is."""
    r = random.Random(seed)
    device = EmulatedDevice(4 << 20)  # slabs of 64 KiB
    both = filled_slabs(r, device), filled_slabs(r, device)
    sizes = [256 * r.choice([1, 2, 5, 16, 60]) for _ in range(6)]
    grants = [Grant(paged_of(device, r.choice(both), size), 1, r.randrange(1, 30)) for size in sizes]
    left, pages = sum(slabs.left for slabs in both), sum(each.missing * each.paged.page_bytes for each in grants)
    listed = {slabs: [(e.paged.page_bytes, e.missing) for e in grants if e.paged.slabs is slabs] for slabs in both}
    missing = sum(slabs.missing(part) for slabs, part in listed.items())
    assert pages - left <= missing < pages
    used, reserved = device.arena.used, 1000 * 256
    device.capacity = used + reserved + missing
    with pytest.raises(OutOfDeviceMemory):
        grant_all(grants, missing - 256)
    assert device.arena.used == used
    grant_all(grants, missing)
    assert device.arena.used == used + missing
    assert left + missing == pages + sum(slabs.left for slabs in both)
    addresses = [(int(at), each.paged.page_bytes) for each in grants for at in each.paged.addresses.reshape(-1) if at]
    assert sum(size for _, size in addresses) == pages
    ordered = sorted(addresses)
    assert all(at + size <= after for (at, size), (after, _) in pairwise(ordered))


def test_where_there_is_room_slabs_are_taken_whole() -> None:
    device = EmulatedDevice(4 << 20)
    slabs = Slabs(device)
    grants = [Grant(paged_of(device, slabs, 4096), 1, 20), Grant(paged_of(device, slabs, 256), 1, 3)]
    before = device.arena.used
    grant_all(grants, device.memory()[0])
    assert device.arena.used - before == 2 << 16
    assert slabs.left == (2 << 16) - 20 * 4096 - 3 * 256


def test_what_queries_hold_is_of_what_is_reserved_for_them() -> None:
    """An index grows until no more is free than queries have yet to take of their reserve."""
    r = random.Random(17)
    device = EmulatedDevice(256 << 20)
    twins = DeviceTwins(r, device, ids=3000)
    mirror = twins.mirror
    reserved, held = mirror._reserved, mirror.buffers.nbytes
    kept = mirror.buffers.get("a query's", reserved // 2, np.uint8)
    assert mirror.buffers.nbytes == held + kept.nbytes
    assert device.memory()[0] - mirror._spare(reserved) == reserved - held - kept.nbytes
    more = mirror.buffers.get("another's", reserved, np.uint8)
    assert mirror._spare(reserved) == device.memory()[0]
    assert more


def test_a_buffer_that_cannot_grow_by_half_grows_by_what_is_needed() -> None:
    device = EmulatedDevice(800_000)
    buffers = Buffers(device)
    buffers.get("one", 600_000, np.uint8)
    assert buffers.get("one", 700_000, np.uint8).nbytes == 700_000 == buffers.nbytes
    with pytest.raises(OutOfDeviceMemory):
        buffers.get("one", 2_000_000, np.uint8)


def test_a_host_that_is_full_refuses_as_ever() -> None:
    r = random.Random(12)
    limits = Limits(ads=8192, targetings=600, terms=2**15, expired=2**12)
    twins = DeviceTwins(r, EmulatedDevice(), ids=9000, limits=limits)
    for _ in range(8):
        twins.send([twins.event(r, EventKind.CREATE) for _ in range(200)])
    assert twins.outcomes[Outcome.INDEX_FULL] > 0
    twins.check()


def test_a_batch_that_finds_no_room_is_answered_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(13)
    twins = DeviceTwins(r, EmulatedDevice(), ids=50)
    twins.send([twins.event(r) for _ in range(100)])
    plain = twins.device.empty

    def narrow(shape: int | tuple[int, ...], dtype: object) -> object:
        if np.prod(shape) * np.dtype(dtype).itemsize > 512:  # type: ignore[call-overload]
            raise OutOfDeviceMemory("as a test says")
        return plain(shape, dtype)  # type: ignore[arg-type]

    monkeypatch.setattr(twins.device, "empty", narrow)
    request = Request(parse_attributes(cases.SCHEMA, {}), (Pathway("main", 3),))
    twins.mirror.buffers.give_back()
    with pytest.raises(TooMuchAtOnce):
        retrieve(twins.index, [request])
    monkeypatch.undo()
    twins.ask([request])


def uploads_of(twins: DeviceTwins, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each upload from now on."""
    plain, sizes = twins.device.upload, []

    def upload(host: NDArray[Any], array: DeviceArray, first: int = 0) -> None:
        sizes.append(host.nbytes)
        plain(host, array, first)

    monkeypatch.setattr(twins.device, "upload", upload)
    return sizes


def test_of_another_model_only_the_vectors_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(14)
    twins = DeviceTwins(r, EmulatedDevice(), ids=20)
    twins.send([twins.event(r, EventKind.CREATE) for _ in range(30)])
    a, sent = twins.index.ads, uploads_of(twins, monkeypatch)
    twins.mirror = twins.index.copy = twins.mirror.renewed(
        a._replace(embedding=a.embedding.copy(), gate_scale=a.gate_scale + np.float32(1)), DIM, GATE_DIM
    )
    assert sum(sent) == twins.mirror.memory()["vectors"]
    assert_mirrored(twins.mirror)


def test_an_event_sends_what_it_changed_and_neighbours_once() -> None:
    r = random.Random(16)
    twins = DeviceTwins(r, EmulatedDevice(), ids=20)
    twins.send([create(twins, f"ad {i}", bid=1.0) for i in range(64)])  # of one targeting: side by side
    slots = twins.index.slots_of([f"ad {i}" for i in range(64)])
    assert len(set((slots // 64).tolist())) == 1
    a, units = twins.index.ads, {SERVING: 32 + 32 + 32, VECTORS: 64 + 16 + 64 + 16, FACTS: 4 * 16 + 2 * 32}
    for groups in (BITS, BITS | SERVING, BITS | VECTORS, BITS | SERVING | VECTORS | FACTS):
        for slot in (*slots.tolist(), *slots.tolist()):
            note_slot(a, slot, groups)
        a.active[int(slots[0]) // 64] ^= np.uint64(1)  # so that something is to be seen
        want = 2 + sum(count for group, count in units.items() if groups & group)
        assert twins.mirror.sync() == 24 * want
        assert_mirrored(twins.mirror)


def test_a_delta_of_arrays_that_end_within_a_unit_and_of_many_rows() -> None:
    device = EmulatedDevice()
    slabs, delta = Slabs(device), Delta(device)
    short, rows = np.arange(1, 11, dtype=np.uint32), np.arange(5 * 96, dtype=np.uint64).reshape(5, 96)
    pages = Paged(device, slabs, one_row(short), 16), Paged(device, slabs, rows, 16)
    pages[0].grant(1, 1)
    pages[1].grant(5, 3)
    delta.add_units(pages[0], np.array([0, 1, 2, 2]))
    delta.add_units(pages[1], np.array([0, 15, 16, 47, 48, 48, 100, 239]))
    assert delta.count == 3 + 7
    assert delta.send(patch, THREADS) == 24 * 10
    assert pages[0].download()[0, :48].tobytes() == short.tobytes() + bytes(8)
    there = pages[1].download()[:, : 96 * 8].view(np.uint64)
    for unit in (0, 15, 16, 47, 48, 100, 239):
        row, word = unit // 48, 2 * (unit % 48)
        assert there[row, word : word + 2].tolist() == rows[row, word : word + 2].tolist(), unit
        there[row, word : word + 2] = 0
    assert not there.any()


def test_what_wider_vectors_take_on_the_device_is_known_before() -> None:
    r = random.Random(15)
    twins = DeviceTwins(r, EmulatedDevice(), ids=20)
    twins.send([twins.event(r, EventKind.CREATE) for _ in range(30)])
    a, before = twins.index.ads, twins.mirror.memory()["vectors"]
    dim, precision = 4 * DIM, twins.index.precision
    more, room = twins.mirror.widened(dim, GATE_DIM)
    assert room > more > 0
    wide = np.zeros((len(a.embedding), row_width(dim, precision)), a.embedding.dtype)
    twins.index.take_vectors(dim, GATE_DIM, wide, a.embedding_scale, a.gate, a.gate_scale, ModelName("wide", "0"))
    assert isinstance(twins.index.copy, Mirror)
    assert twins.index.copy.memory()["vectors"] == before + more
    assert_mirrored(twins.index.copy)
