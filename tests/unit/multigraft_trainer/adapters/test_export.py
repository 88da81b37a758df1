from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from builders.dying_os import DiedError, dying_os
from builders.small_adapter import BASE, TINY_LINEARS, find_targets, make_adapter, make_trained
from builders.tiny_base import make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.adapter import Adapter
from multigraft_trainer.adapters.export import (
    CARD_FILE,
    OWN_FILES,
    ExportedAdapter,
    check_output_folder,
    export_adapter,
)
from multigraft_trainer.adapters.peft_config import CONFIG_FILE, WEIGHTS_FILE
from multigraft_trainer.storage import atomic_folder


def export(folder: Path, adapter: Adapter, **changes: Any) -> ExportedAdapter:
    arguments = {"base": BASE, "title": "default/a", **changes}
    return export_adapter(folder, adapter.named_weights(), adapter.options, TINY_LINEARS, **arguments)


def load(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / WEIGHTS_FILE)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"))


def load_base(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def compute_logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(40)[None] % 256).logits


def add_by_hand(model: Any, adapter: Adapter) -> Any:
    """Add scaling * B (A x) to each target with a hook: the definition, without PEFT and without our kernels."""
    weights = adapter.named_weights()
    for name in adapter.options.target_names:
        a, b = (weights[f"base_model.model.{name}.lora_{factor}.weight"] for factor in "AB")

        def add(module: Any, args: Any, output: torch.Tensor, a: torch.Tensor = a, b: torch.Tensor = b) -> torch.Tensor:
            return output + adapter.options.scaling * ((args[0] @ a.T) @ b.T)

        model.get_submodule(name).register_forward_hook(add)
    return model


SHAPES = [
    pytest.param({}, id="two targets"),
    pytest.param({"rank": 1, "alpha": 1.0, "target_names": find_targets()}, id="every layer, rank 1"),
    pytest.param({"rank": 16, "alpha": 16.0, "use_rslora": True}, id="B08 rsLoRA"),
    pytest.param({"rank": 3, "alpha": 0.5, "target_names": find_targets("down_proj")}, id="B10 half an alpha"),
    pytest.param({"target_names": ("model.layers.1.self_attn.k_proj",)}, id="one layer only"),
    pytest.param({"peft_targets": ("q_proj", "v_proj")}, id="targets as the job wrote them"),
    pytest.param({"target_names": find_targets("o_proj"), "peft_targets": r".*\.o_proj"}, id="B17 a regex"),
]


@pytest.mark.parametrize("changes", SHAPES)
def test_B03_peft_loads_the_export_and_computes_what_it_was_trained_for(
    tmp_path: Path, base_folder: Path, changes: dict[str, Any]
) -> None:
    adapter, _ = make_trained(learning_rate=0.1, **changes)
    export(tmp_path / "adapter", adapter)
    base = compute_logits(load_base(base_folder))

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PEFT warns of missing keys, and loads the rest
        model = peft.PeftModel.from_pretrained(load_base(base_folder), tmp_path / "adapter")
    got = compute_logits(model)

    want = compute_logits(add_by_hand(load_base(base_folder), adapter))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert (got - base).abs().max() > 1e-3


@pytest.mark.parametrize("changes", SHAPES)
def test_B02_B03_keys_shapes_and_config_are_those_that_peft_saves(
    tmp_path: Path, base_folder: Path, changes: dict[str, Any]
) -> None:
    adapter = make_adapter(**changes)
    options = adapter.options
    export(tmp_path / "ours", adapter)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]
        use_rslora=options.use_rslora,
        target_modules=options.peft_targets if isinstance(options.peft_targets, str) else list(options.target_names),
    )
    peft.get_peft_model(load_base(base_folder), config).save_pretrained(
        tmp_path / "theirs", save_embedding_layers=False
    )

    ours, theirs = (load(tmp_path / name) for name in ("ours", "theirs"))
    assert {key: (t.shape, t.dtype) for key, t in ours.items()} == {
        key: (t.shape, t.dtype) for key, t in theirs.items()
    }
    got, want = (json.loads((tmp_path / name / CONFIG_FILE).read_text()) for name in ("ours", "theirs"))
    for key in got.keys() - {"target_modules", "base_model_name_or_path"}:
        assert got[key] == want[key], key


