from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from builders.cases import CASES
from builders.pickle_canary import PickleCanary
from builders.small_adapter import BASE, TINY_LINEARS, find_targets, make_adapter, make_options, make_trained
from builders.tiny_base import make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.export import export_adapter
from multigraft_trainer.adapters.peft_config import CONFIG_FILE, WEIGHTS_FILE
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.adapters.start_adapter import StartAdapter, load_start_adapter

Q_ONLY = ("model.layers.0.self_attn.q_proj",)
A_KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def make_start(folder: Path, config: dict[str, Any] | None = None, **options: Any) -> AdapterOptions:
    """Write an exported adapter with some config keys changed (None: removed) and give the job's options."""
    adapter, _ = make_trained(**options)
    export_adapter(folder, adapter.named_weights(), adapter.options, TINY_LINEARS, base=BASE, title="start")
    edit_config(folder, config or {})
    return adapter.options


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / CONFIG_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(folder: Path, edit: Any) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS_FILE)
    safetensors.torch.save_file(edit(tensors), folder / WEIGHTS_FILE)


def load(folder: Path, options: AdapterOptions) -> StartAdapter:
    return load_start_adapter(folder, options, TINY_LINEARS, base=BASE)


def refuse(folder: Path, options: AdapterOptions, want: str) -> str:
    with pytest.raises(RefusalError, match=want) as caught:
        load(folder, options)
    assert caught.value.reason is Reason.INVALID_START_ADAPTER
    assert str(folder) in caught.value.message
    return caught.value.message


def copy_case(tmp_path: Path, case: str, config: str = CONFIG_FILE) -> Path:
    """Copy a case's files; where it has no weights, write right ones for its config."""
    folder = tmp_path / case
    folder.mkdir()
    shutil.copy(CASES / case / config, folder / CONFIG_FILE)
    if (CASES / case / WEIGHTS_FILE).exists():
        shutil.copy(CASES / case / WEIGHTS_FILE, folder)
    else:
        rank = json.loads((folder / CONFIG_FILE).read_text())["r"]
        adapter, _ = make_trained(rank=rank)
        safetensors.torch.save_file(dict(adapter.named_weights()), folder / WEIGHTS_FILE)
    return folder


def case_options(**changes: Any) -> AdapterOptions:
    return make_options(rank=8, alpha=16.0, **changes)


def test_our_own_export_comes_back_bit_for_bit(tmp_path: Path) -> None:
    adapter, _ = make_trained()
    options = make_start(tmp_path / "a")

    got = load(tmp_path / "a", options)

    assert got.warnings == ()
    assert all(torch.equal(got.weights[key], tensor) for key, tensor in adapter.named_weights().items())


@pytest.mark.parametrize("use_rslora", [False, True])
def test_an_adapter_that_peft_saved_is_read(tmp_path: Path, use_rslora: bool) -> None:
    base = make_tiny_base(tmp_path / "base")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=4,
        lora_alpha=8,
        lora_dropout=0.3,
        use_rslora=use_rslora,
        target_modules=["q_proj", "v_proj"],
    )
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(tmp_path / "a", save_embedding_layers=False)
    want = peft.get_peft_model_state_dict(model, save_embedding_layers=False)

    got = load(tmp_path / "a", make_options(use_rslora=use_rslora))

    assert got.weights.keys() == want.keys()
    assert all(torch.equal(got.weights[key], tensor) for key, tensor in want.items())
    assert [text for text in got.warnings if "names the base" not in text] == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_C14_a_half_precision_start_is_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    options = make_start(tmp_path / "a")
    edit_tensors(tmp_path / "a", lambda tensors: {key: tensor.to(dtype) for key, tensor in tensors.items()})

    got = load(tmp_path / "a", options)

    assert {tensor.dtype for tensor in got.weights.values()} == {torch.float32}
    assert any(tensor.any() for tensor in got.weights.values())


def test_B01_modules_to_save_are_refused(tmp_path: Path) -> None:
    refuse(copy_case(tmp_path, "B01"), case_options(), r"modules_to_save: got \['lm_head'\]")


def test_B02_a_base_weight_among_the_tensors_is_refused_by_name(tmp_path: Path) -> None:
    want = r"not expected base_model.model.lm_head.base_layer.weight"
    refuse(copy_case(tmp_path, "B02"), case_options(target_names=Q_ONLY), want)


