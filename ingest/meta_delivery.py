"""Where and on what a Meta targeting spec lets an ad be shown: placements, devices, systems, connections.

Of a placement field that says nothing Meta takes every value. So positions of one platform restrict that platform
alone: with `facebook_positions` only, every other platform is open and Facebook is open in those positions.
"""

from __future__ import annotations

import re

from gpu_index.invalid_input import shown
from ingest.meta_read import Json, all_of, any_of, elements, listed, refused, texts, words

PLATFORMS = ("facebook", "instagram", "audience_network", "messenger", "threads", "whatsapp")
DEVICE_PLATFORMS = ("mobile", "desktop", "connected_tv")
WIFI = 2  # among AdCOM's connection types
SYSTEM = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z ]*?)"
    r"(?:_ver_(?P<low>[0-9]+(?:\.[0-9]+){0,15})_(?:and_above|to_(?P<high>[0-9]+(?:\.[0-9]+){0,15})))?"
)
VERSION_DIGITS_MAX = 18  # of one number of a version; more could be beyond an int64


def compile_placements(spec: Json, prefix: str = "") -> Json | None:
    """`publisher_platforms` and the positions of each; `prefix`: "effective_" for what Meta made of them."""
    platforms = words(spec, f"{prefix}publisher_platforms", f"{prefix}publisher_platforms", PLATFORMS)
    positions = {name: texts(spec, field, field) for name in PLATFORMS for field in [f"{prefix}{name}_positions"]}
    if not platforms and not any(positions.values()):
        return None
    open_platforms, clauses = [], []
    for name in platforms or PLATFORMS:
        if not positions[name]:
            open_platforms.append(name)
            continue
        at = listed("placement.position", [f"{name}:{position}" for position in positions[name]])
        clauses.append(all_of([listed("placement.platform", [name]), at]))
    if open_platforms:
        clauses.insert(0, listed("placement.platform", open_platforms))
    return any_of(clauses)


def compile_device_platforms(spec: Json, prefix: str = "") -> Json | None:
    field = f"{prefix}device_platforms"
    platforms = words(spec, field, field, DEVICE_PLATFORMS)
    return listed("device.platform", platforms) if platforms else None


def compile_systems(spec: Json) -> Json | None:
    """`user_os`: names, or names with a range of versions, ORed."""
    names: list[str] = []
    clauses: list[Json] = []
    for element, path in elements(spec, "user_os", "user_os"):
        match = SYSTEM.fullmatch(element) if isinstance(element, str) else None
        if match is None or any(len(part) > VERSION_DIGITS_MAX for part in re.findall("[0-9]+", str(element))):
            example = "iOS, Android_ver_4.2_and_above or iOS_ver_8.0_to_9.0"
            raise refused(path, f"a system is written as {example}, not {shown(element)}")
        name = match["name"].lower()
        if match["low"] is None:
            names.append(name)
            continue
        versions = {"attr": "device.os_version", "between": [match["low"], match["high"]]}
        clauses.append(all_of([listed("device.os", [name]), versions]))
    if names:
        clauses.insert(0, listed("device.os", names))
    return any_of(clauses) if clauses else None


def compile_models(spec: Json, field: str) -> Json | None:
    models = texts(spec, field, field)
    return listed("device.model", models) if models else None


def compile_carriers(spec: Json) -> Json | None:
    """`wireless_carrier`: Meta documents the one value Wifi."""
    found = False
    for element, path in elements(spec, "wireless_carrier", "wireless_carrier"):
        if not isinstance(element, str) or element.lower() != "wifi":
            raise refused(path, f"Meta documents Wifi as the only value, not {shown(element)}")
        found = True
    return listed("device.connection_type", [WIFI]) if found else None
