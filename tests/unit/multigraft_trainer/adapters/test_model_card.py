from __future__ import annotations

import pytest
import yaml

from builders.small_adapter import make_options
from multigraft_trainer.adapters.model_card import build_model_card, decide_server_rank
from multigraft_trainer.adapters.peft_config import BaseModelName


@pytest.mark.parametrize(
    "rank, want", [(1, 8), (4, 8), (8, 8), (12, 16), (16, 16), (24, 32), (64, 64), (320, 320), (321, 512)]
)
def test_B05_the_smallest_limit_of_a_server_that_fits(rank: int, want: int) -> None:
    assert decide_server_rank(rank) == want


def test_B05_a_rank_that_no_server_takes_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1024, servers take at most 512"):
        decide_server_rank(1024)


@pytest.mark.parametrize("rank, beyond", [(12, False), (16, False), (24, True), (320, True)])
def test_B05_the_card_states_the_rank_limit_and_when_it_is_over_the_default(rank: int, beyond: bool) -> None:
    got = build_model_card("team/a", make_options(rank=rank), BaseModelName("owner/name"), num_parameters=7)

    assert f"--max-lora-rank {decide_server_rank(rank)}" in got
    assert ("over its default of 16" in got) is beyond


@pytest.mark.parametrize("name", ["owner/name", 'a "quoted" name', "a: b # c", "/models/x\nmalicious: true"])
def test_the_front_matter_is_yaml_whatever_the_bases_name(name: str) -> None:
    got = build_model_card("team/a", make_options(), BaseModelName(name, "main"), num_parameters=7)

    front = yaml.safe_load(got.split("---")[1])
    assert front["base_model"] == name
    assert set(front) == {"base_model", "library_name", "pipeline_tag", "tags"}


def test_the_card_says_how_the_update_is_scaled() -> None:
    plain, rslora = (
        build_model_card("t", make_options(rank=16, alpha=16.0, use_rslora=flag), BaseModelName("b"), num_parameters=7)
        for flag in (False, True)
    )

    assert "| 16 | 16 | 1 (alpha / rank) |" in plain
    assert "| 16 | 16 | 4 (alpha / sqrt(rank)) |" in rslora
