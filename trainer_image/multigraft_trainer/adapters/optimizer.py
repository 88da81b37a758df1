"""The optimizer step of one adapter: finite check, clip by its own norm, its schedule, AdamW. Nothing global.

Order of a step: count -> check loss and gradients -> clip -> AdamW on the fp32 master -> publish -> zero gradients.

Which counter moves when a step is skipped:
- `step` moves with every consumed global batch, applied or not. The schedule follows it, so a job always ends after
  its total steps and its learning rate always ends where the schedule says.
- `updates` moves with applied steps only; it is AdamW's bias-correction count, as the moments do not move either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch.optim.adamw import adamw

from multigraft.api.adapter_job import LrSchedulerType, Training
from multigraft.api.reasons import Reason, RefusalError
from multigraft.api.schema import parse_decimal
from multigraft_trainer.adapters.adapter import ROW_ELEMENTS, Adapter
from multigraft_trainer.adapters.schedules import check_schedule, compute_factor

CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_
FP32 = torch.finfo(torch.float32)
LARGEST_GRADIENT = math.sqrt(FP32.max)  # above, its square overflows AdamW's fp32 second moment


@dataclass(frozen=True)
class OptimizerOptions:
    """What a spec says of the optimizer, as numbers."""

    learning_rate: float
    total_steps: int
    schedule: LrSchedulerType = LrSchedulerType.LINEAR
    warmup_steps: int = 0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0  # decoupled, on A and B: HF Trainer exempts biases and norms only
    max_grad_norm: float = 1.0  # 0: no clipping
    max_nonfinite_steps: int = 3

    @classmethod
    def from_spec(cls, training: Training, *, total_steps: int) -> OptimizerOptions:
        """Read a job's `training`; `total_steps` is `maxSteps` or what `numTrainEpochs` comes to.

        Raises:
            RefusalError: INVALID_SPEC, if a number is out of its range or the schedule never leaves 0.
        """
        options = cls(
            learning_rate=float(parse_decimal(training.learning_rate)),
            total_steps=total_steps,
            schedule=training.lr_scheduler_type,
            warmup_steps=training.warmup_steps,
            beta1=float(parse_decimal(training.adam_beta1)),
            beta2=float(parse_decimal(training.adam_beta2)),
            epsilon=float(parse_decimal(training.adam_epsilon)),
            weight_decay=float(parse_decimal(training.weight_decay)),
            max_grad_norm=float(parse_decimal(training.max_grad_norm)),
            max_nonfinite_steps=training.max_nonfinite_steps,
        )
        _check_ranges(options)
        check_schedule(options.schedule, warmup_steps=options.warmup_steps, total_steps=total_steps)
        return options


class Outcome(StrEnum):
    """What became of one global batch."""

    APPLIED = "Applied"
    SKIPPED_NON_FINITE = "SkippedNonFinite"
    SKIPPED_NO_TOKENS = "SkippedNoTokens"  # no supervised token in the whole global batch


@dataclass(frozen=True)
class Progress:
    """Counters of one job; saved with its checkpoints."""

    step: int = 0  # global batches consumed; the schedule's clock
    updates: int = 0  # steps applied; AdamW's bias-correction clock
    nonfinite_in_row: int = 0
    skipped_nonfinite: int = 0
    skipped_no_tokens: int = 0
    supervised_tokens: int = 0  # of applied steps
    peak_learning_rate: float = 0.0  # highest one that an applied step used


@dataclass(frozen=True)
class StepResult:
    """One optimizer step; None stands for "no finite value", never 0."""

    step: int  # 0-based
    outcome: Outcome
    loss: float | None  # nats per supervised token of the global batch
    grad_norm: float | None  # L2 norm before clipping
    learning_rate: float

    @property
    def applied(self) -> bool:
        """Tell whether the weights were updated."""
        return self.outcome is Outcome.APPLIED


class AdapterOptimizer:
    """AdamW with a schedule for one adapter; its tensors are the adapter's, its counters are `progress`."""

    def __init__(self, adapter: Adapter, options: OptimizerOptions, progress: Progress | None = None) -> None:
        self.options = options
        self.progress = progress or Progress()
        self._adapter = adapter

    @property
    def finished(self) -> bool:
        """Tell whether every step of the job was consumed."""
        return self.progress.step >= self.options.total_steps

    def learning_rate(self) -> float:
        """Give the learning rate of the next step."""
        options = self.options
        factor = compute_factor(
            options.schedule, self.progress.step, warmup_steps=options.warmup_steps, total_steps=options.total_steps
        )
        return options.learning_rate * factor

    def step(self, loss_sum: float, num_supervised: int) -> StepResult:
        """Finish one global batch whose gradients were accumulated, and zero them.

        Args:
            loss_sum: Sum of the token losses of the whole global batch, in nats.
            num_supervised: Supervised tokens of the whole global batch; the gradients are divided by it already.

        Raises:
            RefusalError: NON_FINITE, after more than `max_nonfinite_steps` skipped steps in a row. The weights are
                those of the last applied step.
            ValueError: If the job has no step left.
        """
        if self.finished:
            raise ValueError(f"optimizer step {self.progress.step}: the job has {self.options.total_steps} steps")
        result = self._take_step(loss_sum, num_supervised)
        self._adapter.grads.zero_()
        self.progress = _count(self.progress, result, num_supervised)
        if self.progress.nonfinite_in_row > self.options.max_nonfinite_steps:
            raise RefusalError(
                Reason.NON_FINITE,
                f"loss or gradient not finite in {self.progress.nonfinite_in_row} steps in a row, the last one step "
                f"{self.progress.step} of {self.options.total_steps}; training.maxNonfiniteSteps is "
                f"{self.options.max_nonfinite_steps}",
            )
        return result

    def _take_step(self, loss_sum: float, num_supervised: int) -> StepResult:
        step, learning_rate = self.progress.step, self.learning_rate()
        if num_supervised == 0:
            return StepResult(step, Outcome.SKIPPED_NO_TOKENS, None, None, learning_rate)
        norm = _measure_norm(self._adapter.grads)
        factor = _compute_clip_factor(norm, self.options.max_grad_norm)
        loss = loss_sum / num_supervised
        known_loss = loss if math.isfinite(loss) else None
        known_norm = norm if math.isfinite(norm) else None
        if known_loss is None or known_norm is None or norm * factor > LARGEST_GRADIENT:
            return StepResult(step, Outcome.SKIPPED_NON_FINITE, known_loss, known_norm, learning_rate)
        if factor < 1.0:
            self._adapter.grads.mul_(factor)
        self._apply(learning_rate)
        self._adapter.publish()
        return StepResult(step, Outcome.APPLIED, known_loss, known_norm, learning_rate)

    def _apply(self, learning_rate: float) -> None:
        adapter, options = self._adapter, self.options
        adamw(
            [adapter.weights],
            [adapter.grads],
            [adapter.exp_avg],
            [adapter.exp_avg_sq],
            [],
            [torch.tensor(float(self.progress.updates), dtype=torch.float32, device=adapter.weights.device)],
            foreach=False,
            fused=True,  # one pass: 8 ms, the default 39 ms (5 million parameters, one CPU core)
            amsgrad=False,
            beta1=options.beta1,
            beta2=options.beta2,
            lr=learning_rate,
            weight_decay=options.weight_decay,
            eps=options.epsilon,
            maximize=False,
        )


