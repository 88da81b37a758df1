"""Schedules of other systems, as plans for the simulator. None of them is ever run.

They cut a global batch into microbatches of a fixed number of samples, as their own settings do, so a microbatch may be
over the token capacity; only time and order are compared.

    Megatron-LM   one job after the other; a flush after each global batch (Narayanan et al. 2021, arXiv:2104.04473)
    GPipe         the same with all forwards before all backwards (`simulate.build_gpipe_order`)
    mLoRA         microbatches of all jobs by turns, no flush; a job waits only for itself (Ye et al. 2023,
                  arXiv:2312.02515)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from multigraft.planner.cost import CostModel
from multigraft.planner.order import NO_OP, order_microbatches
from multigraft.planner.plan import GlobalBatch, JobWork, Microbatch, Plan, PlanLimits, Segment
from multigraft.planner.simulate import Timeline, build_gpipe_order, simulate


@dataclass(frozen=True)
class FixedBatching:
    """How the other systems cut a global batch."""

    samples_per_microbatch: int


def simulate_megatron(
    work: Sequence[JobWork], limits: PlanLimits, batching: FixedBatching, cost: CostModel
) -> Timeline:
    """Simulate Megatron-LM's 1F1B with a flush after each global batch; one replica."""
    microbatches: list[Microbatch] = []
    for step in _cut_all(work, batching):
        microbatches += [*step, *[NO_OP] * (limits.num_stages - 1)]
    return simulate(Plan(_one_replica(limits), tuple(microbatches)), cost)


def simulate_gpipe(work: Sequence[JobWork], limits: PlanLimits, batching: FixedBatching, cost: CostModel) -> Timeline:
    """Simulate GPipe, one job after the other; one replica."""
    steps = _cut_all(work, batching)
    plan = Plan(_one_replica(limits), tuple(microbatch for step in steps for microbatch in step))
    return simulate(plan, cost, build_gpipe_order(limits.num_stages, [len(step) for step in steps]))


def simulate_mlora(work: Sequence[JobWork], limits: PlanLimits, batching: FixedBatching, cost: CostModel) -> Timeline:
    """Simulate mLoRA's pipeline: microbatches of all jobs by turns; one replica."""
    queues = [
        [microbatch for batch in job.global_batches for microbatch in _cut(job.job, batch, batching)] for job in work
    ]
    turns = [microbatch for turn in zip_longest(*queues) for microbatch in turn if microbatch is not None]
    single = _one_replica(limits)
    return simulate(Plan(single, tuple(order_microbatches(turns, single))), cost)


def _cut_all(work: Sequence[JobWork], batching: FixedBatching) -> list[list[Microbatch]]:
    return [_cut(job.job, batch, batching) for job in work for batch in job.global_batches]


def _cut(job: str, batch: GlobalBatch, batching: FixedBatching) -> list[Microbatch]:
    size = batching.samples_per_microbatch
    cuts = [batch.samples[first : first + size] for first in range(0, len(batch.samples), size)]
    return [Microbatch((Segment(job, batch.step, samples),)) for samples in cuts]


def _one_replica(limits: PlanLimits) -> PlanLimits:
    return PlanLimits(limits.token_capacity, limits.tile_tokens, limits.num_stages)
