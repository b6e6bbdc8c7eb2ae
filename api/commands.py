"""The commands that look from outside: produce, retrieve and check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from api.config import Loaded, UserError
from api.user_errors import as_user_errors
from gpu_index.schema import Schema
from ingest.check import Checker, Form, Summary
from ingest.config import IngestConfig
from ingest.places import Places
from ingest.produce import produce

REQUEST_TIMEOUT_S = 90.0
EXIT_FINDINGS = 1

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

Json = dict[str, Any]


def produce_command(loaded: Loaded, arguments: argparse.Namespace) -> int:
    """`mirach produce FILE`: the last offsets go to standard output, as a request's `min_offsets` takes them."""
    settings = loaded.settings
    config = IngestConfig(
        bootstrap_servers=settings.kafka_bootstrap_servers, topic=settings.topic, properties=settings.kafka
    )
    delivered = 0

    def on_progress(count: int) -> None:
        nonlocal delivered
        delivered = count

    with as_user_errors(), lines_of(arguments.file, "producing") as lines:
        offsets = produce(lines, config, on_progress)
    events = "event is" if delivered == 1 else "events are"
    err.print(f"{delivered:,} {events} in topic {settings.topic}; the last offsets by partition:")
    print(msgspec.json.encode({str(partition): offset for partition, offset in sorted(offsets.items())}).decode())
    return 0


def retrieve_command(loaded: Loaded, arguments: argparse.Namespace) -> int:
    """`mirach retrieve FILE`: a JSON list is sent as a batch."""
    with opened(arguments.file) as file:
        body = file.read()
    base = (arguments.url or f"http://127.0.0.1:{loaded.settings.port}").rstrip("/")
    route = "/v1/retrieve"
    if arguments.openrtb:
        route += "/openrtb"
    elif body.lstrip().startswith(b"["):
        route += "/batch"
    answer = post(base + route, body)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(answer)).decode())
        return 0
    for one in answer if isinstance(answer, list) else [answer]:
        out.print(answer_table(one))
        out.print(answer_text(one))
    return 0


def post(address: str, body: bytes) -> Any:
    """The decoded answer. Raises UserError with what the service says is wrong, or that there is none."""
    try:
        headers = {"content-type": "application/json"}
        response = httpx.post(address, content=body, headers=headers, timeout=REQUEST_TIMEOUT_S)
        answer = msgspec.json.decode(response.content)
    except httpx.HTTPError as error:
        raise UserError(f"{address} cannot be reached: {error or type(error).__name__}; is the service up?") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{address} answers {response.status_code} and not in JSON: is that Mirach?") from error
    if response.status_code != 200:
        place = f" at {answer['path']}" if answer.get("path") else ""
        raise UserError(f"{answer.get('type', response.status_code)}{place}: {answer.get('detail', '')}")
    return answer


def answer_text(answer: Json) -> str:
    """The figures that say how an answer came about."""
    shown, eligible, indexed = len(answer["results"]), answer["eligible"], answer["indexed"]
    model = f", model {answer['model']['name']}" if answer.get("model") else ""
    total_ms = answer["timings_ms"]["total"]
    return f"{shown:,} of {eligible:,} eligible ads, {indexed:,} in the index{model}, {total_ms:.2f} ms"


def answer_table(answer: Json) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, justify in (("", "right"), ("ad", "left"), ("advertiser", "left"), ("campaign", "left"),
                          ("score", "right"), ("value", "right"), ("pathway", "left")):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]  # one of rich's words
    for rank, result in enumerate(answer["results"], 1):
        names = (result["ad_id"], result["advertiser_id"] or "–", result["campaign_id"] or "–")
        figures = (f"{result['score']:.4f}", f"{result['value']:.4f}")
        table.add_row(str(rank), *names, *figures, result["pathway"])
    return table


def check_command(loaded: Loaded, arguments: argparse.Namespace) -> int:
    """`mirach check FILE`: a line for each finding, then what they have in common. -> 1 if a line is bad"""
    with as_user_errors():
        if loaded.settings.model is not None:
            from api.shared_model import with_model  # and with it PyTorch

            loaded, _ = with_model(loaded)
        settings = loaded.settings
        places = None if settings.places is None else Places.load(settings.places)
        form = None if arguments.form is None else Form(arguments.form)
        schema = Schema.load(settings.schema)
    checker = Checker(schema, dim=settings.dim, gate_dim=settings.gate_dim, places=places, form=form)
    with lines_of(arguments.file, "checking") as lines:
        for finding in checker.check(lines):
            place = f" {finding.path}:" if finding.path else ""
            warning = " warning:" if finding.warning else ""
            print(f"line {finding.line}:{warning}{place} {finding.detail} [{finding.code}]")
    print_summary(checker.summary)
    return EXIT_FINDINGS if checker.summary.bad else 0


def print_summary(summary: Summary) -> None:
    good = ", ".join(f"{count:,} {kind}" for kind, count in sorted(summary.kinds.items())) or "none"
    warned = f", warnings {summary.warnings.total():,}" if summary.warnings else ""
    err.print(f"{summary.lines:,} lines: good {summary.good:,} ({good}), bad {summary.bad:,}{warned}")
    for name, reasons in (("bad", summary.reasons), ("warnings", summary.warnings)):
        if not reasons:
            continue
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(name, justify="right")
        for heading in ("code", "at", "for example"):
            table.add_column(heading)
        for reason, count in reasons.most_common():
            example = summary.examples[reason]
            table.add_row(f"{count:,}", reason.code, reason.path or "–", f"line {example.line}: {example.detail}")
        err.print(table)


@contextmanager
def opened(name: str) -> Iterator[IO[bytes]]:
    """A file, or standard input for `-`. Raises UserError."""
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(name, "rb")  # noqa: SIM115 — closed below; only opening it is the user's error
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from error
    with file:
        yield file


@contextmanager
def lines_of(name: str, doing: str) -> Iterator[Iterator[bytes]]:
    """The lines of a file, with a progress bar on standard error where that is a terminal and the size is known."""
    with opened(name) as file:
        if name == "-" or not err.is_terminal:
            yield iter(file)
            return
        columns = (TextColumn(doing), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=err, transient=True) as progress:
            size = file.seek(0, 2)
            file.seek(0)
            task = progress.add_task(doing, total=size)
            yield counted(file, lambda count: progress.advance(task, count))


def counted(file: IO[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    waiting = 0
    for line in file:
        yield line
        waiting += len(line)
        if waiting >= 1 << 16:
            advance(waiting)
            waiting = 0
    advance(waiting)


COMMANDS: dict[str, Callable[[Loaded, argparse.Namespace], int]] = {
    "produce": produce_command,
    "retrieve": retrieve_command,
    "check": check_command,
}
