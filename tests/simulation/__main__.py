"""`python -m tests.simulation --seeds 10000 --first 0`: many seeds; `--seed N --trace`: one, step by step."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.run import run_many, run_seed


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    arguments.add_argument("--seeds", type=int, default=10_000, help="how many")
    arguments.add_argument("--first", type=int, default=0, help="the first of them")
    arguments.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments.add_argument("--seed", type=int, help="this one alone")
    arguments.add_argument("--trace", action="store_true", help="say every step of it")
    given = arguments.parse_args()
    if given.seed is not None:
        ran = run_seed(given.seed, print if given.trace else lambda _: None)
        print(f"seed {ran.seed}: {ran.failure or 'nothing wrong'}; trace {ran.trace}")
        return int(ran.failure is not None)
    return many(given.first, given.seeds, given.processes)


def many(first: int, count: int, processes: int) -> int:
    began = time.monotonic()
    done, failed = 0, 0
    for some in run_many(first, count, processes):
        for ran in some:
            done += 1
            if ran.failure is not None:
                failed += 1
                print(f"\rseed {ran.seed} failed: {ran.failure}")
                print(f"  replay: python -m tests.simulation --seed {ran.seed} --trace")
        minutes = (time.monotonic() - began) / 60
        end = "\r" if sys.stdout.isatty() else "\n" if done % 500 < len(some) else ""
        if end:
            print(f"{done} of {count} seeds, {failed} failed, {minutes:.1f} min", end=end, flush=True)
    print(f"{done} seeds from {first}: {failed} failed, in {(time.monotonic() - began) / 60:.1f} minutes")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
