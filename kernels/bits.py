"""What kernels need of the processor and numba does not offer: a number's bits as another type, an atomic counter."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_LLVM = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.uint32: ir.IntType(32),
    types.int64: ir.IntType(64),
}


def _bitcast(source: Any, target: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _LLVM[target])

    return target(source), codegen


def _as_f32(_context: Any, _bits: Any) -> Any:
    return _bitcast(types.uint32, types.float32)


def _as_u32(_context: Any, _value: Any) -> Any:
    return _bitcast(types.float32, types.uint32)


def _as_f64(_context: Any, _bits: Any) -> Any:
    return _bitcast(types.int64, types.float64)


def _as_i64(_context: Any, _value: Any) -> Any:
    return _bitcast(types.float64, types.int64)


def _fetch_add(_context: Any, counter: Any, _count: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointer = context.make_array(sig.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", pointer, arguments[1], "monotonic")

    return types.int64(counter, types.int64), codegen


as_f32: Any = intrinsic(_as_f32)
as_u32: Any = intrinsic(_as_u32)
as_f64: Any = intrinsic(_as_f64)
as_i64: Any = intrinsic(_as_i64)


def _lowest_bit(_context: Any, _word: Any) -> Any:
    """Index of the lowest set bit of a uint64, 64 for 0."""
    word, flag = ir.IntType(64), ir.IntType(1)

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.cttz", (word,), ir.FunctionType(word, [word, flag]))
        return builder.call(function, [arguments[0], ir.Constant(flag, 0)])

    return types.int64(types.uint64), codegen


lowest_bit: Any = intrinsic(_lowest_bit)
fetch_add: Any = intrinsic(_fetch_add)  # (int64 array, count): adds to its first element at once; returns what it was
