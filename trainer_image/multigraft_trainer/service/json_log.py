"""Logs as JSON, one event a line: time, level, event, and what the event is about (job, reason, ...)."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

FIELDS = "multigraft_fields"
_MAX_TEXT = 8192


class JsonFormatter(logging.Formatter):
    """Formats one record as one line of JSON; what is too long is cut."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage()[:_MAX_TEXT],
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-_MAX_TEXT:]
        return json.dumps(line, ensure_ascii=False, default=str)


class EventLog:
    """Writes events with their fields, such as `log.info("job ended", job=key, reason=reason)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **fields: Any) -> None:
        """Tell what happened as it should."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Tell what someone should look at."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Tell what went wrong."""
        self._write(logging.ERROR, event, fields)

    def crash(self, event: str, **fields: Any) -> None:
        """Tell of the exception that is being handled, with its traceback."""
        self._logger.error(event, exc_info=True, extra={FIELDS: fields})

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        kept = {name: value for name, value in fields.items() if value is not None}
        self._logger.log(level, event, extra={FIELDS: kept})


def set_up_logging(level: str) -> None:
    """Send every log of this process, and Python's warnings, to stdout as JSON."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("aiohttp.access").disabled = True  # a probe every few seconds, and nothing that we do not tell
