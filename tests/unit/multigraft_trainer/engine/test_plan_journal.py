from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import GlobalBatch, JobWork, Plan, PlanLimits, SampleRef
from multigraft_trainer.engine.plan_journal import PlanJournal

LIMITS = PlanLimits(token_capacity=32)


def make_work(first_step: int = 0, *, job: str = "team-a/x") -> list[JobWork]:
    batches = tuple(
        GlobalBatch(step, tuple(SampleRef(draw, 5 + draw % 7) for draw in range(step * 4, step * 4 + 4)))
        for step in range(first_step, first_step + 2)
    )
    return [JobWork(job, batches)]


def make_plan(work: list[JobWork]) -> Plan:
    return plan_horizon(work, LIMITS, solver_timeout_seconds=0)


def test_a_plan_is_found_again_for_the_same_work_only(tmp_path: Path) -> None:
    journal = PlanJournal(tmp_path, keep_generations=2)
    plan = make_plan(make_work())
    journal.save(make_work(), plan)
    again = PlanJournal(tmp_path, keep_generations=2)
    assert again.load(make_work(), LIMITS) == plan
    assert again.load(make_work(2), LIMITS) is None
    assert again.load(make_work(job="team-a/y"), LIMITS) is None
    assert again.load(make_work(), PlanLimits(token_capacity=64)) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": 1}'], ids=["empty", "cut", "a list", "no plan"])
def test_a_damaged_plan_is_planned_anew(tmp_path: Path, damage: bytes) -> None:
    journal = PlanJournal(tmp_path, keep_generations=2)
    journal.save(make_work(), make_plan(make_work()))
    next(tmp_path.glob("plan-*.json")).write_bytes(damage)
    assert journal.load(make_work(), LIMITS) is None


def test_a_fifo_in_the_place_of_a_plan_is_not_waited_for(tmp_path: Path) -> None:
    journal = PlanJournal(tmp_path, keep_generations=2)
    journal.save(make_work(), make_plan(make_work()))
    path = next(tmp_path.glob("plan-*.json"))
    path.unlink()
    os.mkfifo(path)
    assert journal.load(make_work(), LIMITS) is None


def test_a_plan_that_misses_a_sample_is_not_believed(tmp_path: Path) -> None:
    journal = PlanJournal(tmp_path, keep_generations=2)
    plan = make_plan(make_work())
    broken = Plan(LIMITS, plan.microbatches[:-1])
    journal.save(make_work(), plan)
    next(tmp_path.glob("plan-*.json")).write_text(json.dumps(broken.to_json()))
    assert journal.load(make_work(), LIMITS) is None


def test_plans_older_than_the_kept_checkpoints_are_removed(tmp_path: Path) -> None:
    journal = PlanJournal(tmp_path, keep_generations=2)
    for generation in range(5):
        journal.save(make_work(generation * 2), make_plan(make_work(generation * 2)))
        journal.start_generation()
    left = [step for step in range(0, 10, 2) if PlanJournal(tmp_path, keep_generations=2).load(make_work(step), LIMITS)]
    assert left == [6, 8]
