"""What the service computes on, chosen once at the start and said in the log; nothing falls back in silence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.config import UserError
from api.engine import ANSWERED_MAX
from gpu_index.index import TOUCHED_MAX, Index
from gpu_index.snapshot import DoesNotFit
from kernels.cuda.types import Device, NoDevice, OutOfDeviceMemory

DEVICE_ANSWERED_MAX = 64  # kernels/cuda/ads.py
INSTALL = "install mirach[cuda13] or mirach[cuda12], by the driver's CUDA version"


@dataclass(frozen=True, slots=True)
class Backend:
    device: Device | None  # None: the CPU
    why: str  # for the log

    @property
    def name(self) -> str:
        return "cpu" if self.device is None else "cuda"

    @property
    def touched_max(self) -> int:
        return 0 if self.device is None else TOUCHED_MAX

    @property
    def answered_max(self) -> int:
        """Requests of one pass."""
        return ANSWERED_MAX if self.device is None else DEVICE_ANSWERED_MAX

    def figures(self) -> dict[str, Any]:
        return {"backend": self.name, "device": "CPU" if self.device is None else self.device.name}

    def attach(self, index: Index) -> None:
        """Copies the index to the GPU, if that is what this is. Raises DoesNotFit."""
        if self.device is None:
            return
        from kernels.cuda.mirror import Mirror

        try:
            index.copy = Mirror(
                self.device, index.ads, index.targetings, index.dim, index.gate_dim, index.precision
            )
        except OutOfDeviceMemory as error:
            raise DoesNotFit(
                f"the index does not fit into the memory of {self.device.name} ({error}): take a larger GPU, or "
                "backend cpu"
            ) from error


CPU = Backend(None, "as the setting says")


def choose_backend(wanted: str) -> Backend:
    """For the setting auto, cpu or cuda. Raises UserError: there is no GPU and cuda was asked for."""
    if wanted == "cpu":
        return CPU
    try:
        device = _open()
    except NoDevice as error:
        if wanted == "cuda":
            raise UserError(f"backend cuda: {error}; take backend cpu or auto to run without a GPU") from None
        return Backend(None, str(error))
    free, total = device.memory()
    return Backend(device, f"{device.name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")


def _open() -> Device:
    """Raises NoDevice."""
    try:
        from kernels.cuda.device import open_device
    except ImportError as error:
        raise NoDevice(f"numba-cuda and CuPy are not both here ({error}): {INSTALL}") from error
    return open_device()
