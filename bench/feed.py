"""Create events as they lie in the topic, made in a process of its own so that the subject's memory holds only them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from datetime import datetime
from multiprocessing.connection import Connection

import msgspec

from bench.ads import events

CHUNK = 2_000  # events sent at once


def _send_events(
    pipe: Connection, seed: int, n: int, campaigns: bool, vectors: tuple[int, int] | None, now: datetime
) -> None:
    encode = msgspec.json.Encoder().encode
    chunk: list[tuple[str, bytes]] = []
    for event in events(seed, n, campaigns=campaigns, vectors=vectors, now=now):
        chunk.append((event["ad_id"], encode(event)))
        if len(chunk) == CHUNK:
            pipe.send_bytes(msgspec.msgpack.encode(chunk))
            chunk.clear()
    pipe.send_bytes(msgspec.msgpack.encode(chunk))
    pipe.close()


def feed(
    seed: int, n: int, *, campaigns: bool, vectors: tuple[int, int] | None, now: datetime
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Lists of (key, value), `n` in all."""
    here, there = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    maker = context.Process(target=_send_events, args=(there, seed, n, campaigns, vectors, now), daemon=True)
    maker.start()
    there.close()
    decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode
    while True:
        try:
            chunk = decode(here.recv_bytes())
        except EOFError:
            break
        yield [(key.encode(), value) for key, value in chunk]
    maker.join()
    assert maker.exitcode == 0, f"the process that makes events ended with {maker.exitcode}"
