"""What a match must move through memory: a plain twin of the match kernel's plan that counts bytes.

For one request it walks the rows in the kernel's order, each only in the blocks where something is left, and counts
the words read; posting lists by their length; for each targeting left its ring, extent and live bits; and four bytes
for each slot written. What programs read is left out, since few targetings reach one: so the share of the bandwidth
that follows from it is rather too low.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_index.index import Index
from gpu_index.queries import Packed, queries
from gpu_index.values import RequestAttributes
from kernels.rows import BLOCK_WORDS, CONSTRAINED_ROW, USED_ROW, Rows
from kernels.targetings import row_words

BLOCK_BYTES = BLOCK_WORDS * 8
POSTING_BYTES = 4
TARGETING_BYTES = 4 + 4 + 1 + 8  # its ring, an extent's link and class, a word of live bits
SLOT_BYTES = 4


def match_bytes(index: Index, attributes: RequestAttributes, eligible: int) -> int:
    """Bytes moved by matching this request and expanding it to its `eligible` ads."""
    rows, words = index.targetings.rows, int(row_words(index.targetings))
    query = queries([Packed(index.terms, index.schema, attributes, index.now_us)], [None])
    included = 2 * query.terms.astype(np.int64)  # entries
    left = _read(rows, USED_ROW, words).copy()  # [block, word]
    moved = left.nbytes
    let_through = np.bincount(query.attribute, rows.uses[included].astype(np.float64), len(rows.constrained))
    for attribute in np.argsort(let_through - rows.constrained, kind="stable").tolist():
        if rows.constrained[attribute]:
            entries = included[query.attribute == attribute]
            moved += BLOCK_BYTES * _blocks(left) + _union_bytes(rows, entries, left)
            left &= _union(rows, entries, words) | ~_read(rows, CONSTRAINED_ROW + attribute, words)
    moved += _union_bytes(rows, included + 1, left)
    left &= ~_union(rows, included + 1, words)
    return moved + int(np.bitwise_count(left).sum()) * TARGETING_BYTES + eligible * SLOT_BYTES


def _read(rows: Rows, row: int, words: int) -> NDArray[np.uint64]:
    return rows.bits[row, :words].reshape(-1, BLOCK_WORDS)


def _blocks(left: NDArray[np.uint64]) -> int:
    """How many still have something in them."""
    return int(left.any(axis=1).sum())


def _union(rows: Rows, entries: NDArray[np.int64], words: int) -> NDArray[np.uint64]:
    """The targetings of any of the entries."""
    union = np.zeros(words, np.uint64)
    for entry in entries.tolist():
        if rows.row[entry]:
            union |= rows.bits[rows.row[entry], :words]
        else:
            at = int(rows.offset[entry])
            slots = rows.postings.words[at : at + int(rows.uses[entry])].astype(np.uint64)
            np.bitwise_or.at(union, (slots >> np.uint64(6)).astype(np.int64), np.uint64(1) << (slots & np.uint64(63)))
    return union.reshape(-1, BLOCK_WORDS)


def _union_bytes(rows: Rows, entries: NDArray[np.int64], left: NDArray[np.uint64]) -> int:
    """What reading the entries costs: rows where something is left, lists whole, and the scratch row that they fill."""
    in_rows = rows.row[entries] != 0
    postings = int(rows.uses[entries[~in_rows]].sum())
    rows_read = int(in_rows.sum()) + (postings > 0)
    return rows_read * _blocks(left) * BLOCK_BYTES + postings * POSTING_BYTES
