"""`error.log`: the tracebacks of what nobody foresaw, for a bug report."""

from __future__ import annotations

import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path


def write_error_log(path: Path, what: str) -> None:
    """Append the exception that is being handled; where that cannot be written, to standard error."""
    text = f"{datetime.now(UTC).isoformat(timespec='seconds')} {what}\n{traceback.format_exc()}\n"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        sys.stderr.write(text)
