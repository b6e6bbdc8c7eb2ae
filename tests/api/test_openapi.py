"""The service driven by its own OpenAPI document: what the document allows is accepted, what it forbids is refused, and
every answer is as the document says. Schemathesis, with all its checks, a bounded number of examples, and a fixed seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from api.server import listen
from api.warm_up import warm_up
from kernels.precision import Precision
from tests.api.running import SCHEMA, Running
from tests.fake_model import FakeModel

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 50  # of each operation
SEED = 20261130


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A service on a port, with a token and an ad."""
    warm_up(SCHEMA, 2, 2, Precision.INT8)  # schemathesis minds slow answers, and the first ones compile
    model = FakeModel("fake", dim=2, gate_dim=2, experts=2)
    running = Running(allow_now=True, admin_token="t0ken", model=model, load_model=lambda _: model)
    running.begin()
    adults = {"attr": "age", "between": [18, None]}
    running.take({"type": "create", "ad_id": "1", "ad": {"bid": 1, "targeting": adults}})
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(running.app, lifespan="off", log_config=None, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    running.close()


def test_schemathesis_finds_nothing(address: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", "--checks", "all",
         "--max-examples", str(EXAMPLES), "--seed", str(SEED), "--header", "Authorization: Bearer t0ken",
         "--continue-on-failure", "--suppress-health-check", "all", "--generation-database", "none",
         "--output-truncate", "false"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.api.schemathesis_hooks"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
