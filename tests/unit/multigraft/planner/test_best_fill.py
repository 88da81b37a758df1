from __future__ import annotations

import pytest

from builders.planning import make_random_work, make_work
from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.plan import JobWork, Plan, PlanLimits
from multigraft.planner.verify import verify_plan


def fill(work: list[JobWork], limits: PlanLimits, target: int | None = None, enough: float = 1.0) -> Plan:
    plan = Plan(limits, tuple(fill_best(work, limits, FillPolicy(target or limits.token_capacity, enough))))
    assert verify_plan(plan, work) == []
    return plan


def jobs_of(plan: Plan) -> list[str]:
    return ["+".join(f"{s.job}{s.step}" for s in m.segments) for m in plan.microbatches]


def test_the_tail_of_one_step_shares_a_microbatch_with_the_head_of_another_jobs_step() -> None:
    plan = fill([make_work("a", [60, 60], [60, 60]), make_work("b", [40, 40], [40, 40])], PlanLimits(100))
    assert plan.fill == 1.0
    assert jobs_of(plan) == ["a0+b0", "a0+b0", "a1+b1", "a1+b1"]


def test_a_job_runs_through_its_step_before_the_next_one_leads() -> None:
    plan = fill([make_work(name, [50] * 4, [50] * 4) for name in "ab"], PlanLimits(100, 1, 2))
    assert jobs_of(plan) == ["a0", "a0", "b0", "b0", "a1", "a1", "b1", "b1"]


def test_no_ops_only_where_no_job_may_run() -> None:
    plan = fill([make_work("a", [50], [50])], PlanLimits(100, 1, 4))
    assert jobs_of(plan) == ["a0", "", "", "", "a1"]


def test_higher_priority_leads_among_jobs_at_the_same_step() -> None:
    work = [make_work("a", [90], [90]), make_work("b", [90], [90], priority=5)]
    assert jobs_of(fill(work, PlanLimits(100))) == ["b0", "a0", "b1", "a1"]


def test_jobs_with_unequal_numbers_of_steps_end_together() -> None:
    plan = fill([make_work("a", *[[90]] * 8), make_work("b", *[[90]] * 4)], PlanLimits(100))
    assert jobs_of(plan)[-2:] == ["b3", "a7"] or jobs_of(plan)[-2:] == ["a7", "b3"]


def test_a_lower_target_makes_more_and_smaller_microbatches_but_takes_long_samples() -> None:
    work = [make_work("a", [100, 30, 30, 30, 30])]
    assert [m.num_tokens for m in fill(work, PlanLimits(100), target=60).microbatches] == [100, 60, 60]


def test_enough_keeps_a_microbatch_to_few_jobs() -> None:
    work = [make_work(name, [80, 10]) for name in "abc"]
    assert jobs_of(fill(work, PlanLimits(100), enough=0.9)) == ["a0", "b0", "c0"]


def test_distance_owed_to_an_earlier_plan_is_kept() -> None:
    limits = PlanLimits(100, 1, 3)
    work = [make_work("a", [50], first_step=4), make_work("b", [90])]
    microbatches = fill_best(work, limits, FillPolicy(100), {"a": 2})
    plan = Plan(limits, tuple(microbatches))
    assert verify_plan(plan, work, earliest_slots={"a": 2}) == []
    assert jobs_of(plan) == ["b0", "", "a4"]


@pytest.mark.parametrize("num_jobs", [1, 2, 3, 5, 16, 64])
@pytest.mark.parametrize("num_stages, num_replicas", [(1, 1), (1, 4), (4, 1), (8, 2)])
def test_any_number_of_jobs_on_any_machine(num_jobs: int, num_stages: int, num_replicas: int) -> None:
    fill(make_random_work(num_jobs, num_jobs=num_jobs, num_steps=3), PlanLimits(4096, 64, num_stages, num_replicas))


def test_a_huge_global_batch_of_short_samples_fills_well() -> None:
    plan = fill(make_random_work(0, num_jobs=1, num_steps=1, batch_size=6000, mu=3.5), PlanLimits(8192))
    assert plan.fill > 0.98
