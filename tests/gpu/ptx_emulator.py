"""Runs PTX with no GPU: a small interpreter on NumPy, all threads of many blocks at once.

A register is an array over threads. Of a launch's threads those with the lowest program counter run first, which brings
divergent ones together again; `bar` parks threads until their whole block has come; warp-wide instructions check that
every lane of their mask is there. Memory is an `Arena`: what was allocated may be touched, in whole aligned items, and
nothing else. An instruction that is not known raises NotImplementedError.

Not modelled: time, the order of memory between threads, the rounding of approximate instructions (they are exact here).
The layout of tensor-core fragments is written from the PTX manual and has not been held against hardware.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kernels.memory import reserve
from tests.gpu.ptx_instructions import INSTRUCTIONS, TYPES, PTXError

WARP = 32
GUARD_BYTES = 256  # between allocations, never valid
SHARED_BASE, LOCAL_BASE = 1 << 44, 1 << 45  # where generic addresses of shared and local memory begin
ARENA_BASE = 1 << 32
PARKED = 1 << 40
DIRECTIVES = (".reg", ".shared", ".local", ".pragma", ".maxntid", ".loc", ".minnctapersm")
STEPS_MAX = 10**8


class Arena:
    """Device memory: addresses from ARENA_BASE. Fresh memory is poisoned with 0xFF bytes."""

    def __init__(self, capacity: int) -> None:
        self.bytes, self.valid = reserve(capacity, np.uint8), reserve(capacity, np.bool_)
        self.free_blocks: dict[int, list[int]] = {}
        self.frontier = GUARD_BYTES
        self.used = 0

    def allocate(self, size: int) -> int:
        """Address of `size` bytes; 0 where there is no room."""
        size = max(size, 1)
        room = -(-size // 256) * 256
        held = self.free_blocks.get(room)
        if held:
            at = held.pop()
        elif self.frontier + room + GUARD_BYTES > len(self.bytes):
            return 0
        else:
            at, self.frontier = self.frontier, self.frontier + room + GUARD_BYTES
        self.bytes[at : at + size] = 0xFF
        self.valid[at : at + size] = True
        self.used += room
        return ARENA_BASE + at

    def free(self, address: int, size: int) -> None:
        at, room = address - ARENA_BASE, -(-max(size, 1) // 256) * 256
        self.valid[at : at + room] = False
        self.free_blocks.setdefault(room, []).append(at)
        self.used -= room

    def view(self, address: int, size: int) -> Any:
        """The bytes at an address, which must be allocated."""
        at = address - ARENA_BASE
        if size and not (at >= 0 and at + size <= len(self.bytes) and self.valid[at : at + size].all()):
            raise PTXError(f"{size} bytes at {address:#x} are not allocated")
        return self.bytes[at : at + size]


class Instruction(NamedTuple):
    predicate: str | None
    negated: bool
    operation: tuple[str, ...]
    operands: tuple[Any, ...]
    text: str


class Kernel:
    """A parsed `.entry`."""

    def __init__(self, ptx: str) -> None:
        self.parameters: list[tuple[str, str]] = []
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.shared: dict[str, int] = {}
        self.local: dict[str, int] = {}
        self.kinds: dict[str, Any] = {}  # register, or the name of a family of them -> dtype
        self.shared_bytes = self.local_bytes = 0
        self._parse(re.sub(r"//[^\n]*", "", ptx))

    def _parse(self, text: str) -> None:
        if re.search(r"^\s*(\.visible|\.weak)?\s*\.func", text, re.M):
            raise NotImplementedError("functions that are called: have them inlined")
        entry = text.index(".entry")
        for extern, align, name, size in re.findall(
            r"(\.extern)?\s*\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\]", text
        ):
            self.shared_bytes = -(-self.shared_bytes // max(int(align), 16)) * max(int(align), 16)
            self.shared[name] = self.shared_bytes
            self.shared_bytes += 0 if extern else int(size or 0)
        for align, name, size in re.findall(r"\.local\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d+)\]", text):
            self.local_bytes = -(-self.local_bytes // int(align)) * int(align)
            self.local[name] = self.local_bytes
            self.local_bytes += int(size)
        head, body = text.index("(", entry), text.index("{", entry)
        self.parameters = [(name, kind) for kind, name in re.findall(r"\.param\s+\.(\w+)\s+([\w$]+)", text[head:body])]
        inner = text[body + 1 : text.rindex("}")]
        self._declare(inner)
        for raw in re.split(r";|(?<=:)\s*\n|\n(?=\$)", inner):
            self._line(" ".join(raw.replace("{ .reg", ".reg").split()))

    def _declare(self, text: str) -> None:
        for kind, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", text):
            for name in names.split(","):
                self.kinds[re.sub(r"<\d+>", "", name.strip())] = (
                    np.dtype(np.bool_) if kind == "pred" else TYPES[re.sub("^[fsu]", "b", kind)]
                )

    def _line(self, line: str) -> None:
        while label := re.match(r"^(\$[\w$]+):\s*(.*)$", line):
            self.labels[label[1]] = len(self.code)
            line = label[2]
        line = line.strip().lstrip("{ ").strip() if not line.startswith("@") else line
        if line in ("", "}") or line.startswith(DIRECTIVES):
            return
        line = line.lstrip("} ").strip()
        found = re.match(r"^(?:@(!?)([%\w]+)\s+)?([a-z][\w.:]*)\s*(.*)$", line)
        if not found:
            raise PTXError(f"cannot parse {line!r}")
        operation = tuple(found[3].split("."))
        operands = tuple(self._operand(each) for each in _split(found[4]))
        if operation[0] not in INSTRUCTIONS and operation[0] not in ("bra", "ret", "exit", "bar", "barrier"):
            raise NotImplementedError(line)
        self.code.append(Instruction(found[2], found[1] == "!", operation, operands, line))

    def _operand(self, text: str) -> Any:
        """An int for a number, a list for {a, b}, (base, offset) for [base+offset], a text for anything else."""
        if text.startswith("{"):
            return [self._operand(each) for each in _split(text.strip("{} "))]
        if text.startswith("["):
            found = re.match(r"^\[\s*([^\]+]+?)\s*(?:\+\s*(-?\d+))?\s*\]$", text)
            assert found, text
            return (self._operand(found[1]), int(found[2] or 0))
        if re.fullmatch(r"-?\d+|-?0x[0-9a-fA-F]+", text):
            return int(text, 0)
        if re.fullmatch(r"0[fd][0-9a-fA-F]+", text):
            return int(text[2:], 16)
        return text

    def dtype(self, register: str) -> Any:
        found = self.kinds.get(register)
        if found is None:
            found = self.kinds[register] = self.kinds[re.sub(r"\d+$", "", register)]
        return found

    def launch(
        self, arena: Arena, blocks: int, threads: int, arguments: Sequence[np.generic], shared_bytes: int = 0
    ) -> int:
        """Runs a 1-D grid. -> instructions run, counting one for all threads that run it together"""
        assert len(arguments) == len(self.parameters), (len(arguments), self.parameters)
        values = {}
        for (name, kind), value in zip(self.parameters, arguments, strict=True):
            assert value.dtype.itemsize == TYPES[kind].itemsize, (name, kind, value.dtype)
            values[name] = value
        at_once = max(1, 65_536 // threads)
        steps = 0
        for first in range(0, blocks, at_once):
            run = Run(self, arena, values, first, min(at_once, blocks - first), blocks, threads, shared_bytes)
            steps += run.run()
        return steps


class Run:
    """Some blocks of a launch, all their threads together."""

    def __init__(
        self, kernel: Kernel, arena: Arena, parameters: dict[str, np.generic], first: int, blocks: int, grid: int,
        threads: int, shared_bytes: int,
    ) -> None:  # fmt: skip
        self.kernel, self.arena, self.parameters = kernel, arena, parameters
        self.count, self.threads, self.blocks = blocks * threads, threads, blocks
        thread = np.arange(self.count, dtype=np.uint32)
        in_block = thread % np.uint32(threads)
        self.block = (thread // np.uint32(threads)).astype(np.int64)
        self.lane = (in_block % np.uint32(WARP)).astype(np.int64)
        self.warps_per_block = -(-threads // WARP)
        self.warp = self.block * self.warps_per_block + (in_block // np.uint32(WARP)).astype(np.int64)
        self.special = {
            "%tid.x": in_block, "%ctaid.x": thread // np.uint32(threads) + np.uint32(first),
            "%laneid": in_block % np.uint32(WARP),
            "%lanemask_lt": ((np.uint64(1) << self.lane.astype(np.uint64)) - np.uint64(1)).astype(np.uint32),
        }  # fmt: skip
        self.constant = {"%ntid.x": threads, "%nctaid.x": grid, "WARP_SZ": WARP} | {
            f"%{name}.{axis}": value
            for axis in "yz" for name, value in (("tid", 0), ("ctaid", 0), ("ntid", 1), ("nctaid", 1))
        }  # fmt: skip
        self.registers: dict[str, Any] = {}
        self.shared_stride = max(16, kernel.shared_bytes + shared_bytes + 15) // 16 * 16
        self.shared = np.full(blocks * self.shared_stride, 0xFF, np.uint8)
        self.local = np.full(self.count * max(kernel.local_bytes, 1), 0xFF, np.uint8)
        self.at: Any = slice(None)  # the threads that run, as an index
        self.running = np.arange(self.count)

    # -- operands of the threads that run

    def raw(self, operand: Any, dtype: Any) -> Any:
        """The operand's bits, as unsigned numbers of the register's width, or one for all threads."""
        if isinstance(operand, int):
            return np.array([operand & ((1 << 8 * dtype.itemsize) - 1)], f"u{dtype.itemsize}")
        held = self.registers.get(operand)
        if held is not None:
            return held[self.at]
        if operand in self.special:
            return self.special[operand][self.at]
        if operand in self.constant:
            return np.array([self.constant[operand]], np.uint32)
        for names in (self.kernel.shared, self.kernel.local):
            if operand in names:
                return np.array([names[operand]], np.uint64)
        poison = np.zeros(len(self.running), self.kernel.dtype(operand))  # never written: undefined
        return poison if poison.dtype == np.bool_ else ~poison

    def get(self, operand: Any, kind: str) -> Any:
        if kind == "pred":
            if isinstance(operand, str) and operand.startswith("!"):
                return ~self.raw(operand[1:], np.dtype(np.bool_))
            return self.raw(operand, np.dtype(np.bool_)).astype(np.bool_)
        dtype = TYPES[kind]
        bits = self.raw(operand, dtype)
        if bits.dtype.itemsize != dtype.itemsize:
            bits = bits.astype(f"u{dtype.itemsize}")
        return bits.view(dtype)

    def put(self, register: str, value: Any) -> None:
        if register == "_":
            return
        dtype = self.kernel.dtype(register)
        held = self.registers.get(register)
        if held is None:
            poison = np.zeros(self.count, dtype)
            held = self.registers[register] = poison if dtype == np.bool_ else ~poison
        value = np.asarray(value)
        if value.dtype == np.bool_ or dtype == np.bool_:
            value = value.astype(dtype)
        elif value.dtype.itemsize == dtype.itemsize:
            value = np.ascontiguousarray(value).view(dtype)
        else:  # a register wider than its value: extended as the value's type says
            assert value.dtype.kind != "f", (register, value.dtype)
            value = value.astype(dtype)
        held[self.at] = value

    def memory(self, space: str, operand: Any, size: int) -> tuple[Any, Any]:
        """The bytes and each running thread's offset in them of `size` bytes at [base+offset], checked."""
        base, offset = operand
        wide = isinstance(base, int) or self.raw(base, TYPES["u64"]).itemsize == 8
        address = self.get(base, "u64" if wide else "u32")
        at = np.broadcast_to(address.astype(np.int64) + offset, (len(self.running),))
        if (at & (size - 1)).any():
            raise PTXError(f"misaligned access of {size} bytes")
        if space == "generic":
            space = "local" if at.min() >= LOCAL_BASE else "shared" if at.min() >= SHARED_BASE else "global"
            at = at - {"local": LOCAL_BASE, "shared": SHARED_BASE, "global": 0}[space]
        if space == "global":
            at = at - ARENA_BASE
            held = self.arena.valid
            if at.min() < 0 or at.max() + size > len(held) or not (held[at].all() and held[at + size - 1].all()):
                raise PTXError("access to what is not allocated")
            return self.arena.bytes, at
        stride, owner = (
            (self.shared_stride, self.block) if space == "shared" else (self.kernel.local_bytes, np.arange(self.count))
        )
        if at.min() < 0 or at.max() + size > stride:
            raise PTXError(f"access beyond {space} memory")
        return self.shared if space == "shared" else self.local, at + owner[self.running] * stride

    # -- control

    def run(self) -> int:
        code, end, steps = self.kernel.code, len(self.kernel.code), 0
        pc = np.zeros(self.count, np.int64)
        with np.errstate(all="ignore"):
            while True:
                lowest = int(pc.min())
                if lowest >= end:
                    if (pc >= PARKED).any():
                        raise PTXError("threads wait at a barrier that others never reach")
                    return steps
                running = pc == lowest
                others = pc[~running]
                stop = int(others.min()) if len(others) else end
                self._select(np.flatnonzero(running))
                steps += self._straight(code, pc, lowest, min(stop, end))
                if steps > STEPS_MAX:
                    raise PTXError("too many steps")

    def _select(self, running: Any) -> None:
        self.running = running
        self.at = slice(None) if len(running) == self.count else running

    def _straight(self, code: list[Instruction], pc: Any, p: int, stop: int) -> int:
        """Runs the selected threads until they part or reach others. -> steps"""
        steps, everyone = 0, self.running
        while p < stop:
            steps += 1
            step = code[p]
            taken = None
            if step.predicate is not None:
                taken = np.broadcast_to(self.get(step.predicate, "pred") ^ step.negated, (len(everyone),))
            kind = step.operation[0]
            if kind == "bra":
                target = self.kernel.labels[step.operands[-1]]
                if taken is None or taken.all():
                    p = target
                elif not taken.any():
                    p += 1
                else:
                    pc[everyone] = np.where(taken, target, p + 1)
                    return steps
                continue  # still before all others while p < stop
            if kind in ("ret", "exit"):
                pc[everyone] = len(code) if taken is None else np.where(taken, len(code), p + 1)
                self._release(code, pc)
                return steps
            if kind in ("bar", "barrier") and "warp" not in step.operation:
                if taken is not None:
                    raise NotImplementedError(step.text)
                pc[everyone] = PARKED + p + 1
                self._release(code, pc)
                return steps
            self._execute(step, everyone, taken)
            p += 1
        pc[everyone] = p
        return steps

    def _execute(self, step: Instruction, everyone: Any, taken: Any) -> None:
        whole = taken is None or taken.all()
        if not whole:
            if not taken.any():
                return
            self._select(everyone[taken])
        try:
            INSTRUCTIONS[step.operation[0]](self, step.operation, step.operands)
        except (PTXError, NotImplementedError) as error:
            raise type(error)(f"{error}, at: {step.text} [{len(self.running)} threads]") from None
        if not whole:
            self._select(everyone)

    def _release(self, code: list[Instruction], pc: Any) -> None:
        """Lets blocks go on whose threads have all ended or reached the same barrier."""
        by_block = pc.reshape(self.blocks, self.threads)
        ended = by_block == len(code)
        parked = by_block >= PARKED
        whole = (ended | parked).all(axis=1) & parked.any(axis=1)
        for b in np.flatnonzero(whole):
            waiting = by_block[b][parked[b]]
            if (waiting != waiting[0]).any():
                raise PTXError("threads of a block wait at different barriers")
            by_block[b][parked[b]] = waiting - PARKED


def _split(text: str) -> list[str]:
    """Operands: parted by commas outside braces and brackets."""
    out, depth, held = [], 0, ""
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            out.append(held.strip())
            held = ""
        else:
            held += letter
    return [*out, held.strip()] if held.strip() else out
