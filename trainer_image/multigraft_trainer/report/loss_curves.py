"""Picture of the training losses, with the held-out loss before and after."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from multigraft_trainer.report.colours import choose_looks
from multigraft_trainer.report.figure import literal, new_figure, save_figure
from multigraft_trainer.report.results import JobResult, RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 1000  # per curve; more cannot be seen
MAX_LEGEND_JOBS = 16


def draw_loss_curves(result: RunResult, path: Path) -> None:
    """Write a PNG: loss against optimizer steps for each job; diamonds are held-out losses."""
    figure, axes = new_figure(width=9.0, height=4.5)
    looks = choose_looks([job.job for job in result.jobs])
    for job in result.jobs:
        steps, losses = thin_history(job)
        look = looks[job.job]
        marker = "." if len(steps) <= 50 else None
        axes.plot(
            steps, losses, color=look.colour, linestyle=look.line, marker=marker, linewidth=1.2, label=literal(job.job)
        )
        _mark_heldout(axes, job, look.colour)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("optimizer step of the job")
    axes.set_ylabel("loss (nats per supervised token)")
    axes.set_title("Training loss (lines) and held-out loss before and after (diamonds)", loc="left", fontsize=10)
    axes.grid(visible=True, alpha=0.25)
    if 0 < len(result.jobs) <= MAX_LEGEND_JOBS:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)


def thin_history(job: JobResult) -> tuple[list[int], list[float]]:
    """Give at most about `MAX_POINTS` points; a loss that is not finite leaves a gap."""
    stride = -(-len(job.history) // MAX_POINTS) or 1
    kept = job.history[::stride]
    return [record.step for record in kept], [math.nan if record.loss is None else record.loss for record in kept]


def _mark_heldout(axes: Axes, job: JobResult, colour: str) -> None:
    for step, loss in [(0, job.heldout_loss_before), (job.steps, job.heldout_loss_after)]:
        if loss is not None and math.isfinite(loss):
            axes.plot([step], [loss], color=colour, marker="D", markersize=6, markeredgecolor="black", linestyle="")
