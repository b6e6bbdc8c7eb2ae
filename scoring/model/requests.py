"""`user.features` and `context` of requests, checked, as the histories that the user towers read.

features: {"history": [{"ad_id": …, "time": …}, …] oldest first, "cohort": {name: value},
           "semantic": {"texts": […]} or {"vector": […]}, "surfaces": {surface: history}}, all parts optional.
What the model does not know (an ad, a surface, a cohort's name or value) counts as missing; a wrong shape is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from scoring.model.config import Architecture
from scoring.model.features import (
    FIRST_ITEM,
    NO_ITEM,
    UNKNOWN_ITEM,
    ItemTable,
    Signal,
    Vocabularies,
    numbers,
    words_of,
)
from scoring.model.network import Network, has_context
from scoring.model.sequences import Asked, Sequences, label_counts
from scoring.user import FLOAT32_MAX, TOLD

HISTORY_MAX = 1000  # engagements of one history that are read, the newest
TEXTS_MAX = 100  # of a request that are read, the last
CHARACTERS_MAX = 100_000  # of these together: whoever waits for the towers waits for them to be read
FIELDS = ("history", "cohort", "semantic", "surfaces")
SEMANTIC = ("texts", "vector")
ENGAGEMENT = ("ad_id", "item", "event", "time")
AFTER_ALL = np.iinfo(np.int64).max  # the time of a request: all it brings was before

Json = dict[str, Any]
Ints = NDArray[np.int64]


class ReadRequests(NamedTuple):
    sequences: Sequences  # a user for each request
    asked: Asked
    given: list[list[float] | None]  # [request] semantic vectors
    words: list[list[int]]  # [request] of semantic texts
    told: Ints  # [request, part of TOLD] how many values it has, of those that are read
    known: Ints  # [request, part of TOLD] how many of them the vocabularies know

    def given_vectors(self, chosen: Ints, network: Network) -> Tensor | None:
        """[request, D] the semantic vectors given, or made of the texts given; NaN rows: none. None: none at all."""
        if not any(self.given[i] is not None or self.words[i] for i in chosen.tolist()):
            return None
        out = torch.full((len(chosen), network.architecture.dim), torch.nan, device=network.device)
        for row, i in enumerate(chosen.tolist()):
            given = self.given[i]
            if given is not None:
                out[row] = torch.tensor(given, device=network.device)
            elif self.words[i]:
                words = torch.tensor([self.words[i]], device=network.device)
                with torch.inference_mode():
                    out[row] = network.items.text(words)[0]
        return out


def read_requests(
    features: Sequence[object], contexts: Sequence[object], vocabularies: Vocabularies, table: ItemTable, dim: int
) -> ReadRequests:
    """Raises InvalidInput with a path that begins `[i].features` or `[i].context`."""
    items, surfaces = vocabularies.item_rows, vocabularies.surface_places
    item: list[int] = []
    surface_item: list[int] = []
    surface_kind: list[int] = []
    starts, surface_starts = [0], [0]
    cohorts: list[Json] = []
    named: list[Json] = []
    given: list[list[float] | None] = []
    words: list[list[int]] = []
    told: list[tuple[int, ...]] = []
    heard: list[bool] = []  # whether texts have any word
    for i, (raw, context) in enumerate(zip(features, contexts, strict=True)):
        path = f"[{i}].features"
        parts = _object(raw, path, FIELDS)
        item += [items.get(ad, UNKNOWN_ITEM) for ad, _ in _history(parts.get("history"), f"{path}.history")]
        starts.append(len(item))
        elsewhere, elsewhere_told = _surfaces(parts.get("surfaces"), f"{path}.surfaces", surfaces)
        for ad, kind in elsewhere:
            surface_item.append(items.get(ad, UNKNOWN_ITEM))
            surface_kind.append(kind)
        surface_starts.append(len(surface_item))
        cohorts.append(_values(parts.get("cohort"), f"{path}.cohort"))
        named.append(_values(context, f"[{i}].context"))
        vector, found, said = _semantic(parts.get("semantic"), f"{path}.semantic", dim, vocabularies.word_buckets)
        given.append(vector)
        words.append(found)
        heard.append(vector is not None or bool(found))
        told.append((starts[-1] - starts[-2], elsewhere_told, _values_in(cohorts[-1]), said, _values_in(named[-1])))
    sequences = _sequences(item, starts, cohorts, (surface_item, surface_kind, surface_starts), vocabularies, table)
    context = _numbers(vocabularies.context, named)
    asked = Asked(np.full(len(cohorts), AFTER_ALL), context)
    counts = np.array(told, np.int64).reshape(-1, len(TOLD))
    return ReadRequests(sequences, asked, given, words, counts, _known(sequences, context, counts[:, 3] * heard))


def _known(sequences: Sequences, context: Ints, semantic: Ints) -> Ints:
    """[request, part of TOLD] how many values are known; `semantic` [request]: of texts and vectors."""
    known = np.empty((len(context), len(TOLD)), np.int64)
    known[:, 0] = _known_items(sequences.item, sequences.start)
    known[:, 1] = _known_items(sequences.surface_item, sequences.surface_start)
    known[:, 2] = (sequences.cohort > 0).sum(1)
    known[:, 3] = semantic
    known[:, 4] = (context > 0).sum(1)
    return known


def _known_items(item: Ints, start: Ints) -> Ints:
    """[request] how many of its items are in the table"""
    before = np.zeros(len(item) + 1, np.int64)
    np.cumsum(item >= FIRST_ITEM, out=before[1:])
    return np.diff(before[start])


def read_by(architecture: Architecture, vocabularies: Vocabularies) -> NDArray[np.bool_]:
    """[part of TOLD] whether the model has any use for it."""
    towers = set(architecture.towers)
    return np.array([
        bool(towers & {"sequence", "cohort", "semantic"}), "surfaces" in towers, "cohort" in towers,
        "semantic" in towers, has_context(architecture, vocabularies),
    ])  # fmt: skip


def _sequences(
    item: list[int], starts: list[int], cohorts: list[Json], surfaces: tuple[list[int], list[int], list[int]],
    vocabularies: Vocabularies, table: ItemTable,
) -> Sequences:  # fmt: skip
    """One item more than there are, which nothing reads, so that no array is empty."""
    rows = np.array([*item, NO_ITEM], np.int64)
    nothing = np.zeros(len(rows), np.int64)
    surface_item, surface_kind, surface_starts = (np.array(each, np.int64) for each in surfaces)
    return Sequences(
        start=np.array(starts, np.int64), item=rows, time=nothing, split=nothing,
        context=np.zeros((len(rows), len(vocabularies.context)), np.int64),
        cohort=_numbers(vocabularies.cohort, cohorts),
        counts=label_counts(rows, table, vocabularies.aggregates),
        surface_start=surface_starts, surface_item=surface_item, surface_kind=surface_kind,
        surface_time=np.zeros(len(surface_item), np.int64),
    )  # fmt: skip


def _numbers(signals: dict[str, Signal], rows: list[Json]) -> Ints:
    return numbers(signals, {name: [row.get(name) for row in rows] for name in signals}, len(rows))


def _object(raw: object, path: str, known: Sequence[str]) -> Json:
    if type(raw) is not dict:
        raise InvalidInput(path, f"an object is needed, not {shown(raw)}", "wrong_type")
    for name in raw:
        if name not in known:
            detail = f"there is no {shown(name)} here{nearest(str(name), known)}"
            raise InvalidInput(f"{path}.{step(str(name))}", detail, "unknown_field")
    return raw


def _history(raw: object, path: str) -> list[tuple[str, datetime | None]]:
    """-> ad id, time of each of the newest, the oldest first"""
    if raw is None:
        return []
    if type(raw) is not list:
        raise InvalidInput(path, f"a list of engagements is needed, not {shown(raw)}", "wrong_type")
    first = max(0, len(raw) - HISTORY_MAX)
    engagements = [_engagement(each, f"{path}[{first + i}]") for i, each in enumerate(raw[first:])]
    return _by_time(engagements)


def _engagement(raw: object, path: str) -> tuple[str, datetime | None]:
    parts = _object(raw, path, ENGAGEMENT)
    if parts.get("ad_id") is not None and parts.get("item") is not None:
        raise InvalidInput(f"{path}.item", "`item` stands for `ad_id`: give one of the two", "conflict")
    if "ad_id" not in parts and "item" not in parts:
        raise InvalidInput(f"{path}.ad_id", "the id of what was engaged with is needed", "missing")
    name = "ad_id" if parts.get("ad_id") is not None or "item" not in parts else "item"
    ad = parts.get(name)
    if type(ad) is not str:
        raise InvalidInput(f"{path}.{name}", f"the id of what was engaged with is text, not {shown(ad)}", "wrong_type")
    time = parts.get("time")
    if time is None:
        return ad, None
    try:
        parsed = datetime.fromisoformat(time)
    except (TypeError, ValueError):
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        detail = f'a time with its UTC offset such as "2026-11-30T12:00:00Z" is needed, not {shown(time)}'
        raise InvalidInput(f"{path}.time", detail, "wrong_type")
    return ad, parsed


def _by_time(engagements: list[tuple[str, datetime | None]]) -> list[tuple[str, datetime | None]]:
    """By time where all have one, else as they are."""
    timed = [(time, ad) for ad, time in engagements if time is not None]
    if len(timed) < len(engagements):
        return engagements
    return [(ad, time) for time, ad in sorted(timed, key=lambda each: each[0])]


def _surfaces(raw: object, path: str, known: dict[str, int]) -> tuple[list[tuple[str, int]], int]:
    """-> ad id, surface of each engagement on known surfaces, these merged by time; engagements on all surfaces"""
    if raw is None:
        return [], 0
    if type(raw) is not dict:
        raise InvalidInput(path, f"an object of histories by surface is needed, not {shown(raw)}", "wrong_type")
    merged: list[tuple[str, datetime | None]] = []
    told = 0
    for surface, history in raw.items():
        read = _history(history, f"{path}.{step(str(surface))}")
        told += len(read)
        if surface in known:
            merged += [(f"{known[surface]} {ad}", time) for ad, time in read]
    ordered = [each.partition(" ") for each, _ in _by_time(merged)]
    return [(ad, int(kind)) for kind, _, ad in ordered], told


def _values(raw: object, path: str) -> Json:
    if raw is None:
        return {}
    if type(raw) is not dict:
        raise InvalidInput(path, f"an object of values by name is needed, not {shown(raw)}", "wrong_type")
    for name, value in raw.items():
        if value is not None and not isinstance(value, str | int | float):
            detail = f"text, a number, true, false or null is needed, not {shown(value)}"
            raise InvalidInput(f"{path}.{step(str(name))}", detail, "wrong_type")
    return raw


def _values_in(named: Json) -> int:
    return len(named) - list(named.values()).count(None)


def _semantic(raw: object, path: str, dim: int, buckets: int) -> tuple[list[float] | None, list[int], int]:
    """-> the given vector, words of the given texts, how many vectors or texts these are"""
    if raw is None:
        return None, [], 0
    parts = _object(raw, path, SEMANTIC)
    vector, texts = parts.get("vector"), parts.get("texts")
    if vector is not None:
        numbers_only = type(vector) is list and all(type(each) in (int, float) for each in vector)
        if not numbers_only or len(vector) != dim or not all(abs(each) < FLOAT32_MAX for each in vector):
            raise InvalidInput(f"{path}.vector", f"{dim} finite numbers are needed, not {shown(vector)}", "wrong_width")
        return [float(each) for each in vector], [], 1
    if texts is None:
        return None, [], 0
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise InvalidInput(f"{path}.texts", f"a list of texts is needed, not {shown(texts)}", "wrong_type")
    texts = texts[-TEXTS_MAX:]
    if (characters := sum(map(len, texts))) > CHARACTERS_MAX:
        detail = f"the texts have at most {CHARACTERS_MAX:,} characters together, not {characters:,}"
        raise InvalidInput(f"{path}.texts", detail, "too_long")
    return None, words_of(texts, buckets), len(texts)
