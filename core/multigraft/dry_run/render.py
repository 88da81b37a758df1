"""What `multigraft plan` prints: tables for people, JSON for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from multigraft.dry_run.dry_run import DryRun, JobForecast
from multigraft.planner.plan import Outcome


def render_tables(runs: Mapping[int, DryRun], shown: int) -> Group:
    """Render the forecast of each job and the proof state on `shown` stages, and one line for each number of stages.

    `proved` counts the plans that are known to need the fewest microbatches possible.
    """
    return Group(_render_jobs(runs[shown]), Text(_describe_proofs(runs[shown])), Text(), _render_stages(runs))


def build_json(runs: Mapping[int, DryRun]) -> dict[str, Any]:
    """Build the same as data; times are simulated seconds."""
    return {"stages": [_build_run_json(stages, run) for stages, run in runs.items()]}


def _render_jobs(run: DryRun) -> Table:
    stages = run.limits.num_stages
    table = _new_table(f"Jobs on {stages} stage{'s' * (stages > 1)}")
    for name in ("job", "samples", "steps", "tokens", "expected end"):
        table.add_column(name, justify="left" if name == "job" else "right")
    for job in run.jobs:
        tokens = f"{job.num_tokens:,}" + (f" in {job.planned_steps} steps" if job.is_estimated else "")
        table.add_row(Text(job.job), f"{job.num_samples:,}", f"{job.total_steps:,}", tokens, _show_end(job))
    return table


def _render_stages(runs: Mapping[int, DryRun]) -> Table:
    table = _new_table("Plan by number of pipeline stages")
    for name in ("stages", "microbatches", "bound", "no-ops", "fill", "padding", "idle", "time", "proved"):
        table.add_column(name, justify="right", no_wrap=True)
    for stages, run in runs.items():
        table.add_row(
            str(stages),
            f"{run.num_microbatches:,}",
            f"{run.lower_bound:,}",
            f"{run.num_no_ops:,}",
            f"{run.fill:.1%}",
            f"{run.padding_share:.1%}",
            f"{run.timeline.bubble_ratio:.1%}",
            _show_seconds(run.seconds),
            f"{run.outcomes.get(Outcome.OPTIMAL, 0)} of {len(run.plans)}",
        )
    return table


def _describe_proofs(run: DryRun) -> str:
    """Say how the plans were found and how far the microbatches are above their lower bound."""
    words = {Outcome.OPTIMAL: "proved best", Outcome.FEASIBLE: "by a solver", Outcome.GREEDY: "greedy"}
    counts = [f"{count} {words[outcome]}" for outcome in Outcome if (count := run.outcomes.get(outcome, 0))]
    uses = [plan.solver_use for plan in run.plans]
    asked = sum(use.num_asked for use in uses)
    failed = sum(count for use in uses for _, count in use.failures)
    solver = f"; solver asked {asked} times, {failed} without an answer" if asked else "; no solver asked"
    return f"Plans: {', '.join(counts) or 'none'}; {run.gap:.1%} above the bound{solver}"


def _new_table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _build_run_json(stages: int, run: DryRun) -> dict[str, Any]:
    return {
        "numStages": stages,
        "tokenCapacity": run.limits.token_capacity,
        "tileTokens": run.limits.tile_tokens,
        "numReplicas": run.limits.num_replicas,
        "numPlans": len(run.plans),
        "numMicrobatches": run.num_microbatches,
        "lowerBound": run.lower_bound,
        "gap": run.gap,
        "numNoOps": run.num_no_ops,
        "numTokens": run.num_tokens,
        "fill": run.fill,
        "paddingShare": run.padding_share,
        "bubbleRatio": run.timeline.bubble_ratio,
        "bubbleRatioByStage": run.timeline.bubble_ratios.tolist(),
        "seconds": run.seconds,
        "outcomes": {outcome.value: count for outcome, count in run.outcomes.items()},
        "packers": _count([plan.packer for plan in run.plans]),
        "solver": _build_solver_json(run),
        "jobs": [_build_job_json(job) for job in run.jobs],
    }


def _build_solver_json(run: DryRun) -> dict[str, Any]:
    uses = [plan.solver_use for plan in run.plans]
    failures: dict[str, int] = {}
    for use in uses:
        for reason, count in use.failures:
            failures[reason] = failures.get(reason, 0) + count
    return {
        "problems": sum(use.num_problems for use in uses),
        "fewestProved": sum(use.num_fewest for use in uses),
        "proved": sum(use.num_proved for use in uses),
        "asked": sum(use.num_asked for use in uses),
        "failures": failures,
        "seconds": sum(plan.solver_seconds for plan in run.plans),
    }


def _build_job_json(job: JobForecast) -> dict[str, Any]:
    return {
        "job": job.job,
        "numSamples": job.num_samples,
        "totalSteps": job.total_steps,
        "plannedSteps": job.planned_steps,
        "numTokens": job.num_tokens,
        "endSeconds": job.end_seconds if math.isfinite(job.end_seconds) else None,
        "isEstimated": job.is_estimated,
    }


def _count(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def _show_end(job: JobForecast) -> str:
    if not math.isfinite(job.end_seconds):
        return "not within the planned horizons"
    return f"{'about ' if job.is_estimated else ''}{_show_seconds(job.end_seconds)}"


def _show_seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
