"""Builders of packing problems, and the exhaustive search that solves small ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multigraft.planner.bounds import bound_one_batch
from multigraft.planner.packing import Item, pack_first_fit_decreasing
from multigraft.planner.packing_problem import PackingProblem
from multigraft.planner.plan import PlanLimits, SampleRef


def make_problem(
    lengths: Sequence[int], adapters: Sequence[int] | None = None, *, capacity: int, tile: int = 1
) -> PackingProblem:
    """Make the problem of packing the samples, with its greedy packing and bound."""
    owners = list(adapters) if adapters is not None else [0] * len(lengths)
    items = [Item(owner, 0, SampleRef(i, n)) for i, (owner, n) in enumerate(zip(owners, lengths, strict=True))]
    greedy = pack_first_fit_decreasing(items, token_capacity=capacity, tile_tokens=tile)
    per_adapter = [np.array([n for n, o in zip(lengths, owners, strict=True) if o == a]) for a in sorted(set(owners))]
    bound = bound_one_batch(per_adapter, PlanLimits(capacity, tile))
    return PackingProblem(tuple(lengths), tuple(owners), capacity, tile, bound, tuple(greedy.tolist()))


def make_random_problem(seed: int, *, num_samples: int, num_adapters: int, capacity: int, tile: int) -> PackingProblem:
    """Make a problem with log-normal lengths, at most the capacity."""
    rng = np.random.default_rng(seed)
    longest = capacity // tile * tile
    lengths = np.clip(rng.lognormal(np.log(capacity / 4), 0.7, num_samples), 1, longest).astype(int).tolist()
    return make_problem(lengths, rng.integers(0, num_adapters, num_samples).tolist(), capacity=capacity, tile=tile)


def search_exhaustively(problem: PackingProblem) -> tuple[int, int]:
    """Give the fewest bins and, with that many, the fewest tiles of the smallest bin. For up to about nine samples."""
    best = (len(problem.lengths) + 1, 0)

    def tiles(content: dict[int, int]) -> int:
        return sum(-(-total // problem.tile_tokens) for total in content.values())

    def place(sample: int, bins: list[dict[int, int]]) -> None:
        nonlocal best
        if len(bins) > best[0]:
            return
        if sample == len(problem.lengths):
            best = min(best, (len(bins), min(tiles(content) for content in bins)))
            return
        adapter, length = problem.adapters[sample], problem.lengths[sample]
        for index in range(len(bins) + 1):
            content = dict(bins[index]) if index < len(bins) else {}
            content[adapter] = content.get(adapter, 0) + length
            if tiles(content) <= problem.capacity_tiles:
                place(sample + 1, [*bins[:index], content, *bins[index + 1 :]])

    place(0, [])
    return best
