"""Data sets on disk and the converters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `model`")

from scoring.model.convert import convert
from scoring.model.data import TEST, TRAIN, VALIDATION, DataError, read_dataset, write_dataset
from tests.scoring.model.tiny import make
from tests.shared import SHARED


def test_a_data_set_comes_back_in_order_of_users_and_time(tmp_path: Path) -> None:
    items = [{"item_id": "a", "categories": ["x", "y"], "text": "one two"}, {"item_id": "b"}]
    shown = [("u2", "a", 5), ("u1", "b", 9), ("u1", "a", 3), ("u1", "b", 3)]
    write_dataset(tmp_path, items, [{"user_id": "u1", "age": 3}, {"user_id": "u2", "age": None}],
                  [{"user_id": user, "item_id": item, "time": time} for user, item, time in shown])  # fmt: skip
    dataset = read_dataset(tmp_path)
    assert dataset.users == ["u1", "u2"]
    assert dataset.cohort == {"age": [3, None]}
    assert dataset.items[0].fields == {"categories": ["x", "y"]}
    assert dataset.items[0].features == {"text": "one two"}
    assert [dataset.items[i].ad_id for i in dataset.interactions.item] == ["a", "b", "b", "a"]
    assert dataset.interactions.time.tolist() == [3, 3, 9, 5]
    assert dataset.interactions.split.tolist() == [TRAIN, VALIDATION, TEST, TRAIN]


def test_what_is_wrong_with_a_data_set_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"items\.parquet cannot be read"):
        read_dataset(tmp_path)
    write_dataset(tmp_path, [{"item_id": "a"}], [{"user_id": "u"}], [{"user_id": "u", "item_id": "b", "time": 1}])
    with pytest.raises(DataError, match="names item_id b, which items"):
        read_dataset(tmp_path)
    write_dataset(tmp_path, [{"name": "a"}], [{"user_id": "u"}], [{"user_id": "u", "item_id": "b", "time": 1}])
    with pytest.raises(DataError, match="has no column item_id; it has name"):
        read_dataset(tmp_path)


def test_the_last_two_of_the_served_surface_are_held_out(tmp_path: Path) -> None:
    shown = read_dataset(make(tmp_path)).interactions
    for user in range(40):
        own = [i for i in range(len(shown.user)) if shown.user[i] == user and shown.surface[i] is None]
        assert shown.split[own].tolist() == [TRAIN] * (len(own) - 2) + [VALIDATION, TEST]


def test_a_click_log_is_converted(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "user_id,item_id,time,label,surface,advertiser_id,categories,text,format,context.page,user.age\n"
        "u,a,1,1,,77,IAB1|IAB2,New in store,banner,home,3\n"
        "u,b,2,0,shop,,,,,,3\n"
    )
    assert convert("clicklog", log, tmp_path / "out") == {"items": 2, "users": 1, "interactions": 2}
    dataset = read_dataset(tmp_path / "out")
    assert dataset.items[0].advertiser_id == "77"
    assert dataset.items[0].fields == {"categories": ["IAB1", "IAB2"], "format": ["banner"]}
    assert dataset.interactions.engaged.tolist() == [True, False]
    assert dataset.interactions.surface == [None, "shop"]
    assert dataset.interactions.context == {"page": ["home", None]}
    log.write_text("user_id,item_id,time\nu,a,yesterday\n")
    with pytest.raises(DataError, match="line 2"):
        convert("clicklog", log, tmp_path / "out")


def test_s3rec_files_are_converted(tmp_path: Path) -> None:
    (tmp_path / "Beauty.txt").write_text("1 5 6 7\n2 6 8\n")
    (tmp_path / "Beauty_item2attributes.json").write_text(json.dumps({"5": [1, 2], "6": [2]}))
    assert convert("s3rec", tmp_path, tmp_path / "out") == {"items": 4, "users": 2, "interactions": 5}
    dataset = read_dataset(tmp_path / "out")
    assert dataset.items[0].fields == {"categories": ["1", "2"]}
    assert [dataset.items[i].ad_id for i in dataset.interactions.item] == ["5", "6", "7", "6", "8"]


def test_a_movielens_folder_is_converted(tmp_path: Path) -> None:
    (tmp_path / "movies.dat").write_text("7::Heat (1995)::Action|Crime\n8::Alien (1979)::Horror\n")
    (tmp_path / "users.dat").write_text("1::F::25::10::48067\n")
    (tmp_path / "ratings.dat").write_text("1::8::5::20\n1::7::3::10\n")
    assert convert("movielens", tmp_path, tmp_path / "out")["interactions"] == 2
    dataset = read_dataset(tmp_path / "out")
    assert [dataset.items[i].ad_id for i in dataset.interactions.item] == ["7", "8"]
    assert dataset.items[0].fields == {"categories": ["Action", "Crime"], "decade": ["1990"]}
    assert dataset.items[0].features == {"text": "Heat"}
    with pytest.raises(DataError, match=r"movies\.dat is missing"):
        convert("movielens", tmp_path / "out", tmp_path / "out2")


@pytest.mark.skipif(not (SHARED / "data" / "ml-100k").is_dir(), reason="the folder with MovieLens is absent")
def test_movielens_as_it_is_given_out(tmp_path: Path) -> None:
    counts = convert("movielens", SHARED / "data" / "ml-100k", tmp_path)
    assert counts == {"items": 1682, "users": 943, "interactions": 100_000}
    shown = read_dataset(tmp_path).interactions
    assert (shown.split == TEST).sum() == (shown.split == VALIDATION).sum() == 943
