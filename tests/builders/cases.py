"""Files of the real-world cases."""

from __future__ import annotations

from pathlib import Path

CASES = Path(__file__).parents[1] / "cases"


def case_file(case: str, name: str) -> Path:
    """Give the path of a file of a case."""
    path = CASES / case / name
    assert path.is_file(), f"tests/cases/{case}/{name} is missing"
    return path
