"""What a soak leaves behind: samples as CSV, the result as JSON, and a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.soak.judge import Sample

DOTS_PER_INCH = 72


def write_samples(samples: Sequence[Sample], file: Path) -> None:
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(Sample._fields)
        writer.writerows(samples)


def write_result(result: dict[str, Any], file: Path) -> None:
    file.write_text(json.dumps(result, indent=1) + "\n")


def plot(samples: Sequence[Sample], title: str, file: Path) -> bool:
    """Draws the samples. False: matplotlib is not installed (the extra `soak`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(13, 12), layout="constrained")
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(6, 1, sharex=True)
    minutes = [sample.at_s / 60 for sample in samples]

    def draw(panel: Any, name: str, label: str, scale: float = 1.0) -> None:
        values = [getattr(sample, name) for sample in samples]
        panel.plot(
            minutes, [float("nan") if value is None else value * scale for value in values], label=label, linewidth=1
        )

    draw(panels[0], "resident_bytes", "resident memory, MB", 1e-6)
    draw(panels[1], "handles", "file handles")
    draw(panels[1], "threads", "threads")
    draw(panels[2], "p50_ms", "request p50, ms")
    draw(panels[2], "p99_ms", "request p99, ms")
    draw(panels[3], "freshness_p50_ms", "produced to searchable p50, ms")
    draw(panels[3], "freshness_p99_ms", "p99, ms")
    draw(panels[4], "lag", "events behind")
    draw(panels[4], "dead_letters_pending", "dead letters waiting")
    draw(panels[5], "ads", "ads")
    draw(panels[5], "refused", "requests refused or not answered, per sample")
    for number, panel in enumerate(panels):
        if number in (2, 3):
            panel.set_yscale("log")
        if number == 4:
            panel.set_yscale("symlog")
        panel.grid(alpha=0.3)
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)
    for panel in panels:
        _mark_faults(panel, samples, named=panel is panels[0])
    panels[-1].set_xlabel("minutes")
    figure.savefig(file, dpi=DOTS_PER_INCH)
    return True


def _mark_faults(panel: Any, samples: Sequence[Sample], *, named: bool) -> None:
    """A stripe for as long as each lasts; with its name at the top of the first panel."""
    at = 0
    while at < len(samples):
        end = at
        while end + 1 < len(samples) and samples[end + 1].fault == samples[at].fault:
            end += 1
        if samples[at].fault:
            restart = samples[at].fault in ("kill", "stop")
            first, last = samples[at].at_s / 60, samples[min(end + 1, len(samples) - 1)].at_s / 60
            panel.axvspan(first, last, alpha=0.25, color="tab:red" if restart else "tab:orange", linewidth=0)
            if named:
                top = panel.get_xaxis_transform()
                panel.text(first, 1.02, samples[at].fault, rotation=60, fontsize=6, transform=top)
        at = end + 1
