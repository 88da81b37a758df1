from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from builders.backend import load_tiny_backend
from builders.packed_case import make_packed, make_sample
from builders.small_adapter import BASE, TINY_LINEARS, find_targets, make_adapter, make_options, make_trained, train
from builders.tiny_base import make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.adapter import Adapter
from multigraft_trainer.adapters.export import export_adapter
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions, Progress
from multigraft_trainer.adapters.peft_config import WEIGHTS_FILE
from multigraft_trainer.adapters.success_gate import check_effect, check_export, check_success, check_work

GOOD = Progress(step=3, updates=3, supervised_tokens=30, peak_learning_rate=1e-2)
PROBE = make_sample(12)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"))


def train_in_backend(
    base_folder: Path, **options: Any
) -> tuple[Adapter, AdapterOptimizer, Callable[[bool], float], Any]:
    """Train an adapter in a slot that is not its number in the job list, and give it with its probe and its table."""
    backend, slots = load_tiny_backend(base_folder)
    slots.acquire(make_options(seed=1))
    slot = slots.acquire(make_options(seed=2, **options))
    adapter = slots.adapter(slot)
    optimizer = AdapterOptimizer(adapter, OptimizerOptions(1e-2, total_steps=10))
    train(adapter, optimizer, 3)

    def probe(with_adapter: bool) -> float:
        (loss,) = backend.forward_loss(make_packed([(slot if with_adapter else -1, [(PROBE, 0)])]))
        return loss

    return adapter, optimizer, probe, slots


def export(folder: Path, adapter: Adapter, *, dtype: torch.dtype = torch.float32) -> Path:
    options = adapter.options
    export_adapter(folder, adapter.named_weights(), options, TINY_LINEARS, base=BASE, title="a", dtype=dtype)
    return folder


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = safetensors.torch.load_file(folder / WEIGHTS_FILE)
    change(tensors)
    safetensors.torch.save_file(tensors, folder / WEIGHTS_FILE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_trained_adapter_passes_and_its_compute_copy_stays_the_masters(
    tmp_path: Path, base_folder: Path, dtype: torch.dtype
) -> None:
    adapter, optimizer, probe, slots = train_in_backend(base_folder, dropout=0.3)
    name = adapter.options.target_names[0]
    before = slots.stacked_b(name).clone()
    loss = probe(True)

    check_success(export(tmp_path / "a", adapter, dtype=dtype), adapter, optimizer.progress, probe)

    assert torch.equal(slots.stacked_b(name), before)
    assert probe(True) == loss


def test_the_probe_agrees_with_peft_on_the_exported_files(tmp_path: Path, base_folder: Path) -> None:
    adapter, _, probe, _ = train_in_backend(base_folder)
    folder = export(tmp_path / "a", adapter)
    base = transformers.AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    ids = torch.from_numpy(PROBE.input_ids).long()[None]

    def measure(model: Any) -> float:
        with torch.no_grad():
            logits = model(ids).logits[0, :-1]
        return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()

    want = [measure(base), measure(peft.PeftModel.from_pretrained(base, folder))]  # wraps the base in place, so second
    assert [probe(False), probe(True)] == pytest.approx(want, rel=1e-5)
    assert probe(True) != probe(False)


@pytest.mark.parametrize(
    "progress, want",
    [
        pytest.param(Progress(), "no optimizer step was applied: 0 taken", id="A12 no step at all"),
        pytest.param(
            Progress(step=5, skipped_nonfinite=2, skipped_no_tokens=3),
            "5 taken, 2 skipped as not finite, 3 without supervised token",
            id="every step skipped",
        ),
        pytest.param(Progress(step=1, updates=1, peak_learning_rate=1.0), "no supervised token", id="no token"),
        pytest.param(Progress(step=1, updates=1, supervised_tokens=9), "learning rate was 0", id="learning rate of 0"),
    ],
)
def test_A12_nothing_succeeds_without_work(progress: Progress, want: str) -> None:
    with pytest.raises(RefusalError, match=want) as caught:
        check_work(progress)

    assert caught.value.reason is Reason.NO_WORK


def test_work_that_was_done_passes() -> None:
    check_work(GOOD)


A_KEY, B_KEY = (f"base_model.model.{find_targets('q_proj')[0]}.lora_{factor}.weight" for factor in "AB")


@pytest.mark.parametrize(
    "change, reason, want",
    [
        pytest.param(lambda t: t.clear(), Reason.EXPORT_INVALID, "missing", id="B18 no tensor at all"),
        pytest.param(lambda t: t.pop(A_KEY), Reason.EXPORT_INVALID, f"missing {A_KEY}", id="B18 a tensor is missing"),
        pytest.param(
            lambda t: t.update({"base_model.model.lm_head.base_layer.weight": torch.ones(1)}),
            Reason.EXPORT_INVALID,
            "not expected base_model.model.lm_head.base_layer.weight",
            id="B02 a base weight",
        ),
        pytest.param(
            lambda t: t.update({A_KEY: t[A_KEY].T.contiguous()}),
            Reason.EXPORT_INVALID,
            r"has shape \[64, 4\], want \[4, 64\]",
            id="B21 A is transposed",
        ),
        pytest.param(
            lambda t: t.update({A_KEY: torch.nn.functional.pad(t[A_KEY], (0, 0, 0, 12))}),
            Reason.EXPORT_INVALID,
            r"has shape \[16, 64\]",
            id="padded to the pool's rank",
        ),
        pytest.param(
            lambda t: t[A_KEY].fill_(math.nan), Reason.NON_FINITE, f"{A_KEY} holds NaN", id="B19 NaN in a tensor"
        ),
        pytest.param(
            lambda t: t[B_KEY].mul_(2),
            Reason.EXPORT_INVALID,
            f"{B_KEY} is not what the job trained",
            id="B18 other values",
        ),
    ],
)
def test_B18_B19_an_export_that_is_not_the_adapter_is_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], reason: Reason, want: str
) -> None:
    adapter, _ = make_trained()
    folder = export(tmp_path / "a", adapter)
    edit(folder, change)

    with pytest.raises(RefusalError, match=want) as caught:
        check_export(folder, adapter)

    assert caught.value.reason is reason


