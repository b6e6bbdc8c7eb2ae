"""The first look's rule, played on drawn ads and on a trained model's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.pruning import AT_ONCE, SETTINGS, Draw, Trained, shares, trained_scores

DEMO = Path(__file__).resolve().parents[2] / "scoring" / "model" / "demo"


def test_the_look_is_above_the_score_and_what_is_asked_rises() -> None:
    orders, highest = Draw(SETTINGS[0], np.random.default_rng(1))(1000)
    assert (highest >= orders).all()
    few, _ = shares(Draw(SETTINGS[0], np.random.default_rng(1)), 4 * AT_ONCE, 10)
    many, tiles = shares(Draw(SETTINGS[0], np.random.default_rng(1)), 4 * AT_ONCE, 1000)
    assert 0.25 < few < many < tiles <= 1  # of the first round nothing is asked
    assert shares(Draw(SETTINGS[0], np.random.default_rng(1)), 2 * AT_ONCE, 10, "rising") == (1.0, 1.0)


def test_the_look_at_a_trained_models_ads_is_above_their_scores(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch comes with the extra `model`")
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (pip install mirach[gpu-test])")
    from tests.scoring.model import tiny

    users = list(trained_scores(DEMO, tiny.make(tmp_path), 3, seed=1))
    assert len(users) == 3
    for scores, highest in users:
        assert scores.shape == highest.shape == (tiny.ITEMS,)
        assert (highest > scores).all()
        assert (highest < 1).all()
    orders, most = Trained(*users[0], True, np.random.default_rng(1))(100)
    assert (most > orders).all()
