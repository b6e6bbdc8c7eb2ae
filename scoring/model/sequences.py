"""Users' histories as flat arrays, and the windows of them that the user towers read, in training and serving alike.

A position is an engagement that is to be predicted; it sees what came before it. `windows` takes positions and gives
for each a row that ends with it, so that one row trains all positions in it and the last one is what a request asks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoring.model.data import Dataset
from scoring.model.features import (
    FIRST_ITEM,
    NO_ITEM,
    ItemTable,
    Vocabularies,
    numbers,
)

Ints = NDArray[np.int64]


class Sequences(NamedTuple):
    """Engagements on the served surface, user by user in order of time; those on other surfaces beside them."""

    start: Ints  # [user + 1] where each user's engagements begin
    item: Ints  # [position] row in the item table
    time: Ints  # [position]
    split: Ints  # [position]
    context: Ints  # [position, name] numbers of its context
    cohort: Ints  # [user, signal]
    counts: NDArray[
        np.int32
    ]  # [position + 1, label] how often each label was engaged with at earlier positions, all users
    surface_start: Ints  # [user + 1]
    surface_item: Ints  # [event]
    surface_kind: Ints  # [event] which surface, from 1
    surface_time: Ints  # [event]

    @property
    def user(self) -> Ints:
        """[position] whose it is"""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))


class Asked(NamedTuple):
    """What is known of B requests beside their users' histories."""

    time: Ints  # [B]
    context: Ints  # [B, name]

    def of(self, which: Ints) -> Asked:
        return Asked(self.time[which], self.context[which])


class Impressions(NamedTuple):
    """What was shown on the served surface, engaged with or not."""

    user: Ints  # [impression]
    position: Ints  # [impression] the first one of the sequences that was not before it
    item: Ints  # [impression] row in the item table
    engaged: NDArray[np.bool_]  # [impression]
    split: Ints  # [impression]
    asked: Asked

    def of(self, which: Ints) -> Impressions:
        arrays = (self.user, self.position, self.item)
        user, position, item = (each[which] for each in arrays)
        return Impressions(user, position, item, self.engaged[which], self.split[which], self.asked.of(which))


class Windows(NamedTuple):
    """B rows of L positions, filled from the left."""

    position: Ints  # [B, L] which it is; beyond `length`, any
    length: Ints  # [B] 1 .. L
    token: Ints  # [B, L] the item engaged with before it; NO_ITEM at a user's first
    shares: NDArray[np.float32]  # [B, L, label] of earlier engagements, how many had it
    total: NDArray[np.float32]  # [B, L] log(1 + how many earlier engagements)
    cohort: Ints  # [B, signal]
    context: Ints  # [B, L, name]
    surface_token: Ints  # [B, S] the newest events before the last position, NO_ITEM first
    surface_kind: Ints  # [B, S]
    surface_at: Ints  # [B, L] which of the S is the newest one before it


def make_sequences(dataset: Dataset, table: ItemTable, vocabularies: Vocabularies) -> Sequences:
    shown = dataset.interactions
    surfaces = vocabularies.surface_places
    kind = np.array([surfaces.get(name, 0) if name is not None else 0 for name in shown.surface], np.int64)
    main = shown.engaged & np.array([name is None for name in shown.surface], bool)
    other = shown.engaged & (kind > 0)
    users = len(dataset.users)
    item = shown.item + FIRST_ITEM
    context = numbers(vocabularies.context, shown.context, len(item))
    return Sequences(
        start=_starts(shown.user[main], users), item=item[main], time=shown.time[main], split=shown.split[main],
        context=context[main], cohort=numbers(vocabularies.cohort, dataset.cohort, users),
        counts=label_counts(item[main], table, vocabularies.aggregates),
        surface_start=_starts(shown.user[other], users), surface_item=item[other], surface_kind=kind[other],
        surface_time=shown.time[other],
    )  # fmt: skip


def make_impressions(dataset: Dataset, vocabularies: Vocabularies) -> Impressions:
    shown = dataset.interactions
    served = np.array([name is None for name in shown.surface], bool)
    engaged = shown.engaged & served
    position = np.cumsum(engaged) - engaged
    context = numbers(vocabularies.context, shown.context, len(shown.item))[served]
    return Impressions(
        shown.user[served], position[served], shown.item[served] + FIRST_ITEM, engaged[served], shown.split[served],
        Asked(shown.time[served], context),
    )  # fmt: skip


def label_counts(item: Ints, table: ItemTable, labels: int) -> NDArray[np.int32]:
    """[position + 1, label] running counts of the labels 1 .. `labels` of items [position]."""
    rows, which = np.unique(item, return_inverse=True)  # a request names few of a large catalogue
    known = table.labels[rows]
    has = np.zeros((len(rows), labels + 1), np.int32)
    has[np.arange(len(rows))[:, None], np.where(known <= labels, known, 0)] = 1
    counts = np.zeros((len(item) + 1, labels + 1), np.int32)
    np.cumsum(has[which], axis=0, out=counts[1:])
    return counts[:, 1:]


def windows(
    sequences: Sequences, user: Ints, end: Ints, length: int, surface_length: int, asked: Asked | None = None
) -> Windows:
    """For each (user, position) [B] the row of at most `length` positions that ends with it. `asked`: the last position
    is no engagement of the sequences but a request, after the user's engagements up to there."""
    first = sequences.start[user]  # [B]
    begin = np.maximum(first, end - length + 1)
    position = np.minimum(begin[:, None] + np.arange(length), end[:, None])  # [B, L]
    known = np.minimum(position, len(sequences.item) - 1)
    token = np.where(position == first[:, None], NO_ITEM, sequences.item[position - 1])
    time, context = sequences.time[known], sequences.context[known]
    if asked is not None:
        time = np.where(position == end[:, None], asked.time[:, None], time)
        context = np.where((position == end[:, None])[..., None], asked.context[:, None], context)
    total = position - first[:, None]
    counts = sequences.counts[position] - sequences.counts[first][:, None]
    shares = counts / np.maximum(total, 1)[..., None]
    surface = _surfaces(sequences, user, time, surface_length)
    return Windows(
        known, end - begin + 1, token, shares.astype(np.float32), np.log1p(total).astype(np.float32),
        sequences.cohort[user], context, *surface,
    )  # fmt: skip


def _surfaces(sequences: Sequences, user: Ints, time: Ints, length: int) -> tuple[Ints, Ints, Ints]:
    """Events of other surfaces before the last of `time` [B, L] -> token, kind [B, S], newest before each [B, L]."""
    rows = len(user)
    token, kind = np.zeros((rows, length), np.int64), np.zeros((rows, length), np.int64)
    at = np.zeros(time.shape, np.int64)
    if not len(sequences.surface_item):
        return token, kind, at
    for row, u in enumerate(user.tolist()):
        low, high = sequences.surface_start[u], sequences.surface_start[u + 1]
        before = np.searchsorted(sequences.surface_time[low:high], time[row], side="left")  # [L]
        last = int(before[-1])
        first = max(0, last - length + 1)
        token[row, 1 : 1 + last - first] = sequences.surface_item[low + first : low + last]
        kind[row, 1 : 1 + last - first] = sequences.surface_kind[low + first : low + last]
        at[row] = np.maximum(before - first, 0)
    return token, kind, at


def _starts(user: Ints, users: int) -> Ints:
    return np.searchsorted(user, np.arange(users + 1)).astype(np.int64)
