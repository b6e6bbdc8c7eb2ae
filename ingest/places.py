"""Coordinates of places that an ad names by key alone: an optional table, the CSV file that MIRACH_PLACES names.

The file is UTF-8 with a header. Columns `kind`, `key`, `latitude`, `longitude` (degrees) are needed, others are not
read. `kind` is the singular of Meta's field (city, zip, geo_market, place, …; docs/adapters.md lists them), or
`address` for a pin that has only an address; `key` is compared as text.

    kind,key,latitude,longitude
    city,2420605,37.4530,-122.1817
    zip,US:94304,37.3970,-122.1650
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from gpu_index.invalid_input import nearest, shown
from gpu_index.values import Point

ROWS_MAX = 10_000_000
KINDS = ("city", "zip", "geo_market", "metro_area", "place", "neighborhood", "subneighborhood", "subcity", "address")
COLUMNS = ("kind", "key", "latitude", "longitude")
LATITUDE_MAX, LONGITUDE_MAX = 90.0, 180.0


class PlacesError(Exception):
    """The table of places cannot be used; the message says why and where."""


class Places:
    """Points by kind and key. Built once at the start, then only read."""

    def __init__(self, points: dict[tuple[str, str], Point]) -> None:
        self._points = points

    def __len__(self) -> int:
        return len(self._points)

    def find(self, kind: str, key: str) -> Point | None:
        return self._points.get((kind, key))

    @staticmethod
    def load(path: Path) -> Places:
        """The table of a CSV file. Raises PlacesError."""
        try:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                return Places.parse(lines)
        except (OSError, UnicodeError) as error:
            raise PlacesError(f"the table of places {path} cannot be read: {error}") from error
        except PlacesError as error:
            raise PlacesError(f"{path}: {error}") from error

    @staticmethod
    def parse(lines: Iterable[str]) -> Places:
        """The table of CSV lines, the header first. Raises PlacesError."""
        rows = csv.reader(lines, strict=True)
        points: dict[tuple[str, str], Point] = {}
        try:
            header = next(rows, [])
            columns = _columns(header)
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise PlacesError(f"{len(row)} columns where the header has {len(header)}")
                kind, key, latitude, longitude = (row[column] for column in columns)
                _check_new(points, kind, key)
                points[kind, key] = Point(
                    _degrees(latitude, "latitude", LATITUDE_MAX), _degrees(longitude, "longitude", LONGITUDE_MAX)
                )
        except (PlacesError, csv.Error) as error:
            raise PlacesError(f"line {rows.line_num}: {error}") from error
        return Places(points)


def _columns(header: list[str]) -> list[int]:
    """Where the columns that are read stand."""
    for name in COLUMNS:
        if header.count(name) != 1:
            raise PlacesError(f"the header needs one column {shown(name)}; it has {shown(header)}")
    return [header.index(name) for name in COLUMNS]


def _check_new(points: dict[tuple[str, str], Point], kind: str, key: str) -> None:
    if kind not in KINDS:
        raise PlacesError(f"unknown kind {shown(kind)}{nearest(kind, KINDS)} (kinds: {', '.join(KINDS)})")
    if not key:
        raise PlacesError("the key is empty")
    if (kind, key) in points:
        raise PlacesError(f"the {kind} {shown(key)} was given before")
    if len(points) >= ROWS_MAX:
        raise PlacesError(f"more than {ROWS_MAX} places")


def _degrees(text: str, name: str, degrees_max: float) -> float:
    try:
        degrees = float(text)
    except ValueError:
        degrees = math.nan
    if not abs(degrees) <= degrees_max:
        raise PlacesError(f"{name} is a number from {-degrees_max:g} to {degrees_max:g}, not {shown(text)}")
    return degrees
