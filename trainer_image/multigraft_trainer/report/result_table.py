"""The end table of `multigraft run` on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from multigraft_trainer.report.numbers import format_bytes, format_count, format_loss, format_share
from multigraft_trainer.report.printable import printable
from multigraft_trainer.report.results import JobResult, JobState, RunResult

_STYLES = {JobState.SUCCEEDED: "green", JobState.FAILED: "red"}


def render_result_table(result: RunResult, *, notes: Sequence[str] = ()) -> RenderableType:
    """Give the table of all jobs, where their adapters lie, why the failed ones failed, and the sums of the run.

    Args:
        notes: Of the run, if they were not shown while it went on.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("job", overflow="fold")
    table.add_column("state", no_wrap=True)
    for name in ("rank", "steps", "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("held-out loss", justify="right", no_wrap=True)
    for job in result.jobs:
        table.add_row(
            Text(printable(job.job)),
            Text(job.state.value, style=_STYLES.get(job.state, "yellow")),
            str(job.rank),
            f"{job.steps}" if job.total_steps is None else f"{job.steps}/{job.total_steps}",
            format_count(job.num_tokens),
            format_heldout(job),
        )
    lines = [format_reason(job) for job in result.jobs if job.reason or job.message]
    lines += [f"adapter: {job.adapter_path}" for job in result.jobs if job.adapter_path]
    lines += [f"note: {note}" for note in notes]
    if any(job.state in (JobState.STOPPED, JobState.FAILED) for job in result.jobs):
        lines.append("stopped and failed jobs go on from their last checkpoints with --resume")
    texts = [Text(printable(line)) for line in ["", *lines, "", format_sums(result)]]
    return Group(table, *(texts if lines else texts[1:]))


def format_heldout(job: JobResult) -> str:
    """Give `3.881 -> 3.136`, or `-` for a job without held-out rows."""
    if job.heldout_loss_before is None and job.heldout_loss_after is None:
        return "-"
    return f"{format_loss(job.heldout_loss_before)} -> {format_loss(job.heldout_loss_after)}"


def format_reason(job: JobResult) -> str:
    """Give `team-a/support: Failed: NonFinite: ...` in one line."""
    parts = [job.job, job.state.value, job.reason, job.message]
    return printable(": ".join(part for part in parts if part))


def format_sums(result: RunResult) -> str:
    """Give what the shared run cost, in one line."""
    pool = result.pool
    num_trained = sum(job.steps > 0 for job in result.jobs)
    parts = [
        f"{num_trained} adapters on one {pool.base_model} ({format_bytes(pool.base_bytes)})",
        f"{format_count(pool.num_tokens)} tokens at {format_count(pool.tokens_per_second)}/s",
        f"microbatches {format_share(pool.fill)} full",
        f"{result.seconds:.0f} s in all",
        f"peak memory {format_bytes(result.peak_rss_bytes)}",
    ]
    return printable(", ".join(parts))
