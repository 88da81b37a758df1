from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from builders.jobs import make_job, make_samples, prepare
from builders.pool_run import PoolRun, StepLog, open_pool
from builders.tiny_base import make_tiny_base
from multigraft.planner.plan import JobWork, Plan, PlanLimits
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.engine.next_work import WorkRules, list_shares, list_work, list_work_ahead
from multigraft_trainer.report.results import JobState

RULES = WorkRules(PlanLimits(96), 4)


class PlanLog(StepLog):
    """Keeps the plans that ran, too."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[Plan] = []

    def on_plan(self, horizon: int, plan: Plan) -> None:  # noqa: ARG002 (the observer's signature)
        self.plans.append(plan)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


def open_with(base: Path, folder: Path, jobs: Sequence[dict[str, object]], **options: object) -> PoolRun:
    pool = open_pool(base, folder, token_capacity=96, **options)  # type: ignore[arg-type]
    for index, job in enumerate(jobs):
        pool.submit(build(pool, folder, f"job-{index}", **job))
    return pool


def build(pool: PoolRun, folder: Path, name: str, *, batch: int = 2, steps: int = 30, priority: int = 0) -> PreparedJob:
    samples = make_samples(3, 8, min_tokens=20, max_tokens=20)
    job = make_job(name, globalBatchSize=batch, maxSteps=steps, spec={"priority": priority})
    return prepare(job, samples, tuple(pool.backend.linears)[:1], folder / "out")


def count(work: Sequence[JobWork]) -> list[int]:
    return [len(job.global_batches) for job in work]


def test_the_plan_ahead_is_for_the_work_that_then_comes(base: Path, tmp_path: Path) -> None:
    """Uneven jobs of several priorities; some end on the way."""
    kinds = [{"batch": 5}, {"batch": 1}, {"steps": 7}, {"batch": 3, "priority": 9}]
    pool = open_with(base, tmp_path, kinds, horizon_global_batches=3)
    rules = WorkRules(PlanLimits(96), 3)
    pool.engine.run_horizon()
    while len(pool.engine.running) > 1:
        ahead = list_work_ahead(pool.engine.running, rules)
        pool.engine.run_horizon()
        assert list_work(pool.engine.running, rules) == ahead
    pool.engine.close()


def test_jobs_get_steps_by_what_they_cost(base: Path, tmp_path: Path) -> None:
    pool = open_with(base, tmp_path, [{"batch": 4}, {"batch": 2}, {"batch": 2}], horizon_global_batches=4)
    pool.engine.run_horizon()
    assert [run.step for run in pool.engine.running] == [3, 5, 5]
    assert [run.num_tokens for run in pool.engine.running] == [240, 200, 200]
    assert [share.lag_tokens for share in list_shares(pool.engine.running, RULES)] == [-40, 0, 0]
    pool.engine.close()


def test_a_share_counts_whole_tiles_and_the_step_limit(base: Path, tmp_path: Path) -> None:
    pool = open_with(base, tmp_path, [{"batch": 4}], horizon_global_batches=4)
    pool.engine.run_horizon()
    rules = WorkRules(PlanLimits(96, 16), 4, step_limit=7)
    (share,) = list_shares(pool.engine.running, rules)
    assert (share.step_tokens, share.steps_left) == (80, 3)
    assert list_shares(pool.engine.running, WorkRules(PlanLimits(96), 4, step_limit=4)) == []
    assert count(list_work(pool.engine.running, rules)) == [3]
    assert list_work_ahead(pool.engine.running, rules) == []
    pool.engine.close()


def test_lags_outlive_the_process(base: Path, tmp_path: Path) -> None:
    kinds = [{"batch": 4}, {"batch": 2}]
    pool = open_with(base, tmp_path, kinds, horizon_global_batches=4, checkpoint_interval_steps=1)
    pool.engine.run_horizon()
    want = list_work(pool.engine.running, RULES)
    lags = [run.lag_tokens for run in pool.engine.running]
    pool.engine.close()
    log = PlanLog()
    resumed = open_with(base, tmp_path, kinds, horizon_global_batches=4, resume=True, observer=log)
    resumed.engine.run_horizon()
    assert lags != [0, 0]
    assert {(s.job, s.step) for m in log.plans[0].microbatches for s in m.segments} == {
        (job.job, batch.step) for job in want for batch in job.global_batches
    }
    resumed.engine.close()


def test_a_plan_is_cut_where_a_job_is_to_join_and_open_global_batches_are_finished(base: Path, tmp_path: Path) -> None:
    asked: list[int] = []

    def wants_boundary() -> bool:
        asked.append(1)
        return len(asked) == 3

    log = PlanLog()
    kinds = [{"batch": 6}, {"batch": 6}]
    pool = open_with(base, tmp_path, kinds, horizon_global_batches=8, wants_boundary=wants_boundary, observer=log)
    pool.engine.run_horizon()
    assert [run.step for run in pool.engine.running] == [1, 1], "of 8 planned; both had begun their first"
    pool.engine.submit(build(pool, tmp_path, "late"))
    pool.engine.run_horizon()
    assert [job.split("/")[1] for job in sorted(log.steps)] == ["job-0", "job-1", "late"]
    assert {segment.job for m in log.plans[1].microbatches for segment in m.segments} == set(log.steps)
    pool.engine.close()


def test_a_slot_is_handed_on_as_soon_as_its_job_ended(base: Path, tmp_path: Path) -> None:
    log = PlanLog()
    kinds = [{"batch": 8}, {"batch": 8, "steps": 1}, {"batch": 8, "steps": 2}]
    pool = open_with(base, tmp_path, kinds, horizon_global_batches=16, max_slots=2, observer=log)
    pool.engine.run_horizon()
    assert pool.results["team-a/job-1"].state is JobState.SUCCEEDED
    (run,) = pool.engine.running
    assert run.step <= 2, "of 16 planned"
    pool.engine.run_horizon()
    assert pool.results["team-a/job-2"].state is JobState.SUCCEEDED
    pool.engine.close()
