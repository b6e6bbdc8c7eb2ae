"""`python -m bench.sass`: what the CUDA kernels became as machine code, calculated on any machine, with no GPU.

With --table the tables are written into docs/gpu.md between their marks.
"""

from __future__ import annotations

import re
import sys
from heapq import heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kernels.cuda.machine_code import MachineCode

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "gpu.md"
BEGIN, END = "<!-- bench.sass begins -->", "<!-- bench.sass ends -->"

# an H200, by its data sheet: what the calculations stand on
READ_BYTES_S = 4.8e12
CLOCK_HZ = 1.7e9  # assumed to be held under load; the highest is 1.98
MULTIPROCESSORS, ISSUES = 132, 4  # warp instructions a multiprocessor issues in a cycle
WARP_ADS = 32
LOOK_BYTES = 4 + 8 + 0.125  # of an ad beside its row: its scale, the bid, its bit in the mask
GATE_BYTES = 4  # beside the gate's row, of an ad that is scored in full: its scale
TENSOR = ("IMMA", "HMMA")
READ_SHARE = 0.9  # of the data sheet's bandwidth, which a kernel that only reads may reach
SECTOR_BYTES = 32
ATTRIBUTES, ADS_PER_TARGETING = 40, 30  # of which each takes three rows of a bit for a targeting, and one row for all
PATCH_BYTES = 12 * 24  # of a create: units of 16 bytes with an address each
PCIE_BYTES_S = 50e9


class Figures(NamedTuple):
    name: str
    registers: int
    shared_bytes: int
    warps: int
    spills: int  # bytes, and of stack
    pass_instructions: int | None  # for 32 ads with one user, from the queue to the next, when none may reach
    user_instructions: int | None  # for one user more
    passed_instructions: int | None  # for one user more, when some may reach and are put into the list
    full_instructions: int | None  # for 32 of the list: scored in full, from the list to the offer
    look_bytes: float | None  # of an ad
    full_bytes: float | None  # of one that is scored in full, its row a second time not counted


def _branches(code: MachineCode) -> tuple[list[str], list[int | None]]:
    """Names of the instructions, and where each may branch to."""
    labels: dict[str, int] = {}
    names: list[str] = []
    targets: list[str | None] = []
    for line in code.sass.splitlines():
        label = re.match(r"^(\.L_x_\d+):", line)
        if label:
            labels[label[1]] = len(names)
        found = re.match(r"^\s*/\*[0-9a-f]+\*/\s*(@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", line)
        if found:
            names.append(("@" if found[1] else "") + found[2])
            to = re.search(r"\.L_x_\d+", found[3]) if found[2] == "BRA" else None
            targets.append(to[0] if to else None)
    return names, [labels.get(target) if target else None for target in targets]


def _shortest(names: list[str], targets: list[int | None], first: int, last: int) -> int | None:
    """Steps on the shortest way from one instruction to another; None where there is none."""
    held, done = [(0, first)], {first: 0}
    while held:
        cost, at = heappop(held)
        if at == last:
            return cost
        following = [] if names[at] in ("BRA", "EXIT") else [at + 1]
        target = targets[at]
        for to in [*following, *([target] if target is not None else [])]:
            if to < len(names) and cost + 1 < done.get(to, 1 << 30):
                done[to] = cost + 1
                heappush(held, (cost + 1, to))
    return None


def loops(code: MachineCode, name: str, which: slice = slice(None), *, passing: str | None = None) -> list[int]:
    """Instructions on the shortest way round through each loop that holds every instruction of this name, by all of
    them and by the vote on who is offered, innermost first: what runs when nothing out of the ordinary comes."""
    names, targets = _branches(code)
    places = [i for i, each in enumerate(names) if each.lstrip("@").startswith(name)][which]
    vote = next(i for i, each in enumerate(names) if i > places[-1] and each.startswith("VOTE"))
    around = [(i - to, to, i) for i, to in enumerate(targets) if to is not None and to <= places[0] and vote <= i]
    found = []
    for _, first, last in sorted(around):
        through = [] if passing is None else [next(i for i in range(vote, len(names)) if names[i].startswith(passing))]
        stops = [first, places[0], places[-1], vote, *through, last]
        steps = [_shortest(names, targets, a, b) for a, b in pairwise(stops)]
        if None not in steps:
            found.append(1 + sum(step for step in steps if step is not None))
    return found


def figures(entry: Any, code: MachineCode) -> Figures:
    from kernels.cuda.machine_code import warps_resident

    one = more = passed = full = look_bytes = full_bytes = None
    layout = entry.layout
    if layout is not None:
        look_bytes = layout.row_bytes + LOOK_BYTES
        full_bytes = look_bytes + layout.gate_row_bytes + GATE_BYTES
        if layout.looks:
            name = next(name for name in TENSOR if code.has(name))
            looks = _look_products(layout)
            more, one, *_ = loops(code, name, slice(0, looks))
            passed = loops(code, name, slice(0, looks), passing="STG.E")[0]
            full = loops(code, name, slice(looks, None))[0]
    return Figures(
        entry.name, code.registers, code.shared_bytes, warps_resident(code, entry.threads),
        code.spill_bytes + code.stack_bytes, one, more, passed, full, look_bytes, full_bytes,
    )  # fmt: skip


