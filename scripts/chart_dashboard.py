"""Build the Grafana dashboard of the chart from a short list of panels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[1] / "helm" / "multigraft" / "files" / "dashboard.json"

COLUMNS = 24
ROW_HEIGHT = 8
POOL = 'namespace=~"$namespace", pool=~"$pool"'
JOB = f'{POOL}, job=~"$job"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One graph: title, unit as Grafana calls it, and its queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""


def _by_pool(expression: str) -> tuple[tuple[str, str], ...]:
    return ((expression, "{{namespace}}/{{pool}}"),)


def _rate(metric: str, labels: str, *, by: str = "namespace, pool") -> str:
    return f"sum by ({by}) (rate(multigraft_{metric}{{{labels}}}[$__rate_interval]))"


def _quantile(share: float, metric: str) -> tuple[tuple[str, str], ...]:
    return _by_pool(f"histogram_quantile({share}, {_rate(f'{metric}_bucket', POOL, by='namespace, pool, le')})")


def _by_job(name: str) -> tuple[tuple[str, str], ...]:
    return ((f"multigraft_job_{name}{{{JOB}}}", "{{namespace}}/{{job}}"),)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Efficiency", (
        Panel("Real tokens per second", "short", _by_pool(_rate("tokens_total", f'{POOL}, kind="real"')),
              "Tokens of samples, padding left out."),
        Panel("Bubble ratio", "percentunit",
              ((f"max by (namespace, pool, stage) (multigraft_bubble_ratio{{{POOL}}})",
                "{{namespace}}/{{pool}} stage {{stage}}"),),
              "Share of time in which a pipeline stage was idle."),
        Panel("Padding", "percentunit",
              _by_pool(_rate("tokens_total", f'{POOL}, kind="padding"') + " / " + _rate("tokens_total", POOL)),
              "Share of computed tokens that belong to no sample."),
        Panel("Slots", "short",
              ((f"sum by (namespace, pool) (multigraft_slots_in_use{{{POOL}}})", "{{namespace}}/{{pool}} in use"),
               (f"sum by (namespace, pool) (multigraft_slots{{{POOL}}})", "{{namespace}}/{{pool}} of"))),
    )),
    ("Jobs", (
        Panel("Loss", "short", _by_job("loss"), "Of the last global batch, nats per supervised token."),
        Panel("Progress", "percentunit",
              ((f"multigraft_job_steps_total{{{JOB}}} / multigraft_job_planned_steps{{{JOB}}}",
                "{{namespace}}/{{job}}"),)),
        Panel("Gradient norm", "short", _by_job("grad_norm"), "Before clipping."),
        Panel("Skipped steps", "short",
              ((f"increase(multigraft_job_skipped_steps_total{{{JOB}}}[$__rate_interval])", "{{namespace}}/{{job}}"),),
              "Values that are not finite, or no supervised token."),
    )),
    ("Plans and checkpoints", (
        Panel("Capacity filled", "percentunit",
              _by_pool(f"avg by (namespace, pool) (multigraft_capacity_fill_ratio{{{POOL}}})")),
        Panel("Microbatches over the lower bound", "percentunit",
              _by_pool(f"sum by (namespace, pool) (multigraft_plan_microbatches{{{POOL}}}) / "
                       f"sum by (namespace, pool) (multigraft_plan_microbatches_lower_bound{{{POOL}}}) - 1"),
              "How far the last plan may be from the best one."),
        Panel("Solver seconds, 95 %", "s", _quantile(0.95, "solver_seconds")),
        Panel("Age of the last checkpoint", "s",
              _by_pool(f"max by (namespace, pool) (multigraft_checkpoint_age_seconds{{{POOL}}})")),
    )),
    ("Pools", (
        Panel("Trainers ready", "short", _by_pool(f"sum by (namespace, pool) (multigraft_trainer_ready{{{POOL}}})")),
        Panel("Microbatch seconds, median", "s", _quantile(0.5, "microbatch_seconds")),
        Panel("Memory of the base not held twice", "bytes",
              _by_pool(f"sum by (namespace, pool) (multigraft_base_memory_saved_bytes{{{POOL}}})")),
        Panel("Microbatches per second, by kind", "short",
              ((_rate("microbatches_total", POOL, by="namespace, pool, kind"), "{{namespace}}/{{pool}} {{kind}}"),)),
    )),
    ("Operator", (
        Panel("Jobs that wait, by reason", "short",
              (("sum by (reason) (multigraft_operator_pending_jobs)", "{{reason}}"),)),
        Panel("Pass seconds, 95 %", "s",
              ((f"histogram_quantile(0.95, {_rate('operator_reconcile_seconds_bucket', '', by='le')})", "pass"),
               ("max(multigraft_operator_watch_age_seconds and on (instance) multigraft_operator_leader == 1)",
                "since a watch event"))),
        Panel("Requests to the API server per second", "short",
              ((_rate("operator_api_requests_total", "", by="verb, code"), "{{verb}} {{code}}"),)),
        Panel("Leader and failed passes", "short",
              (("sum(multigraft_operator_leader)", "leaders"),
               ("sum(increase(multigraft_operator_reconcile_errors_total[$__rate_interval]))", "failed passes"))),
    )),
)  # fmt: skip


def build_dashboard() -> dict[str, Any]:
    """Build the dashboard as Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    for row, (title, graphs) in enumerate(ROWS):
        top = row * (ROW_HEIGHT + 1)
        panels.append(_number(panels, {"type": "row", "title": title, "gridPos": _place(0, top, COLUMNS, 1)}))
        width = COLUMNS // len(graphs)
        for column, graph in enumerate(graphs):
            place = _place(column * width, top + 1, width, ROW_HEIGHT)
            panels.append(_number(panels, _build_panel(graph) | {"gridPos": place}))
    return {
        "uid": "multigraft",
        "title": "multigraft",
        "tags": ["multigraft"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _build_variables()},
        "panels": panels,
    }


def _number(before: list[dict[str, Any]], panel: dict[str, Any]) -> dict[str, Any]:
    return {"id": len(before) + 1, **panel}


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _build_panel(graph: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": graph.title,
        "description": graph.text,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": graph.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(graph.queries)
        ],
    }


def _build_variables() -> list[dict[str, Any]]:
    sources = {
        "namespace": "label_values(multigraft_trainer_ready, namespace)",
        "pool": 'label_values(multigraft_trainer_ready{namespace=~"$namespace"}, pool)',
        "job": 'label_values(multigraft_job_steps_total{namespace=~"$namespace", pool=~"$pool"}, job)',
    }
    chosen: list[dict[str, Any]] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    for name, query in sources.items():
        chosen.append(
            {"name": name, "type": "query", "datasource": DATASOURCE, "query": query, "refresh": 2,
             "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
        )  # fmt: skip
    return chosen


def build_files() -> dict[Path, str]:
    """Build the dashboard's file, by path."""
    return {TARGET: json.dumps(build_dashboard(), indent=1) + "\n"}