def test_B06_unknown_keys_that_say_nothing_are_ignored(tmp_path: Path) -> None:
    assert load(copy_case(tmp_path, "B06"), case_options()).warnings == ()


def test_B06_an_unknown_key_with_a_value_is_refused_by_name(tmp_path: Path) -> None:
    folder = copy_case(tmp_path, "B06", "adapter_config_real_value.json")

    refuse(folder, case_options(), r"made_up_key_for_test: got \{'a': 1\}")


@pytest.mark.parametrize("value", [True, 1, 0, 0.0, "x", [1], {"a": None}])
def test_B06_any_value_of_an_unknown_key_counts(tmp_path: Path, value: Any) -> None:
    options = make_start(tmp_path / "a", {"made_up": value})

    refuse(tmp_path / "a", options, "made_up: got")


def test_B07_keys_of_a_very_old_version_are_accepted_with_a_warning(tmp_path: Path) -> None:
    got = load(copy_case(tmp_path, "B07"), case_options())

    assert [text.split()[0] for text in got.warnings] == ["enable_lora", "merge_weights"]
    assert all("very old" in text for text in got.warnings)


@pytest.mark.parametrize("changes", [{"enable_lora": [True, False, True]}, {"merge_weights": True}])
def test_B07_old_keys_with_a_value_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    options = make_start(tmp_path / "a", changes)

    refuse(tmp_path / "a", options, next(iter(changes)))


def test_B08_rslora_is_honoured_if_the_job_says_so_too_and_refused_otherwise(tmp_path: Path) -> None:
    folder = copy_case(tmp_path, "B08")
    options = make_options(rank=16, alpha=16.0, use_rslora=True)

    load(folder, options)

    assert options.scaling == 4.0
    refuse(folder, make_options(rank=16, alpha=16.0), "use_rslora is True, the job's lora.useRslora is False")


def test_B08_dora_is_refused(tmp_path: Path) -> None:
    refuse(copy_case(tmp_path, "B08", "adapter_config_dora.json"), case_options(), "use_dora: got True")


