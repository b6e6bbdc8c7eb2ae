"""`mirach`: the command line. A user's error is one line on standard error and exit code 2, never a traceback.

What a command needs is imported when it runs: `mirach config` does not load the kernels, and the number of threads is
set before they are loaded.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from api.arguments import given_settings, parse_arguments
from api.config import Loaded, UserError, load
from api.config_report import documentation, in_force
from api.startup import WrongPackage, check_rooms

EXIT_USER = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. -> exit code"""
    try:
        check_rooms()
        return run(sys.argv[1:] if arguments is None else list(arguments))
    except (UserError, WrongPackage) as error:
        print(f"mirach: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USER
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever read our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run(given: Sequence[str]) -> int:
    arguments = parse_arguments(given)
    if arguments.command == "bench":
        from bench.run import main as bench

        return bench(arguments.arguments)
    if arguments.command in ("convert", "train", "evaluate"):
        from api import model_commands

        model_command: Callable[[Namespace], int] = getattr(model_commands, f"{arguments.command}_command")
        return model_command(arguments)
    if arguments.command == "config" and arguments.documentation:
        print(documentation(), end="")
        return 0
    file = arguments.config or os.environ.get("MIRACH_CONFIG")
    loaded = load(given_settings(arguments), getattr(arguments, "kafka", []), os.environ, Path(file) if file else None)
    if arguments.command == "config":
        print(in_force(loaded), end="")
        return 0
    use_threads(loaded)
    if arguments.command == "serve":
        from api.server import serve

        return serve(loaded)
    if arguments.command == "demo":
        from api.demo import demo

        return demo(loaded, ads=arguments.ads, once=arguments.once)
    if arguments.command == "snapshot":
        from api.snapshot_command import snapshot_command

        return snapshot_command(loaded.settings, arguments)
    from api.commands import COMMANDS

    return COMMANDS[arguments.command](loaded, arguments)


def use_threads(loaded: Loaded) -> None:
    """Numba and PyTorch read it once, when they are imported."""
    if loaded.settings.threads:
        os.environ["NUMBA_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(loaded.settings.threads)


if __name__ == "__main__":
    sys.exit(main())
