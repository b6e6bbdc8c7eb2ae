"""Windows of histories against a plain account of the same users."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `model`")

from scoring.model.data import read_dataset, write_dataset
from scoring.model.features import (
    FIRST_ITEM,
    NO_ITEM,
    Signal,
    attributes_of,
    catalogue,
    item_table,
    make_vocabularies,
    words_of,
)
from scoring.model.sequences import make_impressions, make_sequences, windows
from scoring.model.served import AdFeatures
from tests.scoring.model.tiny import dataset

ROOT = Path(__file__).resolve().parents[3]
LENGTH, SURFACE_LENGTH = 5, 3


def test_windows_see_what_came_before_and_nothing_else(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    vocabularies = make_vocabularies(data, 64)
    table = catalogue(data.items, vocabularies)
    sequences = make_sequences(data, table, vocabularies)
    shown = data.interactions
    rng = np.random.default_rng(2)
    for position in rng.choice(len(sequences.item), 60, replace=False).tolist():
        user = int(sequences.user[position])
        row = windows(sequences, np.array([user]), np.array([position]), LENGTH, SURFACE_LENGTH)
        own = [i for i in range(len(shown.user)) if shown.user[i] == user and shown.surface[i] is None]
        others = [i for i in range(len(shown.user)) if shown.user[i] == user and shown.surface[i] is not None]
        at = position - int(sequences.start[user])
        first = max(0, at - LENGTH + 1)
        assert row.length[0] == at - first + 1
        for place, p in enumerate(range(first, at + 1)):
            before = own[:p]
            assert row.token[0, place] == (FIRST_ITEM + shown.item[before[-1]] if before else NO_ITEM)
            assert row.total[0, place] == pytest.approx(np.log1p(len(before)))
            for number, label in enumerate(vocabularies.labels[: vocabularies.aggregates]):
                having = sum(label in attributes_of(data.items[shown.item[i]])[0] for i in before)
                assert row.shares[0, place, number] == pytest.approx(having / max(len(before), 1))
            earlier = [i for i in others if shown.time[i] < shown.time[own[p]]]
            newest = row.surface_token[0, row.surface_at[0, place]]
            known = [i for i in others if shown.time[i] < shown.time[own[at]]][-(SURFACE_LENGTH - 1) :]
            seen = earlier and earlier[-1] in known
            assert newest == (FIRST_ITEM + shown.item[earlier[-1]] if seen else NO_ITEM)


def test_impressions_stand_after_what_was_engaged_with_before_them(tmp_path: Path) -> None:
    data = dataset(tmp_path, shown=True)
    vocabularies = make_vocabularies(data, 64)
    sequences = make_sequences(data, catalogue(data.items, vocabularies), vocabularies)
    shown = make_impressions(data, vocabularies)
    assert 0 < shown.engaged.mean() < 1
    for i in range(len(shown.user)):
        before = sequences.item[sequences.start[shown.user[i]] : shown.position[i]]
        engaged = [j for j in range(i) if shown.user[j] == shown.user[i] and shown.engaged[j]]
        assert before.tolist() == shown.item[engaged].tolist()


def test_signals_become_numbers() -> None:
    text = Signal(values=["b", "a"])
    assert [text.number(value) for value in ("a", "b", "c", None, 3)] == [2, 1, 0, 0, 0]
    number = Signal(edges=[1.0, 2.0])
    assert [number.number(value) for value in (0, 1, 1.5, 10**400, "1", True, None, float("nan"))] == [
        1, 2, 2, 3, 0, 0, 0, 0,
    ]  # fmt: skip
    assert (text.size, number.size) == (3, 4)


def test_an_ad_becomes_labels_and_words() -> None:
    ad = AdFeatures(
        ad_id="1", advertiser_id="7", fields={"format": ["video"], "bad": [{"a": 1}]},
        features={"title": "New, new in store!", "categories": ["IAB1"], "other": {"x": 1}, "n": 3},
    )  # fmt: skip
    labels, texts = attributes_of(ad, {"categories", "n"})
    assert labels == ["advertiser_id=7", "bad={'a': 1}", "categories=IAB1", "format=video", "n=3"]
    words = words_of(texts, 1000)
    assert len(words) == 3
    assert all(1 <= word < 1000 for word in words)
    assert words == words_of(["NEW in store"], 1000)


ROW = {"item_id": "0", "advertiser_id": "7", "campaign_id": "70", "format": "video", "categories": ["sport", "news"],
       "decade": 1990, "rare": "one", "text": "Autumn sale"}  # fmt: skip
CAMPAIGN = {"advertiser_id": "7", "campaign_id": "70"}


@pytest.mark.parametrize(
    "event",
    [
        AdFeatures("0", **CAMPAIGN, fields={"format": ["video"], "categories": ["sport", "news"], "decade": [1990]},
                   features={"text": "Autumn sale"}),
        AdFeatures("0", **CAMPAIGN, features={"text": "Autumn sale", "format": "video", "categories": ["sport", "news"],
                                              "decade": 1990.0, "rare": "one"}),
        AdFeatures("0", **CAMPAIGN, fields={"categories": ["sport", "news"], "decade": ["1990"]},
                   features={"title": "Autumn sale", "format": ["video"]}),
        AdFeatures("0", **CAMPAIGN, fields={"text": ["Autumn sale"], "format": ["video"]},
                   features={"categories": ["sport", "news"], "decade": 1990}),
        AdFeatures("0", features={"advertiser_id": "7", "campaign_id": ["70"], "format": "video", "decade": "1990",
                                  "categories": ["sport", "news"], "text": ["Autumn sale"]}),
    ],
)  # fmt: skip
def test_an_event_is_seen_as_the_parquet_row_that_says_the_same(tmp_path: Path, event: AdFeatures) -> None:
    """Every label that the vocabulary has, and every word; `rare` is a column without a label, and no text either."""
    rows = [ROW | {"item_id": str(i), "rare": f"only {i}"} for i in range(3)]
    write_dataset(tmp_path, rows, [{"user_id": "u"}], [{"user_id": "u", "item_id": "0", "time": 0}])
    data = read_dataset(tmp_path)
    vocabularies = make_vocabularies(data, 64)
    assert "campaign_id=70" in vocabularies.labels
    trained, served = item_table(data.items[:1], vocabularies), item_table([event], vocabularies)
    assert np.count_nonzero(trained.labels) == 6
    for one, other in zip(trained, served, strict=True):
        np.testing.assert_array_equal(one, other)
    text, listed = (AdFeatures("0", features={"categories": value}) for value in ("sport", ["sport"]))
    labels = item_table([text, listed], vocabularies).labels
    assert labels[0].tolist() == labels[1].tolist()
    assert labels.any()


def test_vocabularies_do_not_depend_on_the_order_of_a_set(tmp_path: Path) -> None:
    """Hashes of text differ from process to process; labels as frequent as each other once had the order of a set, and
    a run was evaluated with other numbers than it was trained with."""
    items = [{"item_id": str(i), "categories": list("abcdefgh")} for i in range(3)]
    write_dataset(tmp_path, items, [{"user_id": "u"}], [{"user_id": "u", "item_id": "0", "time": 0}])
    code = (
        "import sys, msgspec; from pathlib import Path; from scoring.model.data import read_dataset;"
        "from scoring.model.features import make_vocabularies;"
        "sys.stdout.buffer.write(msgspec.json.encode(make_vocabularies(read_dataset(Path(sys.argv[1])), 64)))"
    )
    said = {
        subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, check=True, cwd=ROOT,
                       env=os.environ | {"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(said) == 1
