"""Data sets on disk and the converters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow comes with the extra `model`")

from scoring.model.convert import convert
from scoring.model.data import TEST, TRAIN, VALIDATION, DataError, read_dataset, write_dataset
from scoring.model.features import make_vocabularies
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("user_id,item_id,time\n", "a header alone"),
        ("user_id,item,time\nu,a,1\n", "the column 'item', which is none, did you mean \"item_id\"?"),
        ("user_id,time\nu,1\n", "has no column item_id"),
        ("user_id,item_id,time,contxt.placement\nu,a,1,feed\n", "did you mean \"context.placement\"?"),
        ("user_id,item_id,time,time\nu,a,1,1\n", "the column time twice"),
        ("user_id,item_id,time,label\nu,a,1,1\nu,a\n", "line 3: has 2 of the header's 4 columns"),
        ("user_id,item_id,time,text\nu,a,1,\"cut", "is not CSV"),
        ("user_id,item_id,time\nu,a,yesterday\n", "line 2: time is a whole number, not 'yesterday'"),
        ("user_id,item_id,time,label\nu,a,1,yes\n", "line 2: label is 1 .* not 'yes'"),
        ("user_id,item_id,time,label\nu,a,1,2\n", "line 2: label is 1 .* not '2'"),
        ("user_id,item_id,time\n,a,1\n", "line 2: user_id is empty"),
    ],
)
def test_what_is_wrong_with_a_click_log_is_said(tmp_path: Path, text: str, told: str) -> None:
    log = tmp_path / "log.csv"
    log.write_text(text)
    with pytest.raises(DataError, match=told.replace("?", r"\?")):
        convert("clicklog", log, tmp_path / "out")


def test_a_click_log_that_is_not_utf_8_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_bytes("user_id,item_id,time,text\nu,a,1,Café\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8"):
        convert("clicklog", log, tmp_path / "out")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        convert("clicklog", tmp_path, tmp_path / "out")


def test_numbers_of_users_in_a_click_log_are_numbers_and_codes_are_text(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "user_id,item_id,time,user.age,user.height,user.postcode,user.city\n"
        "u,a,1,31,1.8,01234,7\nv,a,2,,2,90210,Ghent\nw,a,3,9,1.5,10000,\n"
    )
    convert("clicklog", log, tmp_path / "out")
    dataset = read_dataset(tmp_path / "out")
    assert dataset.cohort == {
        "age": [31, None, 9], "height": [1.8, 2.0, 1.5], "postcode": ["01234", "90210", "10000"],
        "city": ["7", "Ghent", None],
    }  # fmt: skip
    age = make_vocabularies(dataset, 64).cohort["age"]
    assert age.number(30) != 0, "an age that no user of the log has"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"label": 2}, "row 2: label is 1 .* not 2"),
        ({"label": 0.5}, "row 2: label is 1 .* not 0.5"),
        ({"label": None}, "row 2: label is 1 .* not None"),
        ({"time": 1.5}, "row 2: time is a whole number, not 1.5"),
        ({"time": None}, "row 2: time is a whole number, not None"),
        ({"split": "valid"}, "row 2: split is train, validation, test or null, not 'valid'"),
    ],
)
def test_interactions_that_are_none_are_said(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    row = {"user_id": "u", "item_id": "a", "time": 1, "label": 1, "split": None}
    first = row | {name: 1.0 for name, value in changes.items() if isinstance(value, float)}
    write_dataset(tmp_path, [{"item_id": "a"}], [{"user_id": "u"}], [first, row | changes])
    with pytest.raises(DataError, match=told):
        read_dataset(tmp_path)


def test_a_file_that_is_no_parquet_is_said_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_dataset(tmp_path)
    (tmp_path / "items.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"items\.parquet cannot be read: .*\w"):
        read_dataset(tmp_path)


def test_impressions_are_held_out_by_time(tmp_path: Path) -> None:
    """The last tenth of those on the served surface for the test, the tenth before for the validation."""
    rows = [
        {"user_id": f"u{time % 3}", "item_id": "a", "time": time, "label": int(time % 4 == 0),
         "surface": "shop" if time >= 100 else None}
        for time in range(110)
    ]  # fmt: skip
    write_dataset(tmp_path, [{"item_id": "a"}], [{"user_id": f"u{u}"} for u in range(3)], rows)
    shown = read_dataset(tmp_path).interactions
    by_time = dict(zip(shown.time.tolist(), shown.split.tolist(), strict=True))
    assert [by_time[time] for time in range(110)] == [TRAIN] * 80 + [VALIDATION] * 10 + [TEST] * 10 + [TRAIN] * 10


def test_s3rec_files_are_converted(tmp_path: Path) -> None:
    (tmp_path / "Beauty.txt").write_text("1 5 6 7\n2 6 8\n")
    (tmp_path / "Beauty_item2attributes.json").write_text(json.dumps({"5": [1, 2], "6": [2]}))
    assert convert("s3rec", tmp_path, tmp_path / "out") == {"items": 4, "users": 2, "interactions": 5}
    dataset = read_dataset(tmp_path / "out")
    assert dataset.items[0].fields == {"categories": ["1", "2"]}
    assert [dataset.items[i].ad_id for i in dataset.interactions.item] == ["5", "6", "7", "6", "8"]


def _write_lines(path: Path, *lines: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def test_sequences_with_a_hole_before_the_last_are_held_out_as_they_are_or_before_the_hole(tmp_path: Path) -> None:
    items = range(1, 7)
    _write_lines(tmp_path / "movies.dat", *(f"{i}0::Film {i} (1995)::Crime" for i in items))
    _write_lines(tmp_path / "users.dat", "8::F::25::10::48067", "9::M::18::3::10001")
    _write_lines(tmp_path / "sas_to_original_items.txt", *(f"{i} {i}0" for i in items))
    _write_lines(tmp_path / "sas_to_original_users.txt", "1 8", "2 9")
    _write_lines(tmp_path / "train" / "input.txt", "1 2 3 4", "4 5")
    _write_lines(tmp_path / "val" / "input.txt", "4 5 1")  # of the second user, of whom nothing is missing
    _write_lines(tmp_path / "val" / "output.txt", "2")
    _write_lines(tmp_path / "test" / "output.txt", "6", "3")
    splits = {}
    for form in ("movielens", "movielens-unbroken"):
        convert(form, tmp_path, tmp_path / form)
        data = read_dataset(tmp_path / form)
        ids = [(data.users[u], data.items[i].ad_id) for u, i in zip(*data.interactions[:2], strict=True)]
        splits[form] = {
            name: [pair for pair, split in zip(ids, data.interactions.split, strict=True) if split == number]
            for name, number in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST))
        }
    whole = [("9", "40"), ("9", "50"), ("9", "10")]
    assert splits["movielens"] == {
        "train": [("8", "10"), ("8", "20"), ("8", "30"), ("8", "40"), *whole], "validation": [("9", "20")],
        "test": [("8", "60"), ("9", "30")],
    }  # fmt: skip
    assert splits["movielens-unbroken"] == {
        "train": [("8", "10"), ("8", "20"), *whole], "validation": [("8", "30"), ("9", "20")],
        "test": [("8", "40"), ("9", "30")],
    }  # fmt: skip


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
