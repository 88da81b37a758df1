from __future__ import annotations

import json

import pytest

from builders.small_adapter import TINY_LINEARS, find_targets, make_options
from multigraft_trainer.adapters.peft_config import (
    BaseModelName,
    build_peft_config,
    choose_target_modules,
    encode_peft_config,
)


def test_B06_the_small_stable_set_of_keys() -> None:
    got = build_peft_config(make_options(dropout=0.05), TINY_LINEARS, BaseModelName("owner/name", "main"))

    assert got == {
        "base_model_name_or_path": "owner/name",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": 8,
        "lora_dropout": 0.05,
        "modules_to_save": None,  # B01
        "peft_type": "LORA",
        "peft_version": "0.21.2",
        "r": 4,
        "revision": "main",
        "target_modules": sorted(find_targets("q_proj", "v_proj")),
        "task_type": "CAUSAL_LM",
        "use_rslora": False,
    }


@pytest.mark.parametrize("alpha, want", [(16.0, "16"), (0.5, "0.5"), (1.0, "1"), (1e15, "1000000000000000")])
def test_a_whole_alpha_is_written_as_an_integer(alpha: float, want: str) -> None:
    text = encode_peft_config(build_peft_config(make_options(alpha=alpha), TINY_LINEARS, BaseModelName("x"))).decode()

    assert f'"lora_alpha": {want},' in text
    assert list(json.loads(text)) == sorted(json.loads(text))


@pytest.mark.parametrize(
    "peft_targets, target_names, want",
    [
        pytest.param(
            ("v_proj", "q_proj"), find_targets("q_proj", "v_proj"), ["q_proj", "v_proj"], id="last name parts"
        ),
        pytest.param(
            ("layers.1.mlp.up_proj",),
            ("model.layers.1.mlp.up_proj",),
            ["layers.1.mlp.up_proj"],
            id="the end of a name",
        ),
        pytest.param(r".*\.0\..*", find_targets(), r".*\.0\..*", id="a regular expression"),
        pytest.param((), find_targets("q_proj"), sorted(find_targets("q_proj")), id="nothing resolved: full names"),
        pytest.param(
            ("proj",), find_targets("q_proj"), sorted(find_targets("q_proj")), id="half a name part selects nothing"
        ),
        pytest.param(
            ("q_proj",), find_targets("q_proj")[:1], [find_targets("q_proj")[0]], id="entries that select too much"
        ),
    ],
)
def test_targets_select_exactly_the_adapters_layers(
    peft_targets: tuple[str, ...] | str, target_names: tuple[str, ...], want: list[str] | str
) -> None:
    options = make_options(target_names=target_names, peft_targets=peft_targets)

    assert choose_target_modules(options, TINY_LINEARS) == want
