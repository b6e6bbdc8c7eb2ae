"""The rooms that a process imports are Mirach's, or it says which package is in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from api.startup import ROOMS, WrongPackage, check_rooms, marker

ROOT = Path(__file__).resolve().parents[2]


def test_the_rooms_of_this_checkout_are_ours() -> None:
    check_rooms()


@pytest.mark.parametrize("room", ROOMS)
def test_a_foreign_package_in_front_is_named_and_not_run(tmp_path: Path, room: str) -> None:
    foreign = tmp_path / room
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('the foreign package was run')\n" + marker(room))
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from api.cli import main; sys.exit(main(['config']))"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert str(foreign / "__init__.py") in done.stderr
    assert "virtual environment" in done.stderr


def test_one_that_took_a_rooms_place_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed into the same folder, it overwrites the room's __init__.py."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(marker(room) if room != "kernels" else "load = 1\n")
    monkeypatch.setattr("api.startup.OURS", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for room in ROOMS:
        monkeypatch.delitem(sys.modules, room, raising=False)
    with pytest.raises(WrongPackage, match="kernels"):
        check_rooms()


def test_a_missing_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.startup.ROOMS", ("no_such_room",))
    with pytest.raises(WrongPackage, match="no_such_room of Mirach is missing"):
        check_rooms()
