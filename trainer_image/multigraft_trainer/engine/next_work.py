"""Which global batches the next plan covers: how many of each job follows from what it costs, its priority and its lag.

All of it follows from what a boundary saves (steps and lags of the jobs), so that a resumed pool asks for the same work
and finds the plan that ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from multigraft.planner.fair_share import JobShare, settle_horizon, share_horizon
from multigraft.planner.plan import JobWork, PlanLimits
from multigraft_trainer.engine.job_run import JobRun


@dataclass(frozen=True)
class WorkRules:
    """What a pool's options say of a plan's size."""

    limits: PlanLimits
    horizon_global_batches: int
    step_limit: int | None = None  # every job stops here


def list_shares(runs: Sequence[JobRun], rules: WorkRules) -> list[JobShare]:
    """Give what each job's share of the next plan follows from; jobs without steps left are left out."""
    shares = [
        JobShare(
            run.key,
            run.count_step_tokens(rules.limits.tile_tokens),
            run.count_steps_left(rules.step_limit),
            run.prepared.job.spec.priority,
            run.lag_tokens,
        )
        for run in runs
    ]
    return [share for share in shares if share.steps_left]


def list_work(runs: Sequence[JobRun], rules: WorkRules) -> list[JobWork]:
    """List the global batches of the next plan."""
    return _list_granted(runs, list_shares(runs, rules), rules, {})


def list_work_ahead(runs: Sequence[JobRun], rules: WorkRules) -> list[JobWork]:
    """List the global batches of the plan after the next one, if that runs to its end and no job comes or goes."""
    shares = list_shares(runs, rules)
    done = share_horizon(shares, rules.limits, rules.horizon_global_batches)
    lags = settle_horizon(shares, done)
    after = [
        replace(share, steps_left=share.steps_left - done[share.job], lag_tokens=lags[share.job]) for share in shares
    ]
    return _list_granted(runs, [share for share in after if share.steps_left], rules, done)


def _list_granted(
    runs: Sequence[JobRun], shares: Sequence[JobShare], rules: WorkRules, skipped: dict[str, int]
) -> list[JobWork]:
    granted = share_horizon(shares, rules.limits, rules.horizon_global_batches)
    return [run.build_work(run.step + skipped.get(run.key, 0), granted[run.key]) for run in runs if run.key in granted]
