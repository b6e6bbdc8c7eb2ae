"""Settings: one table, from which the flags, environment names, file keys and docs/configuration.md are made.

The table is the dataclass `Settings`: a field's name is its key in the TOML file, `MIRACH_` and the name in capitals
its environment variable, `--` and the name with dashes its flag. `load` reads the sources once, at the root:

1. flags, then environment, then the file, then the default: the first that names a setting decides it;
2. every value is read by the field's type and held against its bounds;
3. a name that no setting has is an error that names the nearest one;
4. rules between settings (`check_together`).
"""

# ruff: noqa: RUF009 — `setting` is dataclasses.field with the columns of the table
from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

PREFIX = "MIRACH_"
KAFKA_PREFIX = "MIRACH_KAFKA__"
MASK = "********"

TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
FALSE_WORDS = frozenset({"false", "0", "no", "off"})

KAFKA_SECRET = re.compile(r"password|passphrase|secret|private\.key|key\.pem|jaas|assertion|oauthbearer\.config")


class UserError(Exception):
    """What the user gave cannot be used; the message is one sentence that says what to do. Exit code 2."""


class ConfigError(UserError):
    """A setting is wrong."""


def setting(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:
    """One row of the table: a dataclass field with its documentation, bounds and whether it is a secret."""
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "secret": secret}
    if isinstance(default, dict):  # of librdkafka's properties, passwords among them
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata, repr=False)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is in force, read once at the start and passed down."""

    kafka_bootstrap_servers: str = setting("localhost:9092", "Kafka brokers, `host:port` with commas between.")
    topic: str = setting("ad-events", "Topic that ad events are read from.")
    dlq_topic: str = setting("ad-events-dlq", "Topic that bad events are sent to.")
    group_id: str = setting("mirach", "Consumer group whose committed offsets show lag tools how far this service is.")
    kafka: dict[str, str] = setting({}, "Any further librdkafka property, such as `security.protocol`.")
    host: str = setting("127.0.0.1", "Address to listen on. Beyond loopback an admin token is needed.")
    port: int = setting(8080, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65_535)
    admin_token: str | None = setting(None, "Bearer token that /v1/admin asks for.", secret=True)
    console: bool = setting(True, "Serve the web pages /console and /docs.")
    schema: Path | None = setting(None, "Attribute schema, a TOML file; without one the default schema.")
    places: Path | None = setting(
        None, "Coordinates of places that Meta targeting names by key alone, a CSV file; without one such ads are bad."
    )
    backend: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "What to compute on; auto takes a GPU where there is one that it can use, and says which it took."
    )
    precision: Literal["int8", "float16", "float32"] = setting("int8", "Stored precision of the ads' vectors.")
    model: Path | None = setting(
        None, "Folder of a trained model; without one ads and requests bring their own vectors."
    )
    model_switch_bytes_max: int = setting(
        0, "Most memory that a switch to another model may take; 0: what the machine has.", minimum=0, maximum=2**50
    )
    dim: int = setting(
        64, "Width D of an ad's embedding and of a request's experts; a model brings its own.", minimum=1, maximum=4096
    )
    gate_dim: int = setting(
        16, "Width G of an ad's gate and of a request's gate keys; a model brings its own.", minimum=1, maximum=4096
    )
    experts: int = setting(
        8, "Most experts E that a request may bring; a model brings its own.", minimum=1, maximum=64
    )
    ads_max: int = setting(
        2**25, "Slots for ads, rounded up to whole segments of 8,192; an ad that finds none is a bad event.",
        minimum=1, maximum=2**31,
    )  # fmt: skip
    targetings_max: int = setting(
        2**25, "Most distinct targetings that the index holds; more are bad events.", minimum=1, maximum=2**31
    )
    index_bytes_max: int = setting(
        0,
        "Most bytes that the contents of the index may take; new ads beyond are bad events. 0: no such limit.",
        minimum=0,
        maximum=2**48,
    )
    threads: int = setting(
        0, "Threads that a match, a score and a model may use; 0 takes every core.", minimum=0, maximum=1024
    )
    allow_now: bool = setting(False, "Let a request set `now` (tests, replays).")
    expired_versions_s: int = setting(
        86_400, "How long the version of an expired ad is remembered, by record timestamps.", minimum=0, maximum=2**31
    )
    currency: str = setting("USD", "Currency of bids and floors, an ISO 4217 code.")
    data_dir: Path = setting(Path("mirach-data"), "Folder of the snapshots; each service needs its own.")
    snapshot_interval_s: float = setting(
        300.0, "Seconds between snapshots; 0: only on request and at an orderly stop.", minimum=0, maximum=86_400
    )
    snapshots_kept: int = setting(3, "Snapshots kept on disk.", minimum=1, maximum=1000)
    on_gap: Literal["refuse", "continue"] = setting(
        "refuse", "Offsets that the index needs are gone: stay not ready, or go on without them."
    )
    request_queue_max: int = setting(
        1024, "Most requests waiting for the engine; more are answered 503.", minimum=1, maximum=2**20
    )
    buffer_events_max: int = setting(
        10_000,
        "Most events of one partition read ahead of the engine; reading pauses there.",
        minimum=1000,
        maximum=2**24,
    )
    dead_letters_max: int = setting(
        10_000, "Most bad events not yet in the dead-letter topic; reading pauses there.", minimum=1, maximum=2**24
    )
    event_bytes_max: int = setting(
        1_048_576, "Largest ad event; a larger one is a bad event.", minimum=1024, maximum=2**30
    )
    body_bytes_max: int = setting(
        8_388_608, "Largest request body; a larger one is answered 413.", minimum=1024, maximum=2**30
    )
    batch_max: int = setting(256, "Most requests of one batch.", minimum=1, maximum=256)
    results_max: int = setting(
        2_560_000, "Most results that one batch may ask for in all (the sum of `k`).", minimum=640_000, maximum=2**31
    )
    wait_ms_max: int = setting(60_000, "Longest `wait_ms` of a request.", minimum=0, maximum=600_000)
    drain_s: float = setting(
        0.0, "Seconds between `not ready` and the end of listening at SIGTERM.", minimum=0, maximum=600
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe log line written.")
    log_format: Literal["text", "json"] = setting("text", "Log lines for people or for machines, on standard error.")


FIELDS: dict[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(Settings)}
HINTS: dict[str, Any] = typing.get_type_hints(Settings)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force and, for each, where it came from: a flag, a variable, a file or the default."""

    settings: Settings
    sources: dict[str, str]


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    return PREFIX + name.upper()


