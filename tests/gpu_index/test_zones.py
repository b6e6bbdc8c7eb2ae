from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_index.invalid_input import InvalidInput
from gpu_index.zones import EPOCH, Schedule, check_timezone, hour_of_week, parse_schedule, parse_time, zone_names


def hour(timezone: str, time: str) -> tuple[int, int]:
    """Day of the week (Monday is 0) and hour."""
    return divmod(hour_of_week(timezone, parse_time(time, "time")), 24)


def test_the_week_begins_on_monday_at_midnight() -> None:
    assert hour("UTC", "2026-11-30T00:00:00Z") == (0, 0)
    assert hour("UTC", "2026-11-30T00:59:59.999999Z") == (0, 0)
    assert hour("UTC", "2026-11-30T01:00:00Z") == (0, 1)
    assert hour("UTC", "2026-12-06T23:59:59Z") == (6, 23)
    assert hour("UTC", "2026-12-07T00:00:00Z") == (0, 0)
    assert hour("UTC", "1970-01-01T00:00:00Z") == (3, 0)
    assert hour("UTC", "1969-12-31T23:59:59.5Z") == (2, 23)


@pytest.mark.parametrize(
    ("timezone", "time", "day", "hour_of_day"),
    [
        # New York, spring: 02:00 EST is 03:00 EDT
        ("America/New_York", "2026-03-08T06:59:59Z", 6, 1),
        ("America/New_York", "2026-03-08T07:00:00Z", 6, 3),
        # autumn: 02:00 EDT is 01:00 EST, so that hour comes twice
        ("America/New_York", "2026-11-01T05:00:00Z", 6, 1),
        ("America/New_York", "2026-11-01T06:00:00Z", 6, 1),
        ("America/New_York", "2026-11-01T06:59:59Z", 6, 1),
        ("America/New_York", "2026-11-01T07:00:00Z", 6, 2),
        # Lord Howe turns by half an hour: +10:30 to +11:00 at 02:00
        ("Australia/Lord_Howe", "2026-10-03T15:29:59Z", 6, 1),
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z", 6, 2),
        ("Australia/Lord_Howe", "2026-10-03T15:59:59Z", 6, 2),
        ("Australia/Lord_Howe", "2026-10-03T16:00:00Z", 6, 3),
        # and back at 02:00, which is 01:30 again
        ("Australia/Lord_Howe", "2026-04-04T14:59:59Z", 6, 1),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z", 6, 1),
        ("Australia/Lord_Howe", "2026-04-04T15:29:59Z", 6, 1),
        ("Australia/Lord_Howe", "2026-04-04T15:30:00Z", 6, 2),
        # Apia had no Friday 30 December 2011
        ("Pacific/Apia", "2011-12-30T09:59:59Z", 3, 23),
        ("Pacific/Apia", "2011-12-30T10:00:00Z", 5, 0),
        # quarter hours
        ("Asia/Kathmandu", "2026-11-30T18:14:59Z", 0, 23),
        ("Asia/Kathmandu", "2026-11-30T18:15:00Z", 1, 0),
        # London, both ways
        ("Europe/London", "2026-03-29T00:59:59Z", 6, 0),
        ("Europe/London", "2026-03-29T01:00:00Z", 6, 2),
        ("Europe/London", "2026-10-25T00:59:59Z", 6, 1),
        ("Europe/London", "2026-10-25T01:00:00Z", 6, 1),
        # local mean time, with its seconds: Amsterdam was 19 min 32 s ahead
        ("Europe/Amsterdam", "1930-01-06T23:40:27Z", 0, 23),
        # Liberia was 44 min 30 s behind until 1972
        ("Africa/Monrovia", "1971-01-04T00:44:29Z", 6, 23),
        ("Africa/Monrovia", "1971-01-04T00:44:30Z", 0, 0),
        # the ends of what can be written
        ("Pacific/Kiritimati", "9999-12-31T23:59:59Z", 5, 13),
        ("UTC", "0001-01-01T00:00:00Z", 0, 0),
        ("America/New_York", "0001-01-01T00:00:00+23:59", 5, 19),
        ("UTC", "9999-12-31T23:59:59-23:59", 5, 23),
    ],
)
def test_hours_across_changes_of_the_clock(timezone: str, time: str, day: int, hour_of_day: int) -> None:
    assert hour(timezone, time) == (day, hour_of_day)


MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@pytest.fixture(scope="module")
def package_zones() -> Iterator[None]:
    """Python's own zones from the tzdata package: the machine's may have another history."""
    zoneinfo.reset_tzpath(to=())
    yield
    zoneinfo.reset_tzpath()


@pytest.mark.usefixtures("package_zones")
@given(st.sampled_from(sorted(zone_names())), MOMENTS)
def test_hours_are_those_of_the_local_clock(timezone: str, moment: datetime) -> None:
    local = moment.astimezone(zoneinfo.ZoneInfo.no_cache(timezone))
    now_us = (moment - EPOCH) // timedelta(microseconds=1)
    assert hour_of_week(timezone, now_us) == local.weekday() * 24 + local.hour


