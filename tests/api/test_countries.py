"""The tables of countries and categories are whole, and a zone of an offset has that offset."""

from __future__ import annotations

from importlib import resources

from api.categories import COVERED_BY_FIRST_TIER, covered
from api.countries import ALPHA_2, ALPHA_2_BY_ALPHA_3, alpha_2, zone_of_country, zone_of_offset
from gpu_index.zones import hour_of_week, parse_time, zone_names


def test_a_zone_of_an_offset_has_that_offset_at_all_times() -> None:
    for minutes in range(-24 * 60, 24 * 60 + 1, 5):
        zone = zone_of_offset(minutes)
        if zone is None:
            assert minutes % 60 or not -12 <= minutes // 60 <= 14
            continue
        for text in ("2026-01-15T12:00:00Z", "2026-07-15T12:00:00Z"):
            now_us = parse_time(text, "")
            hour = (hour_of_week("Etc/UTC", now_us) + minutes // 60) % 168  # noon: minutes past the hour do not matter
            assert hour_of_week(zone, now_us) == hour, zone


def test_every_country_has_its_code() -> None:
    lines = resources.files("tzdata").joinpath("zoneinfo", "iso3166.tab").read_text("utf-8").splitlines()
    iso = {line.split("\t")[0] for line in lines if line and not line.startswith("#")}
    assert iso | {"XK"} == ALPHA_2
    assert len(ALPHA_2_BY_ALPHA_3) == len(ALPHA_2) == 250
    assert all(len(code) == 3 and code.isupper() for code in ALPHA_2_BY_ALPHA_3)
    known = {
        "USA": "US",
        "DEU": "DE",
        "GBR": "GB",
        "CHE": "CH",
        "UKR": "UA",
        "SRB": "RS",
        "ZAF": "ZA",
        "PRK": "KP",
        "KOR": "KR",
    }
    assert {code: alpha_2(code) for code in known} == known
    assert alpha_2("ca") == "CA"
    assert alpha_2("U") is None
    assert all(zone_of_country(code) in zone_names() for code in ALPHA_2 if zone_of_country(code))
    assert zone_of_country("RU") is None


def test_the_taxonomy_has_its_392_codes() -> None:
    codes = [code for codes in COVERED_BY_FIRST_TIER.values() for code in codes]
    assert len(codes) == len(set(codes)) == 392
    assert COVERED_BY_FIRST_TIER["IAB24"] == ("IAB24",)
    assert COVERED_BY_FIRST_TIER["IAB7"][-1] == "IAB7-45"
    assert covered(["IAB26", "IAB26-1", "x"], 1) == ["IAB26", "IAB26-1", "IAB26-2", "IAB26-3", "IAB26-4", "x"]
