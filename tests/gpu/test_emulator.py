import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")

from numba import uint32

from kernels.cuda.raw import atomic_add_u32, read4_u32, store4_u32
from kernels.cuda.types import OutOfDeviceMemory
from tests.gpu.emulated import EmulatedDevice, cuda
from tests.gpu.ptx_emulator import PTXError


@cuda.jit
def twice(source, target, total, count):
    i = cuda.grid(1)
    if i < count:
        a, b, c, d = read4_u32(source, 4 * i)
        store4_u32(target, 4 * i, (a + a, b + b, c + c, d + d))
        atomic_add_u32(total, 0, uint32(a + b + c + d))


def test_a_kernel_reads_writes_and_counts() -> None:
    device = EmulatedDevice()
    host = np.arange(4 * 1000, dtype=np.uint32)
    source, target, total = device.empty(4000, np.uint32), device.empty(4000, np.uint32), device.zeros(1, np.uint32)
    device.upload(host, source)
    device.launch(twice, 4, 256, (source, target, total, 1000))
    assert (device.download(target) == 2 * host).all()
    assert device.download(total)[0] == host.sum()


def test_an_access_beyond_an_array_is_an_error() -> None:
    device = EmulatedDevice()
    source, target, total = device.zeros(4000, np.uint32), device.empty(3996, np.uint32), device.zeros(1, np.uint32)
    with pytest.raises(PTXError, match="not allocated"):
        device.launch(twice, 4, 256, (source, target, total, 1000))


def test_memory_is_given_back_and_runs_out() -> None:
    device = EmulatedDevice(1 << 20)
    array = device.empty(900_000, np.uint8)
    with pytest.raises(OutOfDeviceMemory):
        device.empty(900_000, np.uint8)
    del array
    device.empty(900_000, np.uint8)
