"""A small data set with a pattern that a model can learn: most items are followed by the next one of their category."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.random import default_rng

from scoring.model.config import Architecture, Recipe
from scoring.model.data import Dataset, read_dataset, write_dataset

ITEMS, CATEGORIES, USERS = 24, 4, 40
ARCHITECTURE = Architecture(
    dim=16, gate_dim=4, towers=("sequence", "cohort", "semantic", "surfaces"),
    experts=("sequence", "cohort", "semantic", "surfaces"), layers=1, attention_heads=2, history=8, surface_history=4,
    word_buckets=64,
)  # fmt: skip
RECIPE = Recipe(seed=3, epochs=2, batch=16, negatives=10, warm_up=5, learning_rate=1e-2, dropout=0.0)


def make(folder: Path, seed: int = 1, shown: bool = False) -> Path:
    """Writes the data set. `shown`: every engagement stands beside one that was shown and not engaged with."""
    rng = default_rng(seed)
    items = [
        {
            "item_id": f"i{i}", "advertiser_id": str(i % 3), "categories": [f"c{i % CATEGORIES}"],
            "text": f"word{i % CATEGORIES} other{i % 5}", "format": ("banner", "video")[i % 2],
        }
        for i in range(ITEMS)
    ]  # fmt: skip
    users = [{"user_id": f"u{u}", "age": int(rng.integers(18, 65)), "gender": "fm"[u % 2]} for u in range(USERS)]
    interactions: list[dict[str, Any]] = []
    for u in range(USERS):
        item = int(rng.integers(ITEMS))
        for time in range(int(rng.integers(6, 14))):
            row = {"user_id": f"u{u}", "item_id": f"i{item}", "time": time, "label": 1, "surface": None}
            interactions.append({**row, "context.hour": str(time % 3)})
            if shown:
                interactions.append({**interactions[-1], "item_id": f"i{rng.integers(ITEMS)}", "label": 0})
            if rng.random() < 0.3:
                interactions.append({**row, "surface": "shop", "context.hour": None})
            item = (item + CATEGORIES) % ITEMS if rng.random() < 0.9 else int(rng.integers(ITEMS))
    if shown:
        for row in interactions:
            row["split"] = ("train", "validation", "test")[max(0, row["time"] - 3) // 3 if row["time"] < 9 else 2]
    write_dataset(folder, items, users, interactions)
    return folder


def dataset(folder: Path, seed: int = 1, shown: bool = False) -> Dataset:
    return read_dataset(make(folder, seed, shown))
