"""docs/operator-checklist.md: all lines are there, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "operator-checklist.md").read_text()
NUMBERS = {"C": 23, "R": 24, "S": 15, "H": 22, "O": 12}


def test_every_line_is_there_once() -> None:
    got = re.findall(r"^\| ([CRSHO]\d+) \|", PAGE, re.MULTILINE)
    assert got == [f"{letter}{number}" for letter, most in NUMBERS.items() for number in range(1, most + 1)]


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`([a-z_/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 80
    missing = [f"{path}::{name}" for path, name in named if f"def {name}(" not in (TESTS / path).read_text()]
    assert not missing


def test_a_line_without_a_test_says_why() -> None:
    bare = [line for line in PAGE.splitlines() if re.match(r"\| [CRSHO]\d", line) and "::" not in line]
    unexplained = [line for line in bare if not re.search(r"not done: .{20}|make bench", line)]
    assert not unexplained
