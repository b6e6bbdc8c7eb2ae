"""What the pages say is held against the tree: links, settings, metrics, routes, and examples that can be run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from api import metrics
from api.arguments import COMMANDS
from api.config import FIELDS, KAFKA_PREFIX, environment_name
from gpu_index.events import EventKind
from gpu_index.schema import Schema
from ingest.decode import Decoder

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("compose/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
SETTING = re.compile(r"\bMIRACH_[A-Z0-9_]*[A-Z0-9]\b")
METRIC = re.compile(r"`(mirach_[a-z_]+)")
EVENT = re.compile(r"^\{\"type\": .*?\}$(?=\n(?:```|END))", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"`mirach ([a-z]+)")

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@by_page
def test_settings_exist(page: Path) -> None:
    known = {environment_name(name) for name in FIELDS} | {"MIRACH_CONFIG"}
    for setting in SETTING.findall(page.read_text(encoding="utf-8")):
        assert setting in known or setting.startswith(KAFKA_PREFIX), setting


@by_page
def test_commands_exist(page: Path) -> None:
    assert set(COMMAND.findall(page.read_text(encoding="utf-8"))) <= set(COMMANDS)


@by_page
def test_metrics_exist(page: Path) -> None:
    source = Path(metrics.__file__).read_text(encoding="utf-8")
    for metric in METRIC.findall(page.read_text(encoding="utf-8")):
        name = metric.removesuffix("_total")
        stem = next((stem for stem in ("mirach_index_", "mirach_engine_", "mirach_partition_") if stem in name), None)
        wanted = name if f'"{name}"' in source or stem is None else name.removeprefix(stem)
        assert f'"{wanted}"' in source, metric


@by_page
def test_events_are_good_ones(page: Path) -> None:
    decoder = Decoder(Schema.load(None), dim=64, gate_dim=16, compile_meta=lambda spec: spec)
    for text in EVENT.findall(page.read_text(encoding="utf-8")):
        event = decoder.decode(json.loads(text)["ad_id"].encode(), text.encode(), 0, 0, 0)
        assert event.kind is not EventKind.BAD, event.fault


def test_there_are_events_among_the_examples() -> None:
    with_events = {page.name for page in PAGES if EVENT.search(page.read_text(encoding="utf-8"))}
    assert with_events >= {"README.md", "contract.md"}
