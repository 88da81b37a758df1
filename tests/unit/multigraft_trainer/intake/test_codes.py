from __future__ import annotations

import re
from pathlib import Path

from multigraft_trainer.intake.codes import RowCode

PAGE = Path(__file__).parents[4] / "docs" / "datasets.md"
PACKAGE = Path(__file__).parents[4] / "trainer_image" / "multigraft_trainer" / "intake"


def test_A08_every_code_is_in_the_documents_and_no_other() -> None:
    table = PAGE.read_text().split("| code | the row |")[1].split("##")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    got = {name for row in rows for name in re.findall(r"`([A-Z][A-Za-z0-9]+)`", row.split("|")[1])}
    assert got == {code.value for code in RowCode}


def test_every_code_is_given_somewhere() -> None:
    sources = "".join(path.read_text() for path in PACKAGE.glob("*.py") if path.name != "codes.py")
    assert [code.name for code in RowCode if f"RowCode.{code.name}" not in sources] == []
