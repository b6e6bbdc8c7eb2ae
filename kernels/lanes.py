"""Eight float64 in one value, for kernels: LLVM's <8 x double>, one 512-bit register, two of 256 or four of 128 bits.

A kernel reads like scalar code over `Lanes`, each lane an ad. Every operation rounds as IEEE 754 says, none is fused
unless it says so, so a lane's result is the same bits on every processor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 8

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
F64_LANES = ir.VectorType(F64, LANES)
I64_LANES = ir.VectorType(I64, LANES)
MANTISSA_BITS = 52


class LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__("Lanes")


lanes_type = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, F64_LANES)


# ---- building LLVM IR ----


def data_pointer(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    return context.make_array(array_type)(context, builder, array).data


def at_index(builder: Any, pointer: Any, index: Any, element: Any) -> Any:
    """`pointer` to what lies `index` of its own elements further, as a pointer to `element`."""
    return builder.bitcast(builder.gep(pointer, [index]), element.as_pointer())


def splat(builder: Any, scalar: Any) -> Any:
    """A scalar in each of LANES lanes."""
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, scalar, I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, LANES), None))


def constant(value: float) -> Any:
    return ir.Constant(F64_LANES, [value] * LANES)


def llvm_function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    found = builder.module.globals.get(name)
    return found or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


def emit_prefetch(builder: Any, pointer: Any) -> None:
    """Has the processor fetch the cache line at a byte. Waits for nothing, and a wrong address does no harm."""
    fetch = llvm_function(builder, "llvm.prefetch.p0", ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    builder.call(fetch, [pointer, I32(0), I32(3), I32(1)])  # to read, to be kept in all caches, data


# ---- + - * / on Lanes ----


def _define_operator(symbol: Callable[..., Any], instruction: str) -> None:
    class Template(AbstractTemplate):  # type: ignore[misc]
        key = symbol

        def generic(self, arguments: Any, _keywords: Any) -> Any:
            if arguments == (lanes_type, lanes_type):
                return signature(lanes_type, lanes_type, lanes_type)
            return None

    infer_global(symbol)(Template)

    @lower_builtin(symbol, LanesType, LanesType)  # type: ignore[untyped-decorator]
    def _emit(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)


for _symbol, _instruction in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define_operator(_symbol, _instruction)


# ---- functions on Lanes ----


def _of_lanes(arguments: int, emit: Callable[..., Any]) -> Any:
    """(signature, codegen) of a function of some Lanes that gives Lanes."""

    def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return emit(builder, *values)

    return lanes_type(*[lanes_type] * arguments), codegen


def _broadcast(_context: Any, _scalar: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return splat(builder, arguments[0])

    return lanes_type(types.float64), codegen


def _maximum(_context: Any, _a: Any, _b: Any) -> Any:
    return _of_lanes(2, lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))


def _at_least(_context: Any, _a: Any, _b: Any) -> Any:
    return _of_lanes(2, lambda b, x, y: b.select(b.fcmp_ordered(">=", x, y), constant(1.0), constant(0.0)))


def _fused(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    def emit(builder: Any, a: Any, b: Any, c: Any) -> Any:
        fma = llvm_function(builder, f"llvm.fma.v{LANES}f64", F64_LANES, [F64_LANES] * 3)
        return builder.call(fma, [a, b, c])

    return _of_lanes(3, emit)


def _scaled_by_power(_context: Any, _value: Any, _exponent: Any) -> Any:
    def emit(builder: Any, value: Any, exponent: Any) -> Any:
        bits = builder.shl(builder.bitcast(exponent, I64_LANES), ir.Constant(I64_LANES, [MANTISSA_BITS] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(value, I64_LANES), bits), F64_LANES)

    return _of_lanes(2, emit)


def _load(_context: Any, array: Any, _index: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointer = data_pointer(context, builder, sig.args[0], arguments[0])
        return builder.load(at_index(builder, pointer, arguments[1], F64_LANES), align=8)

    return lanes_type(array, types.int64), codegen


def _store(_context: Any, array: Any, _index: Any, _value: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointer = data_pointer(context, builder, sig.args[0], arguments[0])
        builder.store(arguments[2], at_index(builder, pointer, arguments[1], F64_LANES), align=8)
        return context.get_dummy_value()

    return types.void(array, types.int64, lanes_type), codegen


def _gather(_context: Any, array: Any, indices: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointer = data_pointer(context, builder, sig.args[0], arguments[0])
        index = data_pointer(context, builder, sig.args[1], arguments[1])
        lanes = ir.Constant(ir.VectorType(F32, LANES), ir.Undefined)
        for lane in range(LANES):
            slot = builder.zext(builder.load(builder.gep(index, [I64(lane)])), I64)
            lanes = builder.insert_element(lanes, builder.load(builder.gep(pointer, [slot])), I32(lane))
        return builder.fpext(lanes, F64_LANES)

    return lanes_type(array, indices), codegen


broadcast: Any = intrinsic(_broadcast)  # (scalar): it in every lane
maximum: Any = intrinsic(_maximum)  # (a, b): neither is NaN
at_least: Any = intrinsic(_at_least)  # (a, b): 1 where a >= b, else 0
fused: Any = intrinsic(_fused)  # (a, b, c): a * b + c, rounded once
scaled_by_power: Any = intrinsic(_scaled_by_power)  # (a, x): a * 2^n, where n is in the low 12 bits of x's mantissa
load: Any = intrinsic(_load)  # (float64 array, index)
store: Any = intrinsic(_store)  # (float64 array, index, a)
gather: Any = intrinsic(_gather)  # (float32 array, uint32 array of LANES): array[indices]
