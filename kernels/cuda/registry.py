"""Every CUDA kernel with its signature: what `bench.sass` and the tests of machine code go through."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from numba.cuda import types

from kernels.cuda import ads, match, merge, scan
from kernels.cuda.rows import TILE_EXPERTS
from kernels.cuda.users import Layout
from kernels.precision import Precision

# parameters that are numbers (int64), by the ends of their names; the others are addresses (uint64)
_NUMBERS = (
    "_log2", "count", "units", "pages", "requests", "_words", "attributes", "segments", "users", "block_entries",
)  # fmt: skip
_ALSO_NUMBERS = {("filter_ads", "now_us")}
_WANTED = {
    "match": ("LDG.E.128",), "copy_units": ("LDG.E.128", "STG.E.128"), "zero_units": ("STG.E.128",),
    "patch": ("LDG.E.128", "STG.E.128"),
}  # fmt: skip
_THREADS = {"merge": merge.MERGE_THREADS, "rank": merge.RANK_THREADS}  # others have those of match and ads
_TENSOR = {
    Precision.INT8: ("IMMA.16832.S8.S8", "IMMA.16832.S8.U8"), Precision.FLOAT16: ("HMMA.16816.F32",),
    Precision.FLOAT32: ("FFMA",),
}  # fmt: skip
LAYOUTS = tuple(
    Layout(*widths)
    for widths in (
        (128, 32, Precision.INT8, 1), (64, 32, Precision.INT8, 1), (256, 64, Precision.INT8, 1),
        (128, 32, Precision.INT8, 2), (128, 32, Precision.FLOAT16, 1), (256, 64, Precision.FLOAT16, 2),
        (128, 32, Precision.FLOAT32, 1),
    )
)  # fmt: skip


class Entry(NamedTuple):
    name: str
    kernel: Any  # a bare `@cuda.jit` function
    threads: int
    wanted: tuple[str, ...]  # instructions that its machine code must have, by how they begin
    layout: Layout | None = None  # of a scoring kernel

    @property
    def signature(self) -> Any:
        """An address is uint64, a number int64, as `Device.launch` passes them."""
        of = self.kernel.py_func.__name__
        return types.void(
            *[
                types.int64 if name.endswith(_NUMBERS) or (of, name) in _ALSO_NUMBERS else types.uint64
                for name in inspect.signature(self.kernel.py_func).parameters
            ]
        )


def scan_entry(layout: Layout) -> Entry:
    name = f"scan, {layout.precision}, D {layout.dim}, G {layout.gate_dim}, E to {TILE_EXPERTS * layout.tiles}"
    return Entry(name, scan.scan_kernel(layout), scan.THREADS, ("LDG.E.128", *_TENSOR[layout.precision]), layout)


def plain_entries() -> list[Entry]:
    """The kernels that are one for every index."""
    found = [
        Entry(name, each, _THREADS.get(name, match.THREADS), _WANTED.get(name, ()))
        for module in (match, ads, merge)
        for name, each in vars(module).items()
        if _is_kernel(each) and each.py_func.__module__ == module.__name__
    ]
    assert set(_WANTED) <= {entry.name for entry in found}
    return found


def _is_kernel(value: Any) -> bool:
    return hasattr(value, "py_func") and hasattr(value, "targetoptions") and not value.targetoptions.get("device")
