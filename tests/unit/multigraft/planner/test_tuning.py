from __future__ import annotations

from builders.planning import make_random_work, make_work
from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.cost import CostModel
from multigraft.planner.plan import Plan, PlanLimits
from multigraft.planner.simulate import simulate
from multigraft.planner.tuning import choose_fill_policy


def span_ms(work: list, limits: PlanLimits, policy: FillPolicy) -> float:
    return simulate(Plan(limits, tuple(fill_best(work, limits, policy))), CostModel()).makespan_ms


def test_one_stage_fills_to_the_capacity() -> None:
    assert choose_fill_policy(make_random_work(0), PlanLimits(4096), CostModel()) == FillPolicy(4096)


def test_a_starving_pipeline_gets_smaller_microbatches_and_ends_sooner() -> None:
    work = make_random_work(0, num_jobs=1, num_steps=6, batch_size=16)
    limits = PlanLimits(8192, 64, 4)
    policy = choose_fill_policy(work, limits, CostModel())
    assert policy.target_tokens < 8192
    assert span_ms(work, limits, policy) < 0.8 * span_ms(work, limits, FillPolicy(8192))


def test_many_jobs_keep_the_pipeline_busy_with_full_microbatches() -> None:
    work = make_random_work(0, num_jobs=16, num_steps=4, batch_size=16, mu=7.0)
    assert choose_fill_policy(work, PlanLimits(6144, 64, 4), CostModel()).target_tokens >= 0.8 * 6144


def test_a_fixed_cost_that_outweighs_all_keeps_microbatches_full() -> None:
    work = make_random_work(0, num_jobs=1, num_steps=4)
    cost = CostModel(forward_fixed_ms=1e6, backward_fixed_ms=1e6)
    limits = PlanLimits(4096, 1, 4)
    policy = choose_fill_policy(work, limits, cost)
    assert len(fill_best(work, limits, policy)) == len(fill_best(work, limits, FillPolicy(4096)))


def test_a_target_is_never_below_one_tile() -> None:
    policy = choose_fill_policy([make_work("a", [1] * 8)], PlanLimits(64, 64, 4), CostModel())
    assert policy.target_tokens >= 64
