"""The interpreter of kernels/program.py as device functions: its own code, over arrays in device memory.

Each function is taken over as it is, with the names that differ on a device bound to something else: how a leaf is held
against the facts, how a number is read, and a sum of squares that is rounded after each step, as on the CPU, where the
compiler for the device would fuse them.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

from numba import cuda
from numba.cuda import libdevice

from kernels import program

DEPTH_MAX = program.DEPTH_MAX


class DeviceFacts(NamedTuple):
    """What is true of a request, in device memory."""

    terms: Any  # its terms, ascending
    count: int
    start: Any  # [attributes + 1] into numbers
    numbers: Any


def twin(function: Any, **bound: Any) -> Any:
    """The function of kernels/program.py as a device function, with these of its globals bound otherwise."""
    plain = getattr(function, "py_func", function)
    copied = FunctionType(plain.__code__, {**plain.__globals__, **bound}, plain.__name__, plain.__defaults__)
    return cuda.jit(device=True)(copied)


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

request_holds = twin(program.holds, node_words=node_words, _leaf_holds=_request_leaf_holds)
ad_holds = twin(program.holds, node_words=node_words, _leaf_holds=_ad_leaf_holds)
