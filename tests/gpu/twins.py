"""The plain index beside an index with its copy on a device: random events to both, one answer."""

from __future__ import annotations

import random

import numpy as np

from gpu_index.events import Batch
from gpu_index.index import Index, Limits
from kernels import extents as extents_
from kernels.cuda.mirror import Mirror, Sizes
from kernels.cuda.paged import Paged
from kernels.cuda.top_k import top_k
from kernels.cuda.types import TOP_K_MAX, Device, TopKJob, UserVectors
from kernels.precision import Precision
from scoring.user import User
from tests import random_cases as cases
from tests.plain import PlainAd
from tests.twins import DIM, EXPIRED_VERSIONS_S, GATE_DIM, LIMITS, Twins

SMALL_PAGES = Sizes(slots_log2=13, targetings_log2=15, words_log2=10)  # many, so that what is read lies across them
SCORE_TOLERANCE = 1e-5


class DeviceTwins(Twins):
    """Events go to the host's index, answers come from the device. The scores that the plain index ranks by are the
    device's own, of every ad; they are near the CPU's."""

    def __init__(
        self, r: random.Random, device: Device, *, ids: int, limits: Limits = LIMITS,
        precision: Precision = Precision.INT8, touched_max: int = 2**14, targetings: int = 40,
        sizes: Sizes = SMALL_PAGES,
    ) -> None:  # fmt: skip
        super().__init__(r, ids=ids, limits=limits, precision=precision, targetings=targetings)
        self.index = Index(
            cases.SCHEMA, dim=DIM, gate_dim=GATE_DIM, precision=precision, limits=limits,
            expired_versions_s=EXPIRED_VERSIONS_S, touched_max=touched_max,
        )  # fmt: skip
        self.device = device
        self.index.copy = self.mirror = new_mirror(self.device, self.index, sizes)

    def batch(self, r: random.Random, count: int) -> Batch:
        """Events for another index."""
        events = [self.event(r) for _ in range(count)]
        return Batch(events, {event.partition: self.offset[event.partition] for event in events}, lambda *_: None)

    def _score(self, user: User | None, ad: PlainAd) -> float:
        if user is None:
            return 0.5
        if self._scores is None:
            near = super()._score(user, ad)  # the CPU's scores of all users and ads
            assert self._scores is not None
            assert near == self._scores[id(user), ad.ad_id]
            for each in self.users:
                for ad_id, score in self._device_scores(each).items():
                    assert abs(score - self._scores[id(each), ad_id]) < SCORE_TOLERANCE
                    self._scores[id(each), ad_id] = score
        return self._scores[id(user), ad.ad_id]

    def _device_scores(self, user: User) -> dict[str, float]:
        used = self.index.ads.extents
        slots = -(-int(used.state[extents_.FRONTIER]) // 8192) * 8192
        mask = self.device.zeros(slots // 32, np.uint32)
        self.device.upload(used.bits[: slots // 64].view(np.uint32), mask)
        vectors = UserVectors(user.experts, user.gates, user.gate_bias, user.temperature, user.bias, user.route)
        job = TopKJob(mask, vectors, min(TOP_K_MAX, self.index.count), by_value=False)
        best = top_k(self.device, self.mirror.score_columns, slots, [job])[0]
        assert len(best.slots) == self.index.count
        scores = zip(best.slots.tolist(), best.scores.tolist(), strict=True)
        return {self.index.ad_id(slot): score for slot, score in scores}

    def check(self) -> None:
        super().check()
        assert_mirrored(self.mirror)


def new_mirror(device: Device, index: Index, sizes: Sizes = SMALL_PAGES) -> Mirror:
    return Mirror(device, index.ads, index.targetings, index.dim, index.gate_dim, index.precision, sizes)


def assert_mirrored(mirror: Mirror) -> None:
    """All that is granted on the device equals the host's arrays, byte for byte."""
    mirror.sync()
    parts: dict[str, Paged] = {**mirror.bits, **mirror.columns, **mirror.pools}
    for name, paged in {**parts, "rows": mirror.rows, "record": mirror.record}.items():
        there = paged.download()
        here = paged.host.view(np.uint8).reshape(len(paged.host), -1)[: len(there), : there.shape[1]]
        assert np.array_equal(there[:, : here.shape[1]], here), name
        assert not there[:, here.shape[1] :].any(), name
