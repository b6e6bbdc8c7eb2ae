"""The figures of a run as a table: each beside the limit or the peer it was measured with, and the share reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

RESIDENT_MAX = 1e9  # bytes, for a million ads
FRESH_P99_MAX_MS = 250.0


class Row(NamedTuple):
    what: str
    figure: str
    limit: str
    share: str = ""


def header_of(report: dict[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    yield f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}"
    yield f"{machine['date']}  {' '.join(report['command'])}"


def lines_of(report: dict[str, Any]) -> Iterator[str]:
    yield from header_of(report)
    titles = {"campaigns": "campaigns of 10 to 50 ads share a targeting", "distinct": "every targeting distinct"}
    for name, found in report["mixes"].items():
        yield ""
        yield f"{report['ads']:,} ads, {titles[name]} ({found['inside']['index']['targetings']:,} targetings)"
        yield from table_of([*_inside(found["inside"]), *_outside(found)])
    if "scoring" in report:
        yield ""
        yield f"scoring alone, {report['scoring']['ads']:,} ads, all of them by one request"
        yield from table_of(list(_scoring(report["scoring"])))


def table_of(rows: list[Row]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        yield (f"  {row.what:<{widths[0]}}  {row.figure:>{widths[1]}}  {row.limit:<{widths[2]}}  {row.share}").rstrip()


def _inside(inside: dict[str, Any]) -> Iterator[Row]:
    match, bandwidth = inside["match"], inside["read_bytes_per_s"]
    memory = f"read bandwidth {bandwidth / 1e9:.1f} GB/s"
    for size, how in ((1, "one request at a time"), (16, "16 requests a pass")):
        found = match[f"of_{size}"]
        rate = f"{_short(found['ads_per_s'])}/s"
        yield Row(f"ads matched and expanded, {how}", rate, memory, f"{found['stream_share']:.0%}")
    moved = f"{match['bytes_per_request'] / 1e6:.2f} MB moved"
    yield Row("  of them eligible for a request", f"{match['eligible_mean']:,.0f}", moved)
    retrieve = inside["retrieve"]
    rate, limit = retrieve["scored_per_s"], bandwidth / retrieve["bytes_per_score"]
    vectors = f"their vectors at read bandwidth {_short(limit)}/s"
    yield Row("ads scored, in answers", f"{_short(rate)}/s", vectors, f"{rate / limit:.0%}")
    yield Row("answers in the process, 16 a pass", f"{retrieve['requests_per_s']:,.0f}/s", "")
    yield Row("memory of an ad", f"{inside['bytes_per_ad']:,.0f} B", "")
    resident = inside["resident_bytes"]
    share = f"{resident / RESIDENT_MAX:.0%}"
    yield Row("resident, everything", f"{resident / 1e6:,.0f} MB", "1,000 MB for a million ads", share)
    yield Row("creates decoded and applied, nothing beside", f"{inside['load_events_per_s']:,.0f}/s", "")


def _outside(found: dict[str, Any]) -> Iterator[Row]:
    limit = found["inside"]["retrieve"]["requests_per_s"]
    for name, load in found["http"].items():
        connections = int(name.removeprefix("of_"))
        yield Row(f"HTTP requests, {connections} connection{'s' * (connections > 1)}",
                  f"{load['requests_per_s']:,.0f}/s", f"in the process {limit:,.0f}/s",
                  f"{load['requests_per_s'] / limit:.0%}")  # fmt: skip
        yield Row("  p50, p99", f"{load['p50_ms']:.1f}, {load['p99_ms']:.1f} ms", _refused(load))
    applied, alone = found["applied"], found["inside"]["load_events_per_s"]
    asked = applied["requests"]
    yield Row(f"events applied, {asked['requests_per_s']:,.0f} requests/s beside",
              f"{applied['events_per_s']:,.0f}/s", f"creates with nothing beside {alone:,.0f}/s",
              f"{applied['events_per_s'] / alone:.0%}")  # fmt: skip
    yield Row("  p50, p99 of those requests", f"{asked['p50_ms']:.1f}, {asked['p99_ms']:.1f} ms", _refused(asked))
    fresh = found["fresh"]
    times = fresh["ingest"]["freshness"]["produce_time"]
    asked = fresh["requests"]
    yield Row(f"produced to searchable, p50, p99, at {fresh['events_per_s']:,} events/s",
              f"{times['p50_ms']:.0f}, {times['p99_ms']:.0f} ms", f"p99 {FRESH_P99_MAX_MS:.0f} ms",
              f"{times['p99_ms'] / FRESH_P99_MAX_MS:.0%}")  # fmt: skip
    yield Row(f"  p50, p99 of {asked['requests_per_s']:,.0f} requests/s beside",
              f"{asked['p50_ms']:.1f}, {asked['p99_ms']:.1f} ms", _refused(asked))  # fmt: skip


def _scoring(found: dict[str, Any]) -> Iterator[Row]:
    for precision, orders in found["scored"].items():
        for order, by_threads in orders.items():
            threads, best = max(by_threads.items(), key=lambda item: int(item[0]))
            bandwidth = found["read_bytes_per_s"][threads]
            yield Row(f"{precision}, {order}, {threads} threads", f"{_short(best['ads_per_s'])}/s",
                      f"read bandwidth {bandwidth / 1e9:.1f} GB/s", f"{best['stream_share']:.0%}")  # fmt: skip


def _refused(load: dict[str, Any]) -> str:
    return f"{load['refused']} of {load['requests']} not answered 200" if load["refused"] else ""


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.2f} {letter}"
    return f"{number:.0f}"
