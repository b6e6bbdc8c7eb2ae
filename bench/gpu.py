"""`python -m bench.gpu`: the CUDA kernels on this machine's GPU, each figure beside what the same run measured.

One prepared run of 8 minutes at most, for a machine where nothing can be installed: it needs NumPy, numba-cuda and
CuPy, and takes PyTorch and cuVS where they are. Ads are made on the device, in memory taken plainly; no setting of the
card is changed. A step that fails is reported and the others go on; the report is written after each. With no GPU it
ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import gpu_match_steps
from bench.gpu_steps import STEPS, Bench, Sizes
from bench.machine import describe_machine, version

RESULTS = Path(__file__).parent / "results"
SECONDS_MAX = 480
PACKAGES = ("numpy", "numba", "numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "torch", "cuvs-cu13", "nvidia-nvjitlink")
NO_GPU, BROKEN_OFF, FAILED = 2, 3, 1
assert gpu_match_steps  # it adds steps


def run_steps(
    bench: Bench, report: dict[str, Any], deadline: float, say: Callable[[str], None], save: Callable[[], None]
) -> bool:
    """Each step into the report. -> whether all that ran went well"""
    good = True
    for name, step in STEPS.items():
        started = perf_counter()
        if started > deadline:
            report["steps"][name] = {"skipped": "no time was left"}
            continue
        try:
            found = step(bench)
        except Exception as fault:  # reported, and the others go on
            found = {"failed": f"{type(fault).__name__}: {fault}", "trace": traceback.format_exc()[-2000:]}
            good = False
        bench.forget()
        found["seconds"] = round(perf_counter() - started, 1)
        report["steps"][name] = found
        say(f"{name}: " + ", ".join(f"{key} {_short(value)}" for key, value in found.items() if key != "trace"))
        save()
    return good


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table_of(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    machine = report["machine"]
    lines = [
        f"# {report['device']}, {machine['date']}", "",
        f"Driver {report['driver']}; Python {machine['python']}; "
        + ", ".join(f"{name} {found}" for name, found in report["packages"].items() if found != "not installed"),
        "", "| step | figure | value |", "| --- | --- | --- |",
    ]  # fmt: skip
    for name, found in report["steps"].items():
        lines += [f"| {name} | {key} | {_short(value)} |" for key, value in found.items() if key != "trace"]
    return "\n".join(lines) + "\n"


def _watch(seconds: float, save: Callable[[], None]) -> None:
    """Ends the process, with what was measured saved, if a step hangs beyond all time."""

    def end() -> None:
        save()
        print(f"after {seconds:.0f} s a step still ran: broken off", file=sys.stderr, flush=True)
        os._exit(BROKEN_OFF)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown: no nvidia-smi"
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    return said.stdout.strip() or "unknown: nvidia-smi does not answer"


def _opened() -> Any:
    """The GPU; an explanation where there is none."""
    try:
        from kernels.cuda.device import open_device
        from kernels.cuda.types import NoDevice
    except ImportError as missing:
        return f"the CUDA backend needs {missing.name}: {missing}"
    try:
        return open_device()
    except NoDevice as why:
        return str(why)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON and the table")
    parser.add_argument("--seconds", type=float, default=SECONDS_MAX, help="all of it takes no longer")
    parser.add_argument("--tests", type=Path, help="what tests.gpu.on_device reported, to be kept in the report")
    given = parser.parse_args(arguments)
    device = _opened()
    if isinstance(device, str):
        print(f"There is no GPU to measure: {device}.", file=sys.stderr)
        return NO_GPU
    machine = describe_machine()
    report: dict[str, Any] = {
        "machine": machine, "device": device.name, "driver": _driver(),
        "packages": {name: version(name) for name in PACKAGES}, "steps": {},
    }  # fmt: skip
    if given.tests and given.tests.exists():
        report["tests"] = json.loads(given.tests.read_text(encoding="utf-8"))
    given.out.mkdir(parents=True, exist_ok=True)
    stem = given.out / f"gpu-{datetime.now(UTC):%Y%m%d-%H%M%S}"

    def save() -> None:
        stem.with_suffix(".json").write_text(json.dumps(report, indent=1, default=str) + "\n", encoding="utf-8")
        stem.with_suffix(".md").write_text(table_of(report), encoding="utf-8")

    _watch(given.seconds, save)
    deadline = perf_counter() + given.seconds * 0.9
    good = run_steps(Bench(device, Sizes(), deadline), report, deadline, lambda line: print(line, flush=True), save)
    save()
    print(f"written: {stem}.json, {stem}.md")
    return 0 if good else FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
