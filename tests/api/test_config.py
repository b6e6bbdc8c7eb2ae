"""Settings: which source decides, what a misspelt one says, and what is never shown."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from api.config import FIELDS, ConfigError, environment_name, flag_name, load, shown_value
from api.config_report import documentation, in_force

ROOT = Path(__file__).resolve().parents[2]


def write(folder: Path, text: str) -> Path:
    file = folder / "mirach.toml"
    file.write_text(text, encoding="utf-8")
    return file


def refused(flags: dict[str, str] | None = None, kafka: list[str] | None = None, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, kafka or [], environment, None)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_file(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load({}, [], {}, write(folder, text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_any_source_the_defaults_of_the_contract_hold() -> None:
    loaded = load({}, [], {"PATH": "/bin"}, None)
    settings = loaded.settings
    assert (settings.kafka_bootstrap_servers, settings.topic, settings.dlq_topic) == (
        "localhost:9092", "ad-events", "ad-events-dlq",
    )  # fmt: skip
    assert (settings.host, settings.port, settings.admin_token) == ("127.0.0.1", 8080, None)
    assert (settings.backend, settings.precision, settings.dim, settings.gate_dim, settings.experts) == (
        "auto", "int8", 64, 16, 8,
    )  # fmt: skip
    assert (settings.allow_now, settings.expired_versions_s, settings.currency, settings.on_gap) == (
        False, 86_400, "USD", "refuse",
    )  # fmt: skip
    assert set(loaded.sources.values()) == {"default"}


def test_flags_go_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\ndim = 2\nexperts = 3\ntopic = "from-file"\n')
    loaded = load({"port": "10"}, [], {"MIRACH_PORT": "20", "MIRACH_DIM": "30"}, file)
    assert (loaded.settings.port, loaded.settings.dim, loaded.settings.experts) == (10, 30, 3)
    assert loaded.settings.gate_dim == 16
    assert loaded.sources["port"] == "flag --port"
    assert loaded.sources["dim"] == "environment MIRACH_DIM"
    assert loaded.sources["experts"] == f"file {file}"
    assert loaded.sources["gate_dim"] == "default"


def test_kafka_properties_pass_through_from_every_source(tmp_path: Path) -> None:
    file = write(
        tmp_path, '[kafka]\n"client.id" = "file"\nsecurity.protocol = "PLAINTEXT"\n"socket.keepalive.enable" = true\n'
    )
    environment = {"MIRACH_KAFKA__SECURITY_PROTOCOL": "SSL", "MIRACH_KAFKA__SASL_USERNAME": "me"}
    settings = load({}, ["sasl.username=you=me"], environment, file).settings
    assert settings.kafka == {
        "client.id": "file",
        "security.protocol": "SSL",
        "socket.keepalive.enable": "true",
        "sasl.username": "you=me",
    }


def test_kafka_properties_that_guarantees_rest_on_cannot_be_set(tmp_path: Path) -> None:
    assert "MIRACH_KAFKA_BOOTSTRAP_SERVERS" in refused(MIRACH_KAFKA__BOOTSTRAP_SERVERS="x:1")
    assert "MIRACH_KAFKA_BOOTSTRAP_SERVERS" in refused(kafka=["metadata.broker.list=x:1"])
    assert "enable.auto.commit" in refused_file(tmp_path, "[kafka]\nenable.auto.commit = true\n")
    assert "property=value" in refused(kafka=["security.protocol"])


def test_a_misspelt_setting_names_the_nearest(tmp_path: Path) -> None:
    assert refused(MIRACH_POTR="1") == "MIRACH_POTR: there is no such setting; the nearest is MIRACH_PORT"
    assert refused(MIRACH_KAFKA_BOOTSTRAP_SERVER="x").endswith("the nearest is MIRACH_KAFKA_BOOTSTRAP_SERVERS")
    assert refused(MIRACH_CONFG="x").endswith("the nearest is MIRACH_CONFIG")
    assert refused_file(tmp_path, "admin_tokn = 'x'").endswith("the nearest is admin_token")
    assert refused_file(tmp_path, "[kafak]\na = 1").endswith("the nearest is kafka")
    assert "is nearest to float16" in refused(MIRACH_PRECISION="fp16")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "x"), ("port", "65536"), ("port", "-1"), ("port", "1.5"), ("port", ""), ("dim", "0"),
        ("allow_now", "maybe"), ("backend", "gpu"), ("drain_s", "nan"), ("drain_s", "inf"), ("currency", "dollar"),
        ("topic", ""), ("admin_token", "two words"), ("topic", "ad-events-dlq"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_whichever_source_it_comes_from(name: str, text: str) -> None:
    assert refused({name: text})
    assert refused(**{environment_name(name): text})


@pytest.mark.parametrize(
    "text",
    ["port = true", "topic = 1", "allow_now = 1", "port = 1e3", "[host]", "kafka = 1", "port ="],
)
def test_a_value_of_the_wrong_type_in_the_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "mirach.toml" in refused_file(tmp_path, text)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load({}, [], {}, tmp_path / "absent.toml")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.com"])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    assert "MIRACH_ADMIN_TOKEN" in refused({"host": host})
    assert "MIRACH_ADMIN_TOKEN" in refused({"host": host}, MIRACH_ADMIN_TOKEN="")
    assert load({"host": host}, [], {"MIRACH_ADMIN_TOKEN": "t0ken"}, None).settings.host == host


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_on_loopback_none_is_needed(host: str) -> None:
    assert load({"host": host}, [], {}, None).settings.admin_token is None


def test_secrets_are_never_shown() -> None:
    secrets = {
        "MIRACH_ADMIN_TOKEN": "hush-1",
        "MIRACH_KAFKA__SASL_PASSWORD": "hush-2",
        "MIRACH_KAFKA__SSL_KEY_PASSWORD": "hush-3",
        "MIRACH_KAFKA__SASL_OAUTHBEARER_CLIENT_SECRET": "hush-4",
        "MIRACH_KAFKA__SSL_KEY_PEM": "hush-5",
    }
    loaded = load({}, ["ssl.ca.location=/ca.pem"], secrets, None)
    assert "hush" not in in_force(loaded)
    assert "/ca.pem" in in_force(loaded)
    assert "hush" not in str([shown_value(loaded.settings, name) for name in FIELDS])
    assert "hush" not in repr(loaded), "nor in a log line or a traceback"


def test_what_is_in_force_is_a_configuration_file(tmp_path: Path) -> None:
    loaded = load({"topic": 'a"b\\c', "schema": "s.toml"}, ["client.id=me"], {}, None)
    text = in_force(loaded)
    assert tomllib.loads(text)["topic"] == 'a"b\\c'
    assert load({}, [], {}, write(tmp_path, text)).settings == loaded.settings
    assert "# flag --topic" in text


def test_documentation_is_what_the_table_says() -> None:
    text = documentation()
    for name in FIELDS:
        if name != "kafka":
            assert f"`{environment_name(name)}`" in text
            assert f"`{flag_name(name)}`" in text
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == text, "run: mirach config --documentation > docs/configuration.md"
