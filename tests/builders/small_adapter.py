"""Adapters of the tiny base without a model: its linear layers, options, a pool, trained weights, snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from multigraft_trainer.adapters.adapter import Adapter
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions
from multigraft_trainer.adapters.peft_config import BaseModelName, build_peft_config
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.adapters.slots import AdapterOptions, LinearShape
from multigraft_trainer.checkpoints.checkpoint_folder import AdapterSnapshot
from multigraft_trainer.checkpoints.snapshot import take_snapshot

SHAPES = {  # of builders.tiny_base: none is square
    "self_attn.q_proj": LinearShape(64, 80),
    "self_attn.k_proj": LinearShape(64, 40),
    "self_attn.v_proj": LinearShape(64, 40),
    "self_attn.o_proj": LinearShape(80, 64),
    "mlp.gate_proj": LinearShape(64, 144),
    "mlp.up_proj": LinearShape(64, 144),
    "mlp.down_proj": LinearShape(144, 64),
}
TINY_LINEARS = {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in SHAPES.items()}
BASE = BaseModelName("tiny-base")
SPEC: dict[str, Any] = {"lora": {"r": 4}, "training": {"learningRate": "0.001"}}


def find_targets(*suffixes: str) -> tuple[str, ...]:
    """Give the full names that end in one of these, or all without any."""
    return tuple(name for name in TINY_LINEARS if not suffixes or name.rpartition(".")[2] in suffixes)


def make_options(**changes: Any) -> AdapterOptions:
    """Make options: rank 4, alpha 8, no dropout, seed 42, q_proj and v_proj."""
    options = AdapterOptions(4, 8.0, False, 0.0, 42, find_targets("q_proj", "v_proj"))
    return replace(options, **changes)


def make_pool(
    *, max_slots: int = 4, max_rank: int = 16, compute_dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> SlotPool:
    """Make a pool on the tiny base's linear layers."""
    return SlotPool(TINY_LINEARS, max_slots=max_slots, max_rank=max_rank, device=device, compute_dtype=compute_dtype)


def make_adapter(**changes: Any) -> Adapter:
    """Make a fresh adapter in a pool of its own."""
    pool = make_pool()
    return pool.adapter(pool.acquire(make_options(**changes)))


def add_gradients(adapter: Adapter, seed: int, *, scale: float = 1.0) -> None:
    """Add the gradients of one global batch, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    for name in adapter.options.target_names:
        grads = adapter.module_grads(name)
        for tensor in (grads.a, grads.b):
            tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.device), alpha=scale)


def make_trained(steps: int = 3, *, learning_rate: float = 1e-2, **changes: Any) -> tuple[Adapter, AdapterOptimizer]:
    """Make an adapter that took some steps."""
    adapter = make_adapter(**changes)
    optimizer = AdapterOptimizer(adapter, OptimizerOptions(learning_rate, total_steps=100))
    train(adapter, optimizer, steps)
    return adapter, optimizer


def train(adapter: Adapter, optimizer: AdapterOptimizer, steps: int) -> None:
    """Take steps whose gradients depend on the step number alone."""
    for _ in range(steps):
        add_gradients(adapter, seed=optimizer.progress.step)
        optimizer.step(loss_sum=20.0, num_supervised=10)


def make_snapshot(
    job: str = "default/a", steps: int = 3, *, spec: dict[str, Any] = SPEC, **changes: Any
) -> AdapterSnapshot:
    """Make the snapshot of a job after some steps."""
    adapter, optimizer = make_trained(steps, **changes)
    config = build_peft_config(adapter.options, TINY_LINEARS, BASE)
    return take_snapshot(adapter, optimizer, job=job, draws=steps * 4, spec=spec, peft_config=config)
