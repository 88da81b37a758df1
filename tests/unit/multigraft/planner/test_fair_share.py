from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigraft.planner.fair_share import (
    MAX_CLASS,
    MAX_HORIZON_MICROBATCHES,
    MAX_LAG_STEPS,
    MAX_STEPS_RATIO,
    JobShare,
    settle_horizon,
    share_horizon,
)
from multigraft.planner.plan import PlanLimits

NUM_EXAMPLES = int(os.environ.get("MULTIGRAFT_PROPERTY_EXAMPLES", "60"))
LIMITS = PlanLimits(100)


@pytest.mark.parametrize(
    "jobs, count, want",
    [
        ([JobShare("a", 100, 99), JobShare("b", 100, 99)], 4, {"a": 4, "b": 4}),
        ([JobShare("a", 300, 99), JobShare("b", 100, 99)], 4, {"a": 3, "b": 7}),
        ([JobShare("a", 100, 99, priority=7), JobShare("b", 100, 99, priority=-9)], 6, {"a": 8, "b": 4}),
        ([JobShare("a", 100, 99, lag_tokens=-400), JobShare("b", 100, 99)], 4, {"a": 2, "b": 6}),
        ([JobShare("a", 100, 99, lag_tokens=-9999), JobShare("b", 100, 99)], 4, {"a": 1, "b": 7}),
        ([JobShare("a", 100, 2), JobShare("b", 100, 99)], 4, {"a": 2, "b": 6}),
        ([JobShare("a", 100, 0), JobShare("b", 100, 1)], 4, {"a": 0, "b": 1}),
        ([JobShare("a", 100, 99), JobShare("b", 1, 99)], 2, {"a": 2, "b": 2}),
        ([JobShare("a", 500, 99), JobShare("b", 1, 99)], 2, {"a": 2, "b": 8}),
        ([JobShare("a", 5_000, 99)], 4, {"a": 1}),
        ([JobShare("a", 1_600, 99)], 99, {"a": 4}),
        ([], 4, {}),
    ],
    ids=[
        "equal jobs share equally",
        "a job with small steps gets more of them",
        "a higher priority gets twice the tokens, however much higher it is",
        "one that got more than its neighbour waits for it",
        "and gets one global batch all the same",
        "a job that ends leaves its share",
        "no more than there is",
        "a job of tiny steps gets no more of them than there are slots to run them in",
        "nor more than four times the mean",
        "one global batch of a plan of its own, however large",
        "a plan ends when 64 microbatches are full",
        "no jobs",
    ],
)
def test_share(jobs: list[JobShare], count: int, want: dict[str, int]) -> None:
    assert share_horizon(jobs, LIMITS, count) == want


def test_a_plan_of_many_replicas_holds_that_many_times_the_microbatches() -> None:
    job = JobShare("a", 100 * MAX_HORIZON_MICROBATCHES, 99)
    assert share_horizon([job], LIMITS, 99) == {"a": 1}
    assert share_horizon([job], PlanLimits(100, num_replicas=3), 99) == {"a": 3}


def test_a_pipeline_gives_a_job_no_more_steps_than_its_distances_allow() -> None:
    jobs = [JobShare("a", 400, 99), JobShare("b", 100, 99)]
    assert share_horizon(jobs, PlanLimits(100), 4) == {"a": 3, "b": 8}
    assert share_horizon(jobs, PlanLimits(100, num_stages=4), 4) == {"a": 4, "b": 5}


