"""One seed, or many over processes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple
from unittest import mock

from tests.simulation.threads import Broken, Found
from tests.simulation.truth import where
from tests.simulation.world import World

SEEDS_PER_TASK = 25


class Ran(NamedTuple):
    """What came of one seed."""

    seed: int
    trace: str  # hash of all that happened
    failure: str | None


class _InLine(Executor):
    """In place of the threads that read a snapshot's chunks."""

    def __init__(self, _threads: int) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


class _Faults(logging.Handler):
    """What the product logs is nobody's but a fault of its own that it caught."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            raise Broken(f"{record.getMessage()}: {where(record.exc_info[1])}")


@contextmanager
def one_thread() -> Iterator[None]:
    """What the product would do on other threads, or wait for by the system's clock, happens here and at once."""
    logger = logging.getLogger("mirach")
    with (
        mock.patch("gpu_index.snapshot.ThreadPoolExecutor", _InLine),
        mock.patch("ingest.commits.RETRY_S", 0.0),
        mock.patch.object(logger, "handlers", [_Faults()]),
        mock.patch.object(logger, "propagate", False),
    ):
        yield


def run_seed(seed: int, say: Callable[[str], None] = lambda _: None) -> Ran:
    """Says what happens, line by line. What is wrong is in the result."""
    trace = blake2b(digest_size=8)

    def said(line: str) -> None:
        trace.update(line.encode() + b"\n")
        say(line)

    failure = None
    with one_thread():
        try:
            World(seed, said).run()
        except (Found, Exception) as error:
            failure = where(error)
            said(f"FAILED {failure}")
    return Ran(seed, trace.hexdigest(), failure)


def run_seeds(seeds: list[int]) -> list[Ran]:
    gc.collect()  # or the services of earlier seeds, with their address space, would be kept for ever
    gc.freeze()  # what compilers keep: looking through it again and again takes a tenth of the time
    return [run_seed(seed) for seed in seeds]


def run_many(first: int, count: int, processes: int) -> Iterator[list[Ran]]:
    """Results as they come, a few seeds at a time."""
    seeds = range(first, first + count)
    tasks = [list(seeds[at : at + SEEDS_PER_TASK]) for at in range(0, count, SEEDS_PER_TASK)]
    if processes == 1:
        yield from map(run_seeds, tasks)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run_seeds, tasks)
