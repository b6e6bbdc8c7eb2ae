"""The service's choice of a backend, and the engine on a device that works, is too small, or fails."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")

import api.backend
from api.backend import choose_backend
from api.config import UserError
from api.engine import Engine, Stopped
from api.warm_up import warm_up
from gpu_index.index import Index
from gpu_index.snapshot import DoesNotFit
from gpu_index.values import parse_attributes
from kernels.cuda.ads import BATCH_MAX
from kernels.cuda.mirror import Mirror
from kernels.cuda.registry import plain_entries
from kernels.cuda.types import DeviceFault, NoDevice
from kernels.precision import Precision
from scoring.request import Pathway, Request
from tests import random_cases as cases
from tests.gpu.emulated import EmulatedDevice
from tests.gpu.twins import DeviceTwins, assert_mirrored
from tests.twins import DIM, GATE_DIM, LIMITS, START_US


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    """What the machine has, as far as the choice can see."""
    found = EmulatedDevice(1 << 30)
    monkeypatch.setattr(api.backend, "_open", lambda: found)
    return found


def index_of(touched_max: int) -> Index:
    return Index(
        cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=Precision.INT8, limits=LIMITS, touched_max=touched_max
    )


def test_auto_takes_the_gpu_and_says_so(device: EmulatedDevice) -> None:
    backend = choose_backend("auto")
    assert backend.figures() == {"backend": "cuda", "device": "emulated"}
    assert backend.why == "emulated, 1.0 of 1.0 GiB free"
    assert backend.answered_max == BATCH_MAX
    assert choose_backend("cpu").figures() == {"backend": "cpu", "device": "CPU"}


def test_without_a_gpu_auto_says_why_and_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoDevice("CUDA shows no GPU to this process")

    monkeypatch.setattr(api.backend, "_open", none)
    backend = choose_backend("auto")
    assert (backend.name, backend.why) == ("cpu", "CUDA shows no GPU to this process")
    with pytest.raises(UserError, match="backend cuda: CUDA shows no GPU to this process; take backend cpu or auto"):
        choose_backend("cuda")


def test_the_warm_up_launches_every_kernel(device: EmulatedDevice) -> None:
    """So none is compiled while a request waits."""
    warm_up(cases.SCHEMA, DIM, GATE_DIM, Precision.INT8, choose_backend("cuda"))
    launched = {name for name, _ in device.launches}
    assert {entry.kernel.py_func.__name__ for entry in plain_entries()} <= launched
    assert "scan" in launched


def test_an_index_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.backend, "_open", lambda: EmulatedDevice(1 << 16))
    backend = choose_backend("cuda")
    with pytest.raises(DoesNotFit, match="does not fit into the memory of emulated"):
        backend.attach(index_of(backend.touched_max))


def test_an_index_that_is_adopted_takes_the_place_of_the_one_before(device: EmulatedDevice) -> None:
    """As after a restore: its copy is whole, and the memory of the other one's is given back."""
    r = random.Random(4)
    backend = choose_backend("cuda")
    engine = Engine(index_of(backend.touched_max), clock_us=lambda: START_US, attach=backend.attach)
    before = device.arena.used
    other = index_of(backend.touched_max)
    other.apply(DeviceTwins(r, EmulatedDevice(), ids=5).batch(r, 20), START_US)
    other.release_thread()
    adopted = engine.adopt(other)
    assert engine.turn()
    assert adopted.done() and engine.index is other
    assert isinstance(other.copy, Mirror)
    assert_mirrored(other.copy)
    # two slabs for its own and one for each of its vectors; with the other one's kept there would be five
    assert device.arena.used < before * 4.5


def test_the_engine_answers_from_the_device_and_ends_with_it(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of CUDA: whoever asks is told that the engine is gone, and nobody gets an empty answer."""
    r = random.Random(3)
    backend = choose_backend("cuda")
    engine = Engine(index_of(backend.touched_max), clock_us=lambda: START_US, attach=backend.attach)
    engine.index.apply(DeviceTwins(r, EmulatedDevice(), ids=5).batch(r, 20), START_US)
    engine.index.release_thread()
    request = Request(parse_attributes(cases.SCHEMA, {}), (Pathway("main", 3),))
    answered = engine.submit([request])
    assert engine.turn()
    assert answered.result()[0].indexed == engine.index.count > 0

    def fails(*_: object) -> None:
        raise DeviceFault("an illegal memory access was encountered")

    monkeypatch.setattr(device, "launch", fails)
    asked = engine.submit([request])
    with pytest.raises(DeviceFault):
        engine.turn()
    assert engine.failed
    with pytest.raises(Stopped):
        asked.result()
