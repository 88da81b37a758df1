"""`multigraft plan`: a dry run without GPU and without weights."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.admission import select_pools
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft.dry_run.cost_file import load_cost_model
from multigraft.dry_run.dry_run import DryRun, DryRunOptions, run_dry
from multigraft.dry_run.job_lengths import Lengths, count_lengths, load_lengths
from multigraft.dry_run.pipeline_picture import draw_pipeline
from multigraft.dry_run.render import build_json, render_tables
from multigraft.manifests.collection import Manifests
from multigraft.manifests.load import load_manifests
from multigraft.planner.cost import CostModel
from multigraft.planner.plan import PlanLimits
from multigraft.planner.solver_pool import SolverPool

INVALID_INPUT = 2
MAX_STAGES = 8
ASSUMED_CAPACITY = 8192
"""Tokens of a microbatch where the pool leaves it to its GPU: up to there the times of `CostModel` were measured."""


def _refuse_nan(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("nan is not in the range 0<=x<=600.", context, parameter)
    return value


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pool", "pool_name", help="Name of the BaseModelPool, if DIRECTORY has several.")
@click.option(
    "--lengths",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='JSON file {"<job>": [tokens of each sample]}. Default: counted with the tokenizer of the base model.',
)
@click.option(
    "--cost",
    "cost_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file of measured times (forwardFixedMs, forwardTokenMs, ...). Default: an 8B model on one H200.",
)
@click.option(
    "--stages", type=click.IntRange(1, MAX_STAGES), default=1, help="Pipeline stages to show jobs and picture for."
)
@click.option("--replicas", type=click.IntRange(1, 64), default=1, help="Data-parallel replicas.")
@click.option("--tile", type=click.IntRange(1, 4096), default=1, help="Tokens to which kernels pad each adapter.")
@click.option(
    "--capacity", type=click.IntRange(min=1), help="Tokens of a microbatch. Default: the pool's; with Auto: 8192."
)
@click.option(
    "--solver-timeout",
    type=click.FloatRange(0, 600),
    default=0.0,
    callback=_refuse_nan,
    help="Seconds for a solver per plan; 0: none.",
)
@click.option("--max-horizons", type=click.IntRange(min=1), default=100, help="Plans to make; the rest is estimated.")
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Write a PNG of the pipeline here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in place of tables.")
def plan(
    *,
    directory: Path,
    pool_name: str | None,
    lengths: Path | None,
    cost_file: Path | None,
    stages: int,
    replicas: int,
    tile: int,
    capacity: int | None,
    solver_timeout: float,
    max_horizons: int,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Plan the AdapterJobs of DIRECTORY without training: microbatches, fill, idle time, expected ends.

    Exit code 0: planned; 2: wrong input.
    """
    try:
        manifests, pool = _load(directory, pool_name)
        spec = pool.spec
        limits = PlanLimits(capacity or _choose_capacity(pool), tile, 1, replicas)
        options = DryRunOptions(
            horizon_global_batches=spec.scheduling.horizon_global_batches,
            num_slots=spec.slots.max,
            cost=load_cost_model(cost_file) if cost_file else CostModel(),
            solver_timeout_seconds=solver_timeout,
            max_horizons=max_horizons,
        )
        jobs = _choose_jobs(manifests, pool)
        if lengths:
            counted: Lengths = load_lengths(lengths, jobs)
        else:
            counted = count_lengths(pool, jobs, manifests.config_maps, directory)
        runs = _run_all(jobs, counted, limits, options, stages)
        if picture is not None:
            draw_pipeline(runs[stages], picture)
    except RefusalError as error:
        click.echo(f"{error.reason}: {error.message}", err=True)
        sys.exit(INVALID_INPUT)
    except ValueError as error:
        click.echo(str(error), err=True)
        sys.exit(INVALID_INPUT)
    if as_json:
        click.echo(json.dumps(build_json(runs), indent=2, allow_nan=False))
    else:
        Console().print(render_tables(runs, stages))


def _load(directory: Path, name: str | None) -> tuple[Manifests, BaseModelPool]:
    manifests = load_manifests([directory])
    if manifests.problems:
        raise RefusalError(Reason.INVALID_SPEC, "\n".join(map(str, manifests.problems)))
    pools = [pool for pool in manifests.pools if name in (None, pool.metadata.name)]
    if len(pools) != 1:
        found = ", ".join(pool.metadata.name for pool in manifests.pools) or "none"
        wanted = f"a BaseModelPool {name}" if name else "one BaseModelPool (choose with --pool)"
        raise RefusalError(Reason.POOL_NOT_FOUND, f"want {wanted}, found {found}")
    return manifests, pools[0]


def _choose_capacity(pool: BaseModelPool) -> int:
    given = pool.spec.batching.given_capacity
    if given is not None:
        return given
    text = "which its trainer measures on the GPU; planned with an assumed"
    field = f"pool {pool.key}: spec.batching.maxTokensPerMicrobatch is Auto"
    click.echo(f"note: {field}, {text} {ASSUMED_CAPACITY} tokens (--capacity gives another)", err=True)
    return ASSUMED_CAPACITY


def _choose_jobs(manifests: Manifests, pool: BaseModelPool) -> list[AdapterJob]:
    jobs = [job for job in manifests.jobs if select_pools(job, [pool]) and not job.spec.suspend]
    if not jobs:
        raise RefusalError(Reason.INVALID_SPEC, f"no AdapterJob for the pool {pool.key} that is not suspended")
    return jobs


def _run_all(
    jobs: Sequence[AdapterJob],
    lengths: Mapping[str, Sequence[int]],
    limits: PlanLimits,
    options: DryRunOptions,
    shown: int,
) -> dict[int, DryRun]:
    """Plan for every number of stages; if stage times were measured for one number, for that one alone."""
    numbers = [shown] if options.cost.stage_shares else range(1, MAX_STAGES + 1)
    with SolverPool() if options.solver_timeout_seconds > 0 else contextlib.nullcontext() as solver:
        return {
            stages: run_dry(
                jobs,
                lengths,
                PlanLimits(limits.token_capacity, limits.tile_tokens, stages, limits.num_replicas),
                options,
                solver=solver,
            )
            for stages in numbers
        }
