"""compose/ cannot be run by the tests; what can be wrong in its text is held against the tree here."""

from __future__ import annotations

import ipaddress
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.config import load

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ROOT / "compose"
PINNED = re.compile(r"[^:@]+:v?\d+\.\d+(\.\d+)?([.-][\w.-]+)?")  # name:1.2.3, never latest, never a bare major

Service = dict[str, Any]


def document() -> dict[str, Any]:
    loaded = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def services() -> dict[str, Service]:
    return document()["services"]  # type: ignore[no-any-return]


def stays_up(service: Service) -> bool:
    """False for a job that does its work and ends."""
    return "entrypoint" not in service


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, the rest) of each line, continued ones joined, comments gone."""
    text = re.sub(r"\\\n", " ", (COMPOSE / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in lines]


@pytest.mark.parametrize("name", services())
def test_the_image_has_a_pinned_version(name: str) -> None:
    assert PINNED.fullmatch(services()[name]["image"])


@pytest.mark.parametrize("name", services())
def test_ports_are_published_on_loopback_only(name: str) -> None:
    for port in services()[name].get("ports", []):
        address, outside, inside = port.split(":")
        assert ipaddress.ip_address(address).is_loopback
        assert 0 < int(outside) < 65_536
        assert 0 < int(inside) < 65_536


def test_no_two_services_publish_the_same_port() -> None:
    published = [port.rpartition(":")[0] for service in services().values() for port in service.get("ports", [])]
    assert len(published) == len(set(published))


@pytest.mark.parametrize("name", [name for name, service in services().items() if stays_up(service)])
def test_whatever_stays_up_has_a_health_check(name: str) -> None:
    check = services()[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= set(check)


def test_a_service_waits_for_what_it_needs() -> None:
    for name, service in services().items():
        for other, wait in service.get("depends_on", {}).items():
            wanted = services()[other]
            expected = "service_healthy" if stays_up(wanted) else "service_completed_successfully"
            assert wait["condition"] == expected, f"{name} waits for {other}"


@pytest.mark.parametrize("name", ["mirach", "mirach-gpu"])
def test_the_service_accepts_its_settings(name: str) -> None:
    """Every variable is a setting, with a value that it may have; `${NAME:-default}` as compose fills it in."""
    environment = {
        variable: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))
        for variable, value in services()[name]["environment"].items()
    }
    if name == "mirach-gpu":
        assert environment["MIRACH_BACKEND"] == "cuda"
    settings = load({}, [], environment, None).settings
    assert settings.admin_token, "it listens on every interface of the container"


def test_the_service_and_the_topics_job_name_the_same_topics_and_broker() -> None:
    service, job, kafka = (services()[name]["environment"] for name in ("mirach", "topics", "kafka"))
    assert (service["MIRACH_TOPIC"], service["MIRACH_DLQ_TOPIC"]) == (job["TOPIC"], job["DLQ_TOPIC"])
    assert service["MIRACH_KAFKA_BOOTSTRAP_SERVERS"] == job["BOOTSTRAP_SERVERS"]
    assert f"INSIDE://{job['BOOTSTRAP_SERVERS']}" in kafka["KAFKA_ADVERTISED_LISTENERS"].split(",")
    script = (COMPOSE / "create-topics.sh").read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?([A-Z_]+)", script))
    assert used <= set(job)


def test_the_topics_script_is_valid_shell() -> None:
    subprocess.run(["bash", "-n", COMPOSE / "create-topics.sh"], check=True)


def test_prometheus_scrapes_the_service_where_it_listens() -> None:
    scraped = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    targets = [target for job in scraped for config in job["static_configs"] for target in config["targets"]]
    assert targets == [f"mirach:{services()['mirach']['environment']['MIRACH_PORT']}"]


def test_mounted_files_and_volumes_exist() -> None:
    volumes = set(document()["volumes"])
    mounted = set()
    for service in services().values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).is_file(), source
            else:
                mounted.add(source)
    assert mounted == volumes


def test_the_image_is_built_from_what_is_there() -> None:
    build = services()["mirach"]["build"]
    context = (COMPOSE / build["context"]).resolve()
    assert (context / build["dockerfile"]).is_file()
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = set()
    for instruction, rest in dockerfile():
        if instruction == "COPY" and "--from=" not in rest:
            *sources, _ = shlex.split(rest)
            for source in sources:
                assert (context / source).exists(), source
                assert source in let_in, f".dockerignore keeps {source} out"
                copied.add(source)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert {package.partition(".")[0] for package in packages} <= copied
    assert {"pyproject.toml", "README.md", "LICENSE"} <= copied, "pyproject.toml names them"


def test_the_image_runs_as_nobody_special_and_gets_signals() -> None:
    lines = dockerfile()
    for instruction, rest in lines:
        if instruction == "FROM":
            assert PINNED.fullmatch(rest.split()[0]), rest
    final = lines[max(position for position, (instruction, _) in enumerate(lines) if instruction == "FROM") :]
    users = [rest for instruction, rest in final if instruction == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    for instruction, rest in final:
        if instruction in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("["), "exec form: a shell would keep SIGTERM to itself"
        if instruction == "RUN":
            assert "pip" not in rest
            assert "apt-get" not in rest


def test_the_kernels_cache_is_where_the_volume_lies() -> None:
    environment = " ".join(rest for instruction, rest in dockerfile() if instruction == "ENV")
    cache = re.search(r"NUMBA_CACHE_DIR=(\S+)", environment)
    assert cache
    assert f"kernel-cache:{cache[1]}" in services()["mirach"]["volumes"]


def test_the_readme_builds_the_image_with_a_model_by_arguments_that_there_are() -> None:
    declared = {rest.partition("=")[0] for instruction, rest in dockerfile() if instruction == "ARG"}
    said = re.findall(r"--build-arg (\w+)=(\S+)", (COMPOSE / "README.md").read_text(encoding="utf-8"))
    assert {name for name, _ in said} == declared
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert dict(said)["EXTRAS"] in extras
    install = next(rest for instruction, rest in dockerfile() if instruction == "RUN" and "pip install" in rest)
    for name, value in said:
        line = subprocess.run(  # as the shell of the image expands it
            ["/bin/sh", "-c", f"printf '%s ' {install.partition('pip install')[2]}"], env={name: value},
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        assert (f".[{value}]" if name == "EXTRAS" else value) in line
