"""One pass through index, scoring and ranking, held against the plain index."""

from __future__ import annotations

import random

import numpy as np

from gpu_index.events import ALWAYS_FROM_US, ALWAYS_UNTIL_US, AdEvent, AdPatch, Batch, EventKind, ParsedTargeting
from gpu_index.index import Index, Limits
from gpu_index.targeting import parse_expression
from gpu_index.values import parse_attributes, parse_fields
from kernels.precision import Precision
from scoring.request import Pathway, Request
from scoring.retrieve import retrieve
from scoring.user import parse_user
from tests import random_cases as cases
from tests.plain import PlainIndex

NOW_US = 1_796_000_000_000_000


def test_answers_equal_the_plain_index() -> None:
    r = random.Random(5)
    g = np.random.default_rng(5)
    index = Index(
        cases.SCHEMA, dim=8, gate_dim=4, precision=Precision.INT8, limits=Limits(2**14, 2**14, 2**14, 2**10)
    )
    plain = PlainIndex(cases.SCHEMA, dim=8, gate_dim=4, precision=Precision.INT8)
    events = []
    for i in range(1500):
        raw = cases.targeting(r, 3)
        targeting = ParsedTargeting(repr(raw).encode(), parse_expression(raw, cases.SCHEMA.attributes))
        patch = AdPatch(
            advertiser_id=r.choice([None, "0", "1", "2"]), campaign_id=r.choice([None, "4", "5"]),
            bid=r.choice([1.0, 2.0, 0.1]), paused=r.random() < 0.1, start_us=ALWAYS_FROM_US, end_us=ALWAYS_UNTIL_US,
            schedule=None, targeting=targeting, features=b"", fields=parse_fields(cases.SCHEMA, cases.fields(r)),
            embedding=g.normal(size=8).astype(np.float32) if r.random() < 0.8 else None,
            gate=g.normal(size=4).astype(np.float32),
        )  # fmt: skip
        events.append(AdEvent(EventKind.CREATE, str(i), None, 0, i, NOW_US // 1000 - r.randrange(50_000), patch=patch))
    outcomes = index.apply(Batch(events, {0: len(events)}, lambda *_: None), NOW_US)
    assert outcomes == [plain.apply(event) for event in events]
    requests = []
    for _ in range(40):
        user = parse_user(
            {"experts": g.normal(size=(3, 8)).tolist(), "gates": g.normal(size=(3, 4)).tolist()}, 8, 4, 8
        )
        pathways = tuple(
            Pathway(
                str(n), r.choice([1, 7, 200]), r.choice(["value", "score"]), r.choice([None, user]),
                parse_expression(cases.filter_(r), cases.SCHEMA.fields, "field") if r.random() < 0.5 else None,
            )
            for n in range(r.randrange(1, 4))
        )  # fmt: skip
        requests.append(
            Request(
                parse_attributes(cases.SCHEMA, cases.attributes(r), r.choice(cases.ZONES)), pathways,
                max_per={"advertiser_id": 3} if r.random() < 0.3 else {},
                exclude_ads=tuple(str(r.randrange(1600)) for _ in range(r.choice([0, 100]))),
                filter=parse_expression(cases.filter_(r), cases.SCHEMA.fields, "field") if r.random() < 0.3 else None,
            )
        )  # fmt: skip
    some = 0
    for request, answer in zip(requests, retrieve(index, requests), strict=True):
        scores = {(result.ad_id, result.pathway): result.score for result in answer.results}
        want = plain.retrieve(request, NOW_US)
        assert answer.eligible == want.eligible
        assert [(each.ad_id, each.pathway) for each in answer.results] == [(e.ad_id, e.pathway) for e in want.results]
        for result in want.results:
            assert abs(scores[result.ad_id, result.pathway] - result.score) < 1e-4  # the request is held in int16
        some += len(want.results)
    assert some > 100
