from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builders.planning import make_random_work, make_work
from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.cost import CostModel
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import Outcome, Plan, PlanLimits
from multigraft.planner.rounds import build_rounds, build_units
from multigraft.planner.simulate import simulate
from multigraft.planner.solver_pool import SolverPool
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


HARD = [make_work("a", [21, 29, 16, 11, 28, 14, 34, 24])]  # 3 microbatches of 60 are enough, greedy needs 4


def test_a_solver_finds_what_greedy_misses_and_the_plan_says_so() -> None:
    cost = CostModel(forward_fixed_ms=100)
    with SolverPool(num_workers=1) as solver:
        plan = plan_horizon(HARD, PlanLimits(60), solver_timeout_seconds=60, solver=solver, cost=cost)
    assert plan.num_microbatches == 3
    assert plan.outcome is Outcome.OPTIMAL
    assert plan.gap == 0


@pytest.mark.parametrize("answer", ["[0] * 8", "list(range(8))", "[0]", "None", "'all'"])
def test_a_lying_solver_leaves_the_greedy_plan(answer: str, tmp_path: Path) -> None:
    program = tmp_path / "stub.py"
    program.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        f"    print(json.dumps(dict(id=json.loads(line)['id'], binOf={answer}, fewestProved=True, "
        "smallestProved=True)), flush=True)\n"
    )
    greedy = plan_horizon(NEAR, NEAR_LIMITS, solver_timeout_seconds=0)
    with SolverPool(num_workers=1, command=(sys.executable, str(program))) as solver:
        plan = plan_horizon(NEAR, NEAR_LIMITS, solver_timeout_seconds=5, solver=solver)
    assert plan.hash == greedy.hash
    assert sum(count for _, count in plan.solver_use.failures) == plan.solver_use.num_asked > 0


NEAR = make_random_work(2, num_jobs=2, num_steps=2, mu=7.0)
NEAR_LIMITS = PlanLimits(4096, 64)


def test_without_a_solver_the_plan_says_that_none_was_asked() -> None:
    plan = plan_horizon(NEAR, NEAR_LIMITS, solver_timeout_seconds=10)
    assert plan.outcome is Outcome.GREEDY
    assert plan.solver_use.num_asked == 0
    assert plan.solver_use.detail == "no solver was to be asked"


def test_G14_the_fill_is_never_below_first_fit_decreasing() -> None:
    work = make_random_work(14, num_jobs=1, num_steps=1, batch_size=400)
    limits = PlanLimits(4096)
    plan = plan_horizon(work, limits, solver_timeout_seconds=0)
    unit = build_units(work, limits)[0]
    greedy = Plan(limits, tuple(build_rounds([unit], [unit.problem.greedy], work, limits)))
    assert plan.fill >= greedy.fill
    assert plan.fill > 0.97


def test_a_starved_pipeline_may_be_filled_less_to_end_sooner() -> None:
    work = make_random_work(0, num_jobs=1, num_steps=6, batch_size=16)
    limits = PlanLimits(8192, 64, 4)
    plan = plan_horizon(work, limits, solver_timeout_seconds=0)
    full = Plan(limits, tuple(fill_best(work, limits, FillPolicy(8192))))
    assert simulate(plan, CostModel()).makespan_ms < 0.8 * simulate(full, CostModel()).makespan_ms


def test_a_huge_global_batch_is_planned_without_packing_by_rounds() -> None:
    work = make_random_work(0, num_jobs=1, num_steps=1, batch_size=20_000)
    plan = plan_horizon(work, PlanLimits(8192, 64), solver_timeout_seconds=0)
    assert plan.packer == "best-fill"
    assert plan.fill > 0.97
