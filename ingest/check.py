"""Ad events, targetings and Meta targeting specs checked offline, line by line: what `mirach check` does.

A file has lines of one form, told by its first line that is a JSON object unless the caller says it:

1. events: ad events as the topic has them, read by the decoder that the service reads them with;
2. targeting: an expression, or an object with one in `targeting`;
3. meta: a Meta targeting spec, or an object with one in `targeting_meta` or `targeting`.

Events are checked each for itself: whether a modify's ad exists only the index knows.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from gpu_index.events import EventKind
from gpu_index.invalid_input import InvalidInput, shown
from gpu_index.json_input import decode_json
from gpu_index.schema import Schema
from gpu_index.targeting import parse_expression
from ingest.decode import Decoder
from ingest.envelope import read_envelope
from ingest.meta import compile_meta
from ingest.meta_fields import FIELDS
from ingest.places import Places

NODE_KEYS = ("all", "any", "not", "attr")
# A path in front of a sentence, as InvalidInput writes the two: ad.targeting.all[0].in[2]: …
_STEP = r'(?:[A-Za-z_][A-Za-z0-9_]*|"(?:[^"\\]|\\.)*")'
_PATH = re.compile(rf"({_STEP}(?:\.{_STEP}|\[[0-9]+\])*): ")
_POSITION = re.compile(r"\[[0-9]+\]")


class Form(enum.StrEnum):
    EVENTS = "events"
    TARGETING = "targeting"
    META = "meta"


class Finding(msgspec.Struct, frozen=True):
    """What is wrong with one line."""

    line: int  # from 1
    path: str  # empty: the whole line
    code: str  # as of dead letters: ingest/faults.py
    detail: str  # a sentence for a person


class Reason(msgspec.Struct, frozen=True):
    """What several findings have in common: the code, and the path without its positions."""

    code: str
    path: str


class Summary(msgspec.Struct):
    """Of the lines read so far."""

    form: Form | None = None  # None: no line has told it yet
    form_line: int = 0  # the line that told the form; 0 if the caller said it
    lines: int = 0  # that are not blank
    kinds: Counter[str] = msgspec.field(default_factory=Counter)  # of good lines, by event type or form
    reasons: Counter[Reason] = msgspec.field(default_factory=Counter)  # of bad lines
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
        """The findings, at most one a line, in the lines' order. Blank lines are passed over."""
        for number, line in enumerate(lines, start=1):
            raw = line.strip()
            if not raw:
                continue
            self.summary.lines += 1
            try:
                kind = self._kind_of_good(raw, number)
            except InvalidInput as fault:
                yield self._found(Finding(number, fault.path, fault.code, fault.detail))
            else:
                self.summary.kinds[kind] += 1

    def _kind_of_good(self, raw: bytes, number: int) -> str:
        """What a line is that has no fault. Raises InvalidInput."""
        summary = self.summary
        if summary.form is Form.EVENTS:
            return self._check_event(raw, number)
        value = decode_json(raw)
        if summary.form is None:
            if not isinstance(value, dict):
                raise InvalidInput("", f"an object is needed, not {shown(value)}", "wrong_type")
            summary.form, summary.form_line = form_of(value), number
            return self._kind_of_good(raw, number)
        if summary.form is Form.TARGETING:
            expression, path = _inside(value, ("targeting",))
            parse_expression(expression, self._schema.attributes, path=path)
        else:
            self._check_meta(*_inside(value, ("targeting_meta", "targeting")))
        return summary.form

    def _check_event(self, raw: bytes, number: int) -> str:
        key = read_envelope(raw).ad_id.encode()
        event = self._decoder.decode(key, raw, partition=0, offset=number, timestamp_ms=0)
        if event.kind is not EventKind.BAD:
            return str(event.kind.value)
        assert event.fault is not None
        detail = event.fault.detail
        path = _PATH.match(detail)
        if path is None:
            raise InvalidInput("", detail, event.fault.code)
        raise InvalidInput(path[1], detail[path.end() :], event.fault.code)

    def _check_meta(self, spec: object, path: str) -> None:
        try:
            compiled = self._compile_meta(spec)
        except InvalidInput as fault:
            fault.under(path)
            raise
        try:
            parse_expression(compiled, self._schema.attributes, path="")
        except InvalidInput as fault:  # of the compiled expression, whose paths are not those of the spec
            raise InvalidInput(path, f"compiled, at {fault.path or 'its root'}: {fault.detail}", fault.code) from None

    def _found(self, finding: Finding) -> Finding:
        reason = Reason(finding.code, _POSITION.sub("[]", finding.path))
        self.summary.reasons[reason] += 1
        self.summary.examples.setdefault(reason, finding)
        return finding


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
