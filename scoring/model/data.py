"""A data set on disk: three Parquet files in a folder, as docs/model.md describes them.

items.parquet         item_id, and optionally advertiser_id, campaign_id, categories (list), text; any further column of
                      text, or of lists of text, is an attribute of the item (format, language, ...)
users.parquet         user_id; any further column is a cohort signal, text or a number. The file may be absent
interactions.parquet  user_id, item_id, time (integer, any unit), and optionally label (1: engaged, 0: shown and not
                      engaged), surface (null: the one that is served), split (train, validation, test), and columns
                      `context.NAME`, the serving context by name

Without `split`: where the served surface has impressions (a label 0), the last tenth of them by time is the test's and
the tenth before it the validation's; else a user's last engagement is the test's and the one before it the validation's
(from three on).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoring.model.interface import AdFeatures

TRAIN, VALIDATION, TEST = range(3)
SPLITS = ("train", "validation", "test")
ENGAGEMENTS_MIN = 3  # of a user whose last two are held out
HELD_OUT = 0.1  # of the impressions, the last for the test, and as many before them for the validation
CONTEXT = "context."


class DataError(Exception):
    """A data set cannot be used. The message is a sentence that says what is wrong with which file."""


class Interactions(NamedTuple):
    """Ordered by user, then time, then as they stood in the file."""

    user: NDArray[np.int64]  # [interaction] index into the users
    item: NDArray[np.int64]  # [interaction] index into the items
    time: NDArray[np.int64]  # [interaction]
    engaged: NDArray[np.bool_]  # [interaction]
    split: NDArray[np.int64]  # [interaction] TRAIN, VALIDATION or TEST
    surface: list[str | None]  # None: the one that is served
    context: dict[str, list[str | None]]  # name -> value of each interaction


class Dataset(NamedTuple):
    items: list[AdFeatures]
    users: list[str]
    cohort: dict[str, list[Any]]  # name -> value of each user
    interactions: Interactions


def read_dataset(folder: Path) -> Dataset:
    """Raises DataError."""
    items = _read(folder / "items.parquet", ("item_id",))
    shown = _read(folder / "interactions.parquet", ("user_id", "item_id", "time"))
    if (folder / "users.parquet").exists():
        users = _read(folder / "users.parquet", ("user_id",))
    else:
        users = {"user_id": sorted({str(user) for user in shown["user_id"]})}
    item_of = {str(item): i for i, item in enumerate(items["item_id"])}
    user_of = {str(user): u for u, user in enumerate(users["user_id"])}
    for name, column, known in (("item_id", "items", item_of), ("user_id", "users", user_of)):
        missing = next((str(each) for each in shown[name] if str(each) not in known), None)
        if missing is not None:
            raise DataError(f"{folder / 'interactions.parquet'} names {name} {missing}, which {column}.parquet lacks")
    cohort = {name: values for name, values in users.items() if name != "user_id"}
    return Dataset(_ads(items), list(user_of), cohort, _interactions(shown, item_of, user_of))


def write_dataset(
    folder: Path, items: Sequence[Mapping[str, Any]], users: Sequence[Mapping[str, Any]],
    interactions: Sequence[Mapping[str, Any]],
) -> None:  # fmt: skip
    """The three files, from rows of columns."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("items", items), ("users", users), ("interactions", interactions)):
        parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows]), folder / f"{name}.parquet")


