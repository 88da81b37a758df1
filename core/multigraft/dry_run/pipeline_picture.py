"""Picture of the pipeline: stage by time, each pass coloured by the adapters in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from multigraft.api.reasons import Reason, RefusalError
from multigraft.dry_run.dry_run import DryRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SLOTS = 48  # passes that can be told apart
MAX_LEGEND_JOBS = 16
DOTS_PER_INCH = 130
# Okabe and Ito's palette, told apart with any kind of colour vision (jfly.uni-koeln.de/color).
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
HATCHES = ("", "//", "..", "xx")


def draw_pipeline(run: DryRun, path: Path) -> None:
    """Write a PNG of the first slots: forward in full colour, backward pale, idle time white.

    Raises:
        RefusalError: NOT_SUPPORTED, if matplotlib is not installed; INVALID_SPEC, if the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        text = f"--picture needs {error.name}: install multigraft[trainer]"
        raise RefusalError(Reason.NOT_SUPPORTED, text) from error
    num_rows = run.limits.num_stages * run.limits.num_replicas
    figure = Figure(figsize=(14, 1.8 + 0.55 * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_passes(axes, run)
    stages = range(run.limits.num_stages)
    replicas = range(run.limits.num_replicas)
    names = [f"stage {s}" + (f", replica {r}" if len(replicas) > 1 else "") for s in stages for r in replicas]
    axes.set_yticks(range(num_rows), names)
    axes.invert_yaxis()
    axes.set_xlabel("simulated ms; forward in full colour, backward pale")
    shown = min(MAX_SLOTS * run.limits.num_replicas, len(run.microbatches))
    title = f"{shown} of {len(run.microbatches)} microbatches; idle in all: {run.timeline.bubble_ratio:.1%}"
    axes.set_title(title, loc="left", fontsize=10)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RefusalError(Reason.INVALID_SPEC, f"picture {path}: {error.strerror}") from error


def _draw_passes(axes: Axes, run: DryRun) -> None:
    from matplotlib.patches import Patch

    looks = {
        job.job: (PALETTE[i % len(PALETTE)], HATCHES[i // len(PALETTE) % len(HATCHES)])
        for i, job in enumerate(run.jobs)
    }
    shown = run.microbatches[: MAX_SLOTS * run.limits.num_replicas]
    for position, microbatch in enumerate(shown):
        for stage in range(run.limits.num_stages):
            row = stage * run.limits.num_replicas + position % run.limits.num_replicas
            for direction in (0, 1):
                start = float(run.timeline.start_ms[direction, stage, position])
                width = float(run.timeline.end_ms[direction, stage, position]) - start
                bottom = row - 0.4
                for segment in microbatch.segments:  # the height of a colour is the job's share of the tokens
                    height = 0.8 * segment.num_tokens / microbatch.num_tokens
                    colour, hatch = looks[segment.job]
                    axes.barh(
                        bottom,
                        width,
                        height,
                        start,
                        align="edge",
                        color=colour,
                        hatch=hatch,
                        alpha=(1.0, 0.45)[direction],
                        edgecolor="white",
                        linewidth=0.4,
                    )
                    bottom += height
    if 0 < len(looks) <= MAX_LEGEND_JOBS:
        handles = [
            Patch(facecolor=colour, hatch=hatch, label=job.replace("$", r"\$"))
            for job, (colour, hatch) in looks.items()
        ]
        axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
