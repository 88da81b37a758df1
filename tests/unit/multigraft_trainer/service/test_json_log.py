from __future__ import annotations

import json
import logging

from multigraft_trainer.service.json_log import FIELDS, JsonFormatter


def format_record(message: str, *, fields: dict[str, object] | None = None, error: Exception | None = None) -> str:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("multigraft", logging.WARNING, "file.py", 1, message, (), info)
    record.__dict__[FIELDS] = fields or {}
    return JsonFormatter().format(record)


def test_an_event_is_one_line_with_its_fields() -> None:
    line = format_record("job\nended", fields={"job": "a/b", "reason": "NonFinite"})
    assert "\n" not in line
    got = json.loads(line)
    assert (got["level"], got["event"], got["job"], got["reason"]) == ("warning", "job\nended", "a/b", "NonFinite")
    assert got["time"].endswith("Z")


def test_a_traceback_stays_on_its_line() -> None:
    try:
        raise RuntimeError("broken")  # noqa: TRY301
    except RuntimeError as error:
        line = format_record("failed", error=error)
    assert "\n" not in line
    assert "RuntimeError: broken" in json.loads(line)["traceback"]


def test_a_long_text_is_cut() -> None:
    assert len(format_record("x" * 100_000)) < 10_000