@pytest.mark.parametrize("max_rank", [4, 64])
def test_a_pool_of_higher_rank_exports_without_padding(tmp_path: Path, max_rank: int) -> None:
    from builders.small_adapter import make_options, make_pool

    pool = make_pool(max_rank=max_rank)
    adapter = pool.adapter(pool.acquire(make_options(rank=4)))
    export(tmp_path / "a", adapter)

    assert {min(tensor.shape) for tensor in load(tmp_path / "a").values()} == {4}


def test_B13_B18_neither_the_jobs_name_nor_the_slot_is_in_a_key(tmp_path: Path) -> None:
    from builders.small_adapter import make_options, make_pool

    pool = make_pool()
    for seed in range(3):
        pool.acquire(make_options(seed=seed))
    adapter = pool.adapter(pool.acquire(make_options(seed=3)))
    export(tmp_path / "team" / "team-a.support-v1.2", adapter, title="team/team-a.support-v1.2")

    got = load(tmp_path / "team" / "team-a.support-v1.2")
    assert got.keys() == adapter.shapes.keys()
    assert all(torch.equal(got[key], tensor) for key, tensor in adapter.named_weights().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_C14_the_dtype_of_the_export_is_an_option_and_the_master_stays(tmp_path: Path, dtype: torch.dtype) -> None:
    adapter, _ = make_trained()
    export(tmp_path / "a", adapter, dtype=dtype)

    got = load(tmp_path / "a")
    assert all(torch.equal(got[key], tensor.to(dtype)) for key, tensor in adapter.named_weights().items())
    assert {tensor.dtype for tensor in got.values()} == {dtype}
    assert adapter.weights.dtype is torch.float32


def test_what_is_reported_is_what_is_there(tmp_path: Path) -> None:
    got = export(tmp_path / "a", make_adapter())

    assert {path.name for path in got.folder.iterdir()} == OWN_FILES
    assert got.weights_bytes == (tmp_path / "a" / WEIGHTS_FILE).stat().st_size
    assert len(got.weights_sha256) == 64
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in got.folder.iterdir())


def test_the_same_adapter_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (export(tmp_path / name, make_trained()[0]) for name in "ab")

    assert first.weights_sha256 == second.weights_sha256


def test_B19_nan_is_refused_and_the_earlier_export_kept(tmp_path: Path) -> None:
    adapter, _ = make_trained()
    before = export(tmp_path / "a", adapter)
    adapter.named_weights()[find_key(adapter)][0, 0] = torch.nan

    with pytest.raises(RefusalError, match=f"{find_key(adapter)} holds NaN or infinity") as caught:
        export(tmp_path / "a", adapter)

    assert caught.value.reason is Reason.NON_FINITE
    assert_kept(tmp_path / "a", before)


def test_a_number_that_the_export_dtype_cannot_hold_is_refused(tmp_path: Path) -> None:
    adapter, _ = make_trained()
    adapter.weights.fill_(1e6)

    with pytest.raises(RefusalError, match=r"holds NaN or infinity in torch.float16"):
        export(tmp_path / "a", adapter, dtype=torch.float16)
    export(tmp_path / "a", adapter, dtype=torch.bfloat16)


def find_key(adapter: Adapter) -> str:
    return next(iter(adapter.shapes))


