"""Learning-rate schedules: the factor on the peak learning rate at each optimizer step of one adapter.

Pure functions of that adapter's own step count; no state, so resume and neighbours cannot shift them.
Source: transformers.optimization.get_scheduler (names and values; a test compares every step).
"""

from __future__ import annotations

import math

from multigraft.api.adapter_job import LrSchedulerType
from multigraft.api.reasons import Reason, RefusalError


def compute_factor(kind: LrSchedulerType, step: int, *, warmup_steps: int, total_steps: int) -> float:
    """Give the factor of the optimizer step that follows `step` finished ones; Linear and Cosine end at 0."""
    if kind is LrSchedulerType.CONSTANT:
        return 1.0
    if step < warmup_steps:
        return step / warmup_steps
    if kind is LrSchedulerType.CONSTANT_WITH_WARMUP:
        return 1.0
    decay_steps = max(1, total_steps - warmup_steps)
    if kind is LrSchedulerType.LINEAR:
        return max(0.0, (total_steps - step) / decay_steps)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * ((step - warmup_steps) / decay_steps))))


def compute_peak_factor(kind: LrSchedulerType, *, warmup_steps: int, total_steps: int) -> float:
    """Give the highest factor that any of the `total_steps` steps gets; below 1 if warm-up fills the whole run."""
    best_step = min(warmup_steps, total_steps - 1)
    return compute_factor(kind, best_step, warmup_steps=warmup_steps, total_steps=total_steps)


def check_schedule(kind: LrSchedulerType, *, warmup_steps: int, total_steps: int) -> None:
    """Refuse a schedule that could not do what it says.

    Raises:
        RefusalError: INVALID_SPEC, if warm-up outlasts the run, leaves no step with a learning rate above 0, or is
            asked of Constant, which has none.
    """
    if warmup_steps > total_steps:
        raise RefusalError(
            Reason.INVALID_SPEC,
            f"training.warmupSteps: got {warmup_steps}, the job has {total_steps} optimizer steps in all",
        )
    if warmup_steps and kind is LrSchedulerType.CONSTANT:
        raise RefusalError(
            Reason.INVALID_SPEC,
            f"training.warmupSteps: got {warmup_steps}, lrSchedulerType Constant has none; use ConstantWithWarmup",
        )
    if compute_peak_factor(kind, warmup_steps=warmup_steps, total_steps=total_steps) == 0:
        raise RefusalError(
            Reason.INVALID_SPEC,
            f"training.warmupSteps: got {warmup_steps} of {total_steps} steps, so the learning rate is 0 in every step",
        )
