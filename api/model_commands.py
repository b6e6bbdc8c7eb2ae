"""The commands of the model: convert, train and evaluate. PyTorch and pyarrow are imported when one of them runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from api.config import UserError, nearest_name
from bench.machine import describe_machine
from scoring.model.config import SERVED_HEADS, Architecture, Recipe

if TYPE_CHECKING:
    from scoring.model.train import Trainer

out = Console(highlight=False)
MODEL_PACKAGES = ("torch", "pyarrow", "matplotlib", "safetensors")

Json = dict[str, Any]


def convert_command(arguments: argparse.Namespace) -> int:
    """`mirach convert FORM SOURCE FOLDER`"""
    with _model_errors():
        if arguments.form == "synthetic":
            counts = _synthetic(arguments.source, Path(arguments.folder))
        else:
            from scoring.model.convert import convert

            counts = convert(arguments.form, Path(arguments.source), Path(arguments.folder))
    out.print(f"{arguments.folder}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return 0


def _synthetic(seed: str, folder: Path) -> dict[str, int]:
    from bench.clicks import click_log
    from scoring.model.data import write_dataset

    if not seed.isdecimal():
        raise UserError(f"the source of a synthetic click log is its seed, a whole number, not {seed}")
    log = click_log(int(seed))
    write_dataset(folder, log.items, log.users, log.interactions)
    return {"items": len(log.items), "users": len(log.users), "interactions": len(log.interactions)}


def train_command(arguments: argparse.Namespace) -> int:
    """`mirach train DATA --run FOLDER`: trains, or goes on; with --export writes the directory that is served."""
    run = Path(arguments.run)
    architecture, recipe = _settings(arguments.set, _held(run) if arguments.resume else {})
    if arguments.export and architecture.head not in SERVED_HEADS:
        raise UserError(f"a model with the head {architecture.head} is for comparison only: leave --export out")
    with _model_errors():
        from scoring.model.data import read_dataset
        from scoring.model.train import Trainer, use_threads

        use_threads(arguments.threads)
        dataset = read_dataset(Path(arguments.data))
        trainer = Trainer(dataset, architecture, recipe, run)
        if arguments.warm_start:
            trainer.warm_start(Path(arguments.warm_start) / "best.safetensors")
        if arguments.resume:
            trainer.resume()
        elif (run / "run.json").exists():
            raise UserError(f"{run} holds a run already: go on with it by --resume, or give another folder")
        state = trainer.run(_say_epoch)
        out.print(f"best after epoch {state['best_epoch']}, {state['seconds']:.0f} s of training; weights in {run}")
        if arguments.export:
            _export(trainer, dataset, Path(arguments.export), arguments.name or run.name)
    return 0


def evaluate_command(arguments: argparse.Namespace) -> int:
    """`mirach evaluate RUN DATA`: metrics as JSON; `mirach evaluate --report RESULTS`: the report of such files."""
    if arguments.report:
        with _model_errors():
            from bench.model_report import write_report

            write_report(Path(arguments.report), Path(arguments.to or "docs/model-report.md"))
        return 0
    if not arguments.run or not arguments.data:
        raise UserError("mirach evaluate takes the folder of a run and that of its data set, or --report and a folder")
    run = Path(arguments.run)
    with _model_errors():
        from scoring.model.data import read_dataset
        from scoring.model.evaluate import evaluate
        from scoring.model.train import load_run, use_threads

        use_threads(arguments.threads)
        dataset = read_dataset(Path(arguments.data))
        trainer = load_run(dataset, run)
        found = evaluate(trainer, dataset)
        result: Json = {
            "name": arguments.name or run.name, "data": Path(arguments.data).name,
            "command": ["mirach", *map(_shown, sys.argv[1:])], "machine": describe_machine(MODEL_PACKAGES),
            "training": trainer.state(), **found,
        }  # fmt: skip
    text = msgspec.json.format(msgspec.json.encode(_rounded(result)))
    if arguments.to:
        Path(arguments.to).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.to).write_bytes(_ranks_on_one_line(text))
    shown = {name: result[name] for name in ("ranking", "probability", "served", "cold") if name in result}
    out.print_json(data=shown)
    return 0


def _held(run: Path) -> Json:
    """Architecture and recipe of the run in a folder, in one. Raises UserError."""
    with _model_errors():
        from scoring.model.train import read_state

        state = read_state(run)
        held: Json = msgspec.to_builtins(state["architecture"]) | msgspec.to_builtins(state["recipe"])
        return held


def _settings(given: list[str], held: Json) -> tuple[Architecture, Recipe]:
    """The two structs of NAME=VALUE pairs; what is not given is as `held`, else the default. Raises UserError."""
    kinds: tuple[type[msgspec.Struct], ...] = (Architecture, Recipe)
    names = {name: kind for kind in kinds for name in kind.__struct_fields__}
    values = {kind: {name: held[name] for name in kind.__struct_fields__ if name in held} for kind in kinds}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, not {pair}")
        if name not in names:
            raise UserError(f"--set knows no {name}; the nearest is {nearest_name(name, names)}")
        values[names[name]][name] = value.split(",") if name in ("towers", "experts") else value
    try:
        return (
            msgspec.convert(values[Architecture], Architecture, strict=False),
            msgspec.convert(values[Recipe], Recipe, strict=False),
        )
    except (msgspec.ValidationError, ValueError) as error:
        raise UserError(f"--set: {error}") from None


def _export(trainer: Trainer, dataset: Any, folder: Path, name: str) -> None:
    from scoring.model.evaluate import evaluate
    from scoring.model.export import write_export

    found = evaluate(trainer, dataset)
    del found["ranks"]
    write_export(folder, name, trainer.network, trainer.table, (found["temperature"], found["bias"]), found)
    out.print(f"{folder} holds the model {name}: serve it with --model {folder}")


def _say_epoch(line: Json) -> None:
    shown = ", ".join(f"{name.removeprefix('validation_')} {value:.4f}" for name, value in line.items() if "_" in name)
    passed = f"epoch {line['epoch']:>3}  {line['seconds']:>6.0f} s  loss {line['loss']:.4f}"
    out.print(f"{passed}  validation: {shown}", soft_wrap=True)


def _rounded(value: Any) -> Any:
    """Figures of six digits: more say nothing."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _ranks_on_one_line(text: bytes) -> bytes:
    """Thousands of whole numbers, one a line, would hide all else."""
    before, ranks, after = text.partition(b'"ranks": [')
    numbers, end, rest = after.partition(b"]")
    return before + ranks + b"".join(numbers.split()).replace(b",", b", ") + end + rest + b"\n"


@contextmanager
def _model_errors() -> Iterator[None]:
    """What the model's code raises for a user's fault, as one line."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name not in MODEL_PACKAGES:
            raise
        raise UserError(
            f"this command needs the package {missing.name}, which is not installed: pip install 'mirach[model]' "
            "(docs/model.md says how to take PyTorch for the CPU alone)"
        ) from None
    except Exception as error:
        if type(error).__name__ in ("DataError", "TrainingError", "ModelError"):
            raise UserError(str(error)) from None
        raise


def _shown(argument: str) -> str:
    """An argument as it may be published: of an absolute path, its last part."""
    return Path(argument).name if Path(argument).is_absolute() else argument
