from __future__ import annotations

import pytest

from builders.planning import make_random_work, make_work
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import Plan, PlanLimits
from multigraft.planner.verify import verify_plan


@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("num_jobs", [1, 3, 8])
def test_greedy_plans_verify_on_any_machine(num_stages: int, num_replicas: int, num_jobs: int) -> None:
    work = make_random_work(num_jobs, num_jobs=num_jobs)
    limits = PlanLimits(4096, 64, num_stages, num_replicas)
    plan = plan_horizon(work, limits, solver_timeout_seconds=0)
    assert verify_plan(plan, work) == []
    assert plan.lower_bound <= sum(1 for m in plan.microbatches if m.segments)


def test_the_same_work_gives_the_same_plan() -> None:
    work = make_random_work(0)
    plans = [plan_horizon(work, PlanLimits(4096, 64, 2), solver_timeout_seconds=0) for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0].hash == plans[1].hash


def test_a_plan_reads_back_from_its_json() -> None:
    plan = plan_horizon(make_random_work(0), PlanLimits(4096, 64, 2, 2), solver_timeout_seconds=0)
    assert Plan.from_json(plan.to_json()) == plan


def test_jobs_advance_evenly_in_steps() -> None:
    work = [make_work("a", *[[10] * 4] * 5), make_work("b", *[[10] * 4] * 5), make_work("c", *[[10] * 4] * 5)]
    plan = plan_horizon(work, PlanLimits(20), solver_timeout_seconds=0)
    reached = dict.fromkeys("abc", 0)
    for microbatch in plan.microbatches:
        for segment in microbatch.segments:
            reached[segment.job] = segment.step
        assert max(reached.values()) - min(reached.values()) <= 1


@pytest.mark.parametrize(
    "work",
    [[], [make_work("a")], [make_work("a"), make_work("b", [5])]],
    ids=["no jobs", "a job without batches", "G15 a job without batches beside another"],
)
def test_G15_little_work_makes_a_small_plan(work: list) -> None:
    plan = plan_horizon(work, PlanLimits(10), solver_timeout_seconds=0)
    assert verify_plan(plan, work) == []
    assert len(plan.microbatches) == sum(len(job.global_batches) for job in work)


def test_work_that_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ValueError, match="job a: draw 0 of step 0 has 11 tokens, a microbatch takes 10"):
        plan_horizon([make_work("a", [11])], PlanLimits(10), solver_timeout_seconds=0)
    with pytest.raises(ValueError, match="solver_timeout_seconds: got -1"):
        plan_horizon([], PlanLimits(10), solver_timeout_seconds=-1)
