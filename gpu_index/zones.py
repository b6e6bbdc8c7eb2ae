"""Time zones, hours of the week, schedules, and points in time.

The zones are those of the tzdata package, not of the machine, so that every replica has the same ones. Times are
microseconds since 1970-01-01T00:00Z.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

import msgspec

from gpu_index.invalid_input import InvalidInput, nearest, shown, step
from gpu_index.json_input import parse_integer

HOURS_OF_WEEK = 168
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_HOUR_OF_WEEK = 72  # 1970 began on a Thursday
FIRST_ZONED_S = int((datetime(2, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
LAST_ZONED_S = int((datetime(9999, 1, 1, tzinfo=UTC) - EPOCH).total_seconds())
# RFC 3339: a space may stand for the T, letters may be small, :60 is a leap second.
TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:)([0-9]{2})(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-5][0-9])"
)


class Schedule(msgspec.Struct, frozen=True, gc=False):
    """The hours of the week, in the ad's own zone, in which it may match."""

    timezone: str
    hours: tuple[int, ...]  # sorted, each once; none: it never matches


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Every IANA zone, links too."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def check_timezone(name: object, path: str) -> None:
    """Raises InvalidInput unless `name` is an IANA zone, spelt as IANA spells it."""
    if not isinstance(name, str):
        raise InvalidInput(path, f'a time zone is an IANA name such as "Europe/Paris", not {shown(name)}', "wrong_type")
    if name not in zone_names():
        detail = f"unknown time zone {shown(name)}{nearest(name, zone_names())} (an IANA name is needed)"
        raise InvalidInput(path, detail, "unknown_timezone")


def hour_of_week(timezone: str, now_us: int) -> int:
    """0 is Monday 00:00–00:59, 167 Sunday 23:00–23:59, on the clocks of `timezone`, a name that was checked."""
    return _hour_of_week(timezone, now_us // 1_000_000)


@lru_cache(maxsize=8192)  # exact: offsets change at whole seconds; requests of one second ask for the same
def _hour_of_week(timezone: str, now_s: int) -> int:
    zoned = EPOCH + timedelta(seconds=min(max(now_s, FIRST_ZONED_S), LAST_ZONED_S))  # what datetime can turn
    offset = zoned.astimezone(_zone(timezone)).utcoffset()
    assert offset is not None
    local_s = now_s + int(offset.total_seconds())
    return (local_s // 3600 + EPOCH_HOUR_OF_WEEK) % HOURS_OF_WEEK


def parse_hour(raw: object) -> int:
    """An hour of the week, 0 to 167. Raises InvalidInput."""
    hour = parse_integer(raw, "hours")
    if not 0 <= hour < HOURS_OF_WEEK:
        raise InvalidInput("", f"an hour of the week is from 0 (Monday 00:00) to 167, not {hour}", "out_of_range")
    return hour


def parse_schedule(raw: object, path: str = "schedule") -> Schedule:
    """A schedule from its JSON object, {"timezone": IANA name, "hours": [0..167, …]}. Raises InvalidInput."""
    if not isinstance(raw, dict):
        raise InvalidInput(path, f"a schedule is an object with timezone and hours, not {shown(raw)}", "wrong_type")
    for key in raw:
        if key not in ("timezone", "hours"):
            detail = f"unknown key {shown(key)}{nearest(str(key), ('timezone', 'hours'))}"
            raise InvalidInput(f"{path}.{step(str(key))}", detail, "unknown_key")
    check_timezone(raw.get("timezone"), f"{path}.timezone")
    hours = raw.get("hours")
    if not isinstance(hours, list):
        detail = f"hours are a list of integers from 0 to 167, not {shown(hours)}"
        raise InvalidInput(f"{path}.hours", detail, "wrong_type")
    numbers = set()
    for position, hour in enumerate(hours):
        try:
            numbers.add(parse_hour(hour))
        except InvalidInput as fault:
            fault.under(f"{path}.hours[{position}]")
            raise
    return Schedule(raw["timezone"], tuple(sorted(numbers)))


def parse_time(text: object, path: str) -> int:
    """Microseconds since 1970 of an RFC 3339 time with `Z` or a UTC offset; finer fractions are cut. Raises
    InvalidInput."""
    match = TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        detail = f'a time is written as "2026-11-30T12:00:00Z" or with an offset such as +01:00, not {shown(text)}'
        raise InvalidInput(path, detail, "bad_time")
    date, clock, second, fraction, offset = match.groups()
    leap = second == "60"
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}{'59' if leap else second}{offset.upper()}")
    except ValueError as error:
        raise InvalidInput(path, f"there is no time {shown(text)}: {error}", "bad_time") from None
    past = moment - EPOCH
    whole_s = past.days * 86_400 + past.seconds + leap
    if leap and whole_s % 86_400:
        raise InvalidInput(path, f"{shown(text)} is not a leap second, those end a UTC day", "bad_time")
    return whole_s * 1_000_000 + (int(fraction[1:7].ljust(6, "0")) if fraction else 0)
