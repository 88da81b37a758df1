from __future__ import annotations

import pytest

from builders.planning import make_work
from multigraft.planner.grouping import group_jobs
from multigraft.planner.plan import PlanLimits


def jobs(*means: int, batch: int = 8) -> list:
    return [make_work(f"j{i}", [mean] * batch, [mean] * batch) for i, mean in enumerate(means)]


@pytest.mark.parametrize(
    "means, limits, want",
    [
        ([400, 100, 300, 200], PlanLimits(1000), [[0, 1, 2, 3]]),
        ([400, 100, 300, 200], PlanLimits(400, 1, 4), [[0, 1], [2, 3]]),
        ([100, 100, 100, 100], PlanLimits(1000, 1, 4), [[0], [1], [2], [3]]),
        ([400], PlanLimits(400, 1, 8), [[0]]),
        ([400, 300, 200, 100, 50, 25], PlanLimits(400, 1, 3), [[0, 3, 4], [1, 2, 5]]),
        ([400, 100, 300, 200], PlanLimits(400, 1, 2, 16), [[0], [2], [3], [1]]),
    ],
    ids=[
        "one stage needs one group",
        "the longest goes with the shortest",
        "small steps need every job apart",
        "one job is one group",
        "groups of more than two",
        "replicas need more microbatches per slot",
    ],
)
def test_fewest_groups_that_keep_the_distance(means: list[int], limits: PlanLimits, want: list[list[int]]) -> None:
    assert group_jobs(jobs(*means), limits) == want


@pytest.mark.parametrize("count", range(1, 65))
def test_every_number_of_jobs_is_grouped_whole(count: int) -> None:
    groups = group_jobs(jobs(*range(20, 20 + count)), PlanLimits(512, 1, 4))
    assert sorted(index for group in groups for index in group) == list(range(count))
    assert all(groups)


def test_jobs_without_work_are_in_no_group() -> None:
    assert group_jobs([make_work("a"), make_work("b", [5])], PlanLimits(10)) == [[1]]
    assert group_jobs([], PlanLimits(10)) == []
