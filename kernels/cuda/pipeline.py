"""One pass of requests over the mirror: scatter, match, check, eligible; then filters and exclusions, mask by mask.

All on one stream and nothing waited for: what comes back are bitmaps that stay on the device, and counts at the end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels import extents as extents_
from kernels import targetings as targetings_
from kernels.cuda.ads import (
    BATCH_MAX,
    ELIGIBLE_BLOCK,
    FILTER_BLOCK,
    THREADS,
    copy_units,
    eligible,
    exclude,
    filter_ads,
    zero_units,
)
from kernels.cuda.buffers import Buffers
from kernels.cuda.match import CHECK_BLOCK, MATCH_BLOCK, check, match, scatter
from kernels.cuda.mirror import Mirror
from kernels.cuda.types import DeviceArray
from kernels.plan import Plan, Queries, make_plan, steps
from kernels.rows import BLOCK_WORDS

CHUNK_POSTINGS = 1024  # of a list that a warp scatters
UNIT_WORDS = 2  # of 64 bits
assert MATCH_BLOCK % (64 * BLOCK_WORDS) == 0


class Pass:
    """A batch of requests. Masks are uint32 [slots / 32], a bit per ad slot."""

    def __init__(self, mirror: Mirror, buffers: Buffers, queries: Queries) -> None:
        """Launches everything up to the eligible ads. Raises OutOfDeviceMemory."""
        requests = len(queries.start) - 1
        assert 0 < requests <= BATCH_MAX, requests
        self._mirror, self._buffers, self._device = mirror, buffers, mirror.device
        mirror.sync()
        frontier = int(mirror.ads.extents.state[extents_.FRONTIER])
        self.slots = -(-frontier // ELIGIBLE_BLOCK) * ELIGIBLE_BLOCK
        self.words = self.slots // 32
        self._counts = buffers.get("counts", BATCH_MAX, np.uint32).at(0, requests)
        self._masks = buffers.get("eligible", (requests, max(self.words, 4)), np.uint32)
        self._own = 0  # masks beside those of the eligible
        if self.slots:
            self._eligible(queries, self._match(queries))

    def counts(self) -> NDArray[np.int64]:
        """Eligible ads of each request. Waits for the device."""
        if not self.slots:
            return np.zeros(self._counts.shape[0], np.int64)
        return self._device.download(self._counts).astype(np.int64)

    def eligible(self, request: int) -> DeviceArray:
        """The request's mask. Not to be changed."""
        return self._masks.at(request * self.words, self.words)

    def _match(self, q: Queries) -> DeviceArray:
        """-> uint64 [request, words of a row in use]"""
        mirror, t = self._mirror, self._mirror.targetings
        requests, units = len(q.start) - 1, int(targetings_.row_words(t)) // UNIT_WORDS
        plan: Plan = make_plan(t.rows, q)
        listed, step_start = steps(plan)
        chunks = _chunks(t.rows, plan)
        terms = np.concatenate([np.sort(q.terms[q.start[r] : q.start[r + 1]]) for r in range(requests)])
        sent = self._buffers.send("plan", listed, step_start, chunks, terms, q.start, q.numbers, q.number_start)
        matched = self._buffers.get("matched", (requests, units * UNIT_WORDS), np.uint64)
        scratch = self._scratch(int(plan.place_start[requests]), units, sent[2], len(chunks))
        rows, pages = mirror.rows.table, mirror.rows.pages_max
        self._device.launch(
            match, requests * -(-units * 128 // MATCH_BLOCK), THREADS,
            (rows, pages, mirror.row_units_log2, scratch, units, sent[0], sent[1], requests, units, matched),
        )  # fmt: skip
        if t.state[targetings_.PROGRAMS]:
            self._device.launch(
                check, requests * -(-units * 128 // CHECK_BLOCK), THREADS,
                (
                    matched, requests, units, rows, pages, mirror.row_units_log2, mirror.record.table,
                    mirror.sizes.targetings_log2, mirror.pools["records"].table, mirror.sizes.words_log2,
                    *sent[3:7], q.number_start.shape[1] - 1,
                ),
            )  # fmt: skip
        return matched

    def _scratch(self, places: int, units: int, chunks: DeviceArray, count: int) -> DeviceArray:
        """Scratch rows [place, units] with the bits of the lists in `chunks`."""
        scratch = self._buffers.get("scratch", (max(places, 1), units * UNIT_WORDS), np.uint64)
        if places:
            total = places * units
            self._device.launch(zero_units, -(-total // THREADS), THREADS, (scratch, total))
            postings = self._mirror.pools["postings"].table
            self._device.launch(
                scatter, -(-count * 32 // THREADS), THREADS,
                (postings, self._mirror.sizes.words_log2, chunks, count, scratch, units * 4),
            )  # fmt: skip
        return scratch

    def _eligible(self, q: Queries, matched: DeviceArray) -> None:
        mirror, requests = self._mirror, len(q.start) - 1
        (now_us,) = self._buffers.send("now", q.now_us)
        self._device.launch(zero_units, 1, THREADS, (self._counts, BATCH_MAX // 4))
        columns = [mirror.columns["targeting"], mirror.bits["live"], mirror.bits["active"]]
        columns += [mirror.columns["start_us"], mirror.columns["end_us"]]
        self._device.launch(
            eligible, self.slots // ELIGIBLE_BLOCK, THREADS,
            (
                mirror.sizes.slots_log2, *(paged.table for paged in columns), matched, matched.shape[1] // UNIT_WORDS,
                requests, now_us, self._masks, self.words, self._counts,
            ),
        )  # fmt: skip

    # -- from masks to masks

    def filtered(self, mask: DeviceArray, program: NDArray[np.uint32], now_us: int) -> DeviceArray:
        """Of the ads in a mask, those of which the filter is true at `now_us`."""
        out, mirror = self._mask(), self._mirror
        (words,) = self._buffers.send(f"program {self._own}", program)
        columns = [mirror.columns[name].table for name in ("fields_at", "advertiser", "campaign", "bid", "created_ms")]
        self._device.launch(
            filter_ads, self.slots // FILTER_BLOCK, THREADS,
            (
                mask, out, words, now_us, mirror.sizes.slots_log2, *columns, mirror.pools["fields"].table,
                mirror.sizes.words_log2,
            ),
        )  # fmt: skip
        return out

    def without(self, mask: DeviceArray, slots: NDArray[np.uint32]) -> DeviceArray:
        """The mask without these ads."""
        out = self._mask()
        units = self.words // 4
        self._device.launch(copy_units, -(-units // THREADS), THREADS, (mask, out, units))
        masks = np.full(len(slots), out.address, np.uint64)
        sent = self._buffers.send(f"excluded {self._own}", masks, slots)
        self._device.launch(exclude, -(-len(slots) // THREADS), THREADS, (*sent, len(slots)))
        return out

    def _mask(self) -> DeviceArray:
        self._own += 1
        return self._buffers.get(f"mask {self._own}", self.words, np.uint32)


def _chunks(x: object, plan: Plan) -> NDArray[np.uint32]:
    """The lists of a plan in pieces that a warp scatters: [chunk, 4], see `scatter`."""
    count = int(plan.list_start[-1])
    entries, places = plan.list_entry[:count], plan.list_place[:count]
    offsets, uses = x.offset[entries].astype(np.int64), x.uses[entries].astype(np.int64)  # type: ignore[attr-defined]
    pieces = -(-uses // CHUNK_POSTINGS)
    of_list = np.repeat(np.arange(count), pieces)
    skipped = (np.arange(len(of_list)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * CHUNK_POSTINGS
    out = np.zeros((len(of_list), 4), np.uint32)
    out[:, 0] = offsets[of_list] + skipped
    out[:, 1] = np.minimum(uses[of_list] - skipped, CHUNK_POSTINGS)
    out[:, 2] = places[of_list]
    return out
