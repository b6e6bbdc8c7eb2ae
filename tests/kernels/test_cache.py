"""Compiled kernels are found again only as long as no source has changed, in whatever file."""

from __future__ import annotations

from pathlib import Path

import kernels


def test_a_change_in_any_source_has_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("a = 1")
    (tmp_path / "two.py").write_text("b = 2")
    before = kernels.cache_folder(tmp_path, tmp_path)
    assert kernels.cache_folder(tmp_path, tmp_path) == before
    (tmp_path / "two.py").write_text("b = 3")
    assert kernels.cache_folder(tmp_path, tmp_path) != before
