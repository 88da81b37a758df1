"""Picture of the microbatch plan: how full each microbatch was and whose tokens were in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from multigraft_trainer.report.colours import Look, choose_looks
from multigraft_trainer.report.figure import literal, new_figure, save_figure
from multigraft_trainer.report.results import HorizonResult, RunResult, SegmentShape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_MICROBATCHES = 120  # bars that can be told apart
MAX_LABELLED = 40  # bars wide enough to hold step numbers
MAX_LEGEND_JOBS = 16


def draw_plan(result: RunResult, path: Path) -> None:
    """Write a PNG: one bar per microbatch in execution order, coloured by job, up to the token capacity."""
    horizons = cut_horizons(result.pool.horizons)
    num_microbatches = sum(len(horizon.microbatches) for horizon in horizons)
    figure, axes = new_figure(width=min(16.0, max(7.0, 3.0 + 0.16 * num_microbatches)), height=4.2)
    looks = choose_looks([job.job for job in result.jobs])
    at = 0
    for number, horizon in enumerate(horizons, start=1):
        _draw_horizon(axes, horizon, at, looks, label_steps=num_microbatches <= MAX_LABELLED)
        at += len(horizon.microbatches)
        axes.annotate(f"plan {number}", (at - 0.6, horizon.token_capacity), fontsize=7, ha="right", va="bottom")
        axes.axvline(at - 0.5, color="black", linewidth=0.8, linestyle=":")
    shown = "" if num_microbatches == result.pool.num_microbatches else f", first {num_microbatches}"
    title = f"{result.pool.num_microbatches} microbatches{shown}: tokens of each job up to the capacity (line)"
    axes.set_title(title, loc="left", fontsize=10, pad=14)
    axes.set_xlabel("microbatch, in the order of execution; numbers are the jobs' optimizer steps")
    axes.set_ylabel("tokens")
    axes.set_xlim(-0.6, max(at, 1) - 0.4)
    if 0 < len(looks) <= MAX_LEGEND_JOBS:
        _add_legend(axes, looks)
    save_figure(figure, path)


def cut_horizons(horizons: tuple[HorizonResult, ...]) -> tuple[HorizonResult, ...]:
    """Keep whole plans while they fit the picture, at least one."""
    kept: list[HorizonResult] = []
    num_microbatches = 0
    for horizon in horizons:
        num_microbatches += len(horizon.microbatches)
        if kept and num_microbatches > MAX_MICROBATCHES:
            break
        kept.append(horizon)
    return tuple(kept)


def _draw_horizon(axes: Axes, horizon: HorizonResult, at: int, looks: dict[str, Look], *, label_steps: bool) -> None:
    for offset, microbatch in enumerate(horizon.microbatches):
        bottom = 0
        for segment in microbatch:
            _draw_segment(axes, segment, at + offset, bottom, looks.get(segment.job, Look("#888888", "-", "")))
            if label_steps and segment.num_tokens * 14 >= horizon.token_capacity:
                middle = bottom + segment.num_tokens / 2
                axes.annotate(str(segment.step + 1), (at + offset, middle), fontsize=6, ha="center", va="center")
            bottom += segment.num_tokens
    ends = (at - 0.5, at + len(horizon.microbatches) - 0.5)
    axes.plot(ends, (horizon.token_capacity, horizon.token_capacity), color="black", linewidth=1.2)


def _draw_segment(axes: Axes, segment: SegmentShape, at: int, bottom: int, look: Look) -> None:
    axes.bar(
        at,
        segment.num_tokens,
        bottom=bottom,
        width=0.86,
        color=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        lw=0.6,
    )


def _add_legend(axes: Axes, looks: dict[str, Look]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=look.colour, hatch=look.hatch, label=literal(job)) for job, look in looks.items()]
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