def nearest_name(word: str, names: Iterable[str]) -> str:
    """The name most like a misspelt one; there always is one."""
    return difflib.get_close_matches(word, list(names), n=1, cutoff=0.0)[0]


def load(
    flags: Mapping[str, str], kafka_flags: Iterable[str], environment: Mapping[str, str], file: Path | None
) -> Loaded:
    """Reads the three sources.

    Args:
        flags: setting name to the text given on the command line, names already checked.
        kafka_flags: `property=value` texts of `--kafka`.
        environment: the process's environment; every `MIRACH_` name in it must be a setting.
        file: the TOML file, from `--config` or `MIRACH_CONFIG`.

    Raises:
        ConfigError: a name no setting has, a value of the wrong type or out of bounds, an unreadable file.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, "default")
    kafka: dict[str, str] = {}
    for layer in (read_file(file), read_environment(environment), read_flags(flags, kafka_flags)):
        for name, given in layer.settings.items():
            values[name], sources[name] = read_value(name, given), given.source
        if layer.kafka:
            kafka |= layer.kafka
            sources["kafka"] = layer.source if sources["kafka"] == "default" else f"{sources['kafka']}, {layer.source}"
    settings = Settings(**values, kafka=kafka)
    check_together(settings)
    return Loaded(settings, sources)


class Given(NamedTuple):
    """A setting's raw value, what an error calls it, and the words that say where it came from."""

    raw: Any
    shown: str
    source: str


@dataclass(slots=True)
class Layer:
    """What one source gives: settings, and librdkafka properties with the words for where those came from."""

    source: str = ""
    settings: dict[str, Given] = dataclasses.field(default_factory=dict)
    kafka: dict[str, str] = dataclasses.field(default_factory=dict)


def read_flags(flags: Mapping[str, str], kafka_flags: Iterable[str]) -> Layer:
    layer = Layer("flag --kafka")
    for name, text in flags.items():
        layer.settings[name] = Given(text, flag_name(name), f"flag {flag_name(name)}")
    for text in kafka_flags:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--kafka {text}: expected property=value, such as security.protocol=SSL")
        layer.kafka[checked_kafka_name(name, f"--kafka {name}")] = value
    return layer


def read_environment(environment: Mapping[str, str]) -> Layer:
    layer = Layer(f"environment {KAFKA_PREFIX}…")
    known = {environment_name(name): name for name in FIELDS if name != "kafka"} | {PREFIX + "CONFIG": "config"}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable == PREFIX + "CONFIG":
            continue
        if variable.startswith(KAFKA_PREFIX):
            name = variable.removeprefix(KAFKA_PREFIX).lower().replace("_", ".")
            layer.kafka[checked_kafka_name(name, variable)] = environment[variable]
        elif variable in known:
            layer.settings[known[variable]] = Given(environment[variable], variable, f"environment {variable}")
        else:
            refuse_unknown(variable, variable.removeprefix(PREFIX).lower(), {name: env for env, name in known.items()})
    return layer


