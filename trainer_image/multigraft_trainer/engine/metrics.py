"""Prometheus metrics of one trainer (prefix `multigraft_`), on a port or as a file.

Pool figures are counters and gauges. Per-job series are made at scrape time from what the jobs report, so that the
series of a finished job are gone with the next scrape and a value that is not finite is absent, never NaN. Labels are
bounded: namespace, job, pool and fixed words.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from multigraft.planner.plan import Plan
from multigraft_trainer.engine.observer import EngineObserver, MicrobatchRecord
from multigraft_trainer.report.results import JobState, StepRecord

_STEP_SECONDS_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_SOLVER_SECONDS_BUCKETS = (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 30)


@dataclass
class _JobSeries:
    total_steps: int
    steps: int = 0
    skipped_steps: int = 0
    tokens: int = 0
    supervised_tokens: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    finished: bool = False


class JobCollector(Collector):
    """Gives the per-job series; finished jobs only if asked for (the file at the end of a run keeps them)."""

    def __init__(self, pool: str, *, include_finished: bool) -> None:
        self._pool = pool
        self._include_finished = include_finished
        self.jobs: dict[str, _JobSeries] = {}
        self.lock = threading.Lock()

    def end(self, job: str) -> None:
        """Take the series of a job away, or mark them; the lock is held."""
        if not self._include_finished:
            self.jobs.pop(job, None)
        elif job in self.jobs:
            self.jobs[job].finished = True

    def collect(self) -> Iterator[Metric]:
        with self.lock:
            jobs = dict(sorted(self.jobs.items()))
        labels = ["namespace", "job", "pool"]
        counters = {
            "steps": ("Optimizer steps, skipped ones included.", "steps"),
            "skipped_steps": ("Optimizer steps skipped: non-finite value or no supervised token.", "skipped_steps"),
            "tokens": ("Real tokens trained.", "tokens"),
            "supervised_tokens": ("Tokens with a loss.", "supervised_tokens"),
        }
        gauges = {
            "loss": ("Loss of the last global batch, nats per supervised token.", "loss"),
            "learning_rate": ("Learning rate of the last step.", "learning_rate"),
            "grad_norm": ("L2 norm of the adapter's gradient before clipping.", "grad_norm"),
            "planned_steps": ("Optimizer steps the job takes in all.", "total_steps"),
        }
        for name, (text, attribute) in counters.items():
            family = CounterMetricFamily(f"multigraft_job_{name}", text, labels=labels)
            for key, series in jobs.items():
                family.add_metric([*key.split("/", 1), self._pool], getattr(series, attribute))
            yield family
        for name, (text, attribute) in gauges.items():
            gauge = GaugeMetricFamily(f"multigraft_job_{name}", text, labels=labels)
            for key, series in jobs.items():
                value = getattr(series, attribute)
                if value is not None and math.isfinite(value):
                    gauge.add_metric([*key.split("/", 1), self._pool], value)
            yield gauge


class TrainerMetrics(EngineObserver):
    """Observes an engine and holds its metrics in a registry of its own."""

    def __init__(self, pool: str, *, num_stages: int, base_bytes: int, include_finished: bool = False) -> None:
        self.registry = CollectorRegistry()
        self._base_bytes = base_bytes
        self._jobs = JobCollector(pool, include_finished=include_finished)
        self.registry.register(self._jobs)
        self._last_checkpoint: float | None = None

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"multigraft_{name}", text, ["pool", *labels], registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"multigraft_{name}", text, ["pool", *labels], registry=self.registry)

        tokens = counter("tokens", "Tokens run, by kind.", "kind")
        microbatches = counter("microbatches", "Microbatches run, by kind.", "kind")
        self._real_tokens = tokens.labels(pool, "real")
        self._padding_tokens = tokens.labels(pool, "padding")
        self._full_microbatches = microbatches.labels(pool, "full")
        self._no_op_microbatches = microbatches.labels(pool, "no-op")
        bubble = gauge("bubble_ratio", "Share of time in which a pipeline stage was idle.", "stage")
        for stage in range(num_stages):
            bubble.labels(pool, str(stage)).set(0.0)  # one stage never waits for another
        self._microbatch_seconds = Histogram(
            "multigraft_microbatch_seconds", "Forward and backward of one microbatch.", ["pool"],
            buckets=_STEP_SECONDS_BUCKETS, registry=self.registry,
        ).labels(pool)  # fmt: skip
        self._fill = gauge("capacity_fill_ratio", "Real tokens of the last microbatch over its capacity.").labels(pool)
        self._capacity = gauge("token_capacity", "Most tokens of one microbatch.", "source")
        self._solver_seconds = Histogram(
            "multigraft_solver_seconds", "Planning time of one horizon.", ["pool", "outcome"],
            buckets=_SOLVER_SECONDS_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self._pool = pool
        self._objective = gauge("plan_microbatches", "Microbatches of the last plan.").labels(pool)
        self._bound = gauge("plan_microbatches_lower_bound", "Fewest microbatches any plan could have.").labels(pool)
        self._slots = gauge("slots_in_use", "Slots that hold an adapter.").labels(pool)
        self._saved = gauge("base_memory_saved_bytes", "Base weights not held twice: (jobs - 1) x size.").labels(pool)
        self._checkpoint_seconds = gauge("checkpoint_seconds", "Time the last checkpoint took.").labels(pool)
        age = gauge("checkpoint_age_seconds", "Time since the last checkpoint; 0 before the first.").labels(pool)
        age.set_function(lambda: 0.0 if self._last_checkpoint is None else time.time() - self._last_checkpoint)

    def on_base(self, num_bytes: int) -> None:
        """Hear of the base model's size, if it was not known before."""
        self._base_bytes = num_bytes

    def on_capacity(self, tokens: int, source: str) -> None:
        """Hear of the token capacity of a microbatch; `source` is one of a fixed list."""
        self._capacity.labels(self._pool, source).set(tokens)

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int) -> None:  # noqa: ARG002 (not a label: unbounded)
        with self._jobs.lock:
            self._jobs.jobs[job] = _JobSeries(total_steps=total_steps, steps=steps)
        self._update_slots()

    def on_plan(self, horizon: int, plan: Plan) -> None:  # noqa: ARG002
        self._solver_seconds.labels(self._pool, plan.outcome.value).observe(plan.solver_seconds)
        self._objective.set(len(plan.microbatches))
        self._bound.set(plan.lower_bound)

    def on_microbatch(self, record: MicrobatchRecord) -> None:
        self._real_tokens.inc(record.num_tokens)
        self._padding_tokens.inc(record.padded_tokens - record.num_tokens)
        (self._full_microbatches if record.num_tokens else self._no_op_microbatches).inc()
        self._microbatch_seconds.observe(record.seconds)
        self._fill.set(record.num_tokens / record.token_capacity)

    def on_step(self, job: str, record: StepRecord) -> None:
        with self._jobs.lock:
            series = self._jobs.jobs[job]
            series.steps = record.step
            series.skipped_steps += record.skipped
            series.tokens += record.num_tokens
            series.supervised_tokens += record.num_supervised_tokens
            series.loss = record.loss
            series.learning_rate = record.learning_rate
            series.grad_norm = record.grad_norm

    def on_checkpoint(self, horizon: int, *, seconds: float) -> None:  # noqa: ARG002
        self._checkpoint_seconds.set(seconds)
        self._last_checkpoint = time.time()

    def on_end(self, job: str, state: JobState, message: str) -> None:  # noqa: ARG002
        with self._jobs.lock:
            self._jobs.end(job)
        self._update_slots()

    def write_file(self, path: Path) -> None:
        """Write all series in the text format, atomically."""
        write_to_textfile(str(path), self.registry)

    def serve(self, port: int, *, host: str) -> int:
        """Serve /metrics on one address (`0.0.0.0`: all interfaces); returns the port (a free one for 0)."""
        server, _ = start_http_server(port, addr=host, registry=self.registry)
        return int(server.server_port)

    def _update_slots(self) -> None:
        with self._jobs.lock:
            in_use = sum(not series.finished for series in self._jobs.jobs.values())
        self._slots.set(in_use)
        self._saved.set(max(in_use - 1, 0) * self._base_bytes)
