"""Read one JSON object from a file that a user names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from multigraft.api.reasons import Reason, RefusalError


def load_json_object(path: Path, what: str, reason: Reason) -> dict[str, Any]:
    """Load the object; `what` names the file in messages.

    Raises:
        RefusalError: With `reason`, if it is no regular file that can be read, not JSON, or no object.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise RefusalError(reason, f"{what} {path}: not a regular file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise RefusalError(reason, f"{what} {path}: nested too deeply") from error
    except (OSError, ValueError) as error:
        raise RefusalError(reason, f"{what} {path}: {error!s:.200}") from error
    if not isinstance(data, dict):
        raise RefusalError(reason, f"{what} {path}: got a {type(data).__name__}, want an object")
    return data
