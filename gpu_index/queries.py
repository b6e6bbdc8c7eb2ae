"""Requests as the terms and numbers that the match kernel takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_index.cells import cell_of, unit_vector
from gpu_index.record import float_bits
from gpu_index.schema import Kind, Schema
from gpu_index.terms import TargetingTerms
from gpu_index.values import Point, RequestAttributes, Value, request_values
from kernels.plan import SERVICE_CLOCK, Queries

WITHOUT_NUMBERS = frozenset({Kind.CATEGORY, Kind.BOOLEAN, Kind.HOUR_OF_WEEK})


class Packed:
    """One request's terms, their attributes, and its numbers with where each attribute's begin."""

    def __init__(self, terms: TargetingTerms, schema: Schema, attributes: RequestAttributes, now_us: int) -> None:
        count = len(schema.attribute_list)
        schedule = terms.schedule_terms(now_us)
        ids: list[int] = []
        owners: list[int] = []
        numbers: list[int] = []
        self.starts = np.zeros(count + 1, np.int64)
        kinds, terms_of = schema.attribute_list, terms.vocabulary.terms_of
        for attribute, given in sorted(request_values(schema, attributes, now_us).items()):
            kind = kinds[attribute].kind
            if kind is Kind.CATEGORY:
                known = terms_of[attribute]
                if len(given) == 1:  # as most attributes have it
                    term = known.get(given[0])
                    if term is not None:
                        ids.append(term)
                        owners.append(attribute)
                    continue
                found = list({known[value] for value in given if value in known})
                ids += found
                owners += [attribute] * len(found)
                continue
            found = _terms(terms, attribute, kind, given)
            ids += found
            owners += [attribute] * len(found)
            if kind not in WITHOUT_NUMBERS:
                before = len(numbers)
                _numbers(kind, given, numbers)
                self.starts[attribute + 1] = len(numbers) - before
        np.cumsum(self.starts, out=self.starts)
        self.terms: NDArray[np.uint32] = np.array(ids + schedule, np.uint32)
        self.attribute: NDArray[np.int64] = np.array(owners + [count] * len(schedule), np.int64)
        self.numbers: NDArray[np.int64] = np.array(numbers, np.int64)


def _terms(terms: TargetingTerms, attribute: int, kind: Kind, given: Sequence[Value]) -> list[int]:
    """Terms of the values that any targeting names, each once; not of a category."""
    if kind is Kind.NUMBER:
        return []
    if kind is Kind.GEO_POINT:
        found = {terms.find(attribute, cell_of(*value)) for value in given if isinstance(value, Point)}
    else:
        found = {terms.find(attribute, value) for value in given}
    return list(found - {0})


def _numbers(kind: Kind, given: Sequence[Value], out: list[int]) -> None:
    """Appends the values as the interpreter reads them."""
    for value in given:
        if isinstance(value, Point):
            out.extend(map(float_bits, unit_vector(*value)))
        elif kind is Kind.VERSION:
            assert isinstance(value, tuple)
            out.append(len(value))
            out.extend(value)  # type: ignore[arg-type]  # versions are tuples of int
        elif kind is Kind.INTEGER:
            assert isinstance(value, int)
            out.append(value)
        elif kind is Kind.NUMBER:
            assert isinstance(value, float)
            out.append(float_bits(value))


def queries(packed: Sequence[Packed], own_now_us: Sequence[int | None]) -> Queries:
    """A batch of requests; `own_now_us` is the `now` of each that has one."""
    starts = np.zeros(len(packed) + 1, np.int64)
    np.cumsum([len(each.terms) for each in packed], out=starts[1:])
    bases = np.cumsum([0] + [len(each.numbers) for each in packed[:-1]], dtype=np.int64)
    return Queries(
        np.concatenate([each.terms for each in packed]),
        np.concatenate([each.attribute for each in packed]),
        starts,
        np.concatenate([each.numbers for each in packed]),
        np.stack([each.starts + base for each, base in zip(packed, bases, strict=True)]),
        np.array([SERVICE_CLOCK if now is None else now for now in own_now_us], np.int64),
    )


def numbers_of(kind: Kind, given: Sequence[Value]) -> list[int]:
    """The numbers of an ad's field, as a filter reads them."""
    out: list[int] = []
    _numbers(kind, given, out)
    return out


