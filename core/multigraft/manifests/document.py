"""One document of a manifest file: its JSON value, where each part was written, and what is wrong with its form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]
"""Keys and indices from the top of a document."""


@dataclass(frozen=True)
class Place:
    """Where a value was written, and how if it was a plain scalar."""

    line: int  # from 1
    written: str | None = None


@dataclass(frozen=True)
class Fault:
    """Something wrong with one value, before or after its meaning is known."""

    path: Path
    message: str
    line: int | None = None


@dataclass(frozen=True)
class Document:
    """One object of a file."""

    label: str  # `document 2`, `document 1 item 3`
    value: Any
    line: int = 1
    places: dict[Path, Place] = field(default_factory=dict)
    base: Path = ()  # where the object lies in `places`
    faults: tuple[Fault, ...] = ()

    def line_of(self, path: Path) -> int:
        """Give the line of the value at `path`, or of the nearest thing around it."""
        for end in range(len(path), -1, -1):
            if place := self.places.get(self.base + path[:end]):
                return place.line
        return self.line

    def written_at(self, path: Path) -> str | None:
        """Give the source of a plain scalar."""
        place = self.places.get(self.base + path)
        return place.written if place else None


def format_path(path: Path) -> str:
    """Write a path as the API server does: `spec.lora.targetModules[1]`, `metadata.labels[example.com/team]`."""
    text = ""
    for part in path:
        if isinstance(part, int) or not part.replace("-", "").replace("_", "").isalnum():
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
