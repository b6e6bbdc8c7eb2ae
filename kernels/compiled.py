"""How kernels are compiled that write into arrays they are given and make none.

Numba counts references to every array that a function touches, with atomic instructions, and hands a tuple of arrays
over on the stack, seven words an array. The index is tuples of some ninety arrays, and an event goes through dozens of
small functions: counting and handing over took most of its time. Functions of these kinds do neither. They must not
make an array, nor return one. What they call that does so says ALLOCATES, since a callee that says nothing is compiled
as its caller is.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

from kernels.lanes import I8, emit_prefetch

IN_PLACE = {"nogil": True, "cache": True, "_nrt": False}
INLINED = {**IN_PLACE, "forceinline": True}  # small, or called from one place
ALLOCATES = {"nogil": True, "cache": True, "_nrt": True}


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, array: Any, offset: Any) -> Any:  # noqa: ARG001 — typed as int64 below
    """Has the processor fetch the cache line at `offset` bytes of a contiguous array. Waits for nothing, changes
    nothing, and an offset outside of the array does no harm."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = cgutils.pointer_add(builder, held.data, arguments[1])
        emit_prefetch(builder, builder.bitcast(at, I8.as_pointer()))
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen
