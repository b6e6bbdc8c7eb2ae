"""Arrays in device memory as kernels index them: `words[i]` with a known place, no bounds and no negative numbers.

`PagedWords` lie in pages: a table of page addresses, each of 2^log2 items. Only reading.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic, models, overload, register_model

from kernels.cuda.raw import read_i64, read_u32, read_u64

_WORD = ir.IntType(64)


class _PagedWordsType(types.Type):
    def __init__(self) -> None:
        super().__init__("PagedWords")


class _FlatType(types.Type):
    def __init__(self, item: Any) -> None:
        self.item = item
        super().__init__(f"Flat({item})")


_paged_words_type = _PagedWordsType()


@register_model(_PagedWordsType)
class _PagedWordsModel(models.StructModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("table", types.uint64), ("log2", types.uint64)])


@register_model(_FlatType)
class _FlatModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _WORD)


@intrinsic
def paged_words(_context: Any, _table: Any, _log2: Any) -> Any:
    """(address of the table, log2): the uint32 of the pages."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
        made = builder.insert_value(made, arguments[0], 0)
        return builder.insert_value(made, arguments[1], 1)

    return _paged_words_type(types.uint64, types.uint64), codegen


def _member(place: int) -> Any:
    def typed(_context: Any, _words: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.extract_value(arguments[0], place)

        return types.uint64(_paged_words_type), codegen

    return intrinsic(typed)


_table, _log2 = _member(0), _member(1)


def _flat(item: Any) -> Any:
    kind = _FlatType(item)

    def typed(_context: Any, _address: Any) -> Any:
        return kind(types.uint64), lambda _context, _builder, _signature, arguments: arguments[0]

    return intrinsic(typed)


flat_u32: Any = _flat(types.uint32)  # (address): the uint32 there
flat_i64: Any = _flat(types.int64)


@intrinsic
def _address(_context: Any, flat: Any) -> Any:
    return types.uint64(flat), lambda _context, _builder, _signature, arguments: arguments[0]


@overload(operator.getitem, strict=False)
def _getitem(words: Any, i: Any) -> Any:  # noqa: ARG001 — the overload's names
    if isinstance(words, _PagedWordsType):

        def paged(words: Any, i: Any) -> Any:
            at = types.uint64(i)
            page = read_u64(_table(words), at >> _log2(words))
            return read_u32(page, at & ((types.uint64(1) << _log2(words)) - types.uint64(1)))

        return paged
    if isinstance(words, _FlatType):
        if words.item == types.uint32:
            return lambda words, i: read_u32(_address(words), types.uint64(i))
        return lambda words, i: read_i64(_address(words), types.uint64(i))
    return None
