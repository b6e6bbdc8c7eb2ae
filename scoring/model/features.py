"""What items, users and contexts are made of, as whole numbers that the network looks up.

An item is its id, its labels (advertiser, campaign, categories and every other column, each as `name=value`) and the
words of its texts. Ids and labels have vocabularies, which training makes; a word is a hash, so that a new one needs no
vocabulary. Which part of an item is a label and which is words, `attributes_of` alone says, in training and serving.
Of what a vocabulary does not know, an id becomes UNKNOWN_ITEM and a label is left out: content carries the rest.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from scoring.model.data import Dataset
from scoring.model.interface import AdFeatures

NO_ITEM, UNKNOWN_ITEM, FIRST_ITEM = 0, 1, 2  # rows of the item table
LABELS_MAX, WORDS_MAX = 16, 24  # of one item; further ones are left out
LABEL_COUNT_MIN = 2  # items that a label is on before it has a place in the vocabulary
VALUES_MAX = 1000  # of one cohort signal or one name in the context, the most frequent
EDGES = 9  # of numbers: they become the tenth of the users that they lie in
AGGREGATES_MAX = 64  # labels whose share among a user's engagements is counted, the most frequent
TEXT = "text"  # the column that is words
WORD = re.compile(r"\w+")


class Signal(msgspec.Struct, frozen=True, dict=True):
    """Values of one signal as numbers from 1 (0: missing or unknown): text by its place, a number by its interval."""

    values: list[str] = []
    edges: list[float] = []

    @property
    def size(self) -> int:
        return (len(self.edges) if self.edges else len(self.values) - 1) + 2

    @cached_property
    def places(self) -> dict[str, int]:
        return places_of(self.values)

    def number(self, value: object) -> int:
        if self.edges:
            if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
                return 0
            return 1 + bisect_right(self.edges, value)
        return self.places.get(str(value), 0) if value is not None else 0


class Vocabularies(msgspec.Struct, frozen=True, dict=True):
    items: list[str]  # ids, from row FIRST_ITEM
    labels: list[str]  # from number 1, the most frequent first
    cohort: dict[str, Signal]
    context: dict[str, Signal]
    surfaces: list[str]  # from number 1
    word_buckets: int
    columns: list[str] = []  # of the items that labels were made of, in order; older models lack those without a label

    @cached_property
    def label_columns(self) -> frozenset[str]:
        return frozenset(self.columns) | {label.partition("=")[0] for label in self.labels}

    @cached_property
    def item_rows(self) -> dict[str, int]:
        return places_of(self.items, FIRST_ITEM)

    @cached_property
    def label_places(self) -> dict[str, int]:
        return places_of(self.labels)

    @cached_property
    def surface_places(self) -> dict[str, int]:
        return places_of(self.surfaces)

    @property
    def aggregates(self) -> int:
        return min(len(self.labels), AGGREGATES_MAX)


class ItemTable(NamedTuple):
    """Rows as FIRST_ITEM and above number them; the first two are empty."""

    id: NDArray[np.int64]  # [item]
    labels: NDArray[np.int64]  # [item, LABELS_MAX] 0: none
    words: NDArray[np.int64]  # [item, WORDS_MAX] 0: none


def places_of(values: Iterable[str], first: int = 1) -> dict[str, int]:
    return {value: place for place, value in enumerate(values, first)}


def make_vocabularies(dataset: Dataset, word_buckets: int) -> Vocabularies:
    attributes = [attributes_of(item) for item in dataset.items]
    labels = Counter(label for own, _ in attributes for label in own)  # in the order of the items
    kept = [label for label, count in labels.most_common() if count >= LABEL_COUNT_MIN]
    surfaces = sorted({name for name in dataset.interactions.surface if name is not None})
    return Vocabularies(
        items=[item.ad_id for item in dataset.items],
        labels=kept,
        cohort={name: _signal(values) for name, values in dataset.cohort.items()},
        context={name: _signal(values) for name, values in dataset.interactions.context.items()},
        surfaces=surfaces,
        word_buckets=word_buckets,
        columns=sorted({label.partition("=")[0] for label in labels}),
    )


def _signal(values: Sequence[Any]) -> Signal:
    given = [value for value in values if value is not None]
    if given and all(isinstance(value, int | float) and not isinstance(value, bool) for value in given):
        quantiles = np.quantile(np.array(given, np.float64), np.linspace(0, 1, EDGES + 2)[1:-1])
        return Signal(edges=sorted({float(edge) for edge in quantiles}))
    return Signal(values=[value for value, _ in Counter(map(str, given)).most_common(VALUES_MAX)] or [""])


def attributes_of(item: AdFeatures, columns: Container[str] = ()) -> tuple[list[str], list[str]]:
    """-> labels, each `name=value`, and texts, whose words count: all that is known of an item beside its id.

    Whatever its name is among `columns` (Vocabularies.label_columns) is a label wherever it comes from; of the rest,
    advertiser, campaign and fields are labels too, which no vocabulary has, and texts in `features` and `text` words.
    """
    texts: list[str] = []
    held: dict[str, list[object]] = {}
    for name, own in (("advertiser_id", item.advertiser_id), ("campaign_id", item.campaign_id)):
        if own is not None:
            held[name] = [own]
    for source in (item.fields, item.features):
        for name, value in source.items():
            values = value if isinstance(value, list) else [value]
            if name in columns or (source is item.fields and name != TEXT):
                held[name] = held.get(name, []) + [each for each in values if each is not None]
            else:
                texts += [each for each in values if isinstance(each, str)]
    labels = [f"{name}={_text(value)}" for name, values in sorted(held.items()) for value in values]
    return list(dict.fromkeys(labels)), texts


def _text(value: object) -> str:
    """3.0 is 3: JSON and Parquet need not agree on which they write."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def words_of(texts: Iterable[object], buckets: int) -> list[int]:
    """Numbers of the words, 1 to buckets - 1, each once, in their order."""
    words = [word for text in texts if isinstance(text, str) for word in WORD.findall(text.casefold())]
    return list(dict.fromkeys(1 + crc32(word.encode("utf-8", "replace")) % (buckets - 1) for word in words))


