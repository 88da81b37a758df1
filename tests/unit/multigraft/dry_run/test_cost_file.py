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
        ('{"forwardFixedMs": "1"}', "forwardFixedMs: got '1', want a number from 0 to 1e"),
        ('{"forwardFixedMs": -1}', "want a number from 0"),
        ('{"forwardFixedMs": [1]}', "want a number from 0"),
        ('{"forwardFixedMs": NaN}', "forwardFixedMs: got nan"),
        ('{"forwardFixedMs": 1e999}', "forwardFixedMs: got inf"),
        ('{"backwardFixedMs": 1e308}', "backwardFixedMs: got 1e"),
        ('{"stageShares": [true]}', "want a list of numbers above 0, one for each stage"),
        ('{"stageShares": [0, 1]}', "want a list of numbers above 0"),
        ('{"stageShares": []}', "want a list of numbers above 0"),
        ('{"stageShares": 1}', "want a list of numbers above 0"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(RefusalError, match=words):
        load_cost_model(path)
