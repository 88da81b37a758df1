"""A tiny base behind the real Transformers backend with a real slot pool."""

from __future__ import annotations

from pathlib import Path

import torch

from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.backends.transformers_backend import TransformersBackend, open_transformers_backend


def load_tiny_backend(
    base: Path, *, max_slots: int = 8, max_rank: int = 32, gradient_checkpointing: bool = False
) -> tuple[TransformersBackend, SlotPool]:
    """Load a base folder in fp32 on the CPU and attach an empty slot pool."""
    backend = open_transformers_backend(
        base, dtype=torch.float32, device="cpu", gradient_checkpointing=gradient_checkpointing
    )
    slots = SlotPool(backend.linears, max_slots=max_slots, max_rank=max_rank, device="cpu", compute_dtype=torch.float32)
    backend.attach(slots)
    return backend, slots
