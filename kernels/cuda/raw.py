"""Device memory by address: loads and stores that LLVM sees, so that it can order and join them.

An address is a uint64, an index an unsigned or non-negative number of items from it. `load4_*` and `store4_*` move 16
bytes at once and need an address and index that make a multiple of 16. The `read` forms go the way of data that no
kernel writes while this one runs (ld.global.nc).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

_WORD = ir.IntType(64)
_LLVM = {
    types.int8: ir.IntType(8),
    types.uint8: ir.IntType(8),
    types.uint16: ir.IntType(16),
    types.int32: ir.IntType(32),
    types.uint32: ir.IntType(32),
    types.float32: ir.FloatType(),
    types.int64: ir.IntType(64),
    types.uint64: ir.IntType(64),
    types.float64: ir.DoubleType(),
}
_GLOBAL = 1  # LLVM's address space of device memory


def _pointer(builder: Any, address: Any, index: Any, index_type: Any, item: Any, bytes_: int) -> Any:
    """The address of item `index` as a pointer to `item`."""
    if index.type.width < 64:
        index = (builder.sext if index_type.signed else builder.zext)(index, _WORD)
    offset = builder.mul(index, ir.Constant(_WORD, bytes_))
    return builder.inttoptr(builder.add(address, offset), ir.PointerType(item, _GLOBAL))


def _unchanging(builder: Any, instruction: Any) -> None:
    instruction.set_metadata("invariant.load", builder.module.add_metadata([]))


def _load(item: Any, count: int, *, read: bool) -> Any:
    of = _LLVM[item]
    size = item.bitwidth // 8

    def typed(_context: Any, _address: Any, index: Any) -> Any:
        result = item if count == 1 else types.UniTuple(item, count)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            loaded_type = of if count == 1 else ir.VectorType(of, count)
            at = _pointer(builder, arguments[0], arguments[1], signature.args[1], loaded_type, size)
            loaded = builder.load(at, align=size * count)
            if read:
                _unchanging(builder, loaded)
            if count == 1:
                return loaded
            lanes = [builder.extract_element(loaded, ir.Constant(ir.IntType(32), lane)) for lane in range(count)]
            return context.make_tuple(builder, signature.return_type, lanes)

        return result(types.uint64, index if isinstance(index, types.Integer) else types.int64), codegen

    return intrinsic(typed)


def _store(item: Any, count: int) -> Any:
    of = _LLVM[item]
    size = item.bitwidth // 8

    def typed(_context: Any, _address: Any, index: Any, _value: Any) -> Any:
        held = item if count == 1 else types.UniTuple(item, count)

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            stored = arguments[2]
            if count > 1:
                vector: Any = ir.Constant(ir.VectorType(of, count), ir.Undefined)
                for lane in range(count):
                    one = builder.extract_value(arguments[2], lane)
                    vector = builder.insert_element(vector, one, ir.Constant(ir.IntType(32), lane))
                stored = vector
            at = _pointer(builder, arguments[0], arguments[1], signature.args[1], stored.type, size)
            builder.store(stored, at, align=size * count)
            return context.get_dummy_value()

        return types.void(types.uint64, index if isinstance(index, types.Integer) else types.int64, held), codegen

    return intrinsic(typed)


def _atomic(operation: str, item: Any) -> Any:
    def typed(_context: Any, _address: Any, index: Any, _value: Any) -> Any:
        def codegen(_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            at = _pointer(builder, arguments[0], arguments[1], signature.args[1], _LLVM[item], item.bitwidth // 8)
            return builder.atomic_rmw(operation, at, arguments[2], "monotonic")

        return item(types.uint64, index if isinstance(index, types.Integer) else types.int64, item), codegen

    return intrinsic(typed)


load_u8: Any = _load(types.uint8, 1, read=False)  # (address, index)
load_i8: Any = _load(types.int8, 1, read=False)
load_u32: Any = _load(types.uint32, 1, read=False)
load_i64: Any = _load(types.int64, 1, read=False)
load_u64: Any = _load(types.uint64, 1, read=False)
load_f32: Any = _load(types.float32, 1, read=False)
load_f64: Any = _load(types.float64, 1, read=False)
load4_u32: Any = _load(types.uint32, 4, read=False)  # -> 4 items
load4_f32: Any = _load(types.float32, 4, read=False)
load2_u64: Any = _load(types.uint64, 2, read=False)  # -> 2 items
read_u32: Any = _load(types.uint32, 1, read=True)
read_i32: Any = _load(types.int32, 1, read=True)
read_i64: Any = _load(types.int64, 1, read=True)
read_u64: Any = _load(types.uint64, 1, read=True)
read_f32: Any = _load(types.float32, 1, read=True)
read_f64: Any = _load(types.float64, 1, read=True)
read4_u32: Any = _load(types.uint32, 4, read=True)
read4_i32: Any = _load(types.int32, 4, read=True)
read4_f32: Any = _load(types.float32, 4, read=True)
read2_u64: Any = _load(types.uint64, 2, read=True)

store_u8: Any = _store(types.uint8, 1)  # (address, index, value)
store_u32: Any = _store(types.uint32, 1)
store_u64: Any = _store(types.uint64, 1)
store_f32: Any = _store(types.float32, 1)
store_f64: Any = _store(types.float64, 1)
store4_u32: Any = _store(types.uint32, 4)  # (address, index, 4 items)
store2_u64: Any = _store(types.uint64, 2)  # (address, index, 2 items)

atomic_add_u32: Any = _atomic("add", types.uint32)  # (address, index, value) -> what was there
atomic_add_u64: Any = _atomic("add", types.uint64)
atomic_or_u32: Any = _atomic("or", types.uint32)
atomic_and_u32: Any = _atomic("and", types.uint32)
