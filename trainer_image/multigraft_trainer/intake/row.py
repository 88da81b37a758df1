"""One parsed row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from multigraft_trainer.intake.codes import RowError
from multigraft_trainer.intake.samples import DroppedRow


@dataclass(frozen=True)
class Row:
    """A row that is a JSON object."""

    number: int  # physical line number, or row index for Parquet; 1-based
    value: dict[str, Any]


def dropped(number: int, error: RowError) -> DroppedRow:
    """Build the account entry of a row that cannot be used."""
    return DroppedRow(row=number, code=error.code.value, message=error.message)
