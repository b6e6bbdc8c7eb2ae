"""Memory of an index: what was touched, by part, which only grows; and what its contents hold, which comes and goes."""

from __future__ import annotations

from typing import NamedTuple

from gpu_index.vocabulary import Vocabulary
from kernels import expired as expired_
from kernels import extents as extents_
from kernels import pool as pool_
from kernels import rows as rows_
from kernels import targetings as targetings_
from kernels.ads import Ads
from kernels.memory import PAGE_BYTES, pages_bytes
from kernels.rows import BLOCK_WORDS

TERM_BYTES = 200  # of Python's own memory for a value of a vocabulary: an estimate
EXPIRED_BYTES = 36  # of a slot, without its id


class Parts(NamedTuple):
    """What an index is made of."""

    ads: Ads
    targetings: targetings_.Targetings
    expired: expired_.Expired
    terms: Vocabulary
    fields: Vocabulary


def slot_bytes(a: Ads) -> int:
    """Of an ad's slot, without texts and fields."""
    return _vector_bytes(a) + _column_bytes(a)


def touched(parts: Parts) -> dict[str, int]:
    """Bytes by part, as far as pages have been touched; without the vocabularies, which live in Python's own memory."""
    a, t, x = parts.ads, parts.targetings, parts.expired
    slots, targetings = int(a.extents.state[extents_.FRONTIER]), int(t.state[targetings_.FRONTIER])
    return {
        "rows": _row_bytes(t),
        "lists": int(t.rows.postings.state[pool_.FRONTIER]) * 4,
        "records": int(t.records.state[pool_.FRONTIER]) * 4,
        "targetings": targetings * _targeting_bytes(parts),
        "terms": 2 * parts.terms.highest * _entry_bytes(t),
        "vectors": slots * _vector_bytes(a),
        "ads": slots * _column_bytes(a),
        "texts": int(a.texts.state[pool_.FRONTIER]) * 4,
        "fields": int(a.fields.state[pool_.FRONTIER]) * 4,
        "expired_versions": int(x.texts.state[pool_.FRONTIER]) * 4 + int(x.state[expired_.FRONTIER]) * EXPIRED_BYTES,
    }


def held(parts: Parts) -> int:
    """Bytes of what is in the index now, with an estimate for the vocabularies. Rows are kept once they are there, and
    counted as wide as the next batch may make them."""
    a, t, x = parts.ads, parts.targetings, parts.expired
    words = sum(int(pool.state[pool_.USED]) for pool in (t.rows.postings, t.records, a.texts, a.fields, x.texts))
    terms, fields = len(parts.terms), len(parts.fields)
    return (
        _row_bytes(t, BLOCK_WORDS)
        + 4 * words
        + int(t.state[targetings_.LIVE]) * _targeting_bytes(parts)
        + int(a.extents.state[extents_.SLOTS_USED]) * slot_bytes(a)
        + int(x.state[expired_.HELD]) * EXPIRED_BYTES
        + 2 * terms * _entry_bytes(t)
        + (terms + fields) * TERM_BYTES
    )


def _row_bytes(t: targetings_.Targetings, more_words: int = 0) -> int:
    """`more_words`: what a row may grow by with the next targeting."""
    each = pages_bytes((targetings_.row_words(t) + more_words) * 8) + PAGE_BYTES  # rows do not begin at pages
    return int(t.rows.state[rows_.ROWS_FRONTIER]) * each


def _vector_bytes(a: Ads) -> int:
    return sum(x.nbytes // len(x) for x in (a.embedding, a.embedding_scale, a.gate, a.gate_scale))


def _column_bytes(a: Ads) -> int:
    columns = (
        a.id_at, a.features_at, a.fields_at, a.targeting, a.advertiser, a.campaign, a.version, a.offset, a.partition,
        a.created_ms, a.bid, a.start_us, a.end_us, a.flags, a.table.next, a.table.hash, a.extents.next,
        a.extents.previous, a.extents.kind, a.extents.used,
    )  # fmt: skip
    return sum(x.itemsize for x in columns)


def _targeting_bytes(parts: Parts) -> int:
    t = parts.targetings
    columns = (t.record, t.references, t.free, t.table.next, t.table.hash, parts.ads.extents.ring)
    return sum(x.itemsize for x in columns)


def _entry_bytes(t: targetings_.Targetings) -> int:
    return sum(x.itemsize for x in (t.rows.row, t.rows.uses, t.rows.offset, t.rows.capacity))
