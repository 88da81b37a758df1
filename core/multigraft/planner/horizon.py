"""Plan the next global batches of every job on a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from multigraft.planner.bounds import bound_microbatches
from multigraft.planner.order import order_microbatches
from multigraft.planner.packing import build_items, build_microbatches, pack_first_fit_decreasing
from multigraft.planner.plan import JobWork, Microbatch, Outcome, Plan, PlanLimits
from multigraft.planner.verify import require_valid
from multigraft.planner.work_check import check_work


def plan_horizon(
    work: Sequence[JobWork],
    limits: PlanLimits,
    *,
    solver_timeout_seconds: float,
    earliest_slots: Mapping[str, int] | None = None,
) -> Plan:
    """Plan all of the work; the result passed `verify_plan`.

    Jobs advance evenly: round k packs the k-th remaining global batch of every job.

    Args:
        work: Jobs with their next global batches, in any order; jobs may differ from one horizon to the next.
        limits: What the machine takes.
        solver_timeout_seconds: Wall-clock budget of one solve; 0: greedy only.
        earliest_slots: Per job, the first slot in which its first step here may start; see `order_microbatches`.

    Raises:
        ValueError: If the work cannot be planned, e.g. a sample is longer than the capacity.
        PlanRefusedError: If the verifier refused the plan, which is a fault of the planner.
    """
    if solver_timeout_seconds < 0:
        raise ValueError(f"solver_timeout_seconds: got {solver_timeout_seconds}, allowed 0 or more")
    check_work(work, limits)
    microbatches = order_microbatches(_pack_rounds(work, limits), limits, earliest_slots)
    plan = Plan(limits, tuple(microbatches), Outcome.GREEDY, bound_microbatches(work, limits))
    return require_valid(plan, work, earliest_slots=earliest_slots)


def _pack_rounds(work: Sequence[JobWork], limits: PlanLimits) -> list[Microbatch]:
    jobs = [job.job for job in work]
    packed: list[Microbatch] = []
    for batches in zip_longest(*(job.global_batches for job in work)):
        items = build_items(batches)
        bin_of = pack_first_fit_decreasing(items, token_capacity=limits.token_capacity, tile_tokens=limits.tile_tokens)
        packed.extend(build_microbatches(items, bin_of.tolist(), jobs))
    return packed
