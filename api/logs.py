"""Log lines on standard error, for people or as one JSON object each."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from api.config import Settings

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


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
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("mirach").setLevel(settings.log_level.upper())
