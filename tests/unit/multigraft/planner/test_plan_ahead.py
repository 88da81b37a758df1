from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from builders.planning import make_random_work, make_work
from multigraft.planner.plan import JobWork, PlanLimits
from multigraft.planner.plan_ahead import PlanAhead
from multigraft.planner.solver_pool import SolverPool
from multigraft.planner.verify import verify_plan

LIMITS = PlanLimits(4096, 64)


def wait_for(ahead: PlanAhead, work: list[JobWork]) -> None:
    end = time.monotonic() + 60
    while not ahead.start(work) and time.monotonic() < end:
        time.sleep(0.01)


def test_the_plan_made_ahead_is_taken_when_the_work_is_the_same() -> None:
    work = make_random_work(0)
    ahead = PlanAhead(LIMITS, solver_timeout_seconds=0)
    assert ahead.start(work)
    wait_for(ahead, work)
    wait_for(ahead, work)
    first = ahead.take(list(work))
    assert verify_plan(first, work) == []
    ahead.close()


def test_a_change_of_jobs_makes_it_void_and_a_greedy_plan_comes_at_once() -> None:
    work = make_random_work(0)
    changed = work[1:]
    ahead = PlanAhead(LIMITS, solver_timeout_seconds=0)
    ahead.start(work)
    plan = ahead.take(changed)
    assert verify_plan(plan, changed) == []
    ahead.close()


def test_training_never_waits_for_a_solver_that_hangs(tmp_path: Path) -> None:
    program = tmp_path / "stub.py"
    program.write_text("import time\ntime.sleep(600)\n")
    pool = SolverPool(num_workers=1, command=(sys.executable, str(program)))
    work = make_random_work(3, num_jobs=8, mu=7.0)
    ahead = PlanAhead(LIMITS, solver_timeout_seconds=300, solver=pool)
    assert ahead.start(work)
    plan = ahead.take(work)
    assert verify_plan(plan, work) == []
    assert plan.solver_use.num_asked == 0
    assert not ahead.start(work), "the solver still has the first plan"
    pool.cancel()
    ahead.close()
    pool.close()


def test_a_solver_takes_part_when_there_is_time() -> None:
    work = [make_work("a", [21, 29, 16, 11, 28, 14, 34, 24])]
    ahead = PlanAhead(PlanLimits(60), solver_timeout_seconds=60)
    assert ahead.take(work).num_microbatches == 4, "greedy, at once"
    assert ahead.start(work)
    plans = (ahead.take(work) for _ in range(6000) if not time.sleep(0.01))
    plan = next(plan for plan in plans if plan.packer == "rounds+solver")
    ahead.close()
    assert plan.num_microbatches == 3


def test_work_that_cannot_be_planned_is_refused_when_it_is_taken() -> None:
    ahead = PlanAhead(PlanLimits(10), solver_timeout_seconds=0)
    work = [make_work("a", [11])]
    ahead.start(work)
    with pytest.raises(ValueError, match="a microbatch takes 10"):
        ahead.take(work)
    ahead.close()


class BrokenPool(SolverPool):
    """A pool whose event loop fails in a way that nobody thought of."""

    def solve(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("no such thing")


def test_a_fault_of_the_solver_pool_itself_leaves_the_greedy_plan() -> None:
    work = make_random_work(2, num_jobs=2, num_steps=2, mu=7.0)
    pool = BrokenPool(num_workers=1)
    ahead = PlanAhead(LIMITS, solver_timeout_seconds=5, solver=pool)
    wait_for(ahead, work)
    wait_for(ahead, work)
    plan = ahead.take(work)
    assert verify_plan(plan, work) == []
    ahead.close()