def _look_products(layout: Any) -> int:
    """Tensor-core products of the first look, for one user: they come first in the code."""
    from kernels.cuda.rows import pieces

    return 2 * int(layout.tiles) * sum(piece.steps for piece in pieces(layout.row_bytes))


def billions(instructions: int) -> float:
    """Ads (or request-ad pairs) a second, in billions, that the issue of so many instructions for 32 of them allows."""
    return float(MULTIPROCESSORS * ISSUES * CLOCK_HZ / instructions * WARP_ADS / 1e9)


def table(all_figures: list[Figures]) -> str:
    lines = [
        "| kernel | registers | shared bytes | warps of 64 | bytes of stack and spilled | "
        "first look: instructions for 32 ads, one user | each user more | if some pass | "
        "scored in full: instructions for 32 ads | bytes of an ad looked at | scored in full |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for f in all_figures:
        rest = [
            "" if value is None else f"{value:,g}"
            for value in (
                f.pass_instructions,
                f.user_instructions,
                f.passed_instructions,
                f.full_instructions,
                f.look_bytes,
                f.full_bytes,
            )
        ]
        lines.append(
            f"| {f.name} | {f.registers} | {f.shared_bytes:,} | {f.warps} | {f.spills} | " + " | ".join(rest) + " |"
        )
    return "\n".join(lines)


def _sectors(share: float, item_bytes: float) -> float:
    """Bytes read for each slot of a column of which this share is wanted, at random: memory gives 32 at once."""
    return float(item_bytes * (1 - (1 - share) ** (SECTOR_BYTES / item_bytes)))


def goals(all_figures: list[Figures]) -> str:
    """The goals beside what bytes and instructions allow, by calculation."""
    one = next(f for f in all_figures if f.name.startswith("scan, int8, D 128, G 32, E to 8"))
    assert one.pass_instructions and one.user_instructions and one.full_instructions and one.look_bytes
    read = READ_BYTES_S * READ_SHARE
    row_bytes = (ATTRIBUTES * 3 + 1) / 8
    expand_bytes = row_bytes / ADS_PER_TARGETING + 4 + 3 / 8
    tenth_bytes = expand_bytes + 0.1 * 128 + 0.1 * 32 + 2 * _sectors(0.1, 4) + _sectors(0.1, 8) + 1 / 8

    def bytes_allow(of: float) -> str:
        return f"{of:.4g} bytes: {read / of / 1e9:,.0f} billion/s"

    def instructions_allow(of: int) -> str:
        return f"{of} for 32: {billions(of):,.0f} billion/s"

    rows = [
        ("matching, 40 attributes, one request, every targeting distinct", "200 billion ads/s",
         bytes_allow(row_bytes), ""),
        ("the same, 30 ads to a targeting, expansion included", "600 billion ads/s", bytes_allow(expand_bytes), ""),
        ("fused gated scoring of every ad, int8, D = 128, one request", "30 billion ads/s",
         bytes_allow(one.look_bytes), instructions_allow(one.pass_instructions)),
        ("the same, 32 requests a pass", "200 billion request-ad pairs/s",
         bytes_allow(one.look_bytes / 32), instructions_allow(one.pass_instructions // 32 + one.user_instructions)),
        ("the same, if a twentieth is scored in full and some of every 32 are", "200 billion request-ad pairs/s", "",
         instructions_allow(_with_full(one, 0.05))),
        ("gated scoring against plain dot product, same bytes", "within 5 %", "the same", ""),
        ("whole pipeline at 10 % eligible, 100 million ads", "50 billion ads/s", bytes_allow(tenth_bytes), ""),
        ("applying events while serving", "1 million/s, query p99 up by under 10 %",
         f"{PATCH_BYTES} bytes an event: {PATCH_BYTES * 1e6 / PCIE_BYTES_S:.1%} of PCIe", ""),
    ]  # fmt: skip
    lines = ["| | goal | calculated: bytes allow | calculated: instructions allow |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _with_full(one: Figures, share: float) -> int:
    """Instructions for 32 request-ad pairs, of which this share is scored in full, with some of every 32."""
    assert one.pass_instructions and one.passed_instructions and one.full_instructions
    return round(one.pass_instructions / 32 + one.passed_instructions + share * one.full_instructions)


def in_document(text: str, made: str) -> str:
    """The document with the tables between their marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}"


def main(arguments: list[str]) -> int:
    from kernels.cuda.machine_code import H200, compiled
    from kernels.cuda.registry import LAYOUTS, plain_entries, scan_entry

    entries = [*plain_entries(), *(scan_entry(layout) for layout in LAYOUTS)]
    found = [figures(entry, compiled(entry.kernel, entry.signature, H200)) for entry in entries]
    made = f"{goals(found)}\n\n{table(found)}"
    print(made)
    if "--table" in arguments:
        DOCUMENT.write_text(in_document(DOCUMENT.read_text(encoding="utf-8"), made), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
