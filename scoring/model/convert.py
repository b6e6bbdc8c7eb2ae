"""Public data sets and click logs, brought into the format of data.py. Nothing is downloaded.

movielens   a folder of MovieLens-1M (`ratings.dat`, `movies.dat`, `users.dat`), of MovieLens-100k as RecBole's atomic
            files (`*.inter`, `*.item`, `*.user`), or of MovieLens-1M as sequences (`train/input.txt`,
            `val/input.txt`, `val/output.txt`, `test/output.txt`, with `sas_to_original_*.txt` and the two .dat files)
s3rec       a folder of the S3-Rec style of Amazon sets: `NAME.txt`, a line for each user (the user, then items in order
            of time), and `NAME_item2attributes.json`
clicklog    a CSV file with a header: user_id, item_id, time, label, and optionally surface, advertiser_id, categories
            (separated by |), text, format, and columns `context.NAME` and `user.NAME`
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scoring.model.data import CONTEXT, DataError, write_dataset

Rows = list[dict[str, Any]]

YEAR = re.compile(r"\s*\((\d{4})\)\s*$")


def convert(form: str, source: Path, folder: Path) -> dict[str, int]:
    """Writes the data set to `folder` -> how many items, users and interactions. Raises DataError."""
    if form not in CONVERTERS:
        raise DataError(f"there is no converter {form}; there are {', '.join(CONVERTERS)}")
    try:
        items, users, interactions = CONVERTERS[form](source)
    except FileNotFoundError as error:
        raise DataError(f"{source} is not what the converter {form} reads: {error.filename} is missing") from None
    write_dataset(folder, items, users, interactions)
    return {"items": len(items), "users": len(users), "interactions": len(interactions)}


def _movielens(source: Path) -> tuple[Rows, Rows, Rows]:
    atomic = sorted(source.glob("*.inter"))
    if atomic:
        return _atomic(atomic[0])
    items = [_film(*line) for line in _dat(source / "movies.dat")]
    users = [
        {"user_id": user, "gender": gender, "age": int(age), "occupation": occupation}
        for user, gender, age, occupation, _ in _dat(source / "users.dat")
    ]
    if (source / "train").is_dir():
        known = set(_numbers(source / "sas_to_original_items.txt").values())
        return [item for item in items if item["item_id"] in known], users, list(_sequences(source))
    ratings = [(int(time), user, item) for user, item, _, time in _dat(source / "ratings.dat")]
    return items, users, [{"user_id": user, "item_id": item, "time": time} for time, user, item in sorted(ratings)]


def _atomic(inter: Path) -> tuple[Rows, Rows, Rows]:
    """Files of tab-separated columns, whose header names each as `name:type`."""
    items = [
        {
            "item_id": row["item_id"], "categories": (row["class"] or "").split(), "text": row["movie_title"],
            "decade": _decade(row["release_year"]),
        }
        for row in _tab_separated(inter.with_suffix(".item"))
    ]  # fmt: skip
    users = [
        {"user_id": row["user_id"], "age": int(row["age"]), "gender": row["gender"], "occupation": row["occupation"]}
        for row in _tab_separated(inter.with_suffix(".user"))
    ]
    interactions = [
        {"user_id": row["user_id"], "item_id": row["item_id"], "time": int(float(row["timestamp"]))}
        for row in _tab_separated(inter)
    ]
    return items, users, interactions


def _sequences(source: Path) -> Iterator[dict[str, Any]]:
    """Sequences of item numbers, a line for each user. A line of the validation belongs to the user whose training
    sequence it lengthens by one."""
    item_of = _numbers(source / "sas_to_original_items.txt")
    user_of = _numbers(source / "sas_to_original_users.txt")
    test = _lines(source / "test" / "output.txt")
    inputs, outputs = _lines(source / "val" / "input.txt"), _lines(source / "val" / "output.txt")
    longer = {tuple(line[:-1]): (line, output) for line, output in zip(inputs, outputs, strict=True)}
    for u, (sequence, last) in enumerate(zip(_lines(source / "train" / "input.txt"), test, strict=True)):
        train, held = longer.get(tuple(sequence), (sequence, []))
        time = 0
        for split, items in (("train", train), ("validation", held), ("test", last)):
            for item in items:
                yield {"user_id": user_of[str(u + 1)], "item_id": item_of[item], "time": time, "split": split}
                time += 1


def _s3rec(source: Path) -> tuple[Rows, Rows, Rows]:
    attributes = next(iter(sorted(source.glob("*_item2attributes.json"))), None)
    if attributes is None:
        raise DataError(f"{source} has no file NAME_item2attributes.json")
    categories: dict[str, list[Any]] = msgspec.json.decode(attributes.read_bytes())
    interactions: Rows = []
    users: Rows = []
    named = source / f"{attributes.name.removesuffix('_item2attributes.json')}.txt"
    for user, *sequence in (line for line in _lines(named) if line):
        users.append({"user_id": user})
        interactions += [{"user_id": user, "item_id": item, "time": time} for time, item in enumerate(sequence)]
    names = sorted({row["item_id"] for row in interactions} | set(categories))
    items = [{"item_id": name, "categories": [str(each) for each in categories.get(name, [])]} for name in names]
    return items, users, interactions


def _clicklog(source: Path) -> tuple[Rows, Rows, Rows]:
    items: dict[str, dict[str, Any]] = {}
    users: dict[str, dict[str, Any]] = {}
    interactions: Rows = []
    with source.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                shown = {"user_id": row["user_id"], "item_id": row["item_id"], "time": int(row["time"])}
                shown["label"] = int(row.get("label") or 1)
            except (KeyError, ValueError, TypeError) as error:
                raise DataError(
                    f"{source}, line {number}: user_id, item_id and a whole time are needed ({error})"
                ) from None
            shown["surface"] = row.get("surface") or None
            shown |= {name: row[name] or None for name in row if name.startswith(CONTEXT)}
            interactions.append(shown)
            items[row["item_id"]] = {
                "item_id": row["item_id"], "advertiser_id": row.get("advertiser_id") or None,
                "categories": [each for each in (row.get("categories") or "").split("|") if each],
                "text": row.get("text") or None, "format": row.get("format") or None,
            }  # fmt: skip
            own = {name.removeprefix("user."): row[name] or None for name in row if name.startswith("user.")}
            users[row["user_id"]] = {"user_id": row["user_id"], **own}
    return list(items.values()), list(users.values()), interactions


def _film(item: str, title: str, genres: str) -> dict[str, Any]:
    year = YEAR.search(title)
    return {
        "item_id": item, "categories": genres.split("|"), "text": YEAR.sub("", title),
        "decade": _decade(year[1] if year else None),
    }  # fmt: skip


def _decade(year: str | None) -> str | None:
    return f"{year[:3]}0" if year and year[:4].isdigit() else None


def _dat(path: Path) -> list[list[str]]:
    return [line.split("::") for line in path.read_text(encoding="latin-1").splitlines() if line]


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text(encoding="utf-8").splitlines()]


def _numbers(path: Path) -> dict[str, str]:
    return {pair[0]: pair[1] for pair in _lines(path)}


def _tab_separated(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        names = [name.partition(":")[0] for name in next(reader)]
        for row in reader:
            yield dict(zip(names, row, strict=False))


CONVERTERS: dict[str, Callable[[Path], tuple[Rows, Rows, Rows]]] = {
    "movielens": _movielens,
    "s3rec": _s3rec,
    "clicklog": _clicklog,
}
