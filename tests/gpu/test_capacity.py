"""Auto on a real GPU: memory really runs out, and afterwards everything is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builders.tiny_base import make_tiny_base
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.backends.transformers_backend import TransformersBackend, open_transformers_backend
from multigraft_trainer.capacity.device_memory import KEPT_BACK_SHARE, free_memory, keep_memory_back
from multigraft_trainer.capacity.measure import MOST_TOKENS, measure_capacity
from multigraft_trainer.capacity.trials import TrialPool, open_trials

ROOM_BYTES = 2 * 2**30
LIBRARY_BYTES = 64 * 2**20  # cuBLAS takes its workspace with the first product of a kind, and keeps it


@pytest.fixture
def pool_on_gpu(tmp_path: Path) -> tuple[TransformersBackend, SlotPool, TrialPool]:
    folder = make_tiny_base(
        tmp_path, layers=8, hidden_size=512, head_dim=64, intermediate_size=2048, max_position_embeddings=131_072
    )
    backend = open_transformers_backend(folder, dtype=torch.bfloat16, device="cuda")
    slots = SlotPool(backend.linears, max_slots=4, max_rank=16, device="cuda", compute_dtype=torch.bfloat16)
    backend.attach(slots)
    return backend, slots, TrialPool(4, 16, tuple(backend.linears), 1, backend.max_positions)


def take_all_but(room_bytes: int) -> torch.Tensor:
    """Take the device's memory, but for some room and the share that trials leave alone."""
    free_memory()
    free, total = torch.cuda.mem_get_info()
    size = min(free, int((1 - KEPT_BACK_SHARE) * total) - torch.cuda.memory_reserved()) - room_bytes
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def test_the_largest_microbatch_is_found_where_memory_ends(
    pool_on_gpu: tuple[TransformersBackend, SlotPool, TrialPool],
) -> None:
    backend, slots, pool = pool_on_gpu
    ballast = take_all_but(ROOM_BYTES)
    before = torch.cuda.memory_allocated()
    with keep_memory_back(backend.device), open_trials(backend, slots, pool) as trials:
        got = measure_capacity(trials, max_slots=4, tile_tokens=1, longest_sample=pool.longest_sample)
        assert 128 <= got.tokens < got.largest_fit < MOST_TOKENS, "memory ended the search, not its range"
        assert "out of memory" in trials.last_refusal
        assert trials.fits(got.tokens)
    assert torch.cuda.memory_allocated() <= before + LIBRARY_BYTES, "everything was given back"
    assert got.cost.forward_token_ms > 0
    assert got.cost.backward_token_ms > 0
    del ballast
    free_memory()


def test_the_share_that_is_kept_back_is_given_back(
    pool_on_gpu: tuple[TransformersBackend, SlotPool, TrialPool],
) -> None:
    backend, _, _ = pool_on_gpu
    total = torch.cuda.mem_get_info()[1]
    with keep_memory_back(backend.device), pytest.raises(torch.OutOfMemoryError):
        torch.empty(int(total * (1 - KEPT_BACK_SHARE / 2)), dtype=torch.uint8, device="cuda")
    free_memory()
    free = torch.cuda.mem_get_info()[0]
    size = min(free - 2**30, int(total * (1 - KEPT_BACK_SHARE / 2)))
    assert torch.empty(size, dtype=torch.uint8, device="cuda").numel() == size
    free_memory()
