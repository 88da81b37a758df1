"""Text of unknown origin on its way to a terminal or a log."""

from __future__ import annotations


def printable(text: str) -> str:
    """Give the text in one line without control characters: a name or a message must not steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