def assert_kept(folder: Path, exported: ExportedAdapter) -> None:
    from multigraft_trainer.storage.durable_files import hash_file

    assert hash_file(folder / WEIGHTS_FILE) == (exported.weights_sha256, exported.weights_bytes)
    assert {path.name for path in folder.iterdir()} == OWN_FILES
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_B18_tensors_of_another_adapter_are_refused(tmp_path: Path) -> None:
    adapter, other = make_adapter(rank=4), make_adapter(rank=8)

    for weights in ({}, other.named_weights()):
        with pytest.raises(RefusalError) as caught:
            export_adapter(tmp_path / "a", weights, adapter.options, TINY_LINEARS, base=BASE, title="a")
        assert caught.value.reason is Reason.EXPORT_INVALID
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_export_is_replaced_whole(tmp_path: Path) -> None:
    export(tmp_path / "a", make_adapter(rank=8))
    export(tmp_path / "a", make_adapter(rank=4))

    assert {min(tensor.shape) for tensor in load(tmp_path / "a").values()} == {4}
    assert json.loads((tmp_path / "a" / CONFIG_FILE).read_text())["r"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_death_at_any_call_leaves_a_whole_adapter(tmp_path: Path) -> None:
    old, new = make_adapter(seed=1), make_adapter(seed=2)
    folder = tmp_path / "a"
    die_at, died, ranks = 0, True, set()
    while died:
        with dying_os():
            export(folder, old)
        with dying_os(die_at):
            try:
                export(folder, new)
                died = False
            except DiedError:
                die_at += 1
        got = load(folder)
        ranks.add(
            next(n for n, a in enumerate((old, new)) if torch.equal(got[find_key(a)], a.named_weights()[find_key(a)]))
        )
        assert {path.name for path in folder.iterdir()} == OWN_FILES

    export(folder, new)
    assert ranks == {0, 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("code", [errno.EBUSY, errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_replaced_is_filled_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder = tmp_path / "mount"
    export(folder, make_adapter(rank=8))
    inode = folder.stat().st_ino

    def refuse(first: Path, second: Path) -> bool:
        raise OSError(code, os.strerror(code), str(second))

    monkeypatch.setattr(atomic_folder, "exchange_folders", refuse)
    export(folder, make_adapter(rank=4))

    assert folder.stat().st_ino == inode
    assert {path.name for path in folder.iterdir()} == OWN_FILES
    assert {min(tensor.shape) for tensor in load(folder).values()} == {4}
    assert [path.name for path in tmp_path.iterdir()] == ["mount"]


def test_death_while_a_mount_is_filled_never_shows_new_weights_under_the_old_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mount"

    def refuse(first: Path, second: Path) -> bool:
        raise OSError(errno.EBUSY, "busy", str(second))

    monkeypatch.setattr(atomic_folder, "exchange_folders", refuse)
    die_at, died = 0, True
    while died:
        with dying_os():
            export(folder, make_adapter(rank=8))
        with dying_os(die_at):
            try:
                export(folder, make_adapter(rank=4))
                died = False
            except DiedError:
                die_at += 1
        if (folder / CONFIG_FILE).exists():
            rank = json.loads((folder / CONFIG_FILE).read_text())["r"]
            assert {min(tensor.shape) for tensor in load(folder).values()} == {rank}
    assert rank == 4
    assert {path.name for path in folder.iterdir()} == OWN_FILES


@pytest.mark.parametrize("check_only", [True, False])
@pytest.mark.parametrize("what", ["a file in place of the folder", "a file above it", "a link", "other files in it"])
def test_a_folder_that_is_not_ours_to_replace_is_refused(tmp_path: Path, what: str, check_only: bool) -> None:
    folder = tmp_path / "x" / "a"
    if what == "a file above it":
        (tmp_path / "x").write_text("theirs")
    else:
        folder.parent.mkdir()
    if what == "a file in place of the folder":
        folder.write_text("theirs")
    elif what == "a link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif what == "other files in it":
        folder.mkdir()
        (folder / "thesis.tex").write_text("theirs")

    with pytest.raises(RefusalError) as caught:
        check_output_folder(folder) if check_only else export(folder, make_adapter())

    assert caught.value.reason is Reason.OUTPUT_NOT_WRITABLE
    assert str(folder) in caught.value.message
    if what == "other files in it":
        assert "holds thesis.tex" in caught.value.message
        assert (folder / "thesis.tex").read_text() == "theirs"


@pytest.mark.parametrize("before", ["nothing", "an empty folder", "an export"])
def test_a_folder_that_can_be_written_passes_the_check_and_is_left_as_it_was(tmp_path: Path, before: str) -> None:
    folder = tmp_path / "x" / "a"
    if before == "an empty folder":
        folder.mkdir(parents=True)
    elif before == "an export":
        export(folder, make_adapter())
    names = [path.name for path in folder.iterdir()] if folder.exists() else None

    check_output_folder(folder)

    assert ([path.name for path in folder.iterdir()] if folder.exists() else None) == names
    assert [path.name for path in folder.parent.iterdir()] == (["a"] if folder.exists() else [])


def test_the_card_is_part_of_the_export(tmp_path: Path) -> None:
    export(tmp_path / "a", make_adapter(rank=12), title="team/x")

    text = (tmp_path / "a" / CARD_FILE).read_text()
    assert "# team/x" in text
    assert "--max-lora-rank 16" in text
