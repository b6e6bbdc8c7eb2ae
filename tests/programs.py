"""Random programs of kernels/program.py, and what they come to by plain recursion."""

from __future__ import annotations

import random
from collections.abc import Set
from typing import TypeAlias

from kernels.program import ALL, ANY, DEPTH_MAX, NOT, TERMS

TERM_MAX = 40
Tree: TypeAlias = "tuple[int, list[Tree]] | tuple[int, list[int]]"  # a node and its children, or TERMS and the terms


def leaf(r: random.Random) -> Tree:
    return TERMS, sorted(r.sample(range(1, TERM_MAX), r.choice([0, 1, 1, 2, 20])))


def bushy(r: random.Random, depth: int) -> Tree:
    """At most `depth` levels; all and any of nothing, of one and of several."""
    if depth == 1 or r.random() < 0.3:
        return leaf(r) if r.random() < 0.8 else (r.choice([ALL, ANY]), [])
    if r.random() < 0.25:
        return NOT, [bushy(r, depth - 1)]
    return r.choice([ALL, ANY]), [bushy(r, depth - 1) for _ in range(r.choice([1, 2, 2, 3, 5]))]


def spine(r: random.Random, depth: int) -> Tree:
    """Just `depth` levels, with something small before and behind at each: closing a level finds what is around it."""
    tree = leaf(r)
    for below in range(1, depth):
        op = r.choice([ALL, ANY, NOT])
        beside = [[bushy(r, min(below, 3)) for _ in range(r.choice([0, 0, 1, 2]))] for _ in range(2)]
        tree = (NOT, [tree]) if op == NOT else (op, [*beside[0], tree, *beside[1]])
    return tree


def programs(seed: int, count: int) -> list[Tree]:
    """Bushy ones, and spines up to the language's limit."""
    r = random.Random(seed)
    return [bushy(r, 6) if i % 2 else spine(r, r.choice([2, 3, DEPTH_MAX - 1, DEPTH_MAX])) for i in range(count)]


def words_of(tree: Tree) -> list[int]:
    op, children = tree
    if op == TERMS:
        return [TERMS | len(children) << 4, 0, *children]  # type: ignore[list-item]
    below = [word for child in children for word in words_of(child)]  # type: ignore[arg-type]
    return [op, 2 + len(below), *below]


def truth(tree: Tree, terms: Set[int]) -> bool:
    op, children = tree
    if op == TERMS:
        return not terms.isdisjoint(children)  # type: ignore[arg-type]
    values = [truth(child, terms) for child in children]  # type: ignore[arg-type]
    return not values[0] if op == NOT else all(values) if op == ALL else any(values)
