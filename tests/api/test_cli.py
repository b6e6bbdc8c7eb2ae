"""The command line: a user's error is one line and exit code 2, whatever it is."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api import commands
from api.cli import main
from api.config_report import documentation
from kernels.memory import AddressSpaceError
from tests.kafka import Broker

ROOT = Path(__file__).resolve().parents[2]

Result = tuple[int, str, str]


@pytest.fixture
def mirach(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command -> exit code, standard output, standard error."""
    for name in [name for name in os.environ if name.startswith("MIRACH_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Result:
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def refused(result: Result) -> str:
    """The one line of a user's error."""
    code, out, err = result
    assert code == 2, result
    assert out == ""
    assert err.startswith("mirach: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "COMMAND"),
        (("serv",), "nearest is serve"),
        (("serve", "--prot", "80"), "nearest is --port"),
        (("serve", "--port=x"), "--port must be a whole number"),
        (("serve", "--port"), "expected one argument"),
        (("serve", "--host", "0.0.0.0"), "MIRACH_ADMIN_TOKEN"),
        (("serve", "--backend", "cuda", "--port", "0"), "take backend cpu or auto to run without a GPU"),
        (("serve", "--port", "0", "--schema", "no/such.toml"), "no/such.toml"),
        (("serve", "--port", "0", "--places", "no/such.csv"), "no/such.csv"),
        (("serve", "--config", "no/such.toml"), "no/such.toml"),
        (("serve", "--kafka", "securty.protocol=SSL", "--port", "0"), "security.protocol"),
        (("serve", "--kafka", "group.id=x"), "group.id"),
        (("serve", "extra"), "extra"),
        (("retrieve",), "FILE"),
        (("retrieve", "no/such.json"), "no/such.json"),
        (("retrieve", "--jsn", "x"), "nearest is --json"),
        (("check", "no/such.jsonl"), "no/such.jsonl"),
        (("check", "--form", "event", "x"), "invalid choice"),
        (("produce", "no/such.jsonl"), "no/such.jsonl"),
        (("demo", "--ads", "0"), "--ads"),
        (("demo", "--topic", "x"), "nearest is"),
    ],
)
def test_a_users_error_is_one_line(mirach: Callable[..., Result], arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(mirach(*arguments))


def test_a_misspelt_variable_is_one_line(mirach: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRACH_TOPICS", "x")
    assert "MIRACH_TOPIC" in refused(mirach("config"))


def test_a_port_that_is_taken_is_said_before_anything_is_started(mirach: Callable[..., Result]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refused(mirach("serve", "--port", str(port)))


def test_an_address_space_that_cannot_be_had_is_said(
    mirach: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AddressSpaceError("cannot reserve 9.0 GiB of address space: lower ads_max or targetings_max")

    monkeypatch.setattr("api.server.Index", refuse)
    assert "ads_max" in refused(mirach("serve", "--port", "0"))


def test_config_tells_what_is_in_force(
    mirach: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.toml"
    file.write_text("dim = 32\nport = 1\n")
    monkeypatch.setenv("MIRACH_CONFIG", str(file))
    monkeypatch.setenv("MIRACH_ADMIN_TOKEN", "hush")
    code, out, _ = mirach("config", "--port", "9", "--allow-now", "--no-console")
    assert code == 0
    assert re.search(r"^port = 9 +# flag --port$", out, re.M)
    assert re.search(rf"^dim = 32 +# file {file}$", out, re.M)
    assert re.search(r"^allow_now = true +# flag --allow-now$", out, re.M)
    assert re.search(r"^console = false +# flag", out, re.M)
    assert "hush" not in out
    assert mirach("config", "--documentation") == (0, documentation(), "")


def test_help_tells_every_command_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in [(["--help"], ["serve", "demo", "produce", "retrieve", "check", "config", "bench"]),
                             (["serve", "--help"], ["--admin-token", "--kafka ", "--config"]),
                             (["--version"], ["mirach "])]:  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert all(word in text for word in words), text


def test_check_tells_what_is_wrong_and_where(mirach: Callable[..., Result], tmp_path: Path) -> None:
    good = {"type": "create", "ad_id": "1", "ad": {"bid": 1}}
    bad = {"type": "create", "ad_id": "2", "ad": {"bid": 1, "targeting": {"attr": "geo.countri", "in": ["US"]}}}
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(map(json.dumps, [good, bad, good])))
    code, out, err = mirach("check", str(file))
    assert code == 1
    assert out.startswith("line 2: ad.targeting.attr: unknown attribute")
    assert "geo.country" in out
    assert "3 lines" in err
    file.write_text(json.dumps(good))
    code, out, _ = mirach("check", str(file))
    assert (code, out) == (0, "")


def test_check_warns_of_what_holds_for_no_value(mirach: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "targetings.jsonl"
    file.write_text('{"attr": "age", "between": [40, 18]}\n')
    code, out, err = mirach("check", str(file))
    assert (code, out.startswith("line 1: warning: between: ")) == (0, True)
    assert "good 1 (1 targeting), bad 0, warnings 1" in err


def test_check_reads_standard_input_and_a_form_that_is_given(
    mirach: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b'{"attr": "age", "between": [18, 34]}\n{"all": 1}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    code, out, _ = mirach("check", "-", "--form", "targeting")
    assert code == 1
    assert out.startswith("line 2: all: ")


def test_produce_prints_the_last_offsets_as_a_request_takes_them(
    mirach: Callable[..., Result], tmp_path: Path, embedded_kafka: Broker
) -> None:
    topic = embedded_kafka.topic()
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(json.dumps({"type": "create", "ad_id": str(i), "ad": {"bid": 1}}) for i in range(5)))
    servers = ("--kafka-bootstrap-servers", embedded_kafka.address, "--topic", topic)
    code, out, err = mirach("produce", str(file), *servers)
    assert (code, json.loads(out)) == (0, {"0": 4})
    assert "5 events" in err
    file.write_text('{"type": "create"}')
    assert "line 1" in refused(mirach("produce", str(file), *servers))


ANSWER = {
    "request_id": "r", "model": None, "eligible": 3, "indexed": 9, "offsets": {"0": 1}, "timings_ms": {"total": 1.5},
    "results": [
        {"ad_id": "77", "advertiser_id": None, "campaign_id": "c", "score": 0.5, "value": 1.25, "pathway": "main"}
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "flags", "route"),
    [("{}", (), "/v1/retrieve"), (" [{}]", (), "/v1/retrieve/batch"), ("{}", ("--openrtb",), "/v1/retrieve/openrtb")],
)
def test_retrieve_sends_a_file_to_the_route_that_is_for_it(
    mirach: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    body: str, flags: tuple[str, ...], route: str,
) -> None:  # fmt: skip
    asked: list[str] = []

    def post(address: str, body: bytes) -> Any:
        asked.append(address)
        return [ANSWER] if address.endswith("batch") else ANSWER

    monkeypatch.setattr(commands, "post", post)
    file = tmp_path / "request.json"
    file.write_text(body)
    code, out, _ = mirach("retrieve", str(file), "--port", "81", *flags)
    assert code == 0
    assert "77" in out
    assert "1 of 3 eligible ads, 9 in the index, 1.50 ms" in out
    code, out, _ = mirach("retrieve", str(file), "--url", "http://other:1/", "--json", *flags)
    assert json.loads(out) in (ANSWER, [ANSWER])
    assert asked == [f"http://127.0.0.1:81{route}", f"http://other:1{route}"]


def test_retrieve_says_that_no_service_is_there(mirach: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "is the service up?" in refused(mirach("retrieve", str(file), "--port", str(port)))


def test_the_demo_shows_one_answer_and_ends() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIRACH_")}
    done = subprocess.run(
        [sys.executable, "-m", "api.cli", "demo", "--once", "--ads", "300", "--port", "0"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "eligible ads, 300 in the index" in done.stdout
    assert ("Model demo makes the vectors" in done.stdout) != ("No model:" in done.stdout)
    assert "Traceback" not in done.stderr


def test_the_demo_ends_cleanly_with_ctrl_c() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MIRACH_")}
    running = subprocess.Popen(
        [sys.executable, "-u", "-m", "api.cli", "demo", "--ads", "300", "--port", "0"],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stdout is not None
    for line in running.stdout:
        if "curl" in line:
            break
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "Traceback" not in err
