"""Random targetings over the default schema, with the skew that ad servers see. `bench/ads.py` says which.

A block of targetings is drawn at once: for each attribute NumPy decides which of them have a leaf on it and draws the
leaves. Leaves over small vocabularies come from pools made beforehand, so they are shared: read them, do not change
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.random import Generator

from bench.vocabulary import AUDIENCE_NAMES, CHOICES, COUNTRIES, INTEREST_NAMES, PLACES, VERSION_NAMES, skewed

Json = dict[str, Any]
Leaves = Callable[[int], list[Json]]  # how many -> that many leaves, or small trees

BLOCK = 4096  # targetings drawn at once
POOL = 512  # leaves made beforehand for each small vocabulary


def targetings(rng: Generator, *, distinct: bool = False) -> Iterator[Json]:
    """Targetings without end. `distinct`: no two alike."""
    makers = _makers(rng)
    seen: set[int] = set()
    while True:
        drawn: list[list[Json]] = [[] for _ in range(BLOCK)]
        for share, leaves in makers:
            rows = np.flatnonzero(rng.random(BLOCK) < share).tolist()
            for row, leaf in zip(rows, leaves(len(rows)), strict=True):
                drawn[row].append(leaf)
        for leaves_of_one in drawn:
            targeting = {"all": leaves_of_one}
            if distinct:
                key = hash(msgspec.json.encode(targeting))
                if key in seen:
                    continue
                seen.add(key)
            yield targeting


def _makers(rng: Generator) -> list[tuple[float, Leaves]]:
    """(share of the targetings that have it, what makes it), in the order in which leaves stand in a targeting."""
    pools = {choice.name: _pool(rng, choice.name, choice.vocabulary, 1, choice.values_max) for choice in CHOICES}
    interests = _large(rng, "user.interests", INTEREST_NAMES, 2, 12)
    audiences = _large(rng, "audience", AUDIENCE_NAMES, 1, 5)
    makers: list[tuple[float, Leaves]] = [
        (0.85, _picked(rng, _pool(rng, "geo.country", COUNTRIES, 1, 5, size=8 * POOL))),
        (0.60, _ages(rng)),
        (0.35, interests),
        (0.20, audiences),
        (0.20, lambda count: [{"not": leaf} for leaf in audiences(count)]),
        (0.06, _picked(rng, [_radius(rng) for _ in range(8 * POOL)])),
        (0.10, _picked(rng, [_version_range(rng) for _ in range(POOL)])),
        (0.02, _picked(rng, [_score_range(rng) for _ in range(POOL)])),
    ]
    makers += [(choice.targeted, _picked(rng, pools[choice.name])) for choice in CHOICES]
    makers.append((0.05, _nested(rng, pools)))
    return makers


def _picked(rng: Generator, pool: Sequence[Json]) -> Leaves:
    return lambda count: [pool[position] for position in rng.integers(len(pool), size=count).tolist()]


def _pool(rng: Generator, name: str, vocabulary: Sequence[Any], low: int, high: int, size: int = POOL) -> list[Json]:
    """Leaves of `low` to `high` skewed draws each, fewer where draws fall together."""
    if isinstance(vocabulary[0], bool):
        return [{"attr": name, "is": value} for value in vocabulary]
    return [
        {"attr": name, "in": [vocabulary[value] for value in sorted(set(skewed(rng, len(vocabulary), draws)))]}
        for draws in rng.integers(low, high + 1, size=size).tolist()
    ]


def _large(rng: Generator, name: str, vocabulary: Sequence[str], low: int, high: int) -> Leaves:
    """As a pool, but each leaf its own."""

    def leaves(count: int) -> list[Json]:
        ends = np.cumsum(rng.integers(low, high + 1, size=count)).tolist()
        values = skewed(rng, len(vocabulary), ends[-1] if ends else 0)
        return [
            {"attr": name, "in": [vocabulary[value] for value in sorted(set(values[start:end]))]}
            for start, end in zip([0, *ends], ends, strict=False)
        ]

    return leaves


def _ages(rng: Generator) -> Leaves:
    def leaves(count: int) -> list[Json]:
        lows, highs = rng.integers(13, 36, size=count).tolist(), rng.integers(36, 66, size=count).tolist()
        return [{"attr": "age", "between": [low, high]} for low, high in zip(lows, highs, strict=True)]

    return leaves


def _radius(rng: Generator) -> Json:
    """A circle of 5 to 80 km about one of the places, a little off its centre."""
    place = PLACES[skewed(rng, len(PLACES), 1)[0]]
    off = (rng.random(2) - 0.5) * 0.2
    centre = {"lat": round(place.lat + float(off[0]), 4), "lon": round(place.lon + float(off[1]), 4)}
    return {"attr": "geo.point", "within": {**centre, "radius_km": int(rng.integers(5, 81))}}


def _version_range(rng: Generator) -> Json:
    """"At least" this version, one in four with an upper end too."""
    low = int(rng.integers(len(VERSION_NAMES)))
    high = VERSION_NAMES[int(rng.integers(low, len(VERSION_NAMES)))] if rng.random() < 0.25 else None
    return {"attr": "device.os_version", "between": [VERSION_NAMES[low], high]}


def _score_range(rng: Generator) -> Json:
    return {"attr": "custom.score", "between": [round(float(rng.random()), 2), None]}


def _nested(rng: Generator, pools: dict[str, list[Json]]) -> Leaves:
    """An OR across attributes: these interests, or such a device with another language."""
    interests = _large(rng, "user.interests", INTEREST_NAMES, 1, 4)
    devices = _picked(rng, pools["device.type"])
    languages = _picked(rng, pools["language"])

    def trees(count: int) -> list[Json]:
        parts = zip(interests(count), devices(count), languages(count), strict=True)
        return [{"any": [interest, {"all": [device, {"not": language}]}]} for interest, device, language in parts]

    return trees
