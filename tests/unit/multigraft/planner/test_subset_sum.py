from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from multigraft.planner.subset_sum import MAX_CANDIDATES, choose_subset


def best_sum(lengths: list[int], room: int) -> int:
    sums = [sum(c) for k in range(len(lengths) + 1) for c in combinations(lengths, k)]
    return max(total for total in sums if total <= room)


@pytest.mark.parametrize("seed", range(30))
def test_the_sum_is_the_best_that_exhaustive_search_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = sorted(rng.integers(1, 60, rng.integers(1, 11)).tolist(), reverse=True)
    room = int(rng.integers(1, 200))
    chosen = choose_subset(lengths, room)
    assert chosen == sorted(set(chosen))
    assert sum(lengths[i] for i in chosen) == best_sum(lengths, room)


@pytest.mark.parametrize(
    "lengths, room, want",
    [([], 5, []), ([3], 0, []), ([3], -7, []), ([3], 2, []), ([3, 2], 5, [0, 1]), ([4, 2, 2], 4, [0])],
    ids=["nothing", "no room", "negative room", "too long", "all fit", "the longer one of equal sums"],
)
def test_edges(lengths: list[int], room: int, want: list[int]) -> None:
    assert choose_subset(lengths, room) == want


@pytest.mark.parametrize("count", [MAX_CANDIDATES + 1, 500, 5000])
@pytest.mark.parametrize("room", [100, 6144, 100_000])
def test_many_samples_fill_the_room_nearly_and_never_more(count: int, room: int) -> None:
    rng = np.random.default_rng(count)
    lengths = sorted(rng.integers(16, 400, count).tolist(), reverse=True)
    total = sum(lengths[i] for i in choose_subset(lengths, room))
    assert total <= room
    assert total >= min(0.98 * room, sum(lengths))


def test_a_long_room_is_counted_in_coarser_units_and_never_overfilled() -> None:
    lengths = [40_001] * 30
    assert len(choose_subset(lengths, 1_000_000)) == 24
