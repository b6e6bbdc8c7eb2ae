"""`python -m bench.pruning`: how many ads of a pass go past the scan's first look, on this machine's CPU, with no GPU.

The rules of kernels/cuda/look.py and asked.py in NumPy, over vectors drawn from a seed: warps of all blocks take 1,024
ads each in turn, tile by tile; what is asked is the k-th best order seen so far, less than a bin. Reported: the share
of request-ad pairs that are scored in full, that of tiles of 32 in which any is, and what both cost by the instructions
that docs/gpu.md's table counts.

With --model the vectors are a trained model's own, as int8 stores them: users of its data set, each with the history
that it brings, and ads each of which shows one of its items, any with the same chance, for a bid drawn from the seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
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


class Trained:
    """The same of a trained model: ads that show its items."""

    def __init__(
        self, scores: NDArray[np.float64], highest: NDArray[np.float64], by_value: bool, rng: np.random.Generator
    ) -> None:
        """Of one user with each item [item]."""
        self.scores, self.highest, self.by_value, self.rng = scores, highest, by_value, rng

    def __call__(self, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        item = self.rng.integers(0, len(self.scores), count)
        bids = np.exp(self.rng.normal(size=count)) if self.by_value else np.ones(count)
        return bids * self.scores[item], bids * self.highest[item]


def trained_scores(
    model: Path, data: Path, users_max: int, seed: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Of some users of the data set: scores [item] of its items, and the highest that the first look takes for them."""
    from kernels.cuda.types import UserVectors
    from kernels.cuda.users import HEAD, Layout, pack_users, tiles_of
    from kernels.precision import Precision, dequantise, quantise_rows, row_width
    from scoring.model.data import read_dataset
    from scoring.model.export import read_export
    from scoring.reference import score_reference

    trained, dataset = read_export(model, "cpu"), read_dataset(data)
    layout = Layout(trained.dim, trained.gate_dim, Precision.INT8, tiles_of(trained.experts))
    stored, vectors = [], []
    for each in trained.ads(dataset.items):
        quantised = np.zeros((len(each), row_width(each.shape[1], layout.precision)), np.int8)
        own_scales = np.zeros(len(each), np.float32)
        quantise_rows(each, layout.precision, quantised, own_scales)
        stored.append((quantised[:, : each.shape[1]].astype(np.float64), own_scales.astype(np.float64)))
        vectors.append(dequantise(quantised, own_scales, each.shape[1]))
    rows, scales = stored[0]
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(dataset.users), min(users_max, len(dataset.users)), replace=False)
    for user in trained.users([_features(dataset, u) for u in chosen.tolist()], [None] * len(chosen)):
        packed = UserVectors(user.experts, user.gates, user.gate_bias, user.temperature, user.bias, user.route)
        head = pack_users([packed], layout)[0, : HEAD.itemsize].view(HEAD)[0]
        unit = np.log(2.0) / float(head["look_log"])
        coarse = np.rint(user.temperature * user.experts.astype(np.float64) / unit)
        highest = scales * unit * ((rows @ coarse.T).max(axis=1) + float(head["look_slack"]))
        yield score_reference(user, *vectors), _logistic(highest + unit * float(head["look_bias"]))


def _features(dataset: Any, user: int) -> dict[str, Any]:
    """What a request would bring of a user: what it engaged with, oldest first, and what its cohort is."""
    shown = dataset.interactions
    mine = np.flatnonzero((shown.user == user) & shown.engaged)
    history = [{"ad_id": dataset.items[item].ad_id} for item in shown.item[mine].tolist()]
    return {"history": history, "cohort": {name: values[user] for name, values in dataset.cohort.items()}}


def _print_row(name: str, ads: int, k: int, share: float, tiles: float, instructions: tuple[int, int, int]) -> None:
    look, looked, full = instructions
    cost = look + tiles * (looked - look) + share * full
    print(f"| {name} | {ads:,} | {k:,} | {share:.2%} | {tiles:.1%} | {cost:.0f} | {billions(round(cost)):,.0f} |",
          flush=True)  # fmt: skip


def _drawn(given: argparse.Namespace) -> None:
    for setting in SETTINGS:
        for ads in given.ads:
            for k in given.k:
                found = shares(Draw(setting, np.random.default_rng(given.seed)), ads, k)
                _print_row(setting.name, ads, k, *found, given.instructions)
    for ads in given.ads:
        share, _ = shares(Draw(SETTINGS[0], np.random.default_rng(given.seed)), ads, given.k[0], "rising")
        print(f"\n{ads:,} ads in rising order of what they are worth: {share:.1%} scored in full", flush=True)


def _of_model(given: argparse.Namespace) -> None:
    """The mean over the users."""
    users = list(trained_scores(Path(given.model[0]), Path(given.model[1]), given.users, given.seed))
    for by_value in (True, False):
        name = f"{Path(given.model[0]).name}, {len(users[0][0]):,} items, by {'value' if by_value else 'score'}"
        for ads in given.ads:
            for k in given.k:
                rng = np.random.default_rng(given.seed)
                found = [shares(Trained(*each, by_value, rng), ads, k) for each in users]
                share, tiles = np.mean(found, axis=0).tolist()
                _print_row(name, ads, k, share, tiles, given.instructions)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pruning", description=__doc__)
    parser.add_argument("--ads", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--k", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instructions", type=int, nargs=3, default=(80, 122, 520), metavar=("LOOK", "PASSED", "FULL"),
                        help="for 32 ads: of the first look, of one that some pass, of scoring in full")  # fmt: skip
    parser.add_argument("--model", nargs=2, metavar=("DIR", "DATA"), help="an exported model and a data set for it")
    parser.add_argument("--users", type=int, default=8, help="of the data set, with --model")
    given = parser.parse_args(arguments)
    print("| ads and users | ads | k | scored in full | tiles with one | instructions for 32 | billion pairs/s |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    _of_model(given) if given.model else _drawn(given)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
