"""Which Mirach this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("mirach")
except PackageNotFoundError:  # run from a checkout that was not installed
    VERSION = "0.0.0+checkout"
