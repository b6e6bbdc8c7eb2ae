"""Kernels: arrays in, arrays out; the one place with numba.

Compiled kernels are kept on disk, in a folder named by the content of all sources here: numba itself looks only at the
file of the outermost function, and would run old code where a function that it calls has changed in another file.
"""

from __future__ import annotations

import os
import shutil
from hashlib import blake2b
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when numba is loaded: waiting threads leave their cores

import numba

MIRACH_ROOM = "kernels"  # api/startup.py looks for this line: a public package is called kernels too
CACHES_KEPT = 4


def cache_folder(base: Path, sources: Path = Path(__file__).parent) -> Path:
    """Where the kernels of just these sources are kept, below `base`."""
    digest = blake2b(digest_size=8)
    for source in sorted(sources.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return base / f"kernels-{digest.hexdigest()}"


def _keep_compiled() -> None:
    given = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mirach"
    folder = cache_folder(base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.touch()
        others = sorted(base.glob("kernels-*"), key=lambda path: path.stat().st_mtime)
        for old in others[:-CACHES_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return  # a home that cannot be written: numba looks for a place itself
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


_keep_compiled()


def compiled_mark(name: str) -> Path | None:
    """A file that says of these sources that kernels of this name have been compiled; None where they are not kept."""
    folder = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    return Path(folder) / f"compiled-{name}" if folder else None
