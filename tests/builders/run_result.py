"""A small result of a run, as the engine would fill it."""

from __future__ import annotations

from typing import Any

from multigraft_trainer.report.results import (
    HorizonResult,
    JobResult,
    JobState,
    PoolResult,
    RowAccount,
    RunResult,
    SegmentShape,
    StepRecord,
)


def make_step(step: int, **changes: Any) -> StepRecord:
    """Give a record of one step."""
    fields: dict[str, Any] = {
        "step": step,
        "loss": 4.0 / step,
        "learning_rate": 1e-3,
        "grad_norm": 0.5,
        "num_tokens": 100,
        "num_supervised_tokens": 30,
        "seconds": float(step),
    }
    return StepRecord(**fields | changes)


def make_job(job: str = "default/alpha", **changes: Any) -> JobResult:
    """Give a job that succeeded after three steps."""
    fields: dict[str, Any] = {
        "job": job,
        "state": JobState.SUCCEEDED,
        "rank": 8,
        "steps": 3,
        "total_steps": 3,
        "num_tokens": 1300,
        "num_supervised_tokens": 90,
        "heldout_loss_before": 3.881,
        "heldout_loss_after": 3.136,
        "rows": RowAccount(num_read=12, num_trained=10, num_dropped_by_code={"EmptyMessages": 2}),
        "adapter_path": f"out/adapters/{job}",
        "checkpoint_path": "out/checkpoints/3",
        "seconds": 12.5,
        "history": tuple(make_step(step) for step in (1, 2, 3)),
    }
    return JobResult(**fields | changes)


def make_horizon(jobs: tuple[str, ...] = ("default/alpha",), num_microbatches: int = 4) -> HorizonResult:
    """Give a plan in which each job has 40 tokens in each microbatch of 100; the last one is a no-op."""
    full = tuple(tuple(SegmentShape(job, step, 40) for job in jobs[:2]) for step in range(num_microbatches - 1))
    return HorizonResult("0" * 64, "Greedy", num_microbatches - 1, 100, (*full, ()))


def make_result(*jobs: JobResult, **pool_changes: Any) -> RunResult:
    """Give a run of these jobs, by default one."""
    jobs = jobs or (make_job(),)
    fields: dict[str, Any] = {
        "pool": "default/tiny",
        "base_model": "prepared/tiny",
        "dtype": "FP32",
        "device": "cpu",
        "token_capacity": 100,
        "base_bytes": 3 * 2**20,
        "num_plans": 1,
        "num_microbatches": 3,
        "num_noop_microbatches": 1,
        "num_tokens": 240,
        "train_seconds": 2.0,
        "horizons": (make_horizon(tuple(job.job for job in jobs)),),
    }
    pool = PoolResult(**fields | pool_changes)
    return RunResult(pool, jobs, "2026-11-30T20:00:00Z", 20.0, peak_rss_bytes=3 * 2**30, versions={"torch": "2.11.0"})
