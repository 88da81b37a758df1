"""Run prepared jobs through the real engine on a tiny base, in one process, and give the trained weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file

from builders.backend import load_tiny_backend
from multigraft.planner.plan import PlanLimits
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.backends.transformers_backend import TransformersBackend
from multigraft_trainer.engine.engine import Engine, EngineOptions
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.engine.observer import EngineObserver
from multigraft_trainer.engine.pool_state import PoolPaths, PoolState
from multigraft_trainer.report.results import JobResult, StepRecord


@dataclass
class StepLog(EngineObserver):
    """Keeps every step of every job."""

    steps: dict[str, list[StepRecord]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def on_step(self, job: str, record: StepRecord) -> None:
        self.steps.setdefault(job, []).append(record)

    def on_note(self, job: str, text: str) -> None:
        self.notes.append(f"{job}: {text}")


@dataclass
class PoolRun:
    """A pool with its engine, ready to run."""

    engine: Engine
    slots: SlotPool
    backend: TransformersBackend
    log: StepLog
    results: dict[str, JobResult]
    outputs: dict[str, Path]

    def submit(self, job: PreparedJob) -> None:
        self.outputs[job.key] = job.output.path
        self.engine.submit(job)

    def weights(self, key: str) -> dict[str, torch.Tensor]:
        """Give the exported weights of a job that succeeded."""
        return load_file(self.outputs[key] / "adapter_model.safetensors")

    def losses(self, key: str) -> list[float | None]:
        return [record.loss for record in self.log.steps[key]]


def open_pool(
    base: Path,
    folder: Path,
    *,
    token_capacity: int = 160,
    tile_tokens: int = 1,
    horizon_global_batches: int = 4,
    max_slots: int = 8,
    max_rank: int = 32,
    resume: bool = False,
    checkpoint_interval_steps: int = 1_000,
    step_limit: int | None = None,
    solver_timeout_seconds: float = 0,
    gradient_checkpointing: bool = False,
    observer: EngineObserver | None = None,
    wants_boundary: Callable[[], bool] = lambda: False,
) -> PoolRun:
    """Open a pool on a tiny base; its state lies under `folder`."""
    backend, slots = load_tiny_backend(
        base, max_slots=max_slots, max_rank=max_rank, gradient_checkpointing=gradient_checkpointing
    )
    log = StepLog()
    results: dict[str, JobResult] = {}
    options = EngineOptions(
        limits=PlanLimits(token_capacity=token_capacity, tile_tokens=tile_tokens),
        horizon_global_batches=horizon_global_batches,
        solver_timeout_seconds=solver_timeout_seconds,
        checkpoint_interval_steps=checkpoint_interval_steps,
        step_limit=step_limit,
    )
    state = PoolState(PoolPaths(folder / "checkpoints", folder / "plans"), keep_last=2, resume=resume)
    engine = Engine(
        backend,
        slots,
        state,
        options,
        observer or log,
        on_end=lambda result: results.__setitem__(result.job, result),
        wants_boundary=wants_boundary,
    )
    return PoolRun(engine, slots, backend, log, results, {})


def run_pool(
    base: Path,
    folder: Path,
    jobs: Sequence[PreparedJob],
    *,
    at_horizon: Mapping[int, Callable[[PoolRun], None]] | None = None,
    **options: object,
) -> PoolRun:
    """Run jobs together until all have ended; `at_horizon` acts before the horizon of that number."""
    pool = open_pool(base, folder, **options)  # type: ignore[arg-type]
    for job in jobs:
        pool.submit(job)
    pending = dict(at_horizon or {})
    while True:
        for horizon in [number for number in pending if number <= pool.engine.horizon]:
            pending.pop(horizon)(pool)
        if not pool.engine.run_horizon() and not pending:
            pool.engine.close()
            return pool


def measure_difference(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor]) -> float:
    """Give the relative difference over all tensors, ||got - want|| / ||want||; both have the same keys."""
    assert got.keys() == want.keys()
    difference = sum(float((got[key].double() - want[key].double()).square().sum()) for key in want)
    norm = sum(float(want[key].double().square().sum()) for key in want)
    return float((difference / norm) ** 0.5)
