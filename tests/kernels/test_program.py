"""The walk of a program against plain recursion; leaves are tested with the language (tests/gpu_index)."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_index import targeting
from kernels.program import DEPTH_MAX, RequestFacts, holds, walk_stack
from tests.programs import TERM_MAX, programs, truth, words_of


def test_the_depth_of_the_walk_is_that_of_the_language() -> None:
    assert DEPTH_MAX == targeting.DEPTH_MAX


@pytest.mark.parametrize("terms", [frozenset(), frozenset({3, 17}), frozenset(range(1, TERM_MAX, 2))], ids=len)
def test_random_programs_of_any_depth(terms: frozenset[int]) -> None:
    bits, ends = np.zeros(2, np.uint64), walk_stack()
    for term in terms:
        bits[term >> 6] |= np.uint64(1) << np.uint64(term & 63)
    facts = RequestFacts(bits, np.zeros(2, np.int64), np.zeros(1, np.int64))
    found = set()
    for i, tree in enumerate(programs(seed=len(terms), count=4000)):
        words = np.array([7] * (i % 3) + words_of(tree), np.uint32)  # not always from the first word on
        want = truth(tree, terms)
        assert holds(words, i % 3, facts, ends) == want, tree
        found.add(want)
    assert found == {True, False}
