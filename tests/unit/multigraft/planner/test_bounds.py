from __future__ import annotations

import numpy as np
import pytest

from builders.packing_problems import make_random_problem, search_exhaustively
from builders.planning import make_work
from multigraft.planner.bounds import bound_big_items, bound_microbatches
from multigraft.planner.plan import PlanLimits


@pytest.mark.parametrize(
    "lengths, want",
    [([60], 1), ([30, 30], 1), ([31, 30], 2), ([31, 31, 31], 3), ([40, 40, 30, 30], 3), ([20] * 7, 3)],
    ids=[
        "one full",
        "two halves",
        "one token too many",
        "three over half",
        "halves do not go with long ones",
        "area",
    ],
)
def test_bound_of_one_dimension(lengths: list[int], want: int) -> None:
    assert bound_big_items(np.array(lengths, dtype=np.int64), 60) == want


@pytest.mark.parametrize("tile", [1, 8, 16])
@pytest.mark.parametrize("seed", range(10))
def test_the_bound_is_never_above_the_best_packing(seed: int, tile: int) -> None:
    problem = make_random_problem(seed, num_samples=8, num_adapters=3, capacity=64, tile=tile)
    assert problem.min_bins <= search_exhaustively(problem)[0]


@pytest.mark.parametrize(
    "work, limits, want",
    [
        ([], PlanLimits(10), 0),
        ([make_work("a")], PlanLimits(10), 0),
        ([make_work("a", [1], [1], [1])], PlanLimits(10), 3),
        ([make_work("a", [5], [5]), make_work("b", [5], [5])], PlanLimits(10), 2),
        ([make_work("a", [1]), make_work("b", [1])], PlanLimits(16, 8), 1),
        ([make_work("a", [1]), make_work("b", [1]), make_work("c", [1])], PlanLimits(16, 8), 2),
        ([make_work("a", [6, 6], [6, 6])], PlanLimits(10), 4),
    ],
    ids=[
        "no jobs",
        "no batches",
        "steps of one job never share",
        "steps of two jobs do",
        "a tile each",
        "three tiles in two",
        "long samples of each step",
    ],
)
def test_bound_of_work(work: list, limits: PlanLimits, want: int) -> None:
    assert bound_microbatches(work, limits) == want