def _measure_norm(grads: torch.Tensor) -> float:
    """Give the L2 norm: finite exactly if every fp32 element is. Waits for the device.

    Rows are summed in fp32 and added up in fp64: relative error 1e-8 at 5 million elements. One fp32 sum over all is
    1e-4 off on a CPU (3e-3 at 42 million), and fp64 throughout takes ten times as long.
    """
    rows = torch.linalg.vector_norm(grads.view(-1, ROW_ELEMENTS), dim=1)
    norm = float(torch.linalg.vector_norm(rows, dtype=torch.float64))
    if math.isfinite(norm):
        return norm
    return float(torch.linalg.vector_norm(grads, dtype=torch.float64))  # squares of 1e20 overflow fp32 and are finite


def _compute_clip_factor(norm: float, max_grad_norm: float) -> float:
    """Give what torch.nn.utils.clip_grad_norm_ multiplies gradients by."""
    if max_grad_norm == 0:
        return 1.0
    return min(1.0, max_grad_norm / (norm + CLIP_EPSILON))


def _count(progress: Progress, result: StepResult, num_supervised: int) -> Progress:
    is_nonfinite = result.outcome is Outcome.SKIPPED_NON_FINITE
    # A batch without targets says nothing of the adapter's health: it neither lengthens nor breaks a row of bad steps.
    in_row = 0 if result.applied else progress.nonfinite_in_row + is_nonfinite
    return replace(
        progress,
        step=progress.step + 1,
        updates=progress.updates + result.applied,
        nonfinite_in_row=in_row,
        skipped_nonfinite=progress.skipped_nonfinite + is_nonfinite,
        skipped_no_tokens=progress.skipped_no_tokens + (result.outcome is Outcome.SKIPPED_NO_TOKENS),
        supervised_tokens=progress.supervised_tokens + num_supervised * result.applied,
        peak_learning_rate=max(progress.peak_learning_rate, result.learning_rate * result.applied),
    )


def _check_ranges(options: OptimizerOptions) -> None:
    # Above 0 and finite is not enough: the update is fp32, where 1e99 is infinite and an epsilon of 1e-99 divides by 0.
    ranges = {
        f"training.maxSteps: got {options.total_steps}, want at least 1": options.total_steps >= 1,
        f"training.learningRate: got {options.learning_rate}, want a normal fp32 number above 0": _is_normal(
            options.learning_rate
        ),
        f"training.adamBeta1: got {options.beta1}, want 0 <= x < 1": 0 <= options.beta1 < 1,
        f"training.adamBeta2: got {options.beta2}, want 0 <= x < 1": 0 <= options.beta2 < 1,
        f"training.adamEpsilon: got {options.epsilon}, want a normal fp32 number above 0": _is_normal(options.epsilon),
        f"training.weightDecay: got {options.weight_decay}, want 0 <= x <= 1": 0 <= options.weight_decay <= 1,
        f"training.maxGradNorm: got {options.max_grad_norm}, want 0 or a normal fp32 number": (
            options.max_grad_norm == 0 or _is_normal(options.max_grad_norm)
        ),
    }
    for message, is_right in ranges.items():
        if not is_right:
            raise RefusalError(Reason.INVALID_SPEC, message)


def _is_normal(value: float) -> bool:
    return FP32.tiny <= value <= FP32.max
