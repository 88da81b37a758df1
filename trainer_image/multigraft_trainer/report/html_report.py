"""One HTML page about a run: tables and pictures in a single file that opens offline."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2

from multigraft_trainer.report.loss_curves import draw_loss_curves
from multigraft_trainer.report.numbers import format_bytes, format_count, format_loss, format_share
from multigraft_trainer.report.plan_picture import draw_plan
from multigraft_trainer.report.result_table import format_heldout
from multigraft_trainer.report.results import JobResult, RunResult
from multigraft_trainer.report.whole_file import write_whole


@dataclass(frozen=True)
class ReportPaths:
    """Where the three files lie."""

    loss_curves: Path
    plan: Path
    html: Path


def write_report(result: RunResult, folder: Path) -> ReportPaths:
    """Write `loss_curves.png`, `plan.png` and `report.html` into an existing folder."""
    paths = ReportPaths(folder / "loss_curves.png", folder / "plan.png", folder / "report.html")
    draw_loss_curves(result, paths.loss_curves)
    draw_plan(result, paths.plan)
    page = render_html(result, loss_curves=paths.loss_curves.read_bytes(), plan=paths.plan.read_bytes())
    write_whole(paths.html, page.encode())
    return paths


def render_html(result: RunResult, *, loss_curves: bytes, plan: bytes) -> str:
    """Give the page; the pictures are PNG bytes and end up inside it. Every text is escaped."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "loss": format_loss,
        "count": format_count,
        "share": format_share,
        "size": format_bytes,
        "heldout": format_heldout,
    }
    template = environment.from_string(resources.files(__package__).joinpath("report.html.j2").read_text("utf-8"))
    return template.render(
        result=result,
        pool=result.pool,
        loss_curves=base64.b64encode(loss_curves).decode(),
        plan=base64.b64encode(plan).decode(),
        loss_text=describe_losses(result),
        dropped=[(job, code, count) for job in result.jobs for code, count in _dropped(job)],
    )


def describe_losses(result: RunResult) -> str:
    """Say in words what the picture of the losses shows."""
    parts = [f"{job.job}: held-out loss {format_heldout(job)} in {job.steps} steps" for job in result.jobs]
    return "; ".join(parts) or "no jobs"


def _dropped(job: JobResult) -> list[tuple[str, int]]:
    return sorted(job.rows.num_dropped_by_code.items()) if job.rows else []