@pytest.mark.parametrize(
    "shares, done, want",
    [
        ([JobShare("a", 100, 9), JobShare("b", 100, 9)], {"a": 4, "b": 4}, {"a": 0, "b": 0}),
        ([JobShare("a", 300, 9), JobShare("b", 100, 9)], {"a": 3, "b": 7}, {"a": -100, "b": 100}),
        ([JobShare("a", 100, 9, priority=1), JobShare("b", 100, 9)], {"a": 8, "b": 4}, {"a": 0, "b": 0}),
        ([JobShare("a", 100, 9, lag_tokens=80), JobShare("b", 100, 9)], {"a": 1, "b": 1}, {"a": 40, "b": -40}),
        ([JobShare("a", 10, 9, lag_tokens=500), JobShare("b", 10, 9)], {"a": 0, "b": 4}, {"a": 80, "b": -80}),
        ([], {}, {}),
    ],
    ids=["even", "tokens count, not steps", "weights", "an older lag goes on", "old claims are bounded", "no jobs"],
)
def test_lag(shares: list[JobShare], done: dict[str, int], want: dict[str, float]) -> None:
    assert settle_horizon(shares, done) == want


@settings(max_examples=NUM_EXAMPLES, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(50, 400), st.integers(0, 5)), min_size=1, max_size=8),
    st.integers(1, 8),
    st.lists(st.floats(0.2, 1), min_size=30, max_size=30),
)
def test_no_job_starves_and_tokens_per_weight_stay_even_over_plans_that_are_cut_short(
    kinds: list[tuple[int, int]], count: int, cuts: list[float]
) -> None:
    jobs = [JobShare(f"j{i}", tokens, 10**6, priority) for i, (tokens, priority) in enumerate(kinds)]
    classes = sorted({job.priority for job in jobs})
    weights = {job.job: 2 ** min(MAX_CLASS, classes.index(job.priority)) for job in jobs}
    served: Counter[str] = Counter()
    limited: set[str] = set()
    for cut in cuts:
        granted = share_horizon(jobs, PlanLimits(64), count)
        assert min(granted.values()) >= 1
        assert max(granted.values()) <= MAX_STEPS_RATIO * count
        limited |= {job for job, steps in granted.items() if steps in (1, max(granted.values()))}
        done = {job: max(1, int(steps * cut)) for job, steps in granted.items()}
        for job in jobs:
            served[job.job] += done[job.job] * job.step_tokens
        lags = settle_horizon(jobs, done)
        jobs = [replace(job, lag_tokens=lags[job.job]) for job in jobs]
    free = [served[job.job] / weights[job.job] for job in jobs if job.job not in limited]
    most = MAX_LAG_STEPS * sum(job.step_tokens for job in jobs) / len(jobs)
    assert all(abs(job.lag_tokens) <= most for job in jobs)
    if free:
        assert max(free) - min(free) <= 2 * most


@pytest.mark.parametrize(
    "steps", [{"a": 900, "b": 300, "c": 120}, {"a": 500, "b": 499, "c": 501, "d": 250}], ids=["uneven", "nearly even"]
)
def test_served_tokens_stay_within_a_step_over_many_horizons(steps: dict[str, int]) -> None:
    jobs = [JobShare(job, tokens, 10**6) for job, tokens in steps.items()]
    served = dict.fromkeys(steps, 0)
    for _ in range(50):
        granted = share_horizon(jobs, LIMITS, 4)
        for job in jobs:
            served[job.job] += granted[job.job] * job.step_tokens
        lags = settle_horizon(jobs, granted)
        jobs = [replace(job, lag_tokens=lags[job.job]) for job in jobs]
    assert max(served.values()) - min(served.values()) <= 2 * max(steps.values())


def test_a_job_that_joins_takes_nothing_back_that_others_had_before() -> None:
    old = [JobShare("a", 100, 10**6), JobShare("b", 100, 10**6)]
    for _ in range(100):
        lags = settle_horizon(old, share_horizon(old, LIMITS, 4))
        old = [replace(job, lag_tokens=lags[job.job]) for job in old]
    assert share_horizon([*old, JobShare("new", 100, 10**6)], LIMITS, 4) == {"a": 4, "b": 4, "new": 4}


@pytest.mark.parametrize("job", [JobShare("a", 0, 1), JobShare("a", 1, -1)])
def test_numbers_out_of_range_are_refused(job: JobShare) -> None:
    with pytest.raises(ValueError, match="job a"):
        share_horizon([job], LIMITS, 1)


def test_a_horizon_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_global_batches: got 0"):
        share_horizon([], LIMITS, 0)
