from __future__ import annotations

import math

import numpy as np
import pytest

from builders.jobs import make_job
from multigraft.dry_run.dry_run import DryRun, DryRunOptions, run_dry
from multigraft.planner.cost import CostModel
from multigraft.planner.plan import JobWork, Plan, PlanLimits
from multigraft.planner.sample_order import SampleOrder
from multigraft.planner.verify import verify_plan

UNIT = CostModel(500.0, 0.0, 0.0, 500.0, 0.0, 0.0, no_op_ms=0.0)  # a second for each microbatch


def dry(
    lengths: dict[str, list[int]],
    limits: PlanLimits,
    *,
    num_slots: int = 8,
    horizon: int = 2,
    max_horizons: int = 100,
    priority: dict[str, int] | None = None,
    **training: object,
) -> DryRun:
    jobs = [make_job(name, spec={"priority": (priority or {}).get(name, 0)}, **training) for name in lengths]
    options = DryRunOptions(horizon, num_slots, UNIT, max_horizons=max_horizons)
    return run_dry(jobs, {f"team-a/{name}": own for name, own in lengths.items()}, limits, options)


@pytest.mark.parametrize("num_stages", [1, 4])
def test_all_plans_together_do_the_whole_run_in_one_valid_order(num_stages: int) -> None:
    rng = np.random.default_rng(0)
    lengths = {name: rng.integers(20, 500, 30).tolist() for name in "abcde"}
    limits = PlanLimits(1024, 16, num_stages)
    run = dry(lengths, limits, num_slots=3, maxSteps=9, globalBatchSize=4)
    work = []
    for name, own in lengths.items():
        order = SampleOrder(42, 30, 4)
        work.append(JobWork(f"team-a/{name}", tuple(order.build_global_batch(step, own) for step in range(9))))
    assert verify_plan(Plan(limits, run.microbatches), work) == []
    assert run.timeline.stale == ()
    assert run.num_tokens == sum(s.num_tokens for job in work for batch in job.global_batches for s in batch.samples)


def test_expected_ends_follow_the_simulation() -> None:
    run = dry({"a": [10] * 4, "b": [10] * 4}, PlanLimits(10), numTrainEpochs=1, globalBatchSize=2)
    ends = {job.job: job.end_seconds for job in run.jobs}
    assert ends == {"team-a/a": pytest.approx(6), "team-a/b": pytest.approx(8)}
    assert run.seconds == pytest.approx(8)
    assert not any(job.is_estimated for job in run.jobs)


def test_a_run_longer_than_the_planned_horizons_is_estimated() -> None:
    run = dry({"a": [10] * 4}, PlanLimits(10), max_horizons=2, maxSteps=100, globalBatchSize=2)
    (job,) = run.jobs
    assert (job.planned_steps, job.total_steps, job.is_estimated) == (4, 100, True)
    assert job.end_seconds == pytest.approx(200)


def test_jobs_beyond_the_slots_wait_and_higher_priority_goes_first() -> None:
    lengths = {name: [10] * 2 for name in "abc"}
    run = dry(lengths, PlanLimits(10), num_slots=1, priority={"c": 1}, maxSteps=2, globalBatchSize=2)
    ends = [job.end_seconds for job in run.jobs]
    assert ends == pytest.approx([8, 12, 4])


def test_a_job_that_never_got_a_slot_has_no_end() -> None:
    lengths = {name: [10] * 2 for name in "ab"}
    run = dry(lengths, PlanLimits(10), num_slots=1, max_horizons=1, maxSteps=2, globalBatchSize=2)
    assert math.isinf(run.jobs[1].end_seconds)
    assert run.jobs[1].num_tokens == 0


def test_samples_count_as_long_as_the_job_cuts_them() -> None:
    run = dry({"a": [5000]}, PlanLimits(100), maxSteps=1, maxSeqLength=100)
    assert run.num_tokens == 100


def test_a_sample_longer_than_a_microbatch_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="job team-a/a: draw 0 of step 0 has 101 tokens, a microbatch takes 100"):
        dry({"a": [101]}, PlanLimits(100), maxSteps=1)


def test_no_jobs_make_an_empty_run() -> None:
    run = run_dry([], {}, PlanLimits(10), DryRunOptions(1, 1))
    assert (run.num_microbatches, run.fill, run.gap, run.padding_share, run.seconds) == (0, 0.0, 0.0, 0.0, 0.0)
