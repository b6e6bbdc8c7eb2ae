"""`python -m tests.gpu.on_device [REPORT.json]`: every case of the CUDA kernels on this machine's GPU.

It needs neither pytest nor what the service needs. Exit code 0: all passed; 1: some failed; 2: there is no GPU."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any


def run(device: Any, say: Any) -> dict[str, Any]:
    """-> what failed and how long each took"""
    from tests.gpu import (
        match_cases,
        merge_cases,
        program_cases,
        pruning_cases,
        ptx_cases,
        score_cases,
        top_k_cases,
    )
    from tests.gpu.cases import CASES

    assert match_cases and merge_cases and program_cases and pruning_cases and ptx_cases and score_cases and top_k_cases
    if score_cases.HAS_CPU_TWIN:
        from tests.gpu import pipeline_cases

        assert pipeline_cases
    failed: dict[str, str] = {}
    took = {}
    for name, check in CASES.items():
        started = perf_counter()
        try:
            check(device)
        except Exception:  # reported, and the others go on
            failed[name] = traceback.format_exc()[-3000:]
        took[name] = round(perf_counter() - started, 2)
        say(f"{'FAILED' if name in failed else 'passed'} {name} {took[name]:.1f} s")
    cpu = (
        ""
        if score_cases.HAS_CPU_TWIN
        else "without msgspec: scores not held against the CPU's kernel, no whole answers"
    )
    return {"cases": len(took), "failed": failed, "seconds": took, "note": cpu}


def main(arguments: list[str]) -> int:
    try:
        from kernels.cuda.device import open_device
        from kernels.cuda.types import NoDevice
    except ImportError as missing:
        print(f"There is no GPU to test: the CUDA backend needs {missing.name}.", file=sys.stderr)
        return 2
    try:
        device = open_device()
    except NoDevice as why:
        print(f"There is no GPU to test: {why}.", file=sys.stderr)
        return 2
    found = run(device, lambda line: print(line, flush=True))
    if arguments:
        Path(arguments[0]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{found['cases'] - len(found['failed'])} of {found['cases']} passed {found['note']}")
    for name, trace in found["failed"].items():
        print(f"\n{name}\n{trace}")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
