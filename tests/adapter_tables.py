"""The tables of docs/adapters.md, made from those of the code. `python -m tests.adapter_tables` writes them anew."""

from __future__ import annotations

from pathlib import Path

from api.openrtb_attributes import TABLES
from ingest.meta_fields import HONOURED, REFUSED, SWITCHES
from ingest.meta_geo import KINDS

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "adapters.md"


def openrtb_attributes() -> str:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for path, table in TABLES:
        for row in table:
            under = rows.setdefault((row.field, row.attribute, row.meaning), [])
            under.append(f"`{path}.{row.field}`")
    lines = [f"| {', '.join(paths)} | `{key[1]}` | {key[2]} |" for key, paths in rows.items()]
    return "\n".join(["| field | attribute | how |", "| --- | --- | --- |", *lines])


def meta_fields() -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for name, (attributes, meaning) in HONOURED.items():
        rows.setdefault((attributes, meaning), []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {code(key[0])} | {key[1]} |" for key, names in rows.items()]
    return "\n".join(["| field | attribute | meaning |", "| --- | --- | --- |", *lines])


def meta_geo() -> str:
    lines = []
    for kind in KINDS:
        value = kind.value("…")
        radius = f"a circle, by the table's `{kind.name}`" if kind.takes_radius else "refused"
        lines.append(f"| `{kind.field}` | `{kind.attribute}` in `{value}` | {radius} |")
    return "\n".join(["| kind | by key alone | with a radius |", "| --- | --- | --- |", *lines])


def meta_switches() -> str:
    lines = [f"| `{name}` | {reason} |" for name, reason in SWITCHES.items()]
    return "\n".join(["| field | why it is refused where it is on |", "| --- | --- |", *lines])


def meta_refused() -> str:
    names: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        names.setdefault(reason, []).append(f"`{name}`")
    lines = [f"| {', '.join(fields)} | {reason} |" for reason, fields in names.items()]
    return "\n".join(["| field | why |", "| --- | --- |", *lines])


def code(attributes: str) -> str:
    """Names of attributes as code; words stay words."""
    return attributes if " as " in f" {attributes}" else ", ".join(f"`{name}`" for name in attributes.split(", "))


TABLE_BY_NAME = {
    "openrtb attributes": openrtb_attributes,
    "meta fields": meta_fields,
    "meta geo": meta_geo,
    "meta switches": meta_switches,
    "meta refused": meta_refused,
}


def with_tables(text: str) -> str:
    """The document with each table as the code has it now."""
    for name, make in TABLE_BY_NAME.items():
        begin, end = f"<!-- {name}: made from the code -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        assert found, f"docs/adapters.md lacks the table {name!r}"
        text = before + begin + make() + "\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
