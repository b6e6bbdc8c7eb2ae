"""The kernels' machine code: nothing spilled, 16-byte loads, tensor cores; and what docs/gpu.md says of it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")
pytest.importorskip("cuda.bindings.nvjitlink", reason="nvJitLink is not installed (pip install mirach[gpu-test])")

from bench import sass
from kernels.cuda.machine_code import ARCHITECTURES, H200, MachineCode, compiled, warps_resident
from kernels.cuda.registry import LAYOUTS, Entry, plain_entries, scan_entry

# bytes spilled, and of stack for it: float32 takes all registers that there are, and on one architecture four more
SPILLED_BYTES = {("scan, float32, D 128, G 32, E to 8", "sm_100"): 32}
PLAIN = {entry.name: entry for entry in plain_entries()}
SCANS = [LAYOUTS[0], LAYOUTS[4], LAYOUTS[6]]  # one of each precision; `bench.sass` has them all


@cache
def code_of(entry: Entry, architecture: str) -> MachineCode:
    return compiled(entry.kernel, entry.signature, architecture)


def assert_good(entry: Entry, code: MachineCode) -> None:
    spilled = SPILLED_BYTES.get((entry.name, code.architecture), 0)
    assert code.spill_bytes <= spilled
    assert code.stack_bytes <= spilled
    if not spilled:
        assert not code.has("LDL") and not code.has("STL")
    for wanted in entry.wanted:
        assert code.has(wanted), (wanted, sorted(code.counts))
    assert warps_resident(code, entry.threads) >= 8


@pytest.mark.parametrize("name", list(PLAIN))
def test_machine_code_of_plain_kernels(name: str) -> None:
    assert_good(PLAIN[name], code_of(PLAIN[name], H200))


@pytest.mark.parametrize("layout", SCANS, ids=lambda layout: str(layout.precision))
def test_machine_code_of_the_scan(layout: Any) -> None:
    entry = scan_entry(layout)
    assert_good(entry, code_of(entry, H200))


@pytest.mark.parametrize("entry", [*PLAIN.values(), *map(scan_entry, SCANS)], ids=lambda entry: entry.name)
@pytest.mark.parametrize("architecture", [each for each in ARCHITECTURES if each != H200])
def test_machine_code_for_other_architectures(architecture: str, entry: Entry) -> None:
    assert_good(entry, code_of(entry, architecture))


def test_the_table_in_the_docs_is_what_the_command_makes() -> None:
    """As far as the rows go that are compiled here; a newer tool chain may need fewer registers."""
    text = sass.DOCUMENT.read_text(encoding="utf-8")
    rows = {row.split(" | ")[0].strip("| "): row for row in text.split(sass.BEGIN)[1].split(sass.END)[0].splitlines()}
    entries = [*PLAIN.values(), *(scan_entry(layout) for layout in LAYOUTS)]
    assert {entry.name for entry in entries} <= set(rows)
    for entry in [*PLAIN.values(), scan_entry(SCANS[0])]:
        figures = sass.figures(entry, code_of(entry, H200))
        said = [cell.strip().replace(",", "") for cell in rows[entry.name].strip("|").split("|")]
        assert figures.registers <= int(said[1]), (entry.name, figures)
        assert (figures.shared_bytes, figures.spills) == (int(said[2]), int(said[4])), (entry.name, figures)
        if figures.user_instructions is not None:
            assert figures.user_instructions <= int(said[6])
            assert figures.full_instructions is not None
            assert figures.full_instructions <= int(said[8])


def test_the_shortest_way_round_a_loop() -> None:
    listing = [
        "NOP", "IMMA.X", "@BRA 5", "MUFU", "BRA 6", "FADD", "VOTE", "@BRA 1", "EXIT",
    ]  # fmt: skip
    lines = []
    for i, each in enumerate(listing):
        name, _, target = each.partition(" ")
        lines.append(f".L_x_{i}:")
        predicate = "@P0 " if name.startswith("@") else ""
        lines.append(f"        /*{16 * i:04x}*/ {predicate}{name.lstrip('@')} {f'`(.L_x_{target})' if target else ''};")
    code = MachineCode("sm_90a", 32, 0, 0, 0, "\n".join(lines))
    assert sass.loops(code, "IMMA") == [5]
    assert re.match(r"^\d+$", str(round(sass.billions(100))))