def read_file(file: Path | None) -> Layer:
    if file is None:
        return Layer()
    try:
        with file.open("rb") as opened:
            document = tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    layer = Layer(f"file {file}")
    for name, value in document.items():
        if name == "kafka":
            if not isinstance(value, dict):
                raise ConfigError(f"{file}: kafka must be a table, [kafka]")
            for property_name, text in flatten(value):
                layer.kafka[checked_kafka_name(property_name, f"{file}: [kafka] {property_name}")] = text
        elif name in FIELDS:
            layer.settings[name] = Given(value, f"{file}: {name}", f"file {file}")
        else:
            refuse_unknown(f"{file}: {name}", name.lower(), {field: field for field in FIELDS})
    return layer


def refuse_unknown(shown: str, name: str, spelt: Mapping[str, str]) -> NoReturn:
    """Raises for a name that no setting has. `spelt` is how this source writes each setting's name."""
    raise ConfigError(f"{shown}: there is no such setting; the nearest is {spelt[nearest_name(name, spelt)]}")


def checked_kafka_name(name: str, shown: str) -> str:
    """A librdkafka property that may be passed through; whether librdkafka knows it is said when it is used."""
    from ingest.config import OURS

    if name == "metadata.broker.list":  # librdkafka's other name for it
        name = "bootstrap.servers"
    if name in OURS:
        raise ConfigError(f"{shown} cannot be set: {OURS[name]}")
    return name


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """`security.protocol = "SSL"` is nested tables to TOML; librdkafka's property to us."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield prefix + name, "true" if value else "false"
        elif isinstance(value, str | int | float):
            yield prefix + name, str(value)
        else:
            raise ConfigError(f"[kafka] {prefix}{name} must be a string, a number or a boolean")


def read_value(name: str, given: Given) -> Any:
    """A setting's value from text (flags, environment) or from a TOML value, within its bounds."""
    kind = HINTS[name]
    if isinstance(kind, types.UnionType):  # may be nothing: an empty text says so
        if given.raw == "":
            return None
        kind = next(member for member in typing.get_args(kind) if member is not types.NoneType)
    elif given.raw == "" and kind is str:
        raise ConfigError(f"{given.shown} must not be empty")
    value = read_kind(kind, given.raw, given.shown)
    minimum, maximum = FIELDS[name].metadata["minimum"], FIELDS[name].metadata["maximum"]
    if minimum is not None and not minimum <= value <= maximum:
        raise ConfigError(f"{given.shown} must be {minimum:,} to {maximum:,}, not {value:,}")
    return value


def read_kind(kind: Any, raw: Any, shown: str) -> Any:
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if raw in choices:
            return raw
        raise ConfigError(
            f"{shown} must be one of {', '.join(choices)}; {raw!r} is nearest to {nearest_name(str(raw), choices)}"
        )
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in TRUE_WORDS | FALSE_WORDS:
            return raw.lower() in TRUE_WORDS
        raise ConfigError(f"{shown} must be true or false, not {raw!r}")
    if kind in (int, float):
        return read_number(kind, raw, shown)
    if not isinstance(raw, str):
        raise ConfigError(f"{shown} must be text in quotes, not {raw!r}")
    return Path(raw) if kind is Path else raw


def read_number(kind: type[int] | type[float], raw: Any, shown: str) -> int | float:
    named = "a whole number" if kind is int else "a number"
    if isinstance(raw, bool) or not isinstance(raw, str | int | kind):
        raise ConfigError(f"{shown} must be {named}, not {raw!r}")
    try:
        return kind(raw)
    except (ValueError, OverflowError):
        raise ConfigError(f"{shown} must be {named}, not {raw!r}") from None


def is_loopback(host: str) -> bool:
    """Whether listening on `host` is out of other machines' reach. A name other than localhost counts as within it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_together(settings: Settings) -> None:
    """Rules that no single setting can be held against."""
    if not is_loopback(settings.host) and settings.admin_token is None:
        raise ConfigError(
            f"host {settings.host} can be reached from other machines, so {environment_name('admin_token')} must be set"
        )
    token = settings.admin_token
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise ConfigError(
            f"{environment_name('admin_token')} must be printable ASCII without spaces: it travels in a header"
        )
    if settings.topic == settings.dlq_topic:
        raise ConfigError(f"topic and dlq_topic are both {settings.topic!r}: bad events would be read again for ever")
    if not re.fullmatch(r"[A-Z]{3}", settings.currency):
        raise ConfigError(f"currency must be an ISO 4217 code such as USD, not {settings.currency!r}")


def shown_value(settings: Settings, name: str) -> Any:
    """A setting's value as a person may see it: secrets masked, paths as text."""
    value = getattr(settings, name)
    if name == "kafka":
        return {key: MASK if KAFKA_SECRET.search(key) else text for key, text in value.items()}
    if FIELDS[name].metadata["secret"] and value is not None:
        return MASK
    return str(value) if isinstance(value, Path) else value