def test_B09_rank_and_alpha_of_single_modules_are_refused_whole(tmp_path: Path) -> None:
    refuse(copy_case(tmp_path, "B09"), case_options(), r"rank_pattern: got \{'q_proj': 4\}")


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha_pattern": {"q_proj": 32}},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"lora_bias": True},
        {"fan_in_fan_out": True},
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "olora"},
        {"init_lora_weights": 1},
        {"peft_type": "LOHA"},
        {"peft_type": "ADALORA"},
        {"task_type": "SEQ_CLS"},
        {"trainable_token_indices": [1]},
        {"target_parameters": ["x"]},
        {"layer_replication": [[0, 2]]},
        {"megatron_config": {"a": 1}},
        {"qalora_group_size": 8},
        {"use_qalora": True},
    ],
)
def test_B09_what_changes_the_function_is_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    options = make_start(tmp_path / "a", changes)

    refuse(tmp_path / "a", options, next(iter(changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_dropout": 0.5},
        {"inference_mode": False},
        {"auto_mapping": {"base_model_class": "LlamaForCausalLM"}},
        {"layers_to_transform": [0, 1]},
        {"target_modules": r".*\.(q|v)_proj"},
        {"target_modules": None},
        {"task_type": None},
        {"init_lora_weights": "gaussian"},
        {"peft_version": "99.0"},
        {"use_rslora": None},
        {"lora_alpha": 8.0},
    ],
)
def test_what_says_nothing_of_the_weights_is_accepted(tmp_path: Path, changes: dict[str, Any]) -> None:
    options = make_start(tmp_path / "a", changes)

    assert load(tmp_path / "a", options).warnings == ()


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_fsdp_wrapped_module."])
def test_B11_wrapper_prefixes_are_taken_off_with_a_note(tmp_path: Path, prefix: str) -> None:
    adapter, _ = make_trained()
    options = make_start(tmp_path / "a")
    edit_tensors(tmp_path / "a", lambda tensors: {prefix + key: tensor for key, tensor in tensors.items()})

    got = load(tmp_path / "a", options)

    assert any("wrapper prefixes were taken off" in text for text in got.warnings)
    assert all(torch.equal(got.weights[key], tensor) for key, tensor in adapter.named_weights().items())


def test_B11_the_case_file_is_read_with_the_prefix_taken_off(tmp_path: Path) -> None:
    got = load(copy_case(tmp_path, "B11"), case_options(target_names=Q_ONLY))

    assert A_KEY in got.weights


def test_B11_a_prefix_inside_a_key_is_taken_off(tmp_path: Path) -> None:
    options = make_start(tmp_path / "a")
    edit_tensors(
        tmp_path / "a",
        lambda tensors: {key.replace("layers.0.", "layers.0._orig_mod."): tensor for key, tensor in tensors.items()},
    )

    assert load(tmp_path / "a", options).weights.keys() == make_adapter().shapes.keys()


@pytest.mark.parametrize(
    "rename",
    [
        pytest.param(lambda key: key.removeprefix("base_model.model."), id="no PEFT prefix"),
        pytest.param(
            lambda key: key.replace("lora_A", "lora_A.default").replace("lora_B", "lora_B.default"), id="a name"
        ),
        pytest.param(lambda key: key.replace(".weight", ""), id="no ending"),
        pytest.param(lambda key: "x." + key, id="an unknown prefix"),
    ],
)
def test_B11_keys_that_fit_nothing_are_an_error_that_shows_both(tmp_path: Path, rename: Any) -> None:
    options = make_start(tmp_path / "a")
    edit_tensors(tmp_path / "a", lambda tensors: {rename(key): tensor for key, tensor in tensors.items()})

    message = refuse(tmp_path / "a", options, "no key fits the job")
    assert A_KEY in message
    assert rename(A_KEY) in message


def test_B11_two_keys_that_become_one_are_refused(tmp_path: Path) -> None:
    options = make_start(tmp_path / "a")
    edit_tensors(tmp_path / "a", lambda tensors: {**tensors, "module." + A_KEY: torch.zeros(4, 64)})

    refuse(tmp_path / "a", options, "are the same tensor")


def test_B18_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    refuse(copy_case(tmp_path, "B18"), case_options(), "it holds no tensor at all")


def test_B19_nan_is_refused_by_name(tmp_path: Path) -> None:
    refuse(copy_case(tmp_path, "B19"), case_options(target_names=Q_ONLY), f"{A_KEY} holds NaN or infinity")


def test_B25_targets_of_another_family_are_named(tmp_path: Path) -> None:
    options = make_start(tmp_path / "a", {"target_modules": ["w1", "w2", "w3"]})

    message = refuse(tmp_path / "a", options, "target_modules: w1, w2, w3 is no target of the job")
    assert "['q_proj', 'v_proj']" in message


def test_B25_another_hidden_size_names_both_shapes_and_both_bases(tmp_path: Path) -> None:
    options = make_start(tmp_path / "a", {"base_model_name_or_path": "other/base"})
    edit_tensors(
        tmp_path / "a",
        lambda tensors: {
            key: torch.zeros(4, 96) if key.endswith("lora_A.weight") else tensor for key, tensor in tensors.items()
        },
    )

    message = refuse(tmp_path / "a", options, r"has shape \[4, 96\], want \[4, 64\]")
    assert "made for base 'other/base', does not fit base 'tiny-base'" in message


def test_B25_another_base_of_the_same_shape_is_a_warning(tmp_path: Path) -> None:
    options = make_start(tmp_path / "a", {"base_model_name_or_path": "other/base"})

    (warning,) = load(tmp_path / "a", options).warnings
    assert "'other/base'" in warning
    assert "'tiny-base'" in warning


@pytest.mark.parametrize(
    "changes, want",
    [
        ({"rank": 8}, "r is 4, the job's lora.r is 8"),
        ({"alpha": 16.0}, "lora_alpha is 8, the job's lora.loraAlpha is 16.0"),
        ({"target_names": find_targets("q_proj")}, "v_proj is no target of the job"),
        ({"target_names": find_targets()}, "missing base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"),
    ],
)
def test_an_adapter_of_another_shape_than_the_jobs_is_refused_naming_both(
    tmp_path: Path, changes: dict[str, Any], want: str
) -> None:
    make_start(tmp_path / "a")

    refuse(tmp_path / "a", make_options(**changes), want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_a_dtype_that_is_no_adapter_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    options = make_start(tmp_path / "a")
    edit_tensors(tmp_path / "a", lambda tensors: {key: tensor.to(dtype) for key, tensor in tensors.items()})

    refuse(tmp_path / "a", options, r"want one of \['F32', 'F16', 'BF16'\]")


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.bin.index.json"])
def test_K04_a_pickle_is_refused_without_being_opened(tmp_path: Path, name: str) -> None:
    canary = PickleCanary(tmp_path / "canary")
    options = make_start(tmp_path / "a")
    (tmp_path / "a" / WEIGHTS_FILE).unlink()
    (tmp_path / "a" / name).write_bytes(canary.data)

    refuse(tmp_path / "a", options, "is a pickle, which is never opened")
    assert not canary.was_loaded


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE])
def test_K04_a_pickle_under_the_right_name_is_refused(tmp_path: Path, name: str) -> None:
    canary = PickleCanary(tmp_path / "canary")
    options = make_start(tmp_path / "a")
    (tmp_path / "a" / name).write_bytes(canary.data)

    refuse(tmp_path / "a", options, name)
    assert not canary.was_loaded


