"""`mirach bench serving`: a trained model at work, and its switch to another one while the service answers.

`mirach serve` in a process of its own over the embedded broker, with sample ads that bring no vectors and requests that
tell of their user (of the click log that the demo's model was trained on). One after the other:

1. `ingest`: the ads, as fast as they are taken: each is embedded by the model's ad tower before it is in the index;
2. `alone`: requests one at a time, and what of each the towers take (`timings_ms`);
3. `switch`: requests at a steady rate before, during and after a switch to a copy of the model under another name, so
   that every ad is embedded anew. Each is timed from when it was due, and must be answered wholly by one of the two.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np

from api.demo import MODEL, sample_users, with_features
from bench.ads import events, requests
from bench.http_load import http_request, read_answer
from bench.machine import describe_machine
from bench.report import Row, header_of, table_of
from bench.service import Service, wait_until
from ingest.config import IngestConfig
from ingest.embedded import EmbeddedBroker
from ingest.produce import produce

PARTITIONS = 16  # the embedded broker keeps 5 MiB of each
TOPICS = {"ad-events": PARTITIONS, "ad-events-dlq": 1}
CONNECTIONS = 4
BODIES = 50
K = 10
EMBED_S = 600.0  # at most, for the ads to be in the index
SWITCH_S = 600.0
POLL_S = 0.05

Json = dict[str, Any]


class Asked(NamedTuple):
    """One answered request."""

    due: float  # by perf_counter, as `seconds` from it
    seconds: float
    status: int
    model: str | None  # the name of the one that the answer is of
    towers_ms: float
    service_ms: float  # the whole of it, as the service sees it


def main(arguments: Sequence[str]) -> int:
    """Measures, prints a table, writes the figures as JSON. -> exit code"""
    given = _parser().parse_args(arguments)
    report: Json = {
        "machine": describe_machine(("torch",)), "command": ["mirach", "bench", "serving", *arguments],
        "ads": given.ads, "requests_per_s": given.rate,
    }  # fmt: skip
    with TemporaryDirectory() as folder, EmbeddedBroker(TOPICS) as broker:
        service = Service(broker.bootstrap_servers, Path(folder) / "data", "--model", str(given.model),
                          "--snapshot-interval-s", "0")  # fmt: skip
        service.start()
        try:
            service.wait_ready()
            report |= asyncio.run(measure(service, broker.bootstrap_servers, given, Path(folder)))
        finally:
            service.end(signal.SIGTERM)
    print("\n".join(lines_of(report)))
    given.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    _say(f"figures written to {given.json}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mirach bench serving", description="A trained model at work.")
    parser.add_argument("--ads", type=int, default=30_000, help="ads that the model embeds. Default: 30000.")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second about the switch. Default: 50.")
    parser.add_argument("--seconds", type=float, default=5.0, help="before the switch, and after. Default: 5.")
    parser.add_argument("--alone", type=int, default=500, help="requests one at a time. Default: 500.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, default=MODEL, metavar="FOLDER",
                        help="a trained model. Default: the demo's.")  # fmt: skip
    parser.add_argument("--json", type=Path, default=Path("mirach-bench-serving.json"), metavar="FILE",
                        help="where the figures go. Default: mirach-bench-serving.json.")  # fmt: skip
    return parser


async def measure(service: Service, servers: str, given: argparse.Namespace, folder: Path) -> Json:
    _say(f"{given.ads:,} ads")
    found = {"ingest": await asyncio.to_thread(measure_ingest, service, servers, given)}
    assert service.port is not None
    users = list(sample_users())
    bodies = [
        msgspec.json.encode(with_features(request, user))
        for request, user in zip(requests(given.seed, BODIES, k=K), users[:BODIES], strict=True)
    ]
    messages = [http_request(service.port, "/v1/retrieve", body) for body in bodies]
    _say("requests one at a time")
    await _ask_in_turn(service.port, messages, len(messages))  # the first of each are slower
    alone = await _ask_in_turn(service.port, messages, given.alone)
    found["alone"] = {**_latencies(alone), "towers_ms": _quantiles(one.towers_ms for one in alone),
                      "service_ms": _quantiles(one.service_ms for one in alone)}  # fmt: skip
    _say(f"{given.rate:,.0f} requests a second, and a switch")
    second = second_model(given.model, folder / "second")
    return {**found, "switch": await measure_switch(service, messages, given, second)}


def measure_ingest(service: Service, servers: str, given: argparse.Namespace) -> Json:
    """From the first event sent until the last ad is in the index."""
    lines = [msgspec.json.encode(event) for event in events(given.seed, given.ads)]
    config = IngestConfig(bootstrap_servers=servers, topic="ad-events", properties={"compression.type": "lz4"})
    began = time.perf_counter()
    produce(lines, config)
    produced_s = time.perf_counter() - began
    wait_until(lambda: service.get("/v1/admin/index").json()["ads"] == given.ads, "all ads in the index", EMBED_S)
    elapsed = time.perf_counter() - began
    tower = service.get("/v1/admin/model").json()["ad_tower"]
    assert tower["failed"] == 0, tower
    return {
        "ads_per_s": given.ads / elapsed, "seconds": elapsed, "produced_s": produced_s,
        "tower_s": tower["seconds"], "tower_ads_per_s": tower["ads"] / tower["seconds"], "batches": tower["batches"],
    }  # fmt: skip


def second_model(model: Path, folder: Path) -> Path:
    """A copy under another name, and so of another fingerprint, which makes the same vectors."""
    shutil.copytree(model, folder)
    described = msgspec.json.decode((folder / "model.json").read_bytes())
    described["name"] += "-again"
    (folder / "model.json").write_bytes(msgspec.json.encode(described))
    return folder


async def measure_switch(service: Service, messages: Sequence[bytes], given: argparse.Namespace, second: Path) -> Json:
    assert service.port is not None
    stop, asked = asyncio.Event(), list[Asked]()
    pause_s = CONNECTIONS / given.rate
    start = time.perf_counter()
    asking = [
        asyncio.create_task(_ask(service.port, messages, number, start + number / given.rate, pause_s, stop, asked))
        for number in range(CONNECTIONS)
    ]
    await asyncio.sleep(given.seconds)
    began = time.perf_counter()
    begun = await asyncio.to_thread(service.post, "/v1/admin/model", {"path": str(second)})
    assert begun.status_code == 202, begun.text
    figures = begun.json()
    while figures["switching"] is not None:
        assert time.perf_counter() - began < SWITCH_S, figures
        await asyncio.sleep(POLL_S)
        seen, figures = figures, (await asyncio.to_thread(service.get, "/v1/admin/model")).json()
    ended = time.perf_counter()
    assert figures["switched"] == 1, figures
    await asyncio.sleep(given.seconds)
    stop.set()
    await asyncio.gather(*asking)
    during = [one for one in asked if began <= one.due < ended]
    return {
        "seconds": ended - began, "ads": seen["switching"]["ads"], "bytes": seen["switching"]["bytes"],
        "models": sorted({str(one.model) for one in asked}),
        "before": _latencies([one for one in asked if one.due < began]), "during": _latencies(during),
        "after": _latencies([one for one in asked if one.due >= ended]),
    }  # fmt: skip


async def _ask_in_turn(port: int, messages: Sequence[bytes], count: int) -> list[Asked]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    asked = [await _ask_once(reader, writer, messages[n % len(messages)], time.perf_counter()) for n in range(count)]
    writer.close()
    return asked


async def _ask(
    port: int, messages: Sequence[bytes], number: int, due: float, pause_s: float, stop: asyncio.Event,
    asked: list[Asked],
) -> None:  # fmt: skip
    """One connection's requests, each when it is due or when the one before is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    while not stop.is_set():
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        asked.append(await _ask_once(reader, writer, messages[number % len(messages)], due))
        number += CONNECTIONS
        due += pause_s
    writer.close()


