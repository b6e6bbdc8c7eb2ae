"""The model that is shipped with the demo, and the click log that it was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")

from bench.ads import events
from bench.clicks import click_log
from scoring.model.metrics import auc, normalised_entropy
from scoring.model.served import AdFeatures, load_model
from scoring.reference import score_reference

DEMO = Path(__file__).resolve().parents[3] / "scoring" / "model" / "demo"
SEED = 20_261_130  # of the demo
SHIPPED_BYTES_MAX = 1_000_000


def test_the_click_log_is_the_same_from_the_same_seed_and_its_truth_fits_it() -> None:
    log, again = click_log(3, 200, 300), click_log(3, 200, 300)
    assert log.interactions == again.interactions
    shown = ~np.isnan(log.probability)
    clicked = np.array([row["label"] for row in log.interactions], bool)[shown]
    assert log.probability[shown].mean() == pytest.approx(clicked.mean(), abs=0.01)
    assert normalised_entropy(log.probability[shown], clicked) < 0.85


def test_the_shipped_model_knows_what_users_like() -> None:
    """On users that it never saw, of the truth that it was trained on, through the vectors that would be served."""
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < SHIPPED_BYTES_MAX
    model = load_model(DEMO)
    log = click_log(SEED, user_count=4_040)
    position = {item["item_id"]: i for i, item in enumerate(log.items)}
    ads = [
        AdFeatures(event["ad_id"], event["ad"]["advertiser_id"], event["ad"]["campaign_id"],
                   {k: v if isinstance(v, list) else [v] for k, v in event["ad"]["fields"].items()},
                   event["ad"]["features"])
        for event in events(SEED, len(log.items))
    ]  # fmt: skip
    embedding, gate = model.ads(ads)
    new = {f"u{u}" for u in range(4_000, 4_040)}
    cohorts = {user["user_id"]: {"age": user["age"], "gender": user["gender"]} for user in log.users}
    features, contexts, shown, clicked = [], [], [], []
    history: list[dict[str, str]] = []
    shop: list[dict[str, str]] = []
    last = ""
    for row in log.interactions:
        if row["user_id"] not in new:
            continue
        if row["user_id"] != last:
            history, shop, last = [], [], row["user_id"]
        if row["surface"]:
            shop.append({"ad_id": row["item_id"]})
            continue
        features.append({"history": history[:], "cohort": cohorts[last], "surfaces": {"shop": shop[:]}})
        contexts.append({"placement": row["context.placement"], "device": row["context.device"]})
        shown.append(position[row["item_id"]])
        clicked.append(bool(row["label"]))
        if row["label"]:
            history.append({"ad_id": row["item_id"]})
    users = model.users(features, contexts)
    a, q = embedding.astype(np.float64), gate.astype(np.float64)
    scores = np.array([score_reference(users[i], a[[ad]], q[[ad]])[0] for i, ad in enumerate(shown)])
    engaged = np.array(clicked)
    assert auc(scores, engaged) > 0.65
    assert scores.mean() == pytest.approx(engaged.mean(), abs=0.03)
    assert normalised_entropy(scores, engaged) < 0.95
