"""docs/operations.md is kept true: each fault and bound has a test, and the limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api import ad_stage, bodies, http_protocol, logs
from api.config import FIELDS, Settings
from gpu_index import index, packing
from gpu_index.index import DEFAULT_LIMITS
from gpu_index.inspection import limits
from ingest import accounting, statistics
from ingest.config import IngestConfig
from ingest.decode import TARGETING_CACHE_BYTES_MAX
from tests.twins import new_index

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "operations.md").read_text(encoding="utf-8")
NAME = re.compile(r"`(test_\w+)`")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}

INGEST = IngestConfig(bootstrap_servers="")
OF_THE_SERVICE = {
    "users_waiting", "ad_tower_batches", "requests_waiting", "batches_waiting", "http_requests", "http_body_bytes",
}  # fmt: skip
OF_INGEST = {"lane_events", "lane_bytes", "batches", "dead_letters", "dead_letter_bytes", "gaps"}
CONSTANTS = {  # the limit of the row with this figure, or that begins so
    "terms": DEFAULT_LIMITS.terms,
    "field_terms": DEFAULT_LIMITS.terms,
    "expired_versions": DEFAULT_LIMITS.expired,
    "rows": index.ROWS_MAX,
    "cached_targetings": packing.CACHED_TARGETINGS_MAX,
    "batches_waiting": 8,
    "ad_tower_batches": ad_stage.BATCHES_MAX,
    "batches": accounting.BATCHES_MAX,
    "lane_bytes": INGEST.buffer_bytes_max,
    "dead_letter_bytes": INGEST.dead_letter_bytes_max,
    "gaps": statistics.GAPS_MAX,
    "http_requests": bodies.IN_FLIGHT_MAX,
    "http_body_bytes": bodies.IN_FLIGHT_BYTES_MAX,
    "process_open_fds": http_protocol.CONNECTIONS_MAX,
    "Targetings kept parsed": TARGETING_CACHE_BYTES_MAX,
    "Head of a request": http_protocol.HEAD_BYTES_MAX,
    "Log lines of one kind": logs.LINES_MAX,
}


def rows(title: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    assert len(lines) > 10, title
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def figure(row: list[str]) -> str:
    return row[3].strip("`")


@pytest.mark.parametrize("title", ["What happens when", "Bounds"])
def test_every_test_that_is_named_is_there(title: str) -> None:
    there = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    named = [NAME.findall(row[-1]) for row in rows(title)]
    assert {name for names in named for name in names} <= there
    if title == "What happens when":
        assert all(named), "a fault that no test injects"


def test_every_figure_is_in_the_table_and_the_table_has_no_other() -> None:
    shown = {figure(row) for row in rows("Bounds")} - {""}
    shown -= {name for name in shown if "/v1/admin/" in name or name.startswith(("mirach_", "process_"))}  # elsewhere
    assert shown == set(limits(new_index())) | OF_THE_SERVICE | OF_INGEST


def test_limits_are_those_of_the_code() -> None:
    settings, checked = Settings(), set()
    for row in rows("Bounds"):
        what, limit, by = row[:3]
        name = figure(row) if figure(row) in CONSTANTS else next((key for key in CONSTANTS if what.startswith(key)), "")
        setting = by.strip("`").removeprefix("MIRACH_").lower()
        if setting in FIELDS and setting != "index_bytes_max":
            wanted = getattr(settings, setting)
        elif name:
            wanted = CONSTANTS[name]
            checked.add(name)
        else:
            continue
        number, unit = re.match(r"([\d,]+)(?: (KiB|MiB))?", limit).groups()  # type: ignore[union-attr]
        assert int(number.replace(",", "")) * UNITS.get(unit, 1) == wanted, row
    assert checked == set(CONSTANTS)