async def _ask_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes, due: float) -> Asked:
    writer.write(message)
    status, body = await read_answer(reader)
    seconds = time.perf_counter() - due
    if status != 200:
        return Asked(due, seconds, status, None, 0.0, 0.0)
    answer = msgspec.json.decode(body)
    timings = answer["timings_ms"]
    return Asked(due, seconds, status, answer["model"]["name"], timings["towers"], timings["total"])


def _latencies(asked: Sequence[Asked]) -> Json:
    refused = sum(one.status != 200 for one in asked)
    return {**_quantiles(one.seconds * 1e3 for one in asked), "requests": len(asked), "refused": refused}


def _quantiles(milliseconds: Iterable[float]) -> Json:
    """None where there are none, as during a switch of a few ads."""
    values = np.array(list(milliseconds))
    if not len(values):
        return dict.fromkeys(("p50", "p99", "max"))
    p50, p99, most = np.percentile(values, (50, 99, 100)).tolist()
    return {"p50": p50, "p99": p99, "max": most}


def lines_of(report: Json) -> Iterable[str]:
    yield from header_of(report)
    yield ""
    yield from table_of([*_rows(report)])


def _rows(report: Json) -> Iterable[Row]:
    ingest, alone, switch = report["ingest"], report["alone"], report["switch"]
    share = f"{ingest['tower_s'] / ingest['seconds']:.0%} of the time"
    tower = f"the ad tower alone {ingest['tower_ads_per_s']:,.0f}/s"
    yield Row(f"ads embedded and in the index, {report['ads']:,}", f"{ingest['ads_per_s']:,.0f}/s", tower, share)
    yield Row("one request at a time, p50 · p99", _two(alone), f"in the service {_two(alone['service_ms'])}")
    yield Row("  of it the model's towers", _two(alone["towers_ms"]), "")
    yield Row(
        f"switch of {switch['ads']:,} ads",
        f"{switch['seconds']:.1f} s",
        f"{switch['bytes'] / 1e6:,.1f} MB beside the model in use",
    )
    for when in ("before", "during", "after"):
        found = switch[when]
        most = "–" if found["max"] is None else f"{found['max']:,.0f} ms"
        counts = f"max {most} of {found['requests']:,}, {found['refused']} refused"
        yield Row(f"{report['requests_per_s']:,.0f} requests/s {when} it, p50 · p99", _two(found), counts)


def _two(found: Json) -> str:
    if found["p50"] is None:
        return "–"
    return f"{found['p50']:,.1f} · {found['p99']:,.1f} ms"


def _say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr)
