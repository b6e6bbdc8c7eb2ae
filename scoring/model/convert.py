"""Public data sets and click logs, brought into the format of data.py. Nothing is downloaded.

movielens   a folder of MovieLens-1M (`ratings.dat`, `movies.dat`, `users.dat`), of MovieLens-100k as RecBole's atomic
            files (`*.inter`, `*.item`, `*.user`), or of MovieLens-1M as sequences (`train/input.txt`,
            `val/input.txt`, `val/output.txt`, `test/output.txt`, with `sas_to_original_*.txt` and the two .dat files)
movielens-unbroken  the same sequences, without the last engagement of the users whose second-to-last is not known
s3rec       a folder of the S3-Rec style of Amazon sets: `NAME.txt`, a line for each user (the user, then items in order
            of time), and `NAME_item2attributes.json`
clicklog    a CSV file with a header: user_id, item_id, time, and optionally label, surface, advertiser_id, campaign_id,
            categories (separated by |), text, format, and columns `context.NAME` (text) and `user.NAME` (numbers, where
            all values of the column are)
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpu_index.invalid_input import nearest
from scoring.model.data import CONTEXT, DataError, write_dataset

Rows = list[dict[str, Any]]

USER = "user."
CLICK_COLUMNS = (
    "user_id", "item_id", "time", "label", "surface", "advertiser_id", "campaign_id", "categories", "text", "format",
)  # fmt: skip
WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)  # of 64 bits
NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?", re.ASCII)
YEAR = re.compile(r"\s*\((\d{4})\)\s*$")


def convert(form: str, source: Path, folder: Path) -> dict[str, int]:
    """Writes the data set to `folder` -> how many items, users and interactions. Raises DataError."""
    if form not in CONVERTERS:
        raise DataError(f"there is no converter {form}; there are {', '.join(CONVERTERS)}")
    try:
        items, users, interactions = CONVERTERS[form](source)
    except FileNotFoundError as error:
        raise DataError(f"{source} is not what the converter {form} reads: {error.filename} is missing") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{source} is not UTF-8 text ({error.reason}): save it as UTF-8") from None
    except OSError as error:
        raise DataError(f"{error.filename or source} cannot be read: {error.strerror}") from None
    write_dataset(folder, items, users, interactions)
    return {"items": len(items), "users": len(users), "interactions": len(interactions)}


def _movielens(source: Path) -> tuple[Rows, Rows, Rows]:
    atomic = sorted(source.glob("*.inter"))
    if atomic:
        return _atomic(atomic[0])
    items, users = _films_and_users(source)
    if (source / "train").is_dir():
        return _of_sequences(source, items), users, list(_sequences(source))
    ratings = [(int(time), user, item) for user, item, _, time in _dat(source / "ratings.dat")]
    return items, users, [{"user_id": user, "item_id": item, "time": time} for time, user, item in sorted(ratings)]


def _movielens_unbroken(source: Path) -> tuple[Rows, Rows, Rows]:
    items, users = _films_and_users(source)
    return _of_sequences(source, items), users, list(_sequences(source, unbroken=True))


def _films_and_users(source: Path) -> tuple[Rows, Rows]:
    items = [_film(*line) for line in _dat(source / "movies.dat")]
    users = [
        {"user_id": user, "gender": gender, "age": int(age), "occupation": occupation}
        for user, gender, age, occupation, _ in _dat(source / "users.dat")
    ]
    return items, users


def _of_sequences(source: Path, items: Rows) -> Rows:
    """Those that the sequences number."""
    known = set(_numbers(source / "sas_to_original_items.txt").values())
    return [item for item in items if item["item_id"] in known]


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


def _sequences(source: Path, unbroken: bool = False) -> Iterator[dict[str, Any]]:
    """Sequences of item numbers, a line for each user. A line of the validation belongs to the user whose training
    sequence it lengthens by one; of the others the engagement before the test's is not known. `unbroken`: their test
    is the last before that hole and their validation the one before, so that nothing is missing in any history."""
    item_of = _numbers(source / "sas_to_original_items.txt")
    user_of = _numbers(source / "sas_to_original_users.txt")
    test = _lines(source / "test" / "output.txt")
    inputs, outputs = _lines(source / "val" / "input.txt"), _lines(source / "val" / "output.txt")
    longer = {tuple(line[:-1]): (line, output) for line, output in zip(inputs, outputs, strict=True)}
    for u, (sequence, last) in enumerate(zip(_lines(source / "train" / "input.txt"), test, strict=True)):
        train, held = longer.get(tuple(sequence), (sequence, []))
        if unbroken and not held:
            train, held, last = sequence[:-2], sequence[-2:-1], sequence[-1:]
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
    for number, row in _click_rows(source):
        shown: dict[str, Any] = {"user_id": row["user_id"], "item_id": row["item_id"]}
        for name in ("user_id", "item_id"):
            if not row[name]:
                raise DataError(f"{source}, line {number}: {name} is empty")
        if not WHOLE.fullmatch(row["time"]):
            raise DataError(f"{source}, line {number}: time is a whole number, not {row['time']!r}")
        shown["time"] = int(row["time"])
        label = row.get("label") or "1"
        if label not in ("0", "1"):
            raise DataError(
                f"{source}, line {number}: label is 1 (engaged with) or 0 (shown, not engaged with), not {label!r}"
            )
        shown["label"] = int(label)
        shown["surface"] = row.get("surface") or None
        shown |= {name: row[name] or None for name in row if name.startswith(CONTEXT)}
        interactions.append(shown)
        items[row["item_id"]] = {
            **{name: row.get(name) or None for name in ("item_id", "advertiser_id", "campaign_id", "text", "format")},
            "categories": [each for each in row.get("categories", "").split("|") if each],
        }
        own = {name.removeprefix(USER): row[name] or None for name in row if name.startswith(USER)}
        users[row["user_id"]] = {"user_id": row["user_id"], **own}
    if not interactions:
        raise DataError(f"{source} holds a header alone: there is nothing to convert")
    for name in next(iter(users.values())):
        if name != "user_id":
            _to_numbers(users.values(), name)
    return list(items.values()), list(users.values()), interactions


def _click_rows(source: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The number of each line, and what it holds by the names in the header. Raises DataError."""
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, None)
            if header is None:
                raise DataError(f"{source} is empty: a header and lines of {', '.join(CLICK_COLUMNS[:4])} are needed")
            _check_header(source, header)
            for row in reader:
                if row and len(row) != len(header):
                    what = f"has {len(row)} of the header's {len(header)} columns: is it cut off, or a comma unquoted?"
                    raise DataError(f"{source}, line {reader.line_num}: {what}")
                if row:
                    yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{source} is not CSV: {error}") from None


