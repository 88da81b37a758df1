"""Set something bad aside by rename: it is kept for whoever wants to look, and never tried again."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from multigraft_trainer.storage.atomic_folder import move_entry

QUARANTINE_PREFIX = "quarantined-"


def set_aside(path: Path) -> str:
    """Rename a file or folder beside itself if that is possible, and say what became of it."""
    with suppress(OSError):
        return f"set aside as {make_room(path)}"
    return "could not be set aside"


def make_room(path: Path) -> str:
    """Rename a file or folder beside itself and give the new name.

    Raises:
        OSError: As the system says.
    """
    target = _find_free_name(path)
    move_entry(path, target)
    return target.name


def _find_free_name(path: Path) -> Path:
    stem = QUARANTINE_PREFIX + path.name.lstrip(".")
    number = 1
    while os.path.lexists(path.parent / f"{stem}-{number}"):
        number += 1
    return path.parent / f"{stem}-{number}"
