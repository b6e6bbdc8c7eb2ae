"""Where on the sphere: cells of one degree as terms, unit vectors for the exact test."""

from __future__ import annotations

from math import asin, ceil, cos, degrees, floor, pi, radians, sin

from gpu_index.evaluate import EARTH_RADIUS_KM

CELLS_MAX = 128  # a wider circle is not narrowed down by cells
MARGIN_DEGREES = 1e-6  # far above what float64 loses
ANYWHERE = 5.0  # above the square of any chord


def unit_vector(lat: float, lon: float) -> tuple[float, float, float]:
    """The point on the unit sphere, coordinates in degrees."""
    north, east = radians(lat), radians(lon)
    return cos(north) * cos(east), cos(north) * sin(east), sin(north)


def chord_squared(radius_km: float) -> float:
    """The square of the chord of the unit sphere that spans a great-circle distance of `radius_km`."""
    angle = radius_km / EARTH_RADIUS_KM
    return ANYWHERE if angle >= pi else 4 * sin(angle / 2) ** 2


def cell_of(lat: float, lon: float) -> int:
    """The cell of a point in degrees, 0 .. 64,799."""
    return min(floor(lat) + 90, 179) * 360 + (floor(lon) + 180) % 360


def cells_within(lat: float, lon: float, radius_km: float) -> list[int]:
    """Cells that together hold every point of the circle, at most CELLS_MAX; empty where it would take more."""
    angle = radius_km / EARTH_RADIUS_KM
    reach = degrees(angle) + MARGIN_DEGREES
    south, north = max(floor(lat - reach), -90), min(ceil(lat + reach), 90)
    if lat + reach >= 90 or lat - reach <= -90:
        columns = list(range(360))  # a pole lies within
    else:
        wide = degrees(asin(min(1.0, sin(min(angle, pi / 2)) / cos(radians(lat))))) + MARGIN_DEGREES
        west, east = floor(lon - wide), ceil(lon + wide)
        columns = sorted({(column + 180) % 360 for column in range(west, min(east, west + 360))})
    rows = range(min(south + 90, 179), max(min(north + 90, 180), south + 91))
    if len(rows) * len(columns) > CELLS_MAX:
        return []
    return [row * 360 + column for row in rows for column in columns]
