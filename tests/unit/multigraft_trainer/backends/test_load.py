"""Loading: the dtype and device asked for, and a no to weights that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from builders.tiny_base import FAMILIES, Family, make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.load import load_base_model

transformers.utils.logging.disable_progress_bar()
CPU = torch.device("cpu")


def _assert_refused(folder: Path, *words: str, reason: Reason = Reason.BASE_MODEL_INVALID) -> None:
    with pytest.raises(RefusalError) as caught:
        load_base_model(folder, torch.float32, CPU)
    assert caught.value.reason is reason
    for word in words:
        assert word in caught.value.message


def _rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, value in change.items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_gives_the_model_frozen_in_the_dtype_asked_for(tmp_path: Path, family: Family, dtype: torch.dtype) -> None:
    model = load_base_model(make_tiny_base(tmp_path, family, tied=True), dtype, CPU)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path)
    _rewrite(folder, {"model.layers.1.mlp.up_proj.weight": None})
    _assert_refused(folder, "1 tensors are missing", "model.layers.1.mlp.up_proj.weight")


def test_a_left_over_tensor_is_named(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path)
    _rewrite(folder, {"model.layers.7.mlp.up_proj.weight": torch.zeros(144, 64)})
    _assert_refused(folder, "belong to no part", "model.layers.7.mlp.up_proj.weight")


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path)
    _rewrite(folder, {"model.layers.0.mlp.up_proj.weight": torch.zeros(64, 144)})
    _assert_refused(folder, "model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    folder = make_tiny_base(tmp_path)
    _rewrite(folder, {"model.norm.weight": torch.full((64,), value)})
    _assert_refused(folder, "model.norm.weight holds NaN or infinity")


def test_weights_that_overflow_the_dtype_are_named(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path)
    _rewrite(folder, {"model.norm.weight": torch.full((64,), 1e6)})
    with pytest.raises(RefusalError, match=r"model.norm.weight holds NaN or infinity"):
        load_base_model(folder, torch.float16, CPU)


def test_a_config_that_makes_no_model(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_attention_heads": "four"}))
    _assert_refused(folder, "Transformers cannot load")


def test_an_architecture_that_takes_no_attention_from_outside(tmp_path: Path) -> None:
    config = transformers.FalconConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, vocab_size=512)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    _assert_refused(tmp_path, "takes no attention function from outside", reason=Reason.NOT_SUPPORTED)
