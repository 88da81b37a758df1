"""Group jobs whose samples are packed together.

One group packs best: more samples, fuller bins. But between two steps of a job num_stages slots must pass, which other
groups have to fill. So: the fewest groups such that, while one group waits, the others have enough microbatches.

Jobs are dealt out by mean length, head with tail (a snake over the groups), so that every group has long samples and
short ones to fill around them.
"""

from __future__ import annotations

from collections.abc import Sequence

from multigraft.planner.plan import JobWork, PlanLimits


def group_jobs(work: Sequence[JobWork], limits: PlanLimits) -> list[list[int]]:
    """Group the jobs that have work; each group lists indices of `work`, ascending.

    Args:
        work: Jobs of any number; those without global batches are in no group.
        limits: Stages, replicas and capacity of the machine.
    """
    present = [index for index, job in enumerate(work) if job.global_batches]
    longest_first = sorted(present, key=lambda index: (-_mean_length(work[index]), index))
    needs = {index: _count_step_microbatches(work[index], limits) for index in present}
    wanted = (limits.num_stages - 1) * limits.num_replicas
    for num_groups in range(1, len(present) + 1):
        groups = _deal(longest_first, num_groups)
        loads = [sum(needs[index] for index in group) for group in groups]
        if sum(loads) - max(loads) >= wanted:
            return groups
    return _deal(longest_first, len(present))


def _deal(indices: Sequence[int], num_groups: int) -> list[list[int]]:
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    for place, index in enumerate(indices):
        lap, turn = divmod(place, num_groups)
        groups[turn if lap % 2 == 0 else num_groups - 1 - turn].append(index)
    return [sorted(group) for group in groups]


def _mean_length(job: JobWork) -> float:
    lengths = [sample.num_tokens for batch in job.global_batches for sample in batch.samples]
    return sum(lengths) / len(lengths)


def _count_step_microbatches(job: JobWork, limits: PlanLimits) -> float:
    """Estimate the microbatches of one step of the job, not rounded: groups share them."""
    tokens = sum(sample.num_tokens for batch in job.global_batches for sample in batch.samples)
    return tokens / len(job.global_batches) / limits.token_capacity
