"""Work for the planner's benchmark: real length lists, and log-normal lengths of one mean and many spreads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multigraft.planner.plan import JobWork
from multigraft.planner.sample_order import SampleOrder

LENGTHS = Path(__file__).parent / "lengths"
LONGEST = 4096


@dataclass(frozen=True)
class Setting:
    """One machine and batch size of LoRAFusion's benchmark scripts, on one stand-in for its dataset."""

    name: str
    datasets: tuple[str, ...]  # of each adapter by turns
    batch_size: int
    token_capacity: int
    num_stages: int


SETTINGS = (
    Setting("XSum-like, 8B, 1 GPU", ("docstrings",), 8, 6656, 1),
    Setting("CNN/DM-like, 8B, 1 GPU", ("chitchat",), 8, 6144, 1),
    Setting("WikiSum-like, 8B, 1 GPU", ("manpages",), 8, 6144, 1),
    Setting("heterogeneous, 8B, 1 GPU", ("docstrings", "chitchat", "manpages"), 8, 6144, 1),
    Setting("XSum-like, 70B, 4 stages", ("docstrings",), 16, 4096, 4),
    Setting("CNN/DM-like, 70B, 4 stages", ("chitchat",), 16, 6144, 4),
    Setting("WikiSum-like, 70B, 4 stages", ("manpages",), 16, 7168, 4),
    Setting("heterogeneous, 70B, 4 stages", ("docstrings", "chitchat", "manpages"), 16, 6144, 4),
)


def load_lengths(name: str) -> list[int]:
    """Load one list of tokens per sample."""
    return list(json.loads((LENGTHS / f"{name}.json").read_text(encoding="utf-8")))


def build_work(setting: Setting, num_adapters: int, num_steps: int) -> list[JobWork]:
    """Build jobs that each visit their dataset in an order of their own; epochs follow one another."""
    lists = [load_lengths(setting.datasets[index % len(setting.datasets)]) for index in range(num_adapters)]
    return _build(lists, setting.batch_size, num_steps)


def build_log_normal_work(
    sigma: float, *, mean: float, num_adapters: int, batch_size: int, num_steps: int
) -> list[JobWork]:
    """Build jobs whose lengths are log-normal with this mean (before the cut at `LONGEST`) and sigma."""
    rng = np.random.default_rng(int(sigma * 100))
    mu = np.log(mean) - sigma**2 / 2
    lists = [
        np.clip(rng.lognormal(mu, sigma, batch_size * num_steps), 16, LONGEST).astype(int).tolist()
        for _ in range(num_adapters)
    ]
    return _build(lists, batch_size, num_steps)


def _build(lists: Sequence[Sequence[int]], batch_size: int, num_steps: int) -> list[JobWork]:
    work = []
    for index, lengths in enumerate(lists):
        order = SampleOrder(index, len(lengths), batch_size)
        batches = tuple(order.build_global_batch(step, lengths) for step in range(num_steps))
        work.append(JobWork(f"bench/adapter-{index}", batches))
    return work
