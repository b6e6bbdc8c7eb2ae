"""How much memory this process may still take, as far as the system says."""

from __future__ import annotations

from pathlib import Path

MEMORY, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def memory_left(meminfo: Path = MEMORY, group: Path = GROUP) -> int | None:
    """Bytes: what Linux calls available, and what the control group's limit leaves. None: not known."""
    bounds = []
    try:
        lines = meminfo.read_text().splitlines()
        bounds += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            bounds.append(max(0, int(limit) - int((group / "memory.current").read_text())))
    except (OSError, ValueError):
        pass
    return min(bounds) if bounds else None


def folder_bytes(folder: Path) -> int:
    """Of the files in a folder."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