def _check_header(source: Path, header: list[str]) -> None:
    """Raises DataError for a column that is needed and missing, unknown, or there twice."""
    for name in header:
        if name not in CLICK_COLUMNS and not (name.startswith((CONTEXT, USER)) and name.partition(".")[2]):
            _, dot, rest = name.partition(".")
            known = [f"{each}{rest}" for each in (CONTEXT, USER)] if dot else CLICK_COLUMNS
            raise DataError(f"{source}: its header has the column {name!r}, which is none{nearest(name, known)}")
        if header.count(name) > 1:
            raise DataError(f"{source}: its header has the column {name} twice")
    for name in CLICK_COLUMNS[:3]:
        if name not in header:
            raise DataError(f"{source}: its header has no column {name}; it has {', '.join(header)}")


def _to_numbers(rows: Collection[dict[str, Any]], name: str) -> None:
    """Where all values of a column are numbers, they become ones; 007 is no number but a code."""
    given = [row[name] for row in rows if row[name] is not None]
    if given and all(NUMBER.fullmatch(value) for value in given):
        kind = int if all(WHOLE.fullmatch(value) for value in given) else float
        for row in rows:
            if row[name] is not None:
                row[name] = kind(row[name])


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
    "movielens-unbroken": _movielens_unbroken,
    "s3rec": _s3rec,
    "clicklog": _clicklog,
}
