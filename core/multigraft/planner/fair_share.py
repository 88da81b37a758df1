"""Share a horizon between jobs: how many global batches each gets.

Jobs are served in padded tokens, the thing that a pool runs out of. The next global batch goes to the job with the
smallest served tokens per weight, so jobs with small steps get more of them per horizon and all advance evenly in what
they cost; a job that fell behind (it waited, it was preempted) catches up. Every job gets at least one global batch per
horizon, so none starves, whatever its weight.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class JobShare:
    """What the share of one job follows from."""

    job: str
    served_tokens: int  # padded tokens that it got since it and its present neighbours share the pool
    step_tokens: int  # padded tokens of one of its global batches, about
    steps_left: int
    weight: float = 1.0


def share_horizon(jobs: Sequence[JobShare], num_global_batches: int) -> dict[str, int]:
    """Give the number of global batches of each job in the next horizon.

    Args:
        jobs: The jobs of the pool; those with no steps left get 0.
        num_global_batches: Mean per job; in all `num_global_batches * len(jobs)` are given out, as far as jobs have
            steps left.

    Raises:
        ValueError: If a number is out of range.
    """
    if num_global_batches < 1:
        raise ValueError(f"num_global_batches: got {num_global_batches}, allowed 1 or more")
    for job in jobs:
        if job.weight <= 0 or job.step_tokens < 1 or job.steps_left < 0 or job.served_tokens < 0:
            raise ValueError(f"job {job.job}: {job}: weight and step_tokens must be above 0, the others 0 or more")
    granted = {job.job: min(1, job.steps_left) for job in jobs}
    left = num_global_batches * len(jobs) - sum(granted.values())
    queue = [(_virtual_time(job, 1), index) for index, job in enumerate(jobs) if job.steps_left > 1]
    heapq.heapify(queue)
    while queue and left > 0:
        _, index = heapq.heappop(queue)
        job = jobs[index]
        granted[job.job] += 1
        left -= 1
        if granted[job.job] < job.steps_left:
            heapq.heappush(queue, (_virtual_time(job, granted[job.job]), index))
    return granted


def _virtual_time(job: JobShare, num_granted: int) -> float:
    return (job.served_tokens + num_granted * job.step_tokens) / job.weight
