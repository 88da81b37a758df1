"""Share a horizon between jobs: how many global batches each gets.

Jobs are served in padded tokens, the thing that a pool runs out of. The next global batch goes to the job that got
least, so jobs with small steps get more of them per horizon and all advance evenly in what they cost. What a job got
less than its neighbours (steps are whole, a plan may be cut short) is its lag, which the next horizon makes up for.
Every job gets at least one global batch per horizon, so none starves.

    weight    a job gets 2 ** c shares, c the number of lower priorities that jobs beside it have, at most MAX_CLASS:
              priorities are compared, their distance means nothing
    lag       tokens per weight behind the median of the jobs; a job that joins has none. Bounded by MAX_LAG_STEPS mean
              global batches: a job that cannot take its share (its steps are too small) saves up no claim on a whole
              horizon

Source: start-time fair queueing (Goyal, Vin and Cheng 1996), with the median in place of a virtual clock, since jobs
come and go and need no history but their lag.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multigraft.planner.plan import PlanLimits

MAX_CLASS = 3  # so that the highest priority gets at most eight times the tokens of the lowest
MAX_LAG_STEPS = 8
MAX_STEPS_RATIO = 4  # steps of one job against the mean; more make long plans of nearly empty microbatches
MAX_HORIZON_MICROBATCHES = 64  # a longer plan fills no better: its one microbatch that is not full is 1 % of it


@dataclass(frozen=True)
class JobShare:
    """What the share of one job follows from."""

    job: str
    step_tokens: int  # of one of its global batches in whole tiles, on average
    steps_left: int
    priority: int = 0
    lag_tokens: float = 0.0  # per weight; `settle_horizon` gives the next one


def share_horizon(jobs: Sequence[JobShare], limits: PlanLimits, num_global_batches: int) -> dict[str, int]:
    """Give the number of global batches of each job in the next horizon.

    Args:
        jobs: The jobs of the pool; those with no steps left get 0.
        limits: Capacity, stages and replicas of the machine.
        num_global_batches: Mean per job, as far as jobs have steps left; fewer if `MAX_HORIZON_MICROBATCHES` (of each
            replica) are full before.

    Raises:
        ValueError: If a number is out of range.
    """
    _check(jobs, num_global_batches)
    present = [job for job in jobs if job.steps_left]
    granted = {job.job: min(1, job.steps_left) for job in jobs}
    if not present:
        return granted
    round_tokens = sum(job.step_tokens for job in present)
    slot_tokens = limits.token_capacity * limits.num_replicas
    mean_steps = max(1, min(num_global_batches, MAX_HORIZON_MICROBATCHES * slot_tokens // round_tokens))
    max_steps = _bound_steps(mean_steps, mean_steps * round_tokens // slot_tokens, limits.num_stages)
    left = (mean_steps - 1) * round_tokens
    weights = _weigh(present)
    queue = [(job.step_tokens / weights[job.job] - job.lag_tokens, index) for index, job in enumerate(present)]
    heapq.heapify(queue)
    while queue and left > 0:
        got, index = heapq.heappop(queue)
        job = present[index]
        if granted[job.job] >= min(job.steps_left, max_steps):
            continue
        granted[job.job] += 1
        left -= job.step_tokens
        heapq.heappush(queue, (got + job.step_tokens / weights[job.job], index))
    return granted


def settle_horizon(jobs: Sequence[JobShare], steps_done: Mapping[str, int]) -> dict[str, float]:
    """Give the lag of each job after a horizon, in tokens per weight, from the steps that it really took."""
    if not jobs:
        return {}
    weights = _weigh(jobs)
    got = {job.job: steps_done[job.job] * job.step_tokens / weights[job.job] - job.lag_tokens for job in jobs}
    middle = statistics.median(got.values())
    most = MAX_LAG_STEPS * statistics.mean(job.step_tokens for job in jobs)
    return {job: min(most, max(-most, middle - tokens)) for job, tokens in got.items()}


def _bound_steps(mean_steps: int, num_slots: int, num_stages: int) -> int:
    """Bound the steps of one job: two of them are num_stages slots apart, and a plan of this size has `num_slots`."""
    return min(MAX_STEPS_RATIO * mean_steps, max(mean_steps, num_slots // num_stages))


def _weigh(jobs: Sequence[JobShare]) -> dict[str, int]:
    classes = {priority: index for index, priority in enumerate(sorted({job.priority for job in jobs}))}
    return {job.job: 2 ** min(MAX_CLASS, classes[job.priority]) for job in jobs}


def _check(jobs: Sequence[JobShare], num_global_batches: int) -> None:
    if num_global_batches < 1:
        raise ValueError(f"num_global_batches: got {num_global_batches}, allowed 1 or more")
    for job in jobs:
        if job.step_tokens < 1 or job.steps_left < 0:
            raise ValueError(
                f"job {job.job}: step_tokens {job.step_tokens}, steps_left {job.steps_left}: allowed 1 and 0 or more"
            )
