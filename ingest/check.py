"""Ad events, targetings and Meta targeting specs checked offline, line by line: what `mirach check` does.

A file has lines of one form, told by its first line that is a JSON object unless the caller says it:

1. events: ad events as the topic has them, read by the decoder that the service reads them with;
2. targeting: an expression, or an object with one in `targeting`;
3. meta: a Meta targeting spec, or an object with one in `targeting_meta` or `targeting`.

Events are checked each for itself: whether a modify's ad exists only the index knows. A good line may have warnings:
of parts of its targeting that are accepted as they stand and hold for no value, such as a range from 40 to 18, of times
at which the ad can never match, such as an end before the start, and of keys that come twice in an object, of which the
last one counts.
"""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import UnsetType

from gpu_index.events import AdPatch, EventKind, ParsedTargeting
from gpu_index.invalid_input import InvalidInput, shown
from gpu_index.json_input import decode_json
from gpu_index.schema import Attribute, Kind, Schema
from gpu_index.targeting import All, Any_, Between, Expression, In, Not, parse_expression
from gpu_index.zones import Schedule
from ingest.decode import Decoder
from ingest.envelope import read_envelope
from ingest.meta import compile_meta
from ingest.meta_fields import FIELDS
from ingest.places import Places

NODE_KEYS = ("all", "any", "not", "attr")
MATCHES_NOTHING, REPEATED_KEY = "matches_nothing", "repeated_key"  # the codes of warnings
# A path in front of a sentence, as InvalidInput writes the two: ad.targeting.all[0].in[2]: …
_STEP = r'(?:[A-Za-z_][A-Za-z0-9_]*|"(?:[^"\\]|\\.)*")'
_PATH = re.compile(rf"({_STEP}(?:\.{_STEP}|\[[0-9]+\])*): ")
_POSITION = re.compile(r"\[[0-9]+\]")


class Form(enum.StrEnum):
    EVENTS = "events"
    TARGETING = "targeting"
    META = "meta"


class Finding(msgspec.Struct, frozen=True):
    """What is wrong with one line, or may not be meant as it stands."""

    line: int  # from 1
    path: str  # empty: the whole line
    code: str  # as of dead letters: ingest/faults.py
    detail: str  # a sentence for a person
    warning: bool = False  # the line is good


class Reason(msgspec.Struct, frozen=True):
    """What several findings have in common: the code, and the path without its positions."""

    code: str
    path: str


class Good(msgspec.Struct, frozen=True):
    """What a line is that has no fault."""

    kind: str  # event type or form
    targeting: Expression
    path: str  # of the targeting
    compiled: bool = False  # of a Meta spec
    patch: AdPatch | None = None  # of a create or modify


class Summary(msgspec.Struct):
    """Of the lines read so far."""

    form: Form | None = None  # None: no line has told it yet
    form_line: int = 0  # the line that told the form; 0 if the caller said it
    lines: int = 0  # that are not blank
    kinds: Counter[str] = msgspec.field(default_factory=Counter)  # of good lines, by event type or form
    reasons: Counter[Reason] = msgspec.field(default_factory=Counter)  # of bad lines
    warnings: Counter[Reason] = msgspec.field(default_factory=Counter)  # of good ones
    examples: dict[Reason, Finding] = {}  # the first of each

    @property
    def good(self) -> int:
        return self.kinds.total()

    @property
    def bad(self) -> int:
        return self.reasons.total()


class Checker:
    """Checks the lines of one file. `summary` grows with what `check` has given so far."""

    def __init__(
        self, schema: Schema, *, dim: int, gate_dim: int, places: Places | None = None, form: Form | None = None
    ) -> None:
        """`dim`, `gate_dim`: widths of embedding and gate. `form`: None finds it out."""
        self._schema = schema
        self._compile_meta = partial(compile_meta, places=places)
        self._decoder = Decoder(schema, dim=dim, gate_dim=gate_dim, compile_meta=self._compile_meta)
        self.summary = Summary(form)

    def check(self, lines: Iterable[bytes]) -> Iterator[Finding]:
        """The findings in the lines' order: one of a bad line, any number of warnings of a good one. Blank lines are
        passed over."""
        for number, line in enumerate(lines, start=1):
            raw = line.strip()
            if not raw:
                continue
            self.summary.lines += 1
            try:
                good = self._read(raw, number)
            except InvalidInput as fault:
                yield self._found(Finding(number, fault.path, fault.code, fault.detail))
                continue
            self.summary.kinds[good.kind] += 1
            for key in repeated_keys(raw):
                detail = f"the key {shown(key)} comes more than once in an object: the last one counts"
                yield self._found(Finding(number, "", REPEATED_KEY, detail, warning=True))
            for place, detail in never_true(good.targeting, self._schema.attribute_list):
                if good.compiled:  # its paths are not those of the spec
                    path, detail = good.path, f"compiled, at {place}: {detail}"
                else:
                    path = _joined(good.path, place)
                yield self._found(Finding(number, path, MATCHES_NOTHING, detail, warning=True))
            for path, detail in never_live(good.patch):
                yield self._found(Finding(number, path, MATCHES_NOTHING, detail, warning=True))

    def _read(self, raw: bytes, number: int) -> Good:
        """Raises InvalidInput."""
        summary = self.summary
        if summary.form is Form.EVENTS:
            return self._read_event(raw, number)
        value = decode_json(raw)
        if summary.form is None:
            if not isinstance(value, dict):
                raise InvalidInput("", f"an object is needed, not {shown(value)}", "wrong_type")
            summary.form, summary.form_line = form_of(value), number
            return self._read(raw, number)
        if summary.form is Form.TARGETING:
            inner, path = _inside(value, ("targeting",))
            return Good(summary.form, parse_expression(inner, self._schema.attributes, path=path), path)
        inner, path = _inside(value, ("targeting_meta", "targeting"))
        return Good(summary.form, self._read_meta(inner, path), path, compiled=True)

    def _read_event(self, raw: bytes, number: int) -> Good:
        key = read_envelope(raw).ad_id.encode()
        event = self._decoder.decode(key, raw, partition=0, offset=number, timestamp_ms=0)
        if event.kind is not EventKind.BAD:
            kind, patch = str(event.kind.value), event.patch
            targeting = patch.targeting if patch is not None else None
            if not isinstance(targeting, ParsedTargeting):
                return Good(kind, All(()), "", patch=patch)
            name = "targeting_meta" if targeting.from_meta else "targeting"
            return Good(kind, targeting.expression, f"ad.{name}", targeting.from_meta, patch)
        assert event.fault is not None
        detail = event.fault.detail
        path = _PATH.match(detail)
        if path is None:
            raise InvalidInput("", detail, event.fault.code)
        raise InvalidInput(path[1], detail[path.end() :], event.fault.code)

    def _read_meta(self, spec: object, path: str) -> Expression:
        try:
            compiled = self._compile_meta(spec)
        except InvalidInput as fault:
            fault.under(path)
            raise
        try:
            return parse_expression(compiled, self._schema.attributes, path="")
        except InvalidInput as fault:  # of the compiled expression, whose paths are not those of the spec
            raise InvalidInput(path, f"compiled, at {fault.path or 'its root'}: {fault.detail}", fault.code) from None

    def _found(self, finding: Finding) -> Finding:
        reason = Reason(finding.code, _POSITION.sub("[]", finding.path))
        (self.summary.warnings if finding.warning else self.summary.reasons)[reason] += 1
        self.summary.examples.setdefault(reason, finding)
        return finding


