"""What the kernels become on a GPU, with neither GPU nor driver: numba-cuda compiles, nvJitLink links, nvdisasm reads.

That is the way numba-cuda takes at a launch. Nothing of the service imports this: tests and `bench.sass` do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

from cuda import pathfinder
from cuda.bindings import nvjitlink
from numba import cuda
from numba.cuda import dispatcher

ARCHITECTURES: dict[str, tuple[Any, ...]] = {"sm_80": (8, 0), "sm_90a": (9, 0, "a"), "sm_100": (10, 0)}
H200 = "sm_90a"
REGISTERS, WARPS, SHARED_BYTES, BLOCKS = 65_536, 64, 228 * 1024, 32  # of a multiprocessor of it
REGISTER_UNIT, RESERVED_SHARED_BYTES = 8, 1024  # registers go to a thread by 8; shared memory that each block costs

_INSTRUCTION = re.compile(
    r"^\s*(?:/\*(?P<at>[0-9a-f]+)\*/)?\s*(?:@!?U?P\w+\s+)?(?P<name>[A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)\b(?P<rest>[^;]*);"
)


class MachineCode(NamedTuple):
    architecture: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    sass: str

    @property
    def instructions(self) -> list[tuple[int, str, str]]:
        """Address, name, operands of each."""
        found = []
        for line in self.sass.splitlines():
            match = _INSTRUCTION.match(line)
            if match and match["at"]:
                found.append((int(match["at"], 16), match["name"], match["rest"]))
        return found

    @property
    def counts(self) -> Counter[str]:
        return Counter(name for _, name, _ in self.instructions)

    def has(self, beginning: str) -> bool:
        return any(name.startswith(beginning) for name in self.counts)


@contextmanager
def no_driver(capability: tuple[int, int] = (9, 0)) -> Iterator[None]:
    """numba-cuda asks the driver what the device can do as soon as a kernel calls a device function: answered here."""
    asked = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability, id=0)
    try:
        yield
    finally:
        dispatcher.get_current_device = asked


def compiled(kernel: Any, signature: Any, architecture: str = H200) -> MachineCode:
    """The machine code of a bare `@cuda.jit` function for arguments of these Numba types."""
    capability = ARCHITECTURES[architecture]
    options = {
        name: kernel.targetoptions[name] for name in ("fastmath", "launch_bounds") if name in kernel.targetoptions
    }
    with no_driver(capability[:2]):
        codes, _ = cuda.compile_all(
            kernel.py_func, signature, device=False, abi="numba", cc=capability, output="ltoir", **options
        )
    cubin, log = _linked([code if isinstance(code, bytes) else code.code for code in codes], architecture)

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    return MachineCode(
        architecture, number(r"Used (\d+) registers"), number(r"(\d+) bytes stack frame"), spills,
        number(r"(\d+) bytes smem"), _disassembled(cubin),
    )  # fmt: skip


def _linked(objects: list[bytes], architecture: str) -> tuple[bytes, str]:
    options = [f"-arch={architecture}", "-Xptxas=-v", "-verbose", "-lto"]
    linker = nvjitlink.create(len(options), options)
    try:
        for i, code in enumerate(objects):
            nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, code, len(code), f"in{i}")
        nvjitlink.complete(linker)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, cubin)
        log = bytearray(nvjitlink.get_info_log_size(linker))
        nvjitlink.get_info_log(linker, log)
    except Exception as error:
        said = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, said)
        raise RuntimeError(said.decode(errors="replace")) from error
    finally:
        nvjitlink.destroy(linker)
    return bytes(cubin), log.decode(errors="replace")


def _disassembled(cubin: bytes) -> str:
    tool = pathfinder.find_nvidia_binary_utility("nvdisasm") or shutil.which("nvdisasm")
    assert tool, "nvdisasm is not installed: pip install nvidia-cuda-nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(cubin)
    try:
        return subprocess.run(  # noqa: S603
            [tool, "-c", file.name], check=True, capture_output=True, text=True
        ).stdout
    finally:
        os.unlink(file.name)


def warps_resident(code: MachineCode, threads: int) -> int:
    """Warps of such blocks that a multiprocessor of an H200 holds at a time: its calculated occupancy is this of 64."""
    per_thread = -(-max(code.registers, 16) // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // (per_thread * threads)
    by_shared = SHARED_BYTES // (code.shared_bytes + RESERVED_SHARED_BYTES)
    return min(by_registers, by_shared, WARPS * 32 // threads, BLOCKS) * threads // 32