def item_table(items: Sequence[AdFeatures], vocabularies: Vocabularies) -> ItemTable:
    """A row for each of `items`."""
    ids, labels = vocabularies.item_rows, vocabularies.label_places
    table = ItemTable(
        np.full(len(items), UNKNOWN_ITEM, np.int64),
        np.zeros((len(items), LABELS_MAX), np.int64),
        np.zeros((len(items), WORDS_MAX), np.int64),
    )
    for i, item in enumerate(items):
        table.id[i] = ids.get(item.ad_id, UNKNOWN_ITEM)
        own, texts = attributes_of(item, vocabularies.label_columns)
        known = [labels[label] for label in own if label in labels][:LABELS_MAX]
        table.labels[i, : len(known)] = known
        words = words_of(texts, vocabularies.word_buckets)[:WORDS_MAX]
        table.words[i, : len(words)] = words
    return table


def catalogue(items: Sequence[AdFeatures], vocabularies: Vocabularies) -> ItemTable:
    """The table of all known items, with the two rows before them."""
    table = item_table(items, vocabularies)
    return ItemTable(
        np.concatenate([[NO_ITEM, UNKNOWN_ITEM], table.id]),
        np.pad(table.labels, ((FIRST_ITEM, 0), (0, 0))),
        np.pad(table.words, ((FIRST_ITEM, 0), (0, 0))),
    )


def numbers(signals: Mapping[str, Signal], columns: Mapping[str, Sequence[Any]], count: int) -> NDArray[np.int64]:
    """[count, signal] the values of each signal in its own numbers."""
    out = np.zeros((count, len(signals)), np.int64)
    for s, (name, signal) in enumerate(signals.items()):
        for i, value in enumerate(columns.get(name, ())):
            out[i, s] = signal.number(value)
    return out
