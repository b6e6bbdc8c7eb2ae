"""Expressions to the words of kernels/program.py, and back."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_index.cells import cells_within, chord_squared, unit_vector
from gpu_index.json_input import INTEGER_MAX, INTEGER_MIN
from gpu_index.schema import Attribute, Kind
from gpu_index.targeting import All, Any_, Between, Expression, In, Not, Within
from gpu_index.values import Value
from gpu_index.vocabulary import Key
from kernels import program as ops

FindTerm = Callable[[int, Key], int]  # attribute, value -> term; 0 where there is none and none is to be made
KnownTerms = Sequence[Mapping[Key, int]]  # [attribute] value -> term
WORD = 0xFFFFFFFF


def float_bits(value: float) -> int:
    """The bits of a float64 as an int64."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


def encode(
    expression: Expression, attributes: Sequence[Attribute], known: KnownTerms, find: FindTerm, words: list[int]
) -> None:
    """Appends the expression's words. A value's term is looked up in `known`, then asked of `find`, which gives 0 to
    leave it out."""
    kind = type(expression)
    if kind is In:
        attribute = expression.attribute  # type: ignore[union-attr]
        terms_of = known[attribute].get
        terms = {terms_of(value) or find(attribute, value) for value in expression.values}  # type: ignore[union-attr]
        terms.discard(0)
        words += (ops.TERMS | len(terms) << 4, attribute, *sorted(terms))
    elif kind is All or kind is Any_:
        at = len(words)
        words += (ops.ALL if kind is All else ops.ANY, 0)
        for child in expression.children:  # type: ignore[union-attr]
            encode(child, attributes, known, find, words)
        words[at + 1] = len(words) - at
    elif isinstance(expression, Not):
        at = len(words)
        words += (ops.NOT, 0)
        encode(expression.child, attributes, known, find, words)
        words[at + 1] = len(words) - at
    elif isinstance(expression, Between):
        _encode_between(expression, attributes[expression.attribute].kind, words)
    else:
        assert isinstance(expression, Within)
        lat, lon, radius_km = expression.lat, expression.lon, expression.radius_km
        cells = sorted(find(expression.attribute, cell) for cell in cells_within(lat, lon, radius_km))
        words += (ops.CIRCLE | len(cells) << 4, expression.attribute)
        for number in (*unit_vector(lat, lon), chord_squared(radius_km), lat, lon, radius_km):
            _put(float_bits(number), words)
        words += cells


def _put(value: int, words: list[int]) -> None:
    words.append(value & WORD)
    words.append((value >> 32) & WORD)


def _encode_between(leaf: Between, kind: Kind, words: list[int]) -> None:
    if kind is Kind.VERSION:
        low, high = leaf.low, leaf.high
        assert isinstance(low, tuple | None) and isinstance(high, tuple | None)
        words.extend((ops.VERSIONS, leaf.attribute))
        words.append(ops.OPEN if low is None else len(low))
        words.append(ops.OPEN if high is None else len(high))
        for part in (low or ()) + (high or ()):
            _put(part, words)
    elif kind is Kind.INTEGER:
        assert not isinstance(leaf.low, tuple) and not isinstance(leaf.high, tuple)
        words.extend((ops.INTEGERS, leaf.attribute))
        _put(INTEGER_MIN if leaf.low is None else int(leaf.low), words)
        _put(INTEGER_MAX if leaf.high is None else int(leaf.high), words)
    else:
        assert not isinstance(leaf.low, tuple) and not isinstance(leaf.high, tuple)
        words.extend((ops.NUMBERS, leaf.attribute))
        _put(float_bits(-np.inf if leaf.low is None else float(leaf.low)), words)
        _put(float_bits(np.inf if leaf.high is None else float(leaf.high)), words)


def decode(
    words: NDArray[np.uint32], at: int, attributes: Sequence[Attribute], value_of: Callable[[int, int], Value]
) -> Expression:
    """The expression at words[at], lists in the order of terms. `value_of`: the value of an attribute's term."""
    return _decode(words, at, attributes, value_of)[0]


def _decode(
    words: NDArray[np.uint32], at: int, attributes: Sequence[Attribute], value_of: Callable[[int, int], Value]
) -> tuple[Expression, int]:
    head, second = int(words[at]), int(words[at + 1])
    op, count = head & 15, head >> 4
    if op <= ops.NOT:
        children, p = [], at + 2
        while p < at + second:
            child, p = _decode(words, p, attributes, value_of)
            children.append(child)
        if op == ops.NOT:
            return Not(children[0]), p
        return (All if op == ops.ALL else Any_)(tuple(children)), p
    if op == ops.TERMS:
        return In(second, tuple(value_of(second, int(term)) for term in words[at + 2 : at + 2 + count])), at + 2 + count
    if op == ops.VERSIONS:
        return _decode_versions(words, at)
    if op == ops.CIRCLE:
        lat, lon, radius_km = words[at + 10 : at + 16].view(np.float64).tolist()
        return Within(second, lat, lon, radius_km), at + 16 + count
    if op == ops.INTEGERS:
        low, high = words[at + 2 : at + 6].view(np.int64).tolist()
        return Between(second, None if low == INTEGER_MIN else low, None if high == INTEGER_MAX else high), at + 6
    least, most = words[at + 2 : at + 6].view(np.float64).tolist()
    return Between(second, None if least == -np.inf else least, None if most == np.inf else most), at + 6


def _decode_versions(words: NDArray[np.uint32], at: int) -> tuple[Between, int]:
    bounds: list[tuple[int, ...] | None] = []
    p = at + 4
    for count in (int(words[at + 2]), int(words[at + 3])):
        if count == ops.OPEN:
            bounds.append(None)
        else:
            bounds.append(tuple(words[p : p + 2 * count].view(np.int64).tolist()))
            p += 2 * count
    return Between(int(words[at + 1]), *bounds), p
