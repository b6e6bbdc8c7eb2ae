"""Why an ad is, or is not, in an answer: every part of the decision for one ad and one request, in plain float64."""

from __future__ import annotations

import numpy as np

from gpu_index.evaluate import evaluate
from gpu_index.evaluate import explain as explain_expression
from gpu_index.index import Index
from gpu_index.inspection import eligibility, targeting_of
from gpu_index.schema import ADVERTISER_ID, AGE_S, BID, CAMPAIGN_ID
from gpu_index.values import Values, request_values
from kernels.precision import dequantise
from scoring.reference import score_parts
from scoring.request import Pathway, Request
from scoring.retrieve import retrieve
from scoring.user import UserFeatures, understood_figures


def explain(index: Index, ad_id: str, request: Request) -> dict[str, object] | None:
    """The ad against the request; None where there is no such ad. Runs on the index's thread.

    `eligible` says whether it matches (status, times, schedule, targeting); each pathway says whether its filters and
    the exclusions let it pass, its score's parts, and its rank in the answer, null where it is not in it."""
    slot = index.slot_of(ad_id)
    if slot is None:
        return None
    now_us = index.now_us if request.now_us is None else request.now_us
    values = request_values(index.schema, request.attributes, now_us)
    expression, _ = targeting_of(index, slot)
    matches = evaluate(expression, values)
    times = eligibility(index, slot, now_us)
    answer = retrieve(index, [request])[0]
    ranks = {each.pathway: place for place, each in enumerate(answer.results) if each.ad_id == ad_id}
    first = {pathway.name: 0 for pathway in request.pathways}
    for place, each in reversed(list(enumerate(answer.results))):
        first[each.pathway] = place
    fields = _fields(index, slot, now_us)
    return {
        "ad_id": ad_id,
        "model": index.model,
        "eligible": bool(times["eligible"]) and matches,
        "eligibility": times,
        "targeting": explain_expression(expression, values, index.schema.attribute_list, "attr"),
        "excluded": ad_id in request.exclude_ads,
        "filter": None
        if request.filter is None
        else explain_expression(request.filter, fields, index.schema.field_list, "field"),
        "pathways": [
            {
                "name": pathway.name,
                "filter": None
                if pathway.filter is None
                else explain_expression(pathway.filter, fields, index.schema.field_list, "field"),
                "rank": ranks[pathway.name] - first[pathway.name] + 1 if pathway.name in ranks else None,
                **_score(index, slot, pathway),
            }
            for pathway in request.pathways
        ],
    }


def _fields(index: Index, slot: int, now_us: int) -> Values:
    """What a filter may ask of the ad."""
    a = index.ads
    values: Values = index.fields.values(a.fields.words, int(a.fields_at[slot])) if a.fields_at[slot] else {}
    for field, text in ((ADVERTISER_ID, index.advertiser(slot)), (CAMPAIGN_ID, index.campaign(slot))):
        if text is not None:
            values[field] = (text,)
    values[BID] = (float(a.bid[slot]),)
    values[AGE_S] = ((now_us - int(a.created_ms[slot]) * 1000) / 1e6,)
    return values


def _score(index: Index, slot: int, pathway: Pathway) -> dict[str, object]:
    """The parts of section 4 for the ad as it is stored."""
    a, bid = index.ads, float(index.ads.bid[slot])
    user = pathway.user
    if user is None:
        return {"bid": bid, "score": 0.5, "value": 0.5 * bid, "experts": None, "understood": None}
    assert not isinstance(user, UserFeatures), "the towers come before the engine"
    embedding = dequantise(a.embedding[slot], a.embedding_scale[slot], index.dim)
    gate = dequantise(a.gate[slot], a.gate_scale[slot], index.gate_dim)
    parts = score_parts(user, np.asarray(embedding)[None], np.asarray(gate)[None])
    score = float(parts.score[0])
    experts = [
        {"gate_logit": float(parts.z[0, e]), "weight": float(parts.g[0, e]), "dot": float(parts.products[0, e])}
        for e in range(len(user.experts))
    ]
    return {
        "bid": bid,
        "y": float(parts.y[0]),
        "temperature": user.temperature,
        "bias": user.bias,
        "route": user.route,
        "score": score,
        "value": score * bid,
        "experts": experts,
        "understood": None if user.understood is None else understood_figures(user.understood),
    }
