from __future__ import annotations

import pytest

from builders.planning import make_random_work, make_work
from multigraft.planner.baselines import FixedBatching, simulate_gpipe, simulate_megatron, simulate_mlora
from multigraft.planner.cost import CostModel
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import PlanLimits
from multigraft.planner.simulate import simulate

UNIT = CostModel(1.0, 0.0, 0.0, 1.0, 0.0, 0.0, no_op_ms=0.0)
LIMITS = PlanLimits(4096, 64, 4)


def test_a_flush_per_global_batch_costs_three_of_seven_places_with_four_microbatches() -> None:
    work = [make_work("a", *[[10] * 16] * 3)]
    for simulate_baseline in (simulate_megatron, simulate_gpipe):
        timeline = simulate_baseline(work, LIMITS, FixedBatching(4), UNIT)
        assert timeline.bubble_ratio == pytest.approx(3 / 7)
        assert timeline.stale == ()


def test_mlora_fills_the_pipeline_once_it_has_as_many_jobs_as_stages() -> None:
    ratios = [
        simulate_mlora(
            [make_work(f"j{i}", *[[10] * 4] * 40) for i in range(n)], LIMITS, FixedBatching(4), UNIT
        ).bubble_ratio
        for n in (1, 2, 4)
    ]
    assert ratios == pytest.approx([0.75, 0.5, 0.02], abs=0.01)


def test_our_plans_leave_less_idle_than_either_baseline_on_uneven_lengths() -> None:
    work = make_random_work(0, num_jobs=4, num_steps=6, batch_size=16, mu=7.0)
    ours = simulate(plan_horizon(work, LIMITS, solver_timeout_seconds=0), CostModel())
    others = [run(work, LIMITS, FixedBatching(4), CostModel()) for run in (simulate_megatron, simulate_mlora)]
    assert all(ours.makespan_ms < other.makespan_ms for other in others)
    assert all(ours.bubble_ratio < other.bubble_ratio for other in others)


def test_a_replicated_machine_is_compared_by_one_of_its_replicas() -> None:
    work = [make_work("a", *[[10] * 16] * 3)]
    one = simulate_megatron(work, PlanLimits(4096, 64, 4, 2), FixedBatching(4), UNIT)
    assert one.makespan_ms == simulate_megatron(work, LIMITS, FixedBatching(4), UNIT).makespan_ms
