"""The command line's parser: commands, and the settings of each as flags, from the one table of settings.

argparse reads it; what it cannot do is done here: a flag or command that does not exist names the nearest that does,
and every error is one line.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from api.config import FIELDS, HINTS, UserError, flag_name, nearest_name
from api.version import VERSION


class Argument(NamedTuple):
    """An argument of one command alone: its name, and what argparse is told of it."""

    name: str
    told: dict[str, Any]


class Command(NamedTuple):
    help: str
    settings: tuple[str, ...] = ()  # that it takes as flags
    own: tuple[Argument, ...] = ()
    with_kafka: bool = False  # takes --kafka


def file(what: str) -> Argument:
    return Argument("file", {"metavar": "FILE", "help": f"{what}; - is standard input"})


def switch(name: str, what: str) -> Argument:
    return Argument(name, {"action": "store_true", "help": what})


FORMS = ("movielens", "movielens-unbroken", "s3rec", "clicklog", "synthetic")  # that convert reads

SET = Argument(
    "--set",
    {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "of architecture or recipe; repeatable"},
)
THREADS = Argument("--threads", {"type": int, "default": 0, "metavar": "N", "help": "of PyTorch. Default: its own."})
SERVICE = tuple(name for name in FIELDS if name != "kafka")
NOT_OF_THE_DEMO = (  # its topic, and so its snapshots, are gone when it ends
    "kafka_bootstrap_servers", "topic", "dlq_topic", "group_id", "data_dir", "snapshot_interval_s",
    "snapshots_kept",
)  # fmt: skip

COMMANDS = {
    "serve": Command("the service", SERVICE, with_kafka=True),
    "demo": Command(
        "everything on this machine: an embedded Kafka, a stream of sample ads, the service, one answer",
        tuple(name for name in SERVICE if name not in NOT_OF_THE_DEMO),
        (
            switch("--once", "print the one answer and exit"),
            Argument("--ads", {"type": int, "default": 2000, "metavar": "N", "help": "sample ads. Default: 2000."}),
        ),
    ),
    "produce": Command(
        "ad events from a JSON-lines file to the topic, keyed by ad id",
        ("kafka_bootstrap_servers", "topic"),
        (file("ad events, one JSON object a line"),),
        with_kafka=True,
    ),
    "retrieve": Command(
        "a request from a file to a running service",
        ("port",),
        (
            file("the request, or a list of them"),
            Argument("--url", {"help": "the service's address. Default: this machine's, at its port."}),
            switch("--json", "print the answer as JSON, not as a table"),
            switch("--openrtb", "the file holds an OpenRTB BidRequest"),
        ),
    ),
    "check": Command(
        "validates events and targeting offline and says what is wrong and where",
        ("schema", "places", "model", "dim", "gate_dim"),
        (
            file("one JSON object a line"),
            Argument(
                "--form",
                {"choices": ("events", "targeting", "meta"), "help": "what the lines are, in place of finding out"},
            ),
        ),
    ),
    "snapshot": Command(
        "lists snapshots, verifies them, or has a running service write one",
        ("data_dir", "port", "admin_token"),
        (
            Argument("action", {"choices": ("list", "verify", "create"), "help": "create asks the running service"}),
            Argument("sequence", {"nargs": "?", "type": int, "metavar": "NUMBER", "help": "of one. Default: all."}),
            switch("--json", "print the list as JSON, not as a table"),
            Argument("--url", {"help": "the service's address. Default: this machine's, at its port."}),
        ),
    ),
    "config": Command(
        "prints the settings in force and where each came from",
        SERVICE,
        (switch("--documentation", "print docs/configuration.md"),),
        with_kafka=True,
    ),
    "convert": Command(
        "a public data set or a click log, brought into the format that train reads",
        own=(
            Argument("form", {"choices": FORMS, "help": "what SOURCE is"}),
            Argument("source", {"metavar": "SOURCE", "help": "a folder; a CSV file of clicklog; a seed of synthetic"}),
            Argument("folder", {"metavar": "FOLDER", "help": "where the three Parquet files go"}),
        ),
    ),
    "train": Command(
        "the model, on a data set in the documented format",
        own=(
            Argument("data", {"metavar": "DATA", "help": "the folder of the data set (docs/model.md)"}),
            Argument("--run", {"required": True, "metavar": "FOLDER", "help": "where weights and logs go"}),
            SET,
            switch("--resume", "go on with the run in the folder, as what it was begun as"),
            Argument("--warm-start", {"metavar": "FOLDER", "help": "a run whose weights to begin with"}),
            Argument("--export", {"metavar": "FOLDER", "help": "evaluate, and write the model that is served"}),
            Argument("--name", {"help": "the exported model's name. Default: the run's folder's."}),
            THREADS,
        ),
    ),
    "evaluate": Command(
        "a trained model on what was held out, or the report of such evaluations",
        own=(
            Argument("run", {"nargs": "?", "metavar": "RUN", "help": "the folder of a run"}),
            Argument("data", {"nargs": "?", "metavar": "DATA", "help": "the folder of its data set"}),
            Argument("--to", {"metavar": "FILE", "help": "where the JSON, or the report, goes"}),
            Argument("--name", {"help": "the run's name in the JSON. Default: its folder's."}),
            Argument("--report", {"metavar": "FOLDER", "help": "make the report from the JSON files in it"}),
            THREADS,
        ),
    ),
    "bench": Command("the benchmarks of this machine, each with the limit it runs against"),
}
EVERY_COMMAND = ("--help", "-h", "--config")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def build_parser() -> Parser:
    parser = Parser(prog="mirach", description="An open ads-retrieval engine.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"mirach {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        described = command.help[0].upper() + command.help[1:] + "."
        added = commands.add_parser(name, help=command.help, description=described, allow_abbrev=False)
        for argument in command.own:
            added.add_argument(argument.name, **argument.told)
        if command.settings:
            add_settings(added, command)
    return parser


def add_settings(added: argparse.ArgumentParser, command: Command) -> None:
    group = added.add_argument_group("settings", "each also as an environment variable or in the file")
    group.add_argument("--config", metavar="FILE", help="a TOML file of settings (or MIRACH_CONFIG)")
    for name in command.settings:
        doc, default = FIELDS[name].metadata["doc"], FIELDS[name].default
        described = doc if default is None else f"{doc} Default: {default}."
        if HINTS[name] is bool:
            for flag, value in ((flag_name(name), "true"), (flag_name("no_" + name), "false")):
                shown = described if value == "true" else argparse.SUPPRESS
                group.add_argument(flag, dest=name, action="store_const", const=value, help=shown)
        else:
            group.add_argument(flag_name(name), dest=name, metavar="VALUE", help=described)
    if command.with_kafka:
        described = FIELDS["kafka"].metadata["doc"]
        group.add_argument("--kafka", action="append", default=[], metavar="PROPERTY=VALUE", help=described)


def flags_of(command: Command) -> list[str]:
    flags = [*EVERY_COMMAND, *(argument.name for argument in command.own)]
    for name in command.settings:
        flags += [flag_name(name), flag_name("no_" + name)] if HINTS[name] is bool else [flag_name(name)]
    return [*flags, "--kafka"] if command.with_kafka else flags


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Raises UserError for what no command or flag is; exits after --help and --version."""
    name = arguments[0] if arguments else ""
    if name and not name.startswith("-"):
        if name not in COMMANDS:
            raise UserError(f"there is no command {name}; the nearest is {nearest_name(name, COMMANDS)}")
        if name == "bench":  # its own parser reads what follows
            return argparse.Namespace(command=name, arguments=list(arguments[1:]))
        check_flags(name, arguments[1:])
    return build_parser().parse_args(arguments)


def check_flags(command: str, arguments: Sequence[str]) -> None:
    """Raises UserError for a flag that the command does not have, before its value is taken for something else."""
    known = flags_of(COMMANDS[command])
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
            raise UserError(f"mirach {command} has no flag {flag}; the nearest is {nearest_name(flag, known)}")


def given_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """The settings that were given as flags, as text."""
    given = {name: getattr(arguments, name, None) for name in FIELDS if name != "kafka"}
    return {name: value for name, value in given.items() if value is not None}
