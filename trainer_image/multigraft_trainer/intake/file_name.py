"""How a file is named in messages."""

from __future__ import annotations

from pathlib import Path

_MAX_CHARS = 80


def shown_name(path: Path) -> str:
    """Give the quoted name of a file for a message: no folder, odd characters escaped, at most 80 characters."""
    shown = ascii(path.name) if not path.name.isprintable() else f"'{path.name}'"
    return shown if len(shown) <= _MAX_CHARS else f"'...{shown[-_MAX_CHARS + 5 :]}"
