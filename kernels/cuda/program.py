"""The interpreter of kernels/program.py as device functions: its own code, over arrays in device memory.

Each function is taken over as it is, with the names that differ on a device bound to something else: how a leaf is held
against the facts, how a number is read, and a sum of squares that is rounded after each step, as on the CPU, where the
compiler for the device would fuse them. What a walk keeps beyond registers lies in shared memory, a block's threads
side by side: it takes no more steps than on the CPU, however deep a program is, and needs no local memory.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

from numba import cuda, int32, uint16, uint32
from numba.cuda import libdevice

from kernels import program

PROGRAM_THREADS = 256  # of a block that runs programs
ENDS = program.ENCLOSING_MAX * PROGRAM_THREADS  # uint32 of shared memory: where their walks keep the ends of nodes


class DeviceFacts(NamedTuple):
    """What is true of a request, in device memory."""

    terms: Any  # its terms, ascending
    count: int
    start: Any  # [attributes + 1] into numbers
    numbers: Any


def twin(function: Any, forceinline: bool = False, **bound: Any) -> Any:
    """The function of kernels/program.py as a device function, with these of its globals bound otherwise."""
    plain = getattr(function, "py_func", function)
    copied = FunctionType(plain.__code__, {**plain.__globals__, **bound}, plain.__name__, plain.__defaults__)
    return cuda.jit(device=True, forceinline=forceinline)(copied)


@cuda.jit(device=True)
def _exact_sum_of_squares(x: Any, y: Any, z: Any) -> Any:
    squares = libdevice.dadd_rn(libdevice.dmul_rn(x, x), libdevice.dmul_rn(y, y))
    return libdevice.dadd_rn(squares, libdevice.dmul_rn(z, z))


int64_at = twin(program.int64_at)
float64_at = twin(program.float64_at)
node_words = twin(program.node_words)
listed = twin(program._listed)


@cuda.jit(device=True)
def _array_number(numbers: Any, i: Any) -> Any:
    return numbers[i]


@cuda.jit(device=True)
def _field_number(numbers: Any, i: Any) -> Any:
    return int64_at(numbers.words, numbers.at + 2 * i)


def _numbers_hold(number: Any) -> Any:
    order = twin(program._version_order, int64_at=int64_at, _number=number)
    return twin(
        program._numbers_hold, int64_at=int64_at, float64_at=float64_at, _version_order=order, _number=number,
        sum_of_squares=_exact_sum_of_squares,
    )  # fmt: skip


_request_numbers_hold = _numbers_hold(_array_number)


@cuda.jit(device=True)
def _request_leaf_holds(words: Any, p: Any, facts: Any) -> Any:
    if words[p] & 15 == program.TERMS:
        for i in range(p + 2, p + 2 + (words[p] >> 4)):
            if listed(facts.terms, 0, facts.count, words[i]):
                return True
        return False
    a = words[p + 1]
    return _request_numbers_hold(words, p, facts.numbers, facts.start[a], facts.start[a + 1])


_ad_leaf_holds = twin(
    program._ad_holds, float64_at=float64_at, _listed=listed, _numbers_hold=_numbers_hold(_field_number)
)


def _holds(leaf_holds: Any) -> Any:
    """`ends` is ENDS from the thread's on; it is compiled into its caller, which shows that this is shared memory."""
    return twin(
        program.holds, forceinline=True, node_words=node_words, _leaf_holds=leaf_holds, ENDS_STRIDE=PROGRAM_THREADS
    )


request_holds = _holds(_request_leaf_holds)
ad_holds = _holds(_ad_leaf_holds)


@cuda.jit(device=True)
def queue_bits(bits: Any, queue: Any, queued: Any) -> None:
    """Puts the places of the block's set bits, 32 a thread, into `queue` (uint16), in any order, and how many there are
    into queued[0]: so that programs, of which some run long, are dealt out evenly. By all threads of a block; ends with
    a barrier."""
    thread = uint32(cuda.threadIdx.x)
    if thread == uint32(0):
        queued[0] = 0
    cuda.syncthreads()
    if bits != 0:
        place = uint32(cuda.atomic.add(queued, 0, int32(cuda.popc(bits))))
        while bits != 0:
            queue[place] = uint16(thread * uint32(32) + uint32(cuda.ffs(bits) - 1))
            place = uint32(place + uint32(1))
            bits = uint32(bits & uint32(bits - uint32(1)))
    cuda.syncthreads()
