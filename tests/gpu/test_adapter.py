"""An adapter on a GPU: the same start, the same steps and the same checkpoints as on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from builders.small_adapter import SPEC, TINY_LINEARS, find_targets, make_options, make_pool, train
from multigraft.api.adapter_job import LrSchedulerType
from multigraft_trainer.adapters.adapter import Adapter
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions, Outcome
from multigraft_trainer.adapters.peft_config import BaseModelName, build_peft_config
from multigraft_trainer.checkpoints.snapshot import restore_snapshot, take_snapshot
from multigraft_trainer.checkpoints.store import CheckpointStore

OPTIONS = OptimizerOptions(1e-2, 40, LrSchedulerType.COSINE, 5, weight_decay=0.1)


def make_on(device: str, dtype: torch.dtype = torch.float32) -> tuple[Adapter, AdapterOptimizer]:
    pool = make_pool(device=device, compute_dtype=dtype)
    adapter = pool.adapter(pool.acquire(make_options(target_names=find_targets())))
    return adapter, AdapterOptimizer(adapter, OPTIONS)


def test_initial_weights_are_those_of_the_cpu_bit_for_bit() -> None:
    (cpu, _), (gpu, _) = make_on("cpu"), make_on("cuda")

    assert torch.equal(gpu.weights.cpu(), cpu.weights)


def test_steps_are_those_of_the_cpu_to_rounding() -> None:
    (cpu, on_cpu), (gpu, on_gpu) = make_on("cpu"), make_on("cuda", torch.bfloat16)
    for adapter, optimizer in ((cpu, on_cpu), (gpu, on_gpu)):
        train(adapter, optimizer, 20)

    torch.testing.assert_close(gpu.weights.cpu(), cpu.weights, rtol=1e-5, atol=1e-7)
    assert on_gpu.progress == on_cpu.progress


def test_the_same_steps_give_the_same_bits_each_time() -> None:
    first, second = make_on("cuda"), make_on("cuda")
    for adapter, optimizer in (first, second):
        train(adapter, optimizer, 20)

    assert torch.equal(first[0].weights, second[0].weights)
    assert torch.equal(first[0].exp_avg_sq, second[0].exp_avg_sq)


def test_a_step_is_published_in_the_compute_dtype() -> None:
    pool = make_pool(device="cuda", compute_dtype=torch.bfloat16)
    slot = pool.acquire(make_options())
    adapter = pool.adapter(slot)
    train(adapter, AdapterOptimizer(adapter, OPTIONS), 7)

    name = find_targets("q_proj")[0]
    want = adapter.named_weights()[f"base_model.model.{name}.lora_B.weight"].bfloat16()
    assert torch.equal(pool.stacked_b(name)[slot][:, :4], want)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_E04_one_bad_gradient_skips_the_step(poison: float) -> None:
    adapter, optimizer = make_on("cuda")
    train(adapter, optimizer, 2)
    before = adapter.weights.clone()
    adapter.grads[5] = poison

    assert optimizer.step(20.0, 10).outcome is Outcome.SKIPPED_NON_FINITE
    assert torch.equal(adapter.weights, before)


@pytest.mark.parametrize("source, target", [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_D03_a_checkpoint_goes_on_on_another_kind_of_device(tmp_path: Path, source: str, target: str) -> None:
    adapter, optimizer = make_on(source)
    train(adapter, optimizer, 10)
    config = build_peft_config(adapter.options, TINY_LINEARS, BaseModelName("tiny"))
    store = CheckpointStore(tmp_path)
    store.save_job(take_snapshot(adapter, optimizer, job="default/a", draws=40, spec=SPEC, peft_config=config))
    resumed, goes_on = make_on(target)
    snapshot = store.load_job("default/a", spec=SPEC).snapshot
    assert snapshot is not None
    goes_on.progress = restore_snapshot(snapshot, resumed)

    for key, tensor in adapter.named_weights().items():
        assert torch.equal(resumed.named_weights()[key].cpu(), tensor.cpu())
    train(adapter, optimizer, 10)
    train(resumed, goes_on, 10)
    if source == target:
        assert torch.equal(resumed.weights, adapter.weights)
    torch.testing.assert_close(resumed.weights.cpu(), adapter.weights.cpu(), rtol=1e-5, atol=1e-6)
