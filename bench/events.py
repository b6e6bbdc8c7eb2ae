"""`python -m bench.events`: what an event costs on its way from a record's bytes to the index and its copy on a device.

Ads are loaded, then changes of them (bench/ads.py) are applied in batches, and each step is timed by the thread's own
processor time, which neighbours on a shared machine disturb least: decoding, packing, the kernel that applies, the
device's delta, and what is left of `Index.apply`. The device is plain host memory in which nothing runs: an upload is
a copy to it, a launch does nothing. So the delta's figure is the host's whole cost of it but for the driver's calls.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from bench.ads import changes
from bench.machine import describe_machine
from bench.subject import Options, load_ads
from gpu_index.events import Batch, Outcome
from gpu_index.index import TOUCHED_MAX, Index
from gpu_index.schema import Schema
from ingest.decode import Decoder
from kernels import apply as apply_
from kernels.cuda.types import DeviceArray
from kernels.precision import Precision

PARTITION = 0
STEPS = ("decode", "pack", "apply", "delta", "rest")


class HostMemory:
    """In place of a GPU: takes what is sent to it and does nothing with it."""

    name, multiprocessors = "host memory", 132

    def __init__(self) -> None:
        self._next = 1 << 32
        self._sink = np.empty(64 << 20, np.uint8)
        self.uploaded = 0  # bytes

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        shape = (shape,) if isinstance(shape, int) else shape
        array = DeviceArray(self._next, shape, np.dtype(dtype), None)
        self._next += -(-array.nbytes // 256) * 256
        return array

    zeros = empty

    def upload(self, host: NDArray[Any], array: DeviceArray, first: int = 0) -> None:  # noqa: ARG002 — Device's
        source = host.reshape(-1).view(np.uint8)
        for start in range(0, len(source), len(self._sink)):
            part = source[start : start + len(self._sink)]
            self._sink[: len(part)] = part
        self.uploaded += len(source)

    def download(self, array: DeviceArray) -> NDArray[Any]:
        raise NotImplementedError

    def launch(self, *_: Any) -> None: ...

    def synchronise(self) -> None: ...

    def memory(self) -> tuple[int, int]:
        return 1 << 40, 1 << 40


class Clock:
    """Seconds of this thread's processor time, by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.spent[name] += time.thread_time() - began

        return run


def measure(options: Options, events: int, batch: int, device: bool) -> dict[str, Any]:
    """Loads and measures one mix. -> microseconds of an event by step, bytes of an event"""
    index = Index(
        Schema.load(), dim=options.dim, gate_dim=options.gate_dim, precision=Precision(options.precision),
        touched_max=TOUCHED_MAX if device else 0,
    )  # fmt: skip
    load_ads(index, options)
    memory, clock = HostMemory(), Clock()
    if device:
        from kernels.cuda.mirror import Mirror

        index.copy = Mirror(memory, index.ads, index.targetings, options.dim, options.gate_dim, index.precision)
        index.copy.sync = clock.timed("delta", index.copy.sync)  # type: ignore[method-assign]
    index.packer.pack = clock.timed("pack", index.packer.pack)  # type: ignore[method-assign]
    apply_.apply_events = clock.timed("apply", apply_.apply_events)
    decoder = Decoder(index.schema, dim=options.dim, gate_dim=options.gate_dim, compile_meta=lambda spec: spec)
    decode = clock.timed("decode", lambda records: [decoder.decode(*each) for each in records])
    whole = clock.timed("whole", index.apply)
    encoder, now_us = msgspec.json.Encoder(), int(options.now_s * 1e6)
    vectors = options.dim, options.gate_dim
    records = [
        (event["ad_id"].encode(), encoder.encode(event), PARTITION, offset, now_us // 1000)
        for offset, event in enumerate(changes(options.seed, events, options.ads, vectors=vectors, now=options.now))
    ]
    memory.uploaded = 0
    for first in range(0, events, batch):
        decoded = decode(records[first : first + batch])
        outcomes = whole(Batch(decoded, {PARTITION: first + len(decoded)}, lambda *_: None), now_us)
        assert all(outcome is Outcome.APPLIED for outcome in outcomes), outcomes
        if first == 0:  # whatever is compiled or loaded first
            clock.spent.clear()
            memory.uploaded = 0
    counted = events - batch
    spent = clock.spent
    spent["rest"] = spent["whole"] - spent["pack"] - spent["apply"] - spent["delta"]
    found: dict[str, Any] = {name: spent[name] / counted * 1e6 for name in STEPS}
    return {**found, "bytes": memory.uploaded / counted}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.events", description="What an event costs, step by step.")
    parser.add_argument("--ads", type=int, default=200_000, help="ads in the index. Default: 200000.")
    parser.add_argument("--events", type=int, default=60_000, help="changes of them, each of another ad.")
    parser.add_argument("--batch", type=int, default=1_000, help="events applied at once. Default: 1000.")
    parser.add_argument("--mix", choices=("campaigns", "distinct"), default="campaigns")
    parser.add_argument("--no-device", action="store_true", help="as on the CPU alone: nothing is noted or sent.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go, a line added to it.")
    given = parser.parse_args(arguments)
    options = Options(ads=given.ads, campaigns=given.mix == "campaigns", seed=given.seed, now_s=1_796_000_000.0)
    found = measure(options, given.events, given.batch, not given.no_device)
    print(", ".join(f"{name} {found[name]:.2f} µs" for name in STEPS) + f", {found['bytes']:.0f} bytes sent an event")
    if given.json:
        report = {"machine": describe_machine(), "command": ["bench.events", *arguments], **found}
        with given.json.open("ab") as file:
            file.write(msgspec.json.encode(report) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