def _read(path: Path, needed: Sequence[str]) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except FileNotFoundError:
        raise DataError(f"{path} cannot be read: there is no such file") from None
    except (OSError, pa.ArrowException) as error:
        reason = str(error) or (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise DataError(f"{path} cannot be read: {reason}") from None
    missing = [name for name in needed if name not in table.column_names]
    if missing:
        raise DataError(f"{path} has no column {missing[0]}; it has {', '.join(table.column_names)}")
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _ads(columns: dict[str, list[Any]]) -> list[AdFeatures]:
    others = [name for name in columns if name not in ("item_id", "advertiser_id", "campaign_id", "text")]
    ads = []
    for i, item in enumerate(columns["item_id"]):
        fields = {}
        for name in others:
            value = columns[name][i]
            if value is not None:
                fields[name] = list(value) if isinstance(value, list) else [value]
        named = {name: columns[name][i] if name in columns else None for name in ("advertiser_id", "campaign_id")}
        text = columns["text"][i] if "text" in columns else None
        ads.append(
            AdFeatures(
                ad_id=str(item), fields=fields, features={} if text is None else {"text": text},
                **{name: None if value is None else str(value) for name, value in named.items()},
            )
        )  # fmt: skip
    return ads


def _interactions(columns: dict[str, list[Any]], item_of: dict[str, int], user_of: dict[str, int]) -> Interactions:
    count = len(columns["item_id"])
    user = np.array([user_of[str(each)] for each in columns["user_id"]], np.int64)
    item = np.array([item_of[str(each)] for each in columns["item_id"]], np.int64)
    time = np.array(_whole("time", columns["time"]), np.int64)
    order = np.lexsort((time, user))  # stable: ties stay as they stood
    engaged = np.array(_labels(columns["label"]), bool) if "label" in columns else np.ones(count, bool)
    surface: list[str | None] = columns.get("surface") or [None] * count
    context = {name.removeprefix(CONTEXT): columns[name] for name in columns if name.startswith(CONTEXT)}
    user, item, time, engaged = user[order], item[order], time[order], engaged[order]
    surface = [surface[i] for i in order]
    if "split" in columns:
        split = np.array(_splits(columns["split"]), np.int64)[order]
    else:
        split = _automatic_split(user, time, engaged, np.array([each is None for each in surface], bool))
    ordered = {name: [values[i] for i in order] for name, values in context.items()}
    return Interactions(user, item, time, engaged, split, surface, ordered)


def _whole(name: str, values: Sequence[Any]) -> Sequence[Any]:
    """Raises DataError unless all are whole numbers."""
    for row, value in enumerate(values, 1):
        if not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
            raise DataError(f"interactions.parquet, row {row}: {name} is a whole number, not {value!r}")
    return values


def _labels(values: Sequence[Any]) -> Sequence[Any]:
    for row, value in enumerate(values, 1):
        if value not in (0, 1):
            raise DataError(
                f"interactions.parquet, row {row}: label is 1 (engaged with) or 0 (shown, not engaged with), not "
                f"{value!r}"
            )
    return values


def _splits(values: Sequence[Any]) -> list[int]:
    """Null is train."""
    for row, value in enumerate(values, 1):
        if value is not None and value not in SPLITS:
            raise DataError(f"interactions.parquet, row {row}: split is {', '.join(SPLITS)} or null, not {value!r}")
    return [TRAIN if value is None else SPLITS.index(value) for value in values]


def _automatic_split(
    user: NDArray[np.int64], time: NDArray[np.int64], engaged: NDArray[np.bool_], served: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Of impressions by time, as a model that is trained on the past is used; of engagements alone user by user."""
    if engaged[served].all():
        return _leave_last_out(user, engaged & served)
    split = np.zeros(len(user), np.int64)
    places = np.flatnonzero(served)
    places = places[np.argsort(time[places], kind="stable")]
    held = round(len(places) * HELD_OUT)
    split[places[len(places) - 2 * held : len(places) - held]] = VALIDATION
    split[places[len(places) - held :]] = TEST
    return split


def _leave_last_out(user: NDArray[np.int64], counts: NDArray[np.bool_]) -> NDArray[np.int64]:
    split = np.zeros(len(user), np.int64)
    places = np.flatnonzero(counts)
    for own in np.split(places, np.flatnonzero(np.diff(user[places])) + 1):
        if len(own) >= ENGAGEMENTS_MIN:
            split[own[-1]], split[own[-2]] = TEST, VALIDATION
    return split
