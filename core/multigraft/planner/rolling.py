"""Go on planning after microbatches that are already committed: the rolling horizon.

What has been handed to the pipeline is committed and stays. Everything after it is planned anew whenever something
changes: a job joins, leaves, fails, stops early, or the plan runs low. A change is told by the work alone: the jobs
that are to go on, with the global batches that they still have to do. Distances are carried over the seam, so that a
pipeline never drains for a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multigraft.planner.cost import CostModel
from multigraft.planner.horizon import plan_horizon
from multigraft.planner.plan import GlobalBatch, JobWork, Microbatch, Plan, PlanLimits
from multigraft.planner.solver_pool import SolverPool


def extend_plan(
    committed: Sequence[Microbatch],
    work: Sequence[JobWork],
    limits: PlanLimits,
    *,
    solver_timeout_seconds: float = 0,
    cost: CostModel | None = None,
    solver: SolverPool | None = None,
) -> Plan:
    """Plan the work behind the committed microbatches; the result passed `verify_plan`, seam included.

    Args:
        committed: What was handed to the pipeline last, in whole slots; the last `num_stages` slots are enough.
        work: What is to follow: per job its next global batches, the first without the samples that are committed
            (`subtract_committed`). Jobs that are not in it end with what is committed.
        limits: What the machine takes.
        solver_timeout_seconds: See `plan_horizon`.
        cost: See `plan_horizon`.
        solver: See `plan_horizon`.

    Raises:
        ValueError: If the work cannot be planned, or `committed` is not whole slots.
    """
    return plan_horizon(
        work,
        limits,
        solver_timeout_seconds=solver_timeout_seconds,
        earliest_slots=find_earliest_slots(committed, work, limits),
        cost=cost,
        solver=solver,
    )


def find_earliest_slots(committed: Sequence[Microbatch], work: Sequence[JobWork], limits: PlanLimits) -> dict[str, int]:
    """Give the first slot after the committed ones in which each job may start, for those that have to wait.

    A job whose first step is already partly committed goes on with it at once.

    Raises:
        ValueError: If `committed` is not whole slots.
    """
    if len(committed) % limits.num_replicas:
        raise ValueError(
            f"committed: got {len(committed)} microbatches, allowed whole slots of {limits.num_replicas} replicas"
        )
    first_steps = {job.job: job.global_batches[0].step for job in work if job.global_batches}
    num_slots = len(committed) // limits.num_replicas
    earliest: dict[str, int] = {}
    for position, microbatch in enumerate(committed):
        for segment in microbatch.segments:
            if segment.job in first_steps and segment.step < first_steps[segment.job]:
                owed = position // limits.num_replicas + limits.num_stages - num_slots
                earliest[segment.job] = max(owed, earliest.get(segment.job, 0))
    return {job: slot for job, slot in earliest.items() if slot > 0}


def subtract_committed(work: Sequence[JobWork], committed: Sequence[Microbatch]) -> list[JobWork]:
    """Give the work without the samples that are committed; global batches that are committed whole vanish.

    Raises:
        ValueError: If something is committed twice, or a step is committed while one before it is not whole.
    """
    done: dict[tuple[str, int], set[int]] = {}
    for microbatch in committed:
        for segment in microbatch.segments:
            draws = done.setdefault((segment.job, segment.step), set())
            for sample in segment.samples:
                if sample.draw in draws:
                    raise ValueError(f"job {segment.job}: draw {sample.draw} of step {segment.step} is committed twice")
                draws.add(sample.draw)
    return [JobWork(job.job, _left_of(job, done), job.priority) for job in work]


def _left_of(job: JobWork, done: Mapping[tuple[str, int], set[int]]) -> tuple[GlobalBatch, ...]:
    left: list[GlobalBatch] = []
    for batch in job.global_batches:
        draws = done.get((job.job, batch.step), set())
        if draws and left:
            raise ValueError(f"job {job.job}: step {batch.step} is committed before step {left[0].step} is whole")
        samples = tuple(sample for sample in batch.samples if sample.draw not in draws)
        if samples:
            left.append(GlobalBatch(batch.step, samples))
    return tuple(left)
