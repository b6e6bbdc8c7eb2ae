"""`python -m bench.pruning`: how many ads of a pass go past the scan's first look, on this machine's CPU, with no GPU.

The rules of kernels/cuda/look.py and asked.py in NumPy, over vectors drawn from a seed: warps of all blocks take 1,024
ads each in turn, tile by tile; what is asked is the k-th best order seen so far, less than a bin. Reported: the share
of request-ad pairs that are scored in full, that of tiles of 32 in which any is, and what both cost by the instructions
that docs/gpu.md's table counts.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.sass import WARP_ADS, billions

DIM, GATE_DIM, EXPERTS = 128, 32, 8
AT_ONCE = 264 * 8 * WARP_ADS  # ads that the warps of an H200 look at together
SLACK = 128 * 0.25 * DIM  # of the first look, in its own units: rows' largest element, mean rounding
BIN = 2.0**-4


class Setting(NamedTuple):
    name: str
    alike: float  # share of an expert's variance that all experts of a user have in common
    route: int
    by_value: bool
    bid_sigma: float = 1.0  # of the logarithm


SETTINGS = (
    Setting("experts unrelated, all mixed, by value", 0.0, EXPERTS, True),
    Setting("experts unrelated, all mixed, by score", 0.0, EXPERTS, False),
    Setting("experts unrelated, 2 routed, by value", 0.0, 2, True),
    Setting("experts unrelated, 2 routed, by score", 0.0, 2, False),
    Setting("experts half alike, all mixed, by value", 0.5, EXPERTS, True),
    Setting("experts half alike, all mixed, by score", 0.5, EXPERTS, False),
    Setting("all bids the same, half alike, all mixed, by value", 0.5, EXPERTS, True, 0.0),
)


class Draw:
    """Ads' orders and their first look's highest, for one user: products of random vectors are normal, so they are
    drawn as such, with the spread that D of 128 gives."""

    def __init__(self, setting: Setting, rng: np.random.Generator) -> None:
        self.setting, self.rng = setting, rng

    def __call__(self, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        s, rng = self.setting, self.rng
        products = np.sqrt(s.alike) * rng.normal(size=(count, 1)) + np.sqrt(1 - s.alike) * rng.normal(
            size=(count, EXPERTS)
        )
        logits = rng.normal(size=(count, EXPERTS))
        if s.route < EXPERTS:
            logits[logits < np.partition(logits, EXPERTS - s.route, axis=1)[:, EXPERTS - s.route, None]] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        mixed = (weights * products).sum(axis=1) / weights.sum(axis=1)
        # the slack of the first look, against products whose spread is that of rows with 127 as their largest
        highest = products.max(axis=1) + SLACK / (np.sqrt(DIM) * 47 * 40)
        bids = np.exp(s.bid_sigma * rng.normal(size=count)) if s.by_value else np.ones(count)
        return bids * _logistic(1.5 * mixed - 2.0), bids * _logistic(1.5 * highest - 2.0)


def _logistic(y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-y)))


def shares(draw: Any, ads: int, k: int, order: str = "random") -> tuple[float, float]:
    """-> shares of ads scored in full, and of tiles with one"""
    kept: NDArray[np.float64] = np.empty(0)
    asked, passed, tiles, at = 0.0, 0, 0, 0
    while at < ads:
        count = min(AT_ONCE, ads - at)
        orders, highest = draw(count)
        if order == "rising":
            orders, highest = orders + 10.0 * at, highest + 10.0 * at
        reach = highest >= asked
        passed += int(reach.sum())
        tiles += int(reach[: count // WARP_ADS * WARP_ADS].reshape(-1, WARP_ADS).any(axis=1).sum())
        kept = np.concatenate([kept, orders[reach]])
        if len(kept) >= k:
            kept = np.partition(kept, len(kept) - k)[len(kept) - k :]
            asked = kept.min() * (1 - BIN)  # the edge of its bin may lie so much lower
        at += count
    return passed / ads, tiles * WARP_ADS / ads


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pruning", description=__doc__)
    parser.add_argument("--ads", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--k", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instructions", type=int, nargs=3, default=(80, 122, 520), metavar=("LOOK", "PASSED", "FULL"),
                        help="for 32 ads: of the first look, of one that some pass, of scoring in full")  # fmt: skip
    given = parser.parse_args(arguments)
    look, looked, full = given.instructions
    print("| ads and users | ads | k | scored in full | tiles with one | instructions for 32 | billion pairs/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for setting in SETTINGS:
        for ads in given.ads:
            for k in given.k:
                share, tiles = shares(Draw(setting, np.random.default_rng(given.seed)), ads, k)
                cost = look + tiles * (looked - look) + share * full
                print(f"| {setting.name} | {ads:,} | {k:,} | {share:.2%} | {tiles:.1%} | {cost:.0f} | "
                      f"{billions(round(cost)):,.0f} |", flush=True)  # fmt: skip
    share, _ = shares(Draw(SETTINGS[0], np.random.default_rng(given.seed)), 1_000_000, 100, "rising")
    print(f"\nads in rising order of what they are worth: {share:.1%} scored in full")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
