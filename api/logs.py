"""Log lines on standard error, for people or as one JSON object each."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic

import msgspec

from api.config import Settings

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


LINES_MAX = 30  # of one kind in one window; more are counted, and the next window's first line says how many
WINDOW_S = 60.0
KINDS_MAX = 1000


class Thinned(logging.Filter):
    """Bounds how many lines of one kind are written, by the text before its values are put in: a fault that repeats a
    thousand times a second must not fill a disk."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # when its window began, lines in it

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = (record.name, str(record.msg)[:200]), self._clock()
        began, lines = self._kinds.get(kind, (now, 0))
        if now - began >= WINDOW_S:
            if lines > LINES_MAX:
                record.msg, record.args = f"{record.getMessage()} [{lines - LINES_MAX} more like it were left out]", ()
            began, lines = now, 0
        if len(self._kinds) >= KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = began, lines + 1
        return lines < LINES_MAX


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def set_up_logs(settings: Settings) -> None:
    """Everything from `log_level` up, of ours and of the libraries; theirs only from warnings up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Thinned())
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("mirach").setLevel(settings.log_level.upper())
