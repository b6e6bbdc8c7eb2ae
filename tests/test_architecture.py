"""The architecture, as a test: the tables below are the design, the tests after them hold the source to it.

Rooms are the top-level packages. An arrow says which rooms a room's modules may import; a package from outside is
used only in the rooms named for it. The source is read, never imported, so nothing can hide behind a late import.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# room -> the rooms that it may import (itself always)
ARROWS = {
    "kernels": set(),  # arrays in, arrays out
    "gpu_index": {"kernels"},  # what is indexed; one writer; what a query sees
    "ingest": {"gpu_index"},  # the write path: Kafka to ad events
    "scoring": {"gpu_index", "kernels"},  # the read path
    "api": {"ingest", "scoring", "gpu_index", "kernels", "bench"},  # the process: HTTP, config, console, wiring
    "bench": {"api", "ingest", "scoring", "gpu_index", "kernels"},  # measures all of it, and makes the demo's ads
}
EVERYWHERE = set(ARROWS)

# package from outside -> the rooms that may use it
PACKAGES = {
    "numpy": EVERYWHERE,
    "msgspec": EVERYWHERE - {"kernels"},
    "safetensors": {"gpu_index", "scoring"},
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "cupy": {"kernels", "bench"},
    "cuda": {"kernels"},  # NVIDIA's own bindings: to read the kernels' machine code
    "torch": {"scoring", "bench"},  # bench: the peer that the GPU's figures stand beside
    "cuvs": {"bench"},  # another, where it is installed
    "pyarrow": {"scoring"},
    "matplotlib": {"bench"},
    "confluent_kafka": {"ingest"},
    "fastapi": {"api"},
    "fastapi_offline": {"api"},
    "starlette": {"api"},
    "pydantic": {"api"},
    "uvicorn": {"api"},
    "uvloop": {"api"},
    "prometheus_client": {"api"},
    "rich": {"api"},
    "httpx": {"api", "bench"},
}

MAY_PRINT = {"api", "bench"}  # the rest logs, counts or raises

# modules that nothing imports, since they are where a process begins
ENTRIES = {"bench.events", "bench.gpu", "bench.pruning", "bench.sass", "api.cli"}
# modules that only tests import: the plain truths that the quick ones are held against
TRUTHS = {"scoring.reference"}

NEVER_IMPORTED = {"pickle", "marshal", "shelve", "cloudpickle", "dill"}  # data must not be able to run
NEVER_CALLED = {"eval", "exec", "compile", "__import__", "breakpoint"}

FILE_LINES_MAX = 600  # hard; over 400 is a sign to look again
FUNCTION_LINES_MAX = 100  # hard; over 70 is a sign to look again

# the tracked files must read the same on every machine: no folder of one, no host that packages come from
NEVER_WRITTEN = re.compile(  # in halves, so that this file passes too
    "|".join(("/wo" + "rk/", "/ro" + "ot/", "py" + "pi.org", "pythonhos" + "ted", "npm" + "js.com", "deb" + ".debian"))
)


@cache
def sources() -> dict[str, Path]:
    """Module name -> file, for every module of the rooms."""
    found = {}
    for room in ARROWS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported_names(module: str) -> Iterator[tuple[str, int]]:
    """Every dotted name that a module imports, wherever in its text, with the line. Relative imports are resolved."""
    path = sources()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def our_module(name: str) -> str | None:
    """The module of ours that a dotted name lies in; None for a package from outside."""
    while name:
        if name in sources():
            return name
        name = name.rpartition(".")[0]
    return None


def calls(module: str) -> Iterator[tuple[str, int]]:
    """Names called plainly in a module (`name(...)`, not `x.name(...)`), with the line."""
    for node in ast.walk(tree(sources()[module])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node.lineno


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = [name for name in listed.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()] or list(sources().values())


def test_every_room_is_named_in_the_tables_and_in_the_package() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert on_disk == set(ARROWS)
    assert {name.partition(".")[0] for name in packaged} == set(ARROWS)
    inits = [path for room in ARROWS for path in (ROOT / room).rglob("__init__.py")]
    nested = {".".join(path.parent.relative_to(ROOT).parts) for path in inits}
    assert set(packaged) == nested, "a package that pyproject.toml does not name is missing from an install"


def test_rooms_import_only_along_the_arrows() -> None:
    wrong = []
    for module in sources():
        room = module.partition(".")[0]
        for name, line in imported_names(module):
            target = our_module(name)
            other = target.partition(".")[0] if target else room
            if other != room and other not in ARROWS[room]:
                wrong.append(f"{module}:{line} imports {name}: there is no arrow {room} -> {other}")
            if name.partition(".")[0] == "tests":
                wrong.append(f"{module}:{line} imports {name}: product code does not import tests")
    assert not wrong, "\n".join(wrong)


def test_packages_from_outside_stay_in_their_rooms() -> None:
    wrong = []
    for module in sources():
        room = module.partition(".")[0]
        for name, line in imported_names(module):
            package = name.partition(".")[0]
            if package in sys.stdlib_module_names or package in ARROWS or package == "tests":
                continue
            if room not in PACKAGES.get(package, set()):
                wrong.append(f"{module}:{line} imports {name}: {package} is not for {room}")
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_ring() -> None:
    arrows = {module: {our_module(name) for name, _ in imported_names(module)} - {None, module} for module in sources()}
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for other in sorted(filter(None, arrows[module])):
                walk(other, (*trail, module))
            done.add(module)

    for module in sources():
        walk(module, ())


def test_no_module_is_dead() -> None:
    used = {our_module(name) for module in sources() for name, _ in imported_names(module)}
    dead = [
        module
        for module, path in sources().items()
        if module not in used and module not in ENTRIES | TRUTHS and path.name not in ("__init__.py", "__main__.py")
    ]
    assert not dead, f"imported by nothing: {dead}"


def test_nothing_that_runs_data_as_code() -> None:
    wrong = []
    for module in sources():
        wrong += [f"{module}:{line} imports {name}" for name, line in imported_names(module)
                  if name.partition(".")[0] in NEVER_IMPORTED]  # fmt: skip
        wrong += [f"{module}:{line} calls {name}" for name, line in calls(module) if name in NEVER_CALLED]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_and_the_benchmarks_print() -> None:
    wrong = [
        f"{module}:{line} prints"
        for module in sources()
        if module.partition(".")[0] not in MAY_PRINT
        for name, line in calls(module)
        if name == "print"
    ]
    assert not wrong, "\n".join(wrong)


def test_files_and_functions_have_a_bounded_length() -> None:
    long = []
    for path in [*sources().values(), *sorted((ROOT / "tests").rglob("*.py"))]:
        name = path.relative_to(ROOT)
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > FILE_LINES_MAX:
            long.append(f"{name}: {lines} lines, at most {FILE_LINES_MAX}")
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{name}:{node.lineno} {node.name}: {lines} lines, at most {FUNCTION_LINES_MAX}")
    assert not long, "\n".join(long)


def test_tracked_files_name_no_machine_and_no_registry() -> None:
    wrong = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        for number, line in enumerate(text.splitlines(), 1):
            if NEVER_WRITTEN.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)


def test_everything_imported_is_declared() -> None:
    """A package that the product imports is one of the project's own dependencies or extras, not one that happens to
    be installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    lines = [*project["dependencies"], *extras]
    declared = {re.split(r"[^A-Za-z0-9_-]", line)[0].replace("-", "_").lower() for line in lines}
    comes_with = {
        "starlette": "fastapi", "pydantic": "fastapi", "llvmlite": "numba", "cupy": "cupy_cuda13x",
        "cuda": "numba_cuda",
    }  # fmt: skip
    imported = {name.partition(".")[0] for module in sources() for name, _ in imported_names(module)}
    outside = (imported & set(PACKAGES)) - {"cuvs"}  # a peer that is measured where it is installed
    assert {comes_with.get(name, name) for name in outside} <= declared
