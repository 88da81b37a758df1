"""Choose how full microbatches are made: on a pipeline that would starve, smaller ones keep more stages busy.

With one stage full microbatches are best: each costs a fixed time. With S stages a job's next step waits S slots, so
few jobs with small steps leave slots empty; then the same tokens in more, smaller microbatches shorten the run, until
their fixed time weighs more. The simulator says where that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multigraft.planner.best_fill import FillPolicy, fill_best
from multigraft.planner.cost import CostModel
from multigraft.planner.plan import JobWork, Plan, PlanLimits
from multigraft.planner.simulate import simulate

TARGET_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # of the capacity
TUNING_STEPS = 8  # of each job; enough to see the steady state
MAX_WORSE = 2  # shares in a row without gain after which smaller ones are not tried


def choose_fill_policy(
    work: Sequence[JobWork],
    limits: PlanLimits,
    cost: CostModel,
    earliest_slots: Mapping[str, int] | None = None,
) -> FillPolicy:
    """Choose the target that ends the first `TUNING_STEPS` steps of all jobs soonest."""
    best = FillPolicy(limits.token_capacity)
    if limits.num_stages == 1:
        return best
    head = [JobWork(job.job, job.global_batches[:TUNING_STEPS], job.priority) for job in work]
    best_ms = _simulate_ms(head, limits, best, cost, earliest_slots)
    worse = 0
    for share in TARGET_SHARES[1:]:
        policy = FillPolicy(max(limits.tile_tokens, int(limits.token_capacity * share)))
        span_ms = _simulate_ms(head, limits, policy, cost, earliest_slots)
        worse = 0 if span_ms < best_ms else worse + 1
        if span_ms < best_ms:
            best, best_ms = policy, span_ms
        if worse > MAX_WORSE:
            break
    return best


def _simulate_ms(
    work: Sequence[JobWork],
    limits: PlanLimits,
    policy: FillPolicy,
    cost: CostModel,
    earliest_slots: Mapping[str, int] | None,
) -> float:
    plan = Plan(limits, tuple(fill_best(work, limits, policy, earliest_slots)))
    return simulate(plan, cost).makespan_ms
