"""The command line of `multigraft run`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console

from multigraft.api.reasons import RefusalError
from multigraft.manifests.collection import Manifests
from multigraft.manifests.load import load_manifests
from multigraft_trainer.local_run.metrics_port import check_port_is_free
from multigraft_trainer.local_run.pool_selection import PoolSelection, select_pool
from multigraft_trainer.reproducible import set_reproducible_environment

JOB_FAILED = 1
INVALID_INPUT = 2


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for adapters, checkpoints and reports. Default: a new one, runs/<directory>-<time>.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out, or with the newest run of DIRECTORY.")
@click.option("--steps", type=click.IntRange(min=1), help="Stop each job after this many optimizer steps, resumable.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics on this port of 127.0.0.1; 0: a free port.",
)
@click.option("--pool", "pool_name", help="BaseModelPool to run, if DIRECTORY has several: NAME or NAMESPACE/NAME.")
@click.option("--quiet", is_flag=True, help="No progress, only the table at the end.")
def run(
    *,
    directory: Path,
    out: Path | None,
    resume: bool,
    steps: int | None,
    metrics_port: int | None,
    pool_name: str | None,
    quiet: bool,
) -> None:
    """Train the AdapterJobs of DIRECTORY together on the base model of its BaseModelPool, on this machine.

    Exit code 0: every job succeeded (or was stopped and can be resumed); 1: a job failed; 2: wrong input.
    """
    # Read before torch is: a wrong manifest should not cost ten seconds of imports.
    manifests = load_manifests([directory])
    if manifests.problems:
        for problem in manifests.problems:
            click.echo(str(problem), err=True)
        sys.exit(INVALID_INPUT)
    try:
        selection = select_pool(manifests, pool_name)
        failed = _run(selection, manifests, directory, out, resume=resume, steps=steps, port=metrics_port, quiet=quiet)
    except RefusalError as error:
        click.echo(f"{error.reason}: {error.message}", err=True)
        sys.exit(INVALID_INPUT)
    sys.exit(JOB_FAILED if failed else 0)


def _run(
    selection: PoolSelection,
    manifests: Manifests,
    directory: Path,
    out: Path | None,
    *,
    resume: bool,
    steps: int | None,
    port: int | None,
    quiet: bool,
) -> bool:
    """Run, print the table, and tell whether a job failed or its result could not be written."""
    set_reproducible_environment()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from multigraft_trainer.local_run.local_run import LocalRun, RunOptions
    from multigraft_trainer.local_run.run_folder import open_run_folder
    from multigraft_trainer.report.progress import open_progress
    from multigraft_trainer.report.result_table import render_result_table

    if port:
        check_port_is_free(port)
    output = open_run_folder(directory, out, resume=resume)
    console = Console()
    progress = open_progress(console, quiet=quiet)
    options = RunOptions(directory, resume=resume, step_limit=steps, metrics_port=port)
    local_run = LocalRun(selection, manifests.config_maps, output, options, progress)
    result = local_run.run()
    console.print(render_result_table(result, notes=result.notes if quiet else ()), soft_wrap=True)  # lines are grepped
    for problem in local_run.unwritten:
        click.echo(f"not written: {problem}", err=True)
    console.print(f"report: {output.path / 'report.html'}", soft_wrap=True, highlight=False)
    return bool(result.failed_jobs or local_run.unwritten)