def repeated_keys(raw: bytes) -> list[str]:
    """Keys that some object of a JSON text has more than once, each once."""
    found: dict[str, None] = {}

    def look(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            found.update(dict.fromkeys(name for name in names if names.count(name) > 1))

    with suppress(RecursionError):  # deep in something that nobody reads
        json.loads(raw, object_pairs_hook=look, parse_int=float)  # integers of any length
    return list(found)


def never_true(expression: Expression, attributes: Sequence[Attribute], path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves that are true for no value that a request may carry: where each is, and why."""
    match expression:
        case All(children) | Any_(children):
            name = "all" if isinstance(expression, All) else "any"
            for place, child in enumerate(children):
                yield from never_true(child, attributes, _joined(path, f"{name}[{place}]"))
        case Not(child):
            yield from never_true(child, attributes, _joined(path, "not"))
        case In(attribute, values):
            if (why := _no_value(values, attributes[attribute])) is not None:
                yield _joined(path, "in"), why
        case Between(attribute, low, high):
            if (why := _empty_range(low, high, attributes[attribute])) is not None:
                yield _joined(path, "between"), why


def never_live(patch: AdPatch | None) -> Iterator[tuple[str, str]]:
    """What an event says of an ad's times by which it can never match: where, and why. Of a modify, what it says
    itself: its start may be one that another event gave."""
    if patch is None:
        return
    start_us, end_us, schedule = patch.start_us, patch.end_us, patch.schedule
    if not isinstance(start_us, UnsetType) and not isinstance(end_us, UnsetType) and end_us <= start_us:
        yield "ad.end_time", "the ad matches at no time: its end_time is not after its start_time"
    if isinstance(schedule, Schedule) and not schedule.hours:
        yield "ad.schedule.hours", "the ad matches at no time: an empty list has no hour of the week"


def _no_value(values: Sequence[Any], attribute: Attribute) -> str | None:
    if not values:
        return "an empty list holds for no value"
    if attribute.kind is not Kind.INTEGER or not all(_empty_range(value, value, attribute) for value in values):
        return None
    return f"holds for no value of {attribute.name}, {_declared(attribute)}"


def _empty_range(low: Any, high: Any, attribute: Attribute) -> str | None:
    """Why no value of the attribute lies between these bounds, if none does."""
    if low is not None and high is not None and low > high:
        return "holds for no value: the lower bound is above the upper one"
    least, most = attribute.minimum, attribute.maximum
    if (low is not None and most is not None and low > most) or (
        high is not None and least is not None and high < least
    ):
        return f"holds for no value of {attribute.name}, {_declared(attribute)}"
    return None


def _declared(attribute: Attribute) -> str:
    bounds = (("at least", attribute.minimum), ("at most", attribute.maximum))
    words = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
    return f"which is {words} by the schema{' (what is beyond counts as the nearest)' if attribute.clamp else ''}"


def _joined(path: str, more: str) -> str:
    return f"{path}.{more}" if path and more else path or more


def form_of(value: dict[str, Any]) -> Form:
    """The form of a file that has this object in a line."""
    if "targeting_meta" in value and "type" not in value:
        return Form.META
    if any(key in value for key in NODE_KEYS):
        return Form.TARGETING
    targeting = value.get("targeting")
    if isinstance(targeting, dict) and "type" not in value:
        return Form.TARGETING if any(key in targeting for key in NODE_KEYS) else Form.META
    return Form.META if any(key in value for key in FIELDS) else Form.EVENTS


def _inside(value: object, names: tuple[str, ...]) -> tuple[object, str]:
    """What the first of these fields holds, and its path; the value itself where it has none of them."""
    if isinstance(value, dict):
        for name in names:
            if name in value:
                return value[name], name
    return value, ""