@pytest.mark.parametrize("name", ["UTC", "Etc/GMT+12", "US/Eastern", "America/Argentina/Buenos_Aires", "Asia/Calcutta"])
def test_iana_names_and_their_links_are_zones(name: str) -> None:
    check_timezone(name, "timezone")
    hour_of_week(name, 0)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("america/new_york", "unknown_timezone"),
        ("New York", "unknown_timezone"),
        ("", "unknown_timezone"),
        ("../../etc/passwd", "unknown_timezone"),
        ("/UTC", "unknown_timezone"),
        ("America", "unknown_timezone"),
        ("+01:00", "unknown_timezone"),
        ("UTC\0", "unknown_timezone"),
        ("\ud800", "unknown_timezone"),
        (None, "wrong_type"),
        (3, "wrong_type"),
        (["UTC"], "wrong_type"),
    ],
)
def test_other_names_are_not(name: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_timezone(name, "timezone")
    assert (caught.value.path, caught.value.code) == ("timezone", code)


def test_a_schedule() -> None:
    raw = {"timezone": "America/New_York", "hours": [33, 9, 10.0, 9, 0, 167]}
    assert parse_schedule(raw, "schedule") == Schedule("America/New_York", (0, 9, 10, 33, 167))
    assert parse_schedule({"timezone": "UTC", "hours": []}, "schedule").hours == ()


@pytest.mark.parametrize(
    ("raw", "code", "path"),
    [
        ([], "wrong_type", "schedule"),
        (None, "wrong_type", "schedule"),
        ({"timezone": "UTC"}, "wrong_type", "schedule.hours"),
        ({"hours": [1]}, "wrong_type", "schedule.timezone"),
        ({"timezone": "Mars/Base", "hours": [1]}, "unknown_timezone", "schedule.timezone"),
        ({"timezone": "UTC", "hours": 3}, "wrong_type", "schedule.hours"),
        ({"timezone": "UTC", "hours": [1, "2"]}, "wrong_type", "schedule.hours[1]"),
        ({"timezone": "UTC", "hours": [True]}, "wrong_type", "schedule.hours[0]"),
        ({"timezone": "UTC", "hours": [1.5]}, "wrong_type", "schedule.hours[0]"),
        ({"timezone": "UTC", "hours": [float("inf")]}, "wrong_type", "schedule.hours[0]"),
        ({"timezone": "UTC", "hours": [0, 168]}, "out_of_range", "schedule.hours[1]"),
        ({"timezone": "UTC", "hours": [-1]}, "out_of_range", "schedule.hours[0]"),
        ({"timezone": "UTC", "hours": [1], "time_zone": "UTC"}, "unknown_key", "schedule.time_zone"),
    ],
)
def test_a_faulty_schedule_is_refused_with_the_place(raw: Any, code: str, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_schedule(raw, "schedule")
    assert (caught.value.code, caught.value.path) == (code, path)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T16:00:00-08:00", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:00Z", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T00:00:00.5Z", 500_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("1970-01-01T00:00:00." + "9" * 500 + "Z", 999_999),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2026-11-30T12:00:00Z", 1_796_040_000_000_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ("2016-12-31T23:59:60.25Z", 1_483_228_800_250_000),
        ("2017-01-01T08:59:60+09:00", 1_483_228_800_000_000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000_000),
    ],
)
def test_times(text: str, us: int) -> None:
    assert parse_time(text, "now") == us


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30T12:00:00",  # no offset
        "2026-11-30",
        "2026-11-30T12:00Z",
        "2026-11-30T12:00:00+0100",
        "2026-11-30T12:00:00+01",
        "2026-11-30T12:00:00+24:00",
        "2026-11-30T12:00:00+01:60",
        "2026-11-30T12:00:00.Z",
        "2026-11-30T24:00:00Z",
        "2026-11-30T12:60:00Z",
        "2026-11-30T12:00:60Z",
        "2026-11-30T12:00:61Z",
        "2026-11-31T12:00:00Z",
        "2025-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "0000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "2026-W49-1T12:00:00Z",
        " 2026-11-30T12:00:00Z",
        "2026-11-30T12:00:00Z\n",
        "２026-11-30T12:00:00Z",
        "",
        None,
        1_796_040_000,
        True,
    ],
)
def test_what_is_no_time_is_refused(text: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_time(text, "ad.start_time")
    assert (caught.value.path, caught.value.code) == ("ad.start_time", "bad_time")


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.integers(-1439, 1439))
def test_times_are_read_as_python_writes_them(moment: datetime, offset_minutes: int) -> None:
    sign, minutes = "-" if offset_minutes < 0 else "+", abs(offset_minutes)
    text = f"{moment.isoformat()}{sign}{minutes // 60:02}:{minutes % 60:02}"
    expected = (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)
    assert parse_time(text, "now") == expected
