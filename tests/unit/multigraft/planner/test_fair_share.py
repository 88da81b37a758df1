from __future__ import annotations

import pytest

from multigraft.planner.fair_share import JobShare, share_horizon


@pytest.mark.parametrize(
    "jobs, count, want",
    [
        ([JobShare("a", 0, 100, 99), JobShare("b", 0, 100, 99)], 4, {"a": 4, "b": 4}),
        ([JobShare("a", 0, 300, 99), JobShare("b", 0, 100, 99)], 4, {"a": 2, "b": 6}),
        ([JobShare("a", 0, 100, 99, weight=3), JobShare("b", 0, 100, 99)], 4, {"a": 6, "b": 2}),
        ([JobShare("a", 1000, 100, 99), JobShare("b", 0, 100, 99)], 4, {"a": 1, "b": 7}),
        ([JobShare("a", 0, 100, 2), JobShare("b", 0, 100, 99)], 4, {"a": 2, "b": 6}),
        ([JobShare("a", 0, 100, 0), JobShare("b", 0, 100, 1)], 4, {"a": 0, "b": 1}),
        ([], 4, {}),
    ],
    ids=[
        "equal jobs share equally",
        "a job with small steps gets more of them",
        "weights",
        "one that fell behind catches up and no other starves",
        "a job that ends leaves its share",
        "no more than there is",
        "no jobs",
    ],
)
def test_share(jobs: list[JobShare], count: int, want: dict[str, int]) -> None:
    assert share_horizon(jobs, count) == want


def test_served_tokens_stay_even_over_many_horizons() -> None:
    steps = {"a": 900, "b": 300, "c": 120}
    served = dict.fromkeys(steps, 0)
    for _ in range(50):
        shares = share_horizon([JobShare(j, served[j], steps[j], 10**6) for j in steps], 4)
        assert all(shares.values())
        for job, count in shares.items():
            served[job] += count * steps[job]
    assert max(served.values()) - min(served.values()) <= 2 * max(steps.values())


@pytest.mark.parametrize(
    "job", [JobShare("a", 0, 0, 1), JobShare("a", 0, 1, -1), JobShare("a", -1, 1, 1), JobShare("a", 0, 1, 1, weight=0)]
)
def test_numbers_out_of_range_are_refused(job: JobShare) -> None:
    with pytest.raises(ValueError, match="job a"):
        share_horizon([job], 1)


def test_a_horizon_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_global_batches: got 0"):
        share_horizon([], 0)
