from __future__ import annotations

from pathlib import Path

import pytest

from multigraft.api.reasons import RefusalError
from multigraft.dry_run.cost_file import load_cost_model
from multigraft.planner.cost import CostModel


def test_what_is_left_out_keeps_its_default(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"forwardFixedMs": 3, "stageShares": [0.4, 0.6]}')
    assert load_cost_model(path) == CostModel(forward_fixed_ms=3.0, stage_shares=(0.4, 0.6))


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "Expecting property name"),
        ("[]", "got a list, want an object"),
        ('{"forward_fixed_ms": 1}', "unknown 'forward_fixed_ms', allowed forwardFixedMs, forwardTokenMs"),
        ('{"forwardFixedMs": "1"}', "forwardFixedMs: got '1', want numbers of 0 or more"),
        ('{"forwardFixedMs": -1}', "want numbers of 0 or more"),
        ('{"forwardFixedMs": [1]}', "want numbers of 0 or more"),
        ('{"stageShares": [true]}', "want numbers of 0 or more"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(RefusalError, match=words):
        load_cost_model(path)
