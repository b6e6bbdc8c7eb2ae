"""What each PTX instruction does, on arrays over the threads that run it (ptx_emulator.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

TYPES = {
    name: np.dtype(of)
    for names, of in (
        ("u8 b8", np.uint8), ("s8", np.int8), ("u16 b16", np.uint16), ("s16", np.int16), ("f16", np.float16),
        ("u32 b32 f16x2", np.uint32), ("s32", np.int32), ("f32", np.float32), ("u64 b64", np.uint64), ("s64", np.int64),
        ("f64", np.float64), ("pred", np.bool_),
    )
    for name in names.split()
}  # fmt: skip
WARP = 32
ALL_LANES = np.uint32(0xFFFFFFFF)
SHARED_BASE, LOCAL_BASE = 1 << 44, 1 << 45


class PTXError(RuntimeError):
    """What a GPU would do is undefined or an error."""


INSTRUCTIONS: dict[str, Callable[..., None]] = {}


def instruction(*names: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        for name in names:
            INSTRUCTIONS[name] = function
        return function

    return register


def _wider(kind: str) -> str:
    return kind[0] + str(2 * int(kind[1:]))


def _is_float(kind: str) -> bool:
    return kind[0] == "f"


# ---- moving ----


@instruction("mov")
def _mov(run: Any, op: tuple[str, ...], a: Any) -> None:
    if isinstance(a[1], list):  # pack
        part = TYPES["b" + str(int(op[-1][1:]) // len(a[1]))]
        packed, width = np.uint64(0), 8 * part.itemsize
        for i, each in enumerate(a[1]):
            packed = packed | (run.get(each, f"u{width}").astype(np.uint64) << np.uint64(width * i))
        run.put(a[0], packed.astype(TYPES[op[-1]]))
    elif isinstance(a[0], list):  # unpack
        bits = run.get(a[1], op[-1]).astype(np.uint64)
        width = int(op[-1][1:]) // len(a[0])
        for i, each in enumerate(a[0]):
            run.put(each, ((bits >> np.uint64(width * i)) & np.uint64((1 << width) - 1)).astype(TYPES[f"u{width}"]))
    else:
        run.put(a[0], run.get(a[1], op[-1]))


@instruction("cvta")
def _cvta(run: Any, op: tuple[str, ...], a: Any) -> None:
    base = np.uint64({"shared": SHARED_BASE, "local": LOCAL_BASE}.get(op[-2], 0))
    address = run.get(a[1], "u64")
    run.put(a[0], address - base if "to" in op else address + base)


def _space(op: tuple[str, ...]) -> str:
    for space in ("global", "shared", "local"):
        if space in op or any(part.startswith(space + "::") for part in op):
            return space
    return "generic"


def _lanes(op: tuple[str, ...]) -> int:
    return 4 if "v4" in op else 2 if "v2" in op else 1


@instruction("ld", "ldu")
def _ld(run: Any, op: tuple[str, ...], a: Any) -> None:
    dtype = TYPES[op[-1]]
    if "param" in op:
        value = run.parameters[a[1][0]]
        first = a[1][1]  # a part of a parameter may be read
        run.put(a[0], np.array([value]).view(np.uint8)[first : first + dtype.itemsize].view(dtype))
        return
    count = _lanes(op)
    size = dtype.itemsize * count
    held, at = run.memory(_space(op), a[1], size)
    loaded = held.view(f"V{size}")[at // size] if len(held) % size == 0 else held[at[:, None] + np.arange(size)].copy()
    lanes = np.ascontiguousarray(loaded).view(dtype).reshape(-1, count)
    for i, register in enumerate(a[0] if isinstance(a[0], list) else [a[0]]):
        run.put(register, lanes[:, i])


@instruction("st")
def _st(run: Any, op: tuple[str, ...], a: Any) -> None:
    dtype, count = TYPES[op[-1]], _lanes(op)
    held, at = run.memory(_space(op), a[0], dtype.itemsize * count)
    values = np.empty((len(run.running), count), dtype)
    for i, register in enumerate(a[1] if isinstance(a[1], list) else [a[1]]):
        values[:, i] = run.get(register, op[-1])
    held[at[:, None] + np.arange(dtype.itemsize * count)] = values.view(np.uint8)


_ATOMS = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum,
    "max": np.maximum,
}  # fmt: skip


@instruction("atom", "red")
def _atom(run: Any, op: tuple[str, ...], a: Any) -> None:
    dtype = TYPES[op[-1]]
    name = next(part for part in op if part in ("exch", "cas", *_ATOMS))
    operands = a[1:] if op[0] == "atom" else a
    held, at = run.memory(_space(op), operands[0], dtype.itemsize)
    items, places = held[: len(held) // dtype.itemsize * dtype.itemsize].view(dtype), at // dtype.itemsize
    value = np.broadcast_to(run.get(operands[1], op[-1]), places.shape)
    if op[0] == "red" and name in _ATOMS:
        _ATOMS[name].at(items, places, value)
        return
    other = np.broadcast_to(run.get(operands[2], op[-1]), places.shape) if name == "cas" else value
    old = np.empty(len(places), dtype)
    for i, place in enumerate(places):
        old[i] = items[place]
        if name == "cas":
            items[place] = other[i] if old[i] == value[i] else old[i]
        else:
            items[place] = value[i] if name == "exch" else _ATOMS[name](old[i], value[i])
    if op[0] == "atom":
        run.put(a[0], old)


@instruction("prefetch", "prefetchu", "membar", "fence", "nanosleep", "discard", "applypriority")
def _nothing(_run: Any, _op: tuple[str, ...], _a: Any) -> None:
    """Of no effect where time is not modelled."""


# ---- arithmetic ----

_BINARY = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.fmin, "max": np.fmax,
}  # fmt: skip


@instruction(*_BINARY)
def _binary(run: Any, op: tuple[str, ...], a: Any) -> None:
    run.put(a[0], _BINARY[op[0]](run.get(a[1], op[-1]), run.get(a[2], op[-1])))


@instruction("mul", "mad")
def _mul(run: Any, op: tuple[str, ...], a: Any) -> None:
    kind = op[-1]
    x, y = run.get(a[1], kind), run.get(a[2], kind)
    if _is_float(kind):
        return _fma(run, op, a) if op[0] == "mad" else run.put(a[0], x * y)
    product, of = x * y, kind
    if "wide" in op:
        of = _wider(kind)
        product = x.astype(TYPES[of]) * y.astype(TYPES[of])
    elif "hi" in op:
        product = _high(x, y)
    run.put(a[0], product if op[0] == "mul" else product + run.get(a[3], of))
    return None


def _high(x: Any, y: Any) -> Any:
    bits = 8 * x.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}").type
        return ((x.astype(wide) * y.astype(wide)) >> wide(bits)).astype(x.dtype)
    x, y = np.broadcast_arrays(x, y)
    return np.array([(int(p) * int(q) >> 64) & (2**64 - 1) for p, q in zip(x, y, strict=True)], np.uint64).view(x.dtype)


@instruction("fma")
def _fma(run: Any, op: tuple[str, ...], a: Any) -> None:
    kind = op[-1]
    wide = np.float64 if kind == "f32" else np.longdouble
    x, y, z = (run.get(each, kind).astype(wide) for each in a[1:4])
    run.put(a[0], (x * y + z).astype(TYPES[kind]))


@instruction("div", "rem")
def _div(run: Any, op: tuple[str, ...], a: Any) -> None:
    x, y = run.get(a[1], op[-1]), run.get(a[2], op[-1])
    if _is_float(op[-1]):
        return run.put(a[0], x / y)
    x, y = np.broadcast_arrays(x, np.where(y == 0, y.dtype.type(1), y))  # by zero: undefined
    quotient = x // y
    if op[-1][0] == "s":  # towards zero
        quotient = quotient + ((x - quotient * y != 0) & ((x < 0) != (y < 0))).astype(x.dtype)
    run.put(a[0], quotient if op[0] == "div" else x - quotient * y)
    return None


@instruction("neg", "abs", "not", "cnot")
def _unary(run: Any, op: tuple[str, ...], a: Any) -> None:
    x = run.get(a[1], op[-1])
    run.put(a[0], {"neg": np.negative, "abs": np.abs, "not": np.invert}[op[0]](x))


@instruction("shl", "shr")
def _shift(run: Any, op: tuple[str, ...], a: Any) -> None:
    x, by = run.get(a[1], op[-1]), run.get(a[2], "u32").astype(np.int64)
    bits = 8 * x.dtype.itemsize
    clamped = np.minimum(by, bits - 1).astype(x.dtype)
    shifted = x << clamped if op[0] == "shl" else x >> clamped
    if op[0] == "shl" or op[-1][0] != "s":
        shifted = np.where(by >= bits, x.dtype.type(0), shifted)
    run.put(a[0], shifted.astype(x.dtype))


@instruction("shf")
def _shf(run: Any, op: tuple[str, ...], a: Any) -> None:
    low, high, by = (run.get(each, "u32").astype(np.uint64) for each in a[1:4])
    by = np.minimum(by, np.uint64(32)) if "clamp" in op else by & np.uint64(31)
    both = high << np.uint64(32) | low
    shifted = (both << by) >> np.uint64(32) if op[1] == "l" else both >> by
    run.put(a[0], (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32))


@instruction("lop3")
def _lop3(run: Any, _op: tuple[str, ...], a: Any) -> None:
    x, y, z = (run.get(each, "b32") for each in a[1:4])
    out = np.uint32(0)
    for row in range(8):
        if a[4] >> row & 1:
            out = out | (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
    run.put(a[0], np.asarray(out, np.uint32))


@instruction("prmt")
def _prmt(run: Any, _op: tuple[str, ...], a: Any) -> None:
    x, y, selector = (run.get(each, "b32").astype(np.uint64) for each in a[1:4])
    both, out = y << np.uint64(32) | x, np.uint64(0)
    for i in range(4):
        nibble = selector >> np.uint64(4 * i) & np.uint64(15)
        byte = both >> (np.uint64(8) * (nibble & np.uint64(7))) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        out = out | np.where(nibble & np.uint64(8), sign, byte) << np.uint64(8 * i)
    run.put(a[0], out.astype(np.uint32))


@instruction("bfe")
def _bfe(run: Any, op: tuple[str, ...], a: Any) -> None:
    x = run.get(a[1], op[-1])
    first, count = (run.get(each, "u32").astype(np.int64) for each in a[2:4])
    bits = 8 * x.dtype.itemsize
    left = np.clip(bits - first - count, 0, bits - 1).astype(x.dtype)
    right = np.clip(bits - count, 0, bits - 1).astype(x.dtype)
    run.put(a[0], np.where(count == 0, x.dtype.type(0), (x << left) >> right).astype(x.dtype))


@instruction("bfi")
def _bfi(run: Any, op: tuple[str, ...], a: Any) -> None:
    x, y = run.get(a[1], op[-1]).astype(np.uint64), run.get(a[2], op[-1]).astype(np.uint64)
    first, count = run.get(a[3], "u32").astype(np.uint64), run.get(a[4], "u32").astype(np.uint64)
    mask = ((np.uint64(1) << count) - np.uint64(1)) << first
    run.put(a[0], ((y & ~mask) | (x << first & mask)).astype(TYPES[op[-1]]))


@instruction("setp")
def _setp(run: Any, op: tuple[str, ...], a: Any) -> None:
    x, y, name = run.get(a[1], op[-1]), run.get(a[2], op[-1]), op[1]
    if name in ("nan", "num"):
        unordered = np.isnan(x) | np.isnan(y)
        return run.put(a[0], unordered if name == "nan" else ~unordered)
    or_unordered = _is_float(op[-1]) and name.endswith("u")
    compare = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
        "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    }[name[:-1] if or_unordered else name]  # fmt: skip
    result = compare(x, y)
    if _is_float(op[-1]):
        unordered = np.isnan(x) | np.isnan(y)
        result = result | unordered if or_unordered else result & ~unordered
    for combined, with_ in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        if combined in op:
            result = with_(result, run.get(a[3], "pred"))
    run.put(a[0], result)
    return None


@instruction("selp")
def _selp(run: Any, op: tuple[str, ...], a: Any) -> None:
    run.put(a[0], np.where(run.get(a[3], "pred"), run.get(a[1], op[-1]), run.get(a[2], op[-1])))


@instruction("cvt")
def _cvt(run: Any, op: tuple[str, ...], a: Any) -> None:
    source, target = op[-1], op[-2]
    x, to = run.get(a[1], source), TYPES[target]
    if _is_float(target):
        if _is_float(source) and ("rni" in op or "rmi" in op or "rpi" in op or "rzi" in op):
            x = _whole(x, op)
        x = x.astype(to)
        return run.put(a[0], np.clip(x, 0, 1) if "sat" in op else x)
    if _is_float(source):
        x, limits = _whole(x.astype(np.longdouble), op), np.iinfo(to)
        return run.put(a[0], np.clip(np.nan_to_num(x), limits.min, limits.max).astype(to))
    if "sat" in op:
        x = np.clip(x, np.iinfo(to).min, np.iinfo(to).max)
    run.put(a[0], x.astype(to))
    return None


def _whole(x: Any, op: tuple[str, ...]) -> Any:
    return np.rint(x) if "rni" in op else np.floor(x) if "rmi" in op else np.ceil(x) if "rpi" in op else np.trunc(x)


@instruction("popc")
def _popc(run: Any, op: tuple[str, ...], a: Any) -> None:
    run.put(a[0], np.bitwise_count(run.get(a[1], op[-1])).astype(np.uint32))


@instruction("brev")
def _brev(run: Any, op: tuple[str, ...], a: Any) -> None:
    x = run.get(a[1], op[-1])
    bits = np.unpackbits(np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1), axis=1, bitorder="little")
    run.put(a[0], np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(x.dtype)[:, 0])


@instruction("clz", "bfind")
def _highest(run: Any, op: tuple[str, ...], a: Any) -> None:
    x = run.get(a[1], "u" + op[-1][1:])
    width = 8 * x.dtype.itemsize
    bits = np.unpackbits(np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1), axis=1, bitorder="little")
    zeros = np.where(x == 0, width, bits[:, ::-1].argmax(axis=1))
    if op[0] == "bfind":
        zeros = np.where(x == 0, 0xFFFFFFFF, zeros if "shiftamt" in op else width - 1 - zeros)
    run.put(a[0], zeros.astype(np.uint32))


@instruction("ex2", "rcp", "sqrt", "rsqrt", "lg2", "tanh")
def _function(run: Any, op: tuple[str, ...], a: Any) -> None:
    x = run.get(a[1], op[-1])
    function = {
        "ex2": np.exp2, "rcp": np.reciprocal, "sqrt": np.sqrt, "lg2": np.log2, "tanh": np.tanh,
        "rsqrt": lambda v: 1 / np.sqrt(v),
    }[op[0]]  # fmt: skip
    run.put(a[0], function(x).astype(TYPES[op[-1]]))


@instruction("dp4a")
def _dp4a(run: Any, op: tuple[str, ...], a: Any) -> None:
    def parts(register: str, kind: str) -> Any:
        words = np.ascontiguousarray(run.get(register, "b32"))
        return words.view(np.int8 if kind[0] == "s" else np.uint8).reshape(-1, 4).astype(np.int32)

    run.put(a[0], run.get(a[3], "s32") + (parts(a[1], op[1]) * parts(a[2], op[2])).sum(axis=1, dtype=np.int32))


# ---- what a warp does together ----


def _here(run: Any, mask: Any) -> Any:
    """Which lanes of each warp are at the instruction [warp, lane]. All lanes that a mask names must be."""
    here = np.zeros((run.blocks * run.warps_per_block, WARP), np.bool_)
    here[run.warp[run.running], run.lane[run.running]] = True
    needed = ((mask[:, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)).astype(np.bool_)
    exists = np.arange(WARP) < run.threads - (run.warp[run.running] % run.warps_per_block)[:, None] * WARP
    if (needed & exists & ~here[run.warp[run.running]]).any():
        raise PTXError("a lane that the mask names is not at this instruction")
    return here


def _spread(run: Any, values: Any) -> Any:
    """[warp, lane] of what the running threads hold."""
    out = np.zeros((run.blocks * run.warps_per_block, WARP), values.dtype)
    out[run.warp[run.running], run.lane[run.running]] = values
    return out


def _mask(run: Any, operand: Any) -> Any:
    return np.broadcast_to(run.get(operand, "u32"), (len(run.running),))


@instruction("bar", "barrier")
def _bar_warp(run: Any, _op: tuple[str, ...], a: Any) -> None:
    _here(run, _mask(run, a[0]))


@instruction("activemask")
def _activemask(run: Any, _op: tuple[str, ...], a: Any) -> None:
    here = _here(run, np.zeros(len(run.running), np.uint32))
    words = (here.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
    run.put(a[0], words[run.warp[run.running]])


@instruction("shfl")
def _shfl(run: Any, op: tuple[str, ...], a: Any) -> None:
    target, _, inside = a[0].partition("|")
    values = run.get(a[1], "b32")
    by, clamp = (run.get(each, "u32").astype(np.int64) for each in a[2:4])
    here = _here(run, _mask(run, a[4]))
    lane, warp = run.lane[run.running], run.warp[run.running]
    segment, last = clamp >> 8 & 31, clamp & 31
    lowest = lane & segment
    highest = lowest | (last & ~segment)
    source = {"bfly": lane ^ by, "idx": lowest | (by & ~segment & 31), "up": lane - by, "down": lane + by}[op[2]]
    valid = source >= highest if op[2] == "up" else source <= highest
    source = np.where(valid, source, lane)
    if not here[warp, source].all():
        raise PTXError("shfl reads a lane that is not here")
    run.put(target, _spread(run, np.broadcast_to(values, lane.shape))[warp, source])
    if inside:
        run.put(inside, valid)


@instruction("vote")
def _vote(run: Any, op: tuple[str, ...], a: Any) -> None:
    mask = _mask(run, a[2])
    _here(run, mask)
    needed = ((mask[:, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)).astype(np.bool_)
    given = np.broadcast_to(run.get(a[1], "pred"), (len(run.running),))
    votes = _spread(run, given)[run.warp[run.running]]
    if "ballot" in op:
        words = ((votes & needed).astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1)
        run.put(a[0], words.astype(np.uint32))
    else:
        run.put(a[0], (votes & needed).any(axis=1) if "any" in op else (votes | ~needed).all(axis=1))


@instruction("redux")
def _redux(run: Any, op: tuple[str, ...], a: Any) -> None:
    mask = _mask(run, a[2])
    _here(run, mask)
    needed = ((mask[:, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)).astype(np.bool_)
    values = _spread(run, np.broadcast_to(run.get(a[1], op[-1]), mask.shape))[run.warp[run.running]]
    limits = np.iinfo(values.dtype)
    neutral = {"add": 0, "or": 0, "xor": 0, "and": -1 if limits.min < 0 else limits.max, "max": limits.min,
               "min": limits.max}[op[2]]  # fmt: skip
    reduce = {"add": np.add, "or": np.bitwise_or, "xor": np.bitwise_xor, "and": np.bitwise_and, "max": np.maximum,
              "min": np.minimum}[op[2]]  # fmt: skip
    run.put(a[0], reduce.reduce(np.where(needed, values, values.dtype.type(neutral)), axis=1, dtype=values.dtype))


# ---- tensor cores: a fragment's places are those of the PTX manual's figures for the shape ----


@instruction("mma")
def _mma(run: Any, op: tuple[str, ...], a: Any) -> None:
    shape, kinds = op[3], op[6:]
    _here(run, np.full(len(run.running), ALL_LANES))
    if shape == "m16n8k32" and kinds[1] == "s8" and kinds[2] in ("s8", "u8"):
        return _product(run, a, 32, (np.int8, TYPES[kinds[2]]), np.int32)
    if shape == "m16n8k16" and kinds[1:3] == ("f16", "f16") and kinds[0] == "f32":
        return _product(run, a, 16, (np.float16, np.float16), np.float32)
    raise NotImplementedError(".".join(op))


def _product(run: Any, a: Any, depth: int, items: tuple[Any, Any], total: Any) -> None:
    """D [16, 8] = A [16, depth] B [depth, 8] + C, fragments of 4, 2, 4 and 4 registers."""
    warps, each = run.blocks * run.warps_per_block, depth // 8  # items in a register
    left, right = np.zeros((warps, 16, depth), items[0]), np.zeros((warps, depth, 8), items[1])

    def parts(register: str, item: Any) -> Any:
        words = np.broadcast_to(run.get(register, "b32"), (len(run.running),))
        return _spread(run, words).view(item).reshape(warps, WARP, each)

    one, other = [parts(register, items[0]) for register in a[1]], [parts(register, items[1]) for register in a[2]]
    for lane in range(WARP):
        group, column = lane >> 2, (lane & 3) * each
        for half in range(2):
            first = column + half * depth // 2
            left[:, group, first : first + each] = one[2 * half][:, lane]
            left[:, group + 8, first : first + each] = one[2 * half + 1][:, lane]
            right[:, first : first + each, group] = other[half][:, lane]
    wide = np.float64 if total is np.float32 else total
    product = np.matmul(left.astype(wide), right.astype(wide))
    warp, group, column = run.warp[run.running], run.lane[run.running] >> 2, (run.lane[run.running] & 3) * 2
    kind = "f32" if total is np.float32 else "s32"
    for i, (row, beside) in enumerate(((0, 0), (0, 1), (8, 0), (8, 1))):
        sums = product[warp, group + row, column + beside] + run.get(a[3][i], kind)
        run.put(a[0][i], sums.astype(total))
