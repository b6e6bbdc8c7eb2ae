"""docs/model-report.md, made from the JSON files that `mirach evaluate --to` wrote: tables, intervals and plots.

Runs of one data set that differ in their seed alone are one row, their mean with its spread. Two rows are compared on
the same held-out engagements: a metric's mean over the seeds for each, bootstrapped over engagements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from scoring.model.config import Architecture, Recipe
from scoring.model.metrics import paired_interval

Json = dict[str, Any]
Runs = dict[str, list[Json]]  # kind -> its runs, one a seed

KINDS = {
    "gate": "gate, routed",
    "gate-dense": "gate, dense",
    "dot": "two-tower, all features",
    "dot-ids": "two-tower, ids only",
    "mol": "Mixture-of-Logits",
    "ranker": "ranker (DCN-v2, DIN)",
}
SEEDS_WANTED = {"ml-100k": 5, "ml-1m": 3, "ml-1m-unbroken": 3}
WARNING = (
    "Figures are of this harness alone. Ranking leaves out what a user engaged with before: do not set them beside "
    "published tables."
)


def write_report(results: Path, to: Path) -> None:
    """Plots go to a folder beside the report, named as it is."""
    runs = read_results(results)
    plots = to.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    lines = [
        "# The model, measured",
        "",
        f"Made by `mirach evaluate --report {results}`; do not edit.",
        "",
        WARNING,
        "",
    ]
    notes = results / "notes.md"  # what a person says of data, machine and figures; the rest is made of the files alone
    if notes.exists():
        lines += [notes.read_text(encoding="utf-8").strip(), ""]
    for data in sorted(runs):
        lines += [f"## {data}", ""]
        lines += [*_machine(runs[data]), "", *_table(runs[data]), ""]
        lines += [*_comparisons(runs[data]), ""]
        lines += [*_served(runs[data]), ""]
        lines += [*_plots(runs[data], data, plots), ""]
        lines += [*_goals(runs[data]), ""]
        lines += [*_missing(runs[data], data), ""]
    cold = read_results(results, cold=True)
    if cold:
        lines += ["## Cold start", "", *_cold(cold), ""]
    lines += ["## The runs", "", *_runs(results)]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    to.write_text(text.rstrip() + "\n", encoding="utf-8")


def read_results(results: Path, cold: bool = False) -> dict[str, Runs]:
    """Data set -> kind -> runs in the order of their seeds."""
    found: dict[str, Runs] = defaultdict(lambda: defaultdict(list))
    for path in sorted(results.glob("*.json")):
        result = msgspec.json.decode(path.read_bytes())
        if bool(result["training"]["recipe"]["cold"]) == cold:
            found[result["data"]][kind_of(result)].append(result)
    for runs in found.values():
        for each in runs.values():
            each.sort(key=lambda result: result["training"]["recipe"]["seed"])
    return found


def kind_of(result: Json) -> str:
    architecture = result["training"]["architecture"]
    head: str = architecture["head"]
    if head == "gate" and architecture["route"] == len(architecture["experts"]):
        return "gate-dense"
    return "dot-ids" if head == "dot" and architecture["ids_only"] else head


def _machine(runs: Runs) -> Iterator[str]:
    results = [result for each in runs.values() for result in each]
    machine = results[0]["machine"]
    first, last = (choose(result["machine"]["date"] for result in results) for choose in (min, max))
    yield (
        f"{machine['processor']}, {machine['cores']} cores, PyTorch "
        f"{machine['packages'].get('torch', '?')}, {first[:16]} to {last[:16]} UTC. "
        f"{len(results[0]['ranks']):,} held-out engagements."
    )


def _table(runs: Runs) -> Iterator[str]:
    yield (
        "| | seeds | HR@10 | NDCG@10 | HR@50 | MRR | AUC | AUC by user | normalised entropy | calibration error | "
        "FLOPs per candidate | epochs | training s |"
    )
    yield "| --- " * 13 + "|"
    for kind in _kinds(runs):
        results = runs[kind]
        cells = [KINDS[kind], str(len(results))]
        cells += [_spread([r["ranking"][name] for r in results]) for name in ("hr@10", "ndcg@10", "hr@50", "mrr")]
        cells += [
            _spread([r["probability"][name] for r in results]) for name in ("auc", "auc_by_user", "normalised_entropy")
        ]
        cells.append(_spread([r["probability"]["calibration"]["error"] for r in results]))
        cells.append(f"{results[0]['flops_per_candidate']:,}")
        cells.append(f"{np.mean([r['training']['epoch'] for r in results]):.0f}")
        cells.append(f"{np.mean([r['training']['seconds'] for r in results]):.0f}")
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "Mean ± standard deviation over the seeds; FLOPs are counted from the formulas, not measured."


def _spread(values: list[Any]) -> str:
    if any(value is None for value in values):  # AUC by user, where no user had both
        return "–"
    if len(values) < 2:
        return f"{values[0]:.4f}"
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}"


def hits(results: list[Json], cut: int = 10) -> NDArray[np.float64]:
    """[engagement] share of the seeds that have it among the first `cut`"""
    found: NDArray[np.float64] = np.mean([np.array(result["ranks"]) <= cut for result in results], axis=0)
    return found


def gains(results: list[Json], cut: int = 10) -> NDArray[np.float64]:
    """[engagement] NDCG@cut, the mean over the seeds"""
    ranks = np.array([result["ranks"] for result in results], np.float64)
    found: NDArray[np.float64] = np.where(ranks <= cut, 1 / np.log2(ranks + 1), 0.0).mean(axis=0)
    return found


def _comparisons(runs: Runs) -> Iterator[str]:
    pairs = [("gate", other) for other in ("dot", "dot-ids", "gate-dense", "mol", "ranker")]
    pairs = [pair for pair in [*pairs, ("gate-dense", "dot"), ("mol", "dot")] if pair[0] in runs and pair[1] in runs]
    if not pairs:
        return
    yield "| against | seeds of each | HR@10 | 95 % interval | NDCG@10 | 95 % interval |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for ours, theirs in pairs:
        a, b = _same_seeds(runs[ours], runs[theirs])
        cells = [f"{KINDS[ours]} against {KINDS[theirs]}", str(len(a))]
        for metric in (hits, gains):
            gain, low, high = paired_interval(metric(a), metric(b))
            cells += [f"{gain:+.1%}", f"{low:+.1%} to {high:+.1%}"]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield "Paired over the same engagements, with the same seeds on both sides; 2,000 bootstraps."


def _same_seeds(ours: list[Json], theirs: list[Json]) -> tuple[list[Json], list[Json]]:
    seeds = {_seed(result) for result in ours} & {_seed(result) for result in theirs}
    return [r for r in ours if _seed(r) in seeds], [r for r in theirs if _seed(r) in seeds]


def _gain(ours: list[Json], theirs: list[Json]) -> tuple[float, float, float]:
    """Of HR@10, with its interval."""
    ours, theirs = _same_seeds(ours, theirs)
    return paired_interval(hits(ours), hits(theirs))


def _seed(result: Json) -> int:
    seed: int = result["training"]["recipe"]["seed"]
    return seed


def _served(runs: Runs) -> Iterator[str]:
    kinds = [kind for kind in _kinds(runs) if "served" in runs[kind][0]]
    if not kinds:
        return
    threads = sorted({result["kernel_threads"] for kind in kinds for result in runs[kind]})
    counted = " or ".join(f"{count} thread{'s' * (count > 1)}" for count in threads)
    yield f"As the service's CPU kernels score it on {counted}, over the same users, and against float32:"
    yield ""
    yield "| | precision | HR@10 | top-100 overlap | ns per candidate |"
    yield "| --- | --- | --- | --- | --- |"
    for kind in kinds:
        for precision in ("float32", "float16", "int8"):
            found = [result["served"][precision] for result in runs[kind]]
            mean = {name: np.mean([each[name] for each in found]) for name in ("hr@10", "top_100_overlap")}
            fastest = min(each["ns_per_candidate"] for each in found)
            yield (
                f"| {KINDS[kind]} | {precision} | {mean['hr@10']:.4f} | {mean['top_100_overlap']:.1%} | {fastest:.1f} |"
            )


def _goals(runs: Runs) -> Iterator[str]:
    """The goals set before any of it was trained, each with what was reached."""
    if "gate" not in runs:
        return
    gate = runs["gate"]
    yield "| goal | reached, by the means above: few seeds settle little | |"
    yield "| --- | --- | --- |"
    if "dot" in runs:
        gain, low, high = _gain(gate, runs["dot"])
        yield _goal("HR@10 of the two-tower with the same features +3.6 % or more, interval above 0",
                    f"{gain:+.1%} ({low:+.1%} to {high:+.1%})", gain >= 0.036 and low > 0)  # fmt: skip
    if "ranker" in runs:
        ours, theirs = _same_seeds(gate, runs["ranker"])
        for name, where in (("ndcg@10", "ranking"), ("auc", "probability")):
            share = np.mean([r[where][name] for r in ours]) / np.mean([r[where][name] for r in theirs])
            yield _goal(f"at least 98 % of the ranker's {name.upper()}", f"{share:.1%}", share >= 0.98)
        entropy = [np.mean([r["probability"]["normalised_entropy"] for r in each]) for each in (ours, theirs)]
        worse = entropy[0] / entropy[1] - 1
        yield _goal("normalised entropy at most 1 % above the ranker's", f"{worse:+.1%}", worse <= 0.01)
        less = theirs[0]["flops_per_candidate"] / gate[0]["flops_per_candidate"]
        yield _goal("300 times fewer FLOPs per candidate than the ranker", f"{less:,.0f} times", less >= 300)
    times = gate[0]["flops_per_candidate"] / (2 * 64)
    yield _goal("at most 2.5 times the FLOPs of a 64-wide dot product", f"{times:.2f} times", times <= 2.5)
    served = [result["served"] for result in gate]
    lost = abs(np.mean([each["int8"]["hr@10"] - each["float32"]["hr@10"] for each in served]))
    yield _goal("int8 within 0.002 of float32's HR@10, served", f"{lost:.4f}", bool(lost <= 0.002))
    overlap = np.mean([each["int8"]["top_100_overlap"] for each in served])
    yield _goal("int8's first hundred 98 % the same", f"{overlap:.1%}", bool(overlap >= 0.98))
    if "gate-dense" in runs:
        gain, low, high = _gain(gate, runs["gate-dense"])
        yield _goal(
            "routing within 1 % of dense gating's HR@10", f"{gain:+.1%} ({low:+.1%} to {high:+.1%})", gain >= -0.01
        )


def _goal(goal: str, reached: str, is_reached: bool) -> str:
    return f"| {goal} | {reached} | {'yes' if is_reached else 'no'} |"


def _missing(runs: Runs, data: str) -> Iterator[str]:
    wanted = SEEDS_WANTED.get(data, 1)
    missing = [f"{KINDS[kind]} ({len(runs.get(kind, []))} of {wanted} seeds)" for kind in KINDS
               if len(runs.get(kind, [])) < wanted]  # fmt: skip
    if missing:
        yield f"Not run yet: {', '.join(missing)}. docs/model.md has the command lines."


def _cold(found: dict[str, Runs]) -> Iterator[str]:
    yield "Items kept out of training, ranked from their content among the whole catalogue:"
    yield ""
    yield "| data | | seeds | items | engagements | HR@10 | HR@50 | HR@50 by chance |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for data, runs in sorted(found.items()):
        for kind in _kinds(runs):
            cold = [result["cold"] for result in runs[kind]]
            mean = {name: np.mean([each[name] for each in cold]) for name in ("hr@10", "hr@50", "chance_hr@50")}
            counts = f"{cold[0]['items']:,} | {cold[0]['cases']:,}"
            yield (
                f"| {data} | {KINDS[kind]} | {len(cold)} | {counts} | {mean['hr@10']:.4f} | {mean['hr@50']:.4f} | "
                f"{mean['chance_hr@50']:.4f} |"
            )


def _runs(results: Path) -> Iterator[str]:
    yield "| file | training | command |"
    yield "| --- | --- | --- |"
    for path in sorted(results.glob("*.json")):
        result = msgspec.json.decode(path.read_bytes())
        training = result["training"]
        yield (
            f"| {path.name} | {training['epoch']} epochs, best {training['best_epoch']}, {training['seconds']:.0f} s | "
            f"`{train_command(result)}` |"
        )
    yield ""
    yield "Each was evaluated by `mirach evaluate RUN DATA --to FILE`, which each file holds as it was typed."


def train_command(result: Json) -> str:
    """The command line that trains such a run: what differs from the defaults is set."""
    given = []
    for part, kind in (("architecture", Architecture), ("recipe", Recipe)):
        settings = msgspec.convert(result["training"][part], kind)
        for name in kind.__struct_fields__:
            value = getattr(settings, name)
            if value != getattr(kind(), name):
                text = ",".join(value) if isinstance(value, tuple) else str(value).lower()
                given.append(f" --set {name}={text}")
    if result["training"]["architecture"]["head"] == "ranker":
        given.append(f" --warm-start runs/{result['name'].replace('ranker', 'dot')}")
    return f"mirach train data/{result['data']} --run runs/{result['name']} --threads 1{''.join(given)}"


def _kinds(runs: Runs) -> list[str]:
    return [kind for kind in KINDS if kind in runs]


def _plots(runs: Runs, data: str, folder: Path) -> Iterator[str]:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "mirach"  # the same picture each time
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    curves, quality, honest = figure.subplots(1, 3)
    for kind in _kinds(runs):
        curve = runs[kind][0]["training"]["curve"]
        curves.plot(
            [line["epoch"] for line in curve], [line["validation_ndcg@10"] for line in curve], label=KINDS[kind]
        )
        found = np.mean([result["ranking"]["ndcg@10"] for result in runs[kind]])
        quality.plot(runs[kind][0]["flops_per_candidate"], found, "o", label=KINDS[kind])
        calibration = runs[kind][0]["probability"]["calibration"]
        honest.plot(calibration["said"], calibration["happened"], ".-", label=KINDS[kind])
    curves.set(xlabel="epoch", ylabel="NDCG@10", title="validation, first seed")
    quality.set(xlabel="FLOPs per candidate", ylabel="NDCG@10", xscale="log", title="test, mean of the seeds")
    top = max(honest.get_xlim()[1], honest.get_ylim()[1])
    honest.plot([0, top], [0, top], color="grey", linewidth=0.5)
    honest.set(xlabel="said", ylabel="happened", title="calibration, first seed")
    curves.legend(fontsize="x-small")
    name = f"{data}.svg"
    figure.savefig(folder / name, metadata={"Date": None})
    yield f"![Curves, quality against cost, and calibration]({folder.name}/{name})"