def test_K11_D09_nothing_but_the_two_files_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = PickleCanary(tmp_path / "canary")
    options = make_start(tmp_path / "a")
    for name in (
        "optimizer.pt",
        "rng_state.pth",
        "optimizer.safetensors",
        "scheduler.pkl",
        "modeling.py",
        "state.json",
    ):
        (tmp_path / "a" / name).write_bytes(canary.data)
    (tmp_path / "a" / "host").symlink_to("/")
    real_open, opened = os.open, []

    def watch(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(Path(path).name)
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", watch)
    load(tmp_path / "a", options)

    assert opened == [CONFIG_FILE]  # safetensors opens the other one itself
    assert not canary.was_loaded


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE])
@pytest.mark.parametrize("target", ["the same file elsewhere", "nothing"])
def test_K11_a_symbolic_link_is_refused(tmp_path: Path, name: str, target: str) -> None:
    options = make_start(tmp_path / "a")
    path = tmp_path / "a" / name
    path.rename(tmp_path / name)
    path.symlink_to(tmp_path / name if target == "the same file elsewhere" else tmp_path / "nothing")

    refuse(tmp_path / "a", options, f"{name}: is a symbolic link")


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE])
@pytest.mark.parametrize("what", ["missing", "a folder", "a pipe", "empty", "cut short", "too long"])
def test_a_file_that_is_not_what_it_should_be_is_refused_by_name(tmp_path: Path, name: str, what: str) -> None:
    options = make_start(tmp_path / "a")
    path = tmp_path / "a" / name
    data = path.read_bytes()
    path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what != "missing":
        path.write_bytes({"empty": b"", "cut short": data[: len(data) // 2], "too long": data + b" " * 2**21}[what])

    refuse(tmp_path / "a", options, name)


@pytest.mark.parametrize(
    "text, want",
    [
        ("[]", "is no JSON object"),
        ("3", "is no JSON object"),
        ("null", "is no JSON object"),
        ("{}", "key peft_type, r, lora_alpha is missing"),
        ('{"peft_type": "LORA", "r": 4}', "key lora_alpha is missing"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": NaN}', "holds NaN"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 1e999}', "lora_alpha: got inf"),
        ('{"peft_type": "LORA", "r": "4", "lora_alpha": 8}', "r: got '4'"),
        ('{"peft_type": "LORA", "r": true, "lora_alpha": 8}', "r: got True"),
        ('{"peft_type": "LORA", "r": 4.0, "lora_alpha": 8}', "r: got 4.0"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": 1}', "use_rslora: got 1"),
        ('{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": 3}', "target_modules: got 3"),
        ("[" * 100_000, "is no JSON object"),
    ],
)
def test_a_config_that_is_none_is_refused_with_what_is_wrong(tmp_path: Path, text: str, want: str) -> None:
    options = make_start(tmp_path / "a")
    (tmp_path / "a" / CONFIG_FILE).write_text(text)

    refuse(tmp_path / "a", options, want)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", make_options(), "adapter_config.json: No such file")
