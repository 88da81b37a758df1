"""Base model folders that are refused before anything of them is imported or loaded."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builders.tiny_base import add_auto_map, make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.base_folder import check_base_folder

CASES = Path(__file__).parents[3] / "cases"


def _edit(folder: Path, file: str = "config.json", **fields: Any) -> None:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _assert_refused(folder: Path, reason: Reason, *words: str) -> None:
    with pytest.raises(RefusalError) as caught:
        check_base_folder(folder)
    assert caught.value.reason is reason
    for word in words:
        assert word in caught.value.message


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_tiny_base(tmp_path / "base")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = make_tiny_base(tmp_path / "sharded", max_shard_size="200KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


def test_accepts_one_file_and_shards(base: Path, sharded: Path) -> None:
    assert check_base_folder(base)["model_type"] == "llama"
    assert check_base_folder(sharded)["hidden_size"] == 64


def test_K05_code_in_the_folder_is_refused_and_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(CASES / "K05" / "base", folder)
    canary = tmp_path / "canary"
    code = folder / "modeling_canary.py"
    code.write_text(code.read_text().replace("/tmp/bug-log-canary-K05", str(canary)))
    _assert_refused(folder, Reason.REMOTE_CODE_REFUSED, "config.json", "auto_map")
    assert not canary.exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_K05_wherever_it_is_asked_for(base: Path, file: str) -> None:
    add_auto_map(base, file)
    _assert_refused(base, Reason.REMOTE_CODE_REFUSED, file)


def test_B26_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    _assert_refused(sharded, Reason.BASE_MODEL_INVALID, shard.name, "not in the folder")


def test_B26_a_cut_shard_is_named(sharded: Path) -> None:
    shard = min(sharded.glob("model-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    _assert_refused(sharded, Reason.BASE_MODEL_INVALID, shard.name)


def test_B26_a_tensor_missing_from_its_shard_is_named(sharded: Path) -> None:
    shard = min(sharded.glob("model-*.safetensors"))
    tensors = load_file(shard)
    dropped = min(tensors)
    del tensors[dropped]
    save_file(tensors, shard, metadata={"format": "pt"})
    _assert_refused(sharded, Reason.BASE_MODEL_INVALID, shard.name, dropped)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "pytorch_model.bin", 3, "sub/model.safetensors"]
)
def test_an_index_may_only_name_files_of_the_folder(sharded: Path, name: object) -> None:
    index = sharded / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["weight_map"]["lm_head.weight"] = name
    index.write_text(json.dumps(data))
    _assert_refused(sharded, Reason.BASE_MODEL_INVALID, "lm_head.weight", "allowed are .safetensors files")


@pytest.mark.parametrize("weight_map", [{}, [], None, "x"], ids=str)
def test_an_index_needs_a_weight_map(sharded: Path, weight_map: object) -> None:
    _edit(sharded, "model.safetensors.index.json", weight_map=weight_map)
    _assert_refused(sharded, Reason.BASE_MODEL_INVALID, "weight_map")


class _Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.mkdir, (self.path,))


def test_pickled_weights_are_never_opened(base: Path, tmp_path: Path) -> None:
    (base / "model.safetensors").unlink()
    (base / "pytorch_model.bin").write_bytes(pickle.dumps(_Canary(tmp_path / "canary")))
    _assert_refused(base, Reason.BASE_MODEL_INVALID, "pytorch_model.bin is a pickle")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    "fields, reason, words",
    [
        ({"model_type": "no-such"}, Reason.BASE_MODEL_INVALID, ["'no-such'"]),
        ({"model_type": None}, Reason.BASE_MODEL_INVALID, ["model_type"]),
        ({"model_type": "vit"}, Reason.NOT_SUPPORTED, ["'vit' has no causal language model"]),
        ({"quantization_config": {"quant_method": "gptq"}}, Reason.NOT_SUPPORTED, ["'gptq'"]),
        ({"is_encoder_decoder": True}, Reason.NOT_SUPPORTED, ["is_encoder_decoder"]),
        ({"vision_config": {"hidden_size": 8}}, Reason.NOT_SUPPORTED, ["vision_config"]),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, Reason.NOT_SUPPORTED, ["'dynamic'"]),
        ({"rope_scaling": {"type": "longrope"}}, Reason.NOT_SUPPORTED, ["'longrope'"]),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            Reason.NOT_SUPPORTED,
            ["longest sample of a microbatch"],
        ),
    ],
    ids=str,
)
def test_refuses_kinds_that_are_not_trained_here(
    base: Path, fields: dict[str, Any], reason: Reason, words: list[str]
) -> None:
    _edit(base, **fields)
    _assert_refused(base, reason, *words)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', "\ufeff{}", "[" * 100_000], ids=["empty", "cut", "list", "text", "mark", "deep"]
)
def test_a_config_that_is_not_an_object(base: Path, text: str) -> None:
    (base / "config.json").write_text(text)
    _assert_refused(base, Reason.BASE_MODEL_INVALID, "config.json")


def test_missing_parts(base: Path, tmp_path: Path) -> None:
    _assert_refused(tmp_path / "nowhere", Reason.BASE_MODEL_INVALID, "is not a folder")
    (base / "config.json").unlink()
    _assert_refused(base, Reason.BASE_MODEL_INVALID, "config.json is missing")


def test_an_adapter_folder_is_no_base(base: Path) -> None:
    (base / "adapter_config.json").write_text("{}")
    _assert_refused(base, Reason.BASE_MODEL_INVALID, "adapter_config.json")


def test_a_tensor_file_that_is_none(base: Path) -> None:
    (base / "model.safetensors").write_bytes(torch.randn(100).numpy().tobytes())
    _assert_refused(base, Reason.BASE_MODEL_INVALID, "model.safetensors is not a whole safetensors file")


def _make_fifo(path: Path) -> None:
    os.mkfifo(path)


def _make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [_make_fifo, _make_loop, Path.mkdir], ids=["fifo", "link to itself", "folder"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(
    base: Path, name: str, make: Callable[[Path], None]
) -> None:
    (base / name).unlink(missing_ok=True)
    make(base / name)
    _assert_refused(base, Reason.BASE_MODEL_INVALID, name, "regular file")


def test_links_to_regular_files_are_followed_as_hub_caches_have_them(base: Path, tmp_path: Path) -> None:
    for path in list(base.iterdir()):
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    assert check_base_folder(base)["model_type"] == "llama"


def test_more_layers_than_tensors_are_refused_before_anything_is_built(base: Path) -> None:
    _edit(base, num_hidden_layers=10_000_000)
    _assert_refused(base, Reason.BASE_MODEL_INVALID, "num_hidden_layers is 10000000")
