"""Logs as JSON, one record a line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

MAX_TEXT_CHARS = 8192


class JsonFormatter(logging.Formatter):
    """Formats one record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_TEXT_CHARS],
        }
        reference = getattr(record, "k8s_ref", None)  # kopf's own
        if isinstance(reference, dict):
            line["object"] = f"{reference.get('namespace')}/{reference.get('name')}"
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)[-MAX_TEXT_CHARS:]
        return json.dumps(line)


def set_up_logging(level: str) -> None:
    """Send all logs to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    logging.getLogger("kopf").setLevel(max(logging.INFO, logging.getLevelName(level.upper())))
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line for each event of a watch otherwise
