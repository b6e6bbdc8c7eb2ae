"""The table of settings as text: what is in force (`mirach config`) and docs/configuration.md."""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any, Literal

from api.config import FIELDS, HINTS, KAFKA_PREFIX, Loaded, environment_name, flag_name, shown_value

HEADER = """# Configuration

Generated from the table in `api/config.py` by `mirach config --documentation`; a test holds it to that.

A setting comes from its flag, else from its environment variable, else from the TOML file that `--config` (or
`MIRACH_CONFIG`) names, else it has its default. A misspelt name is an error that names the nearest right one.
`mirach config` prints what is in force and where each value came from, secrets masked. An empty text stands for
"none" where a setting may have none.

Any librdkafka property can be passed through: as `--kafka security.protocol=SSL`, as
`MIRACH_KAFKA__SECURITY_PROTOCOL=SSL` (an underscore is a dot), or in the file:

```toml
port = 8081

[kafka]
"security.protocol" = "SSL"
```

| setting (flag, variable) | value | default | |
| --- | --- | --- | --- |
"""


WIDTHS = ("dim", "gate_dim", "experts")  # that a model brings


def in_force(loaded: Loaded) -> str:
    """The settings as TOML, with the source of each as a comment: it can be used as a configuration file."""
    lines = []
    for name in FIELDS:
        value = shown_value(loaded.settings, name)
        if name == "kafka":
            continue
        text = f"# {name} is not set" if value is None else f"{name} = {toml_value(value)}"
        if name in WIDTHS and loaded.settings.model is not None and loaded.sources[name] == "default":
            text = f"# {name} is the model's"
        lines.append(f"{text:<56} # {loaded.sources[name]}")
    kafka = shown_value(loaded.settings, "kafka")
    if kafka:
        lines += ["", f"[kafka] # {loaded.sources['kafka']}"]
        lines += [f"{toml_value(name)} = {toml_value(value)}" for name, value in sorted(kafka.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        escaped = "".join(
            f"\\u{ord(char):04x}" if ord(char) < 32 or ord(char) == 127 else "\\" + char if char in '"\\' else char
            for char in value
        )
        return f'"{escaped}"'
    return repr(value)


def documentation() -> str:
    """docs/configuration.md: every setting with its names, values and default."""
    rows = []
    for name, field in FIELDS.items():
        if name == "kafka":
            names, value, default = f"`[kafka]`<br>`--kafka`<br>`{KAFKA_PREFIX}…`", "text", "none"
        else:
            names = f"`{name}`<br>`{flag_name(name)}`<br>`{environment_name(name)}`"
            value = described_kind(HINTS[name]) + described_bounds(field.metadata)
            default = "none" if field.default is None else f"`{toml_value(field.default).strip(chr(34))}`"
        secret = " Secret: never shown." if field.metadata["secret"] else ""
        rows.append(f"| {names} | {value} | {default} | {field.metadata['doc']}{secret} |\n")
    return HEADER + "".join(rows)


def described_kind(kind: Any) -> str:
    if isinstance(kind, types.UnionType):
        kind = next(member for member in typing.get_args(kind) if member is not types.NoneType)
    if typing.get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    return {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}.get(kind, "path")


def described_bounds(metadata: typing.Mapping[str, Any]) -> str:
    if metadata["minimum"] is None:
        return ""
    return f", {metadata['minimum']:,} to {metadata['maximum']:,}"
