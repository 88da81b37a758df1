from __future__ import annotations

import math
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest

from multigraft.planner.plan import Plan, PlanLimits
from multigraft_trainer.engine.metrics import TrainerMetrics
from multigraft_trainer.engine.observer import MicrobatchRecord
from multigraft_trainer.report.results import JobState, StepRecord


def make_step(step: int, *, loss: float | None = 2.5, skipped: bool = False) -> StepRecord:
    return StepRecord(step, loss, 1e-3, 0.7 if loss else None, 100, 60, seconds=1.0, skipped=skipped)


def make_metrics(*, include_finished: bool = False) -> TrainerMetrics:
    metrics = TrainerMetrics("pool", num_stages=2, base_bytes=1000, include_finished=include_finished)
    for job in ("team-a/one", "team-b/two.dotted"):
        metrics.on_job(job, rank=8, total_steps=10, steps=0)
    return metrics


def render(metrics: TrainerMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_I08_pool_and_job_series_have_help_type_and_no_duplicates() -> None:
    metrics = make_metrics()
    metrics.on_plan(0, Plan(PlanLimits(512), (), lower_bound=3))
    metrics.on_microbatch(MicrobatchRecord({"team-a/one": 300}, padded_tokens=320, token_capacity=512, seconds=0.2))
    metrics.on_step("team-a/one", make_step(1))
    text = render(metrics)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = [line.rpartition(" ")[0] for line in lines]
    assert len(names) == len(set(names))
    assert 'multigraft_tokens_total{kind="real",pool="pool"} 300.0' in text
    assert 'multigraft_tokens_total{kind="padding",pool="pool"} 20.0' in text
    assert 'multigraft_job_loss{job="one",namespace="team-a",pool="pool"} 2.5' in text
    assert 'multigraft_slots_in_use{pool="pool"} 2.0' in text
    assert 'multigraft_base_memory_saved_bytes{pool="pool"} 1000.0' in text
    assert "# TYPE multigraft_tokens_total counter" in text


def test_J05_a_value_that_is_not_finite_is_absent_not_nan_and_not_zero() -> None:
    metrics = make_metrics()
    metrics.on_step("team-a/one", make_step(1, loss=None, skipped=True))
    metrics.on_step("team-b/two.dotted", make_step(1, loss=math.inf))
    text = render(metrics)
    assert "NaN" not in text
    assert "multigraft_job_loss{" not in text
    assert 'multigraft_job_skipped_steps_total{job="one",namespace="team-a",pool="pool"} 1.0' in text


def test_series_of_a_finished_job_are_removed_but_the_file_of_a_run_keeps_them() -> None:
    live, kept = make_metrics(), make_metrics(include_finished=True)
    for metrics in (live, kept):
        metrics.on_step("team-a/one", make_step(1))
        metrics.on_end("team-a/one", JobState.SUCCEEDED, "")
    assert 'job="one"' not in render(live)
    assert 'job="two.dotted"' in render(live)
    assert 'job="one"' in render(kept)
    assert 'multigraft_slots_in_use{pool="pool"} 1.0' in render(live)


def test_I09_labels_hold_no_text_of_errors() -> None:
    metrics = make_metrics(include_finished=True)
    metrics.on_end("team-a/one", JobState.FAILED, "row 7 of /secret/path")
    assert "secret" not in render(metrics)


def test_metrics_are_served_on_a_port_of_one_address() -> None:
    port = make_metrics().serve(0, host="127.0.0.2")
    with urlopen(f"http://127.0.0.2:{port}/metrics") as response:
        assert "multigraft_slots_in_use" in response.read().decode()
    with pytest.raises(URLError):
        urlopen(f"http://127.0.0.1:{port}/metrics")
