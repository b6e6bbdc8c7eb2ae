"""`mirach snapshot`: what lies in the data folder, whether it is whole, and a new one by a running service."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import httpx
import msgspec
from rich.table import Table

from api.commands import EXIT_FINDINGS, err, out
from api.config import Settings, UserError
from api.snapshots import listed
from gpu_index.disk import Folder
from gpu_index.manifest import Damaged
from gpu_index.store import Store

WRITE_TIMEOUT_S = 1000.0
TABLE_COLUMNS = 160  # into a file or a pipe, and where a terminal has fewer: it breaks lines, nothing is cut off

Json = dict[str, Any]


def snapshot_command(settings: Settings, arguments: argparse.Namespace) -> int:
    store = Store(Folder(settings.data_dir))
    if arguments.action == "create":
        return create(settings, arguments.url)
    sequences = chosen(store, arguments.sequence)
    if arguments.action == "verify":
        return verify(store, sequences)
    found = [listed(store, sequence) for sequence in sequences]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
    elif found:
        out.print(table_of(found), width=max(out.width, TABLE_COLUMNS), crop=False)
    else:
        err.print(f"there is no snapshot in {settings.data_dir.absolute()}", soft_wrap=True)
    return 0


def chosen(store: Store, sequence: int | None) -> list[int]:
    """All, the newest first, or the one that is asked for."""
    sequences = store.sequences()
    if sequence is None:
        return sequences
    if sequence not in sequences:
        there = ", ".join(map(str, sequences)) or "none"
        raise UserError(f"there is no snapshot {sequence}; there are: {there}")
    return [sequence]


def table_of(found: Iterable[Json]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, justify in (("snapshot", "right"), ("created", "left"), ("ads", "right"), ("targetings", "right"),
                          ("MB", "right"), ("partitions", "right"), ("topic", "left"), ("schema", "left"),
                          ("model", "left")):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # one of rich's words
    for each in found:
        if "damaged" in each:
            table.add_row(str(each["sequence"]), f"damaged: {each['damaged']}")
            continue
        table.add_row(
            str(each["sequence"]), each["created"], f"{each['ads']:,}", f"{each['targetings']:,}",
            f"{each['bytes'] / 1e6:,.1f}", str(len(each["offsets"])), each["identity"]["topic"],
            each["identity"]["schema_fingerprint"][:8], (each["identity"]["model_fingerprint"] or "none")[:8],
        )  # fmt: skip
    return table


def verify(store: Store, sequences: list[int]) -> int:
    """Reads every byte of the snapshots. -> 1 if one is damaged"""
    damaged = 0
    for sequence in sequences:
        try:
            with err.status(f"reading snapshot {sequence}"):
                manifest = store.verify(sequence)
        except Damaged as damage:
            damaged += 1
            out.print(f"snapshot {sequence} is damaged: {damage}", soft_wrap=True)
        else:
            out.print(f"snapshot {sequence} is whole: {len(manifest.chunks())} chunks, {manifest.bytes / 1e6:,.1f} MB")
    if not sequences:
        err.print("there is no snapshot")
    return EXIT_FINDINGS if damaged else 0


def create(settings: Settings, url: str | None) -> int:
    """Asks the running service for one and waits until it is in place. Raises UserError."""
    address = (url or f"http://127.0.0.1:{settings.port}").rstrip("/") + "/v1/admin/snapshots"
    headers = {} if settings.admin_token is None else {"authorization": f"Bearer {settings.admin_token}"}
    try:
        with err.status("waiting for the service to write a snapshot"):
            response = httpx.post(address, headers=headers, timeout=WRITE_TIMEOUT_S)
        answer = response.json()
    except httpx.HTTPError as error:
        raise UserError(f"{address} cannot be reached: {error or type(error).__name__}; is the service up?") from error
    except ValueError as error:
        raise UserError(f"{address} answers {response.status_code} and not in JSON: is that Mirach?") from error
    if response.status_code != 200:
        raise UserError(f"{answer.get('type', response.status_code)}: {answer.get('detail', '')}")
    out.print(
        f"snapshot {answer['sequence']} is written: {answer['bytes'] / 1e6:,.1f} MB, "
        f"{answer['bytes_written'] / 1e6:,.1f} of them new, in {answer['seconds']:.1f} s; "
        f"the engine waited {answer['pause_ms']:.1f} ms",
        soft_wrap=True,
    )
    return 0