@pytest.mark.parametrize("damage", ["missing", "cut short", "link"])
def test_an_export_that_cannot_be_read_back_is_refused(tmp_path: Path, damage: str) -> None:
    adapter, _ = make_trained()
    path = export(tmp_path / "a", adapter) / WEIGHTS_FILE
    data = path.read_bytes()
    path.unlink()
    if damage == "cut short":
        path.write_bytes(data[:-10])
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RefusalError, match=WEIGHTS_FILE) as caught:
        check_export(path.parent, adapter)

    assert caught.value.reason is Reason.EXPORT_INVALID


def test_B18_another_tenants_adapter_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    mine, theirs = make_trained(seed=1)[0], make_trained(seed=2)[0]

    with pytest.raises(RefusalError, match="is not what the job trained"):
        check_export(export(tmp_path / "a", theirs), mine)


def test_B18_an_untrained_adapter_is_refused(tmp_path: Path) -> None:
    adapter = make_adapter()

    with pytest.raises(RefusalError, match="every lora_B is zero") as caught:
        check_export(export(tmp_path / "a", adapter), adapter)

    assert caught.value.reason is Reason.NO_WORK


def test_one_layer_with_an_effect_is_enough(tmp_path: Path) -> None:
    adapter = make_adapter()
    adapter.named_weights()[B_KEY][0, 0] = 1.0

    check_export(export(tmp_path / "a", adapter), adapter)


def test_B04_an_adapter_that_changes_no_logit_is_refused(tmp_path: Path, base_folder: Path) -> None:
    adapter, optimizer, _, _ = train_in_backend(base_folder)
    folder = export(tmp_path / "a", adapter)

    with pytest.raises(RefusalError, match="does not change the loss of the probe text") as caught:
        check_success(folder, adapter, optimizer.progress, lambda _: 2.5)

    assert caught.value.reason is Reason.EXPORT_INVALID


def test_B04_the_probe_sees_what_is_on_disk_and_not_what_is_in_memory(tmp_path: Path, base_folder: Path) -> None:
    adapter, _, probe, _ = train_in_backend(base_folder)
    zeros = {key: torch.zeros(shape) for key, shape in adapter.shapes.items()}
    trained = probe(True)

    with pytest.raises(RefusalError, match="does not change the loss of the probe text"):
        check_effect(adapter, zeros, probe)

    assert probe(True) == trained


@pytest.mark.parametrize("losses", [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)])
def test_J05_a_probe_that_is_not_finite_is_refused(losses: tuple[float, float]) -> None:
    adapter, _ = make_trained()
    tensors = adapter.named_weights()

    with pytest.raises(RefusalError, match="want finite") as caught:
        check_effect(adapter, tensors, lambda with_adapter: losses[not with_adapter])

    assert caught.value.reason is Reason.NON_FINITE


def test_the_compute_copy_is_the_masters_again_even_if_the_probe_fails(base_folder: Path) -> None:
    adapter, _, probe, _ = train_in_backend(base_folder)
    zeros = {key: torch.zeros(shape) for key, shape in adapter.shapes.items()}
    trained = probe(True)

    def fail(with_adapter: bool) -> float:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        check_effect(adapter, zeros, fail)

    assert probe(True) == trained


def test_B19_weights_that_explode_end_as_non_finite_and_the_neighbour_trains_on(base_folder: Path) -> None:
    """Real gradients. At 1e6 the norms of this base keep every number finite; at 1e30 the next loss is NaN."""
    backend, slots = load_tiny_backend(base_folder)
    bad, good = (slots.acquire(make_options(seed=seed, target_names=find_targets())) for seed in (1, 2))
    options = {bad: OptimizerOptions(1e30, total_steps=20), good: OptimizerOptions(1e-2, total_steps=20)}
    optimizers = {slot: AdapterOptimizer(slots.adapter(slot), options[slot]) for slot in (bad, good)}
    failed: RefusalError | None = None
    for step in range(20):
        slots_left = [slot for slot in (bad, good) if slot == good or failed is None]
        sample = make_sample(24, seed=step)
        losses = backend.forward_backward(
            make_packed(
                [(slot, [(sample, step)]) for slot in slots_left], weights={bad: 1 / 23, good: 1 / 23}, step=step
            )
        )
        for slot, loss in zip(slots_left, losses, strict=True):
            try:
                optimizers[slot].step(loss, 23)
            except RefusalError as error:
                failed = error

    assert failed is not None
    assert failed.reason is Reason.NON_FINITE
    assert optimizers[bad].progress.updates < optimizers[bad].progress.step < 20
    check_work(optimizers[good].progress)
    assert optimizers[good].progress.updates == 20
    assert torch.isfinite(slots.adapter(good).weights).all()
