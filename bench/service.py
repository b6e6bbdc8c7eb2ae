"""`mirach serve` in a process of its own, as a supervisor has it: started, signalled, killed, looked at."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx

START_S = 600.0  # the first start of a machine compiles the kernels
STOP_S = 60.0
POLL_S = 0.05
LOG_LINES_MAX = 2000  # of all starts; the newest stay

Json = dict[str, Any]


class Service:
    def __init__(self, bootstrap_servers: str, folder: Path, *flags: str) -> None:
        """`folder`: its data's. `flags`: further ones of `mirach serve`."""
        self._command = [
            sys.executable, "-m", "api.cli", "serve", "--port", "0", "--kafka-bootstrap-servers", bootstrap_servers,
            "--data-dir", str(folder), *flags,
        ]  # fmt: skip
        self.port: int | None = None  # while it runs
        self.stopping = False
        self.starts = 0
        self.lines: list[str] = []
        self.errors: list[str] = []  # log lines of severity error, and tracebacks

    def start(self) -> None:
        """Returns once it listens."""
        self.starts += 1
        self.stopping = False
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MIRACH_")}
        root = Path(__file__).resolve().parents[1]
        self._process = subprocess.Popen(  # noqa: S603
            self._command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True
        )
        listening = threading.Event()
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr, listening), daemon=True)
        self._reader.start()
        assert listening.wait(START_S), "the service does not listen"
        found = [line for line in self.lines if "listening on" in line]
        self.port = int(re.findall(r":(\d+),", found[-1])[-1])
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=STOP_S)

    def _read(self, log: IO[str], listening: threading.Event) -> None:
        for line in log:
            self.lines.append(line.rstrip())
            del self.lines[:-LOG_LINES_MAX]
            if " ERROR " in line or " CRITICAL " in line or line.startswith("Traceback"):
                self.errors.append(line.rstrip())
                del self.errors[:-LOG_LINES_MAX]
            if "listening on" in line:
                listening.set()
        listening.set()

    def wait_ready(self) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        wait_until(lambda: self.get("/readyz").status_code == 200, "the service is ready", START_S)
        return time.monotonic() - began

    def get(self, address: str) -> httpx.Response:
        return self._http.get(address)

    def post(self, address: str, body: object) -> httpx.Response:
        return self._http.post(address, json=body)

    def end(self, number: signal.Signals) -> int:
        """Ends it by a signal. -> its exit code"""
        if number == signal.SIGKILL:
            self.port = None  # whoever has no answer now need not wonder
        self.stopping = True
        self._process.send_signal(number)
        try:
            return self._process.wait(STOP_S)
        finally:
            self.port = None
            self._process.kill()
            self._process.wait()
            self._reader.join(STOP_S)
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._http.close()

    @property
    def runs(self) -> bool:
        return self.port is not None and self._process.poll() is None

    def limit_files(self, size: int | None) -> None:
        """No file may grow beyond so many bytes from now on; None: any. A write beyond fails as on a full disk."""
        limit = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def figures(self) -> dict[str, int]:
        """Of the process: resident bytes, file handles, threads."""
        place = Path(f"/proc/{self._process.pid}")
        lines = (place / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "Threads")))
        return {
            "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
            "handles": len(os.listdir(place / "fd")),
            "threads": int(status["Threads"]),
        }


def wait_until(condition: Callable[[], object], what: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(POLL_S)
