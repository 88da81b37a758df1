"""One job inside the engine: what it brought, where it stands, and the global batch it is in the middle of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import torch

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.reasons import Reason, RefusalError
from multigraft.api.rules import JsonObject
from multigraft.planner.plan import JobWork, Segment
from multigraft.planner.sample_order import SampleOrder
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions, StepResult
from multigraft_trainer.adapters.peft_config import BaseModelName
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.engine.pack_microbatch import SegmentSource, build_segment_source
from multigraft_trainer.intake.samples import TokenisedDataset
from multigraft_trainer.report.results import StepRecord
from multigraft_trainer.storage.output import OutputFolder


@dataclass(frozen=True)
class PreparedJob:
    """A job that passed admission and intake: everything it needs is in memory or has been checked."""

    job: AdapterJob
    options: AdapterOptions
    optimizer_options: OptimizerOptions
    dataset: TokenisedDataset
    base: BaseModelName  # as the exported adapter names it
    training_spec: JsonObject  # what a checkpoint must have been made with; `build_training_spec`
    output: OutputFolder
    uid: str | None = None  # None: a job is known by its name alone
    heldout: TokenisedDataset | None = None
    start_weights: Mapping[str, torch.Tensor] | None = None  # PEFT tensors of `resumeFrom`

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.job.key

    @property
    def identity(self) -> str:
        """`namespace/name` or `namespace/name/uid`: what checkpoints and results are kept under."""
        return self.key if self.uid is None else f"{self.key}/{self.uid}"

    def build_order(self) -> SampleOrder:
        """Build the order in which the job visits its samples."""
        training = self.job.spec.training
        return SampleOrder(
            seed=training.seed,
            num_samples=len(self.dataset.samples),
            global_batch_size=training.global_batch_size,
        )


def count_total_steps(job: AdapterJob, num_samples: int) -> int:
    """Count the optimizer steps of a job with this many training samples."""
    training = job.spec.training
    order = SampleOrder(seed=training.seed, num_samples=num_samples, global_batch_size=training.global_batch_size)
    return order.count_steps(max_steps=training.max_steps, num_train_epochs=training.num_train_epochs)


@dataclass
class _OpenBatch:
    """A global batch of which some microbatches ran."""

    step: int
    rows: dict[int, int]  # draw -> index into the dataset's samples
    num_supervised: int
    num_tokens: int
    samples_left: int
    loss_sum: float = 0.0


@dataclass
class JobRun:
    """A job that holds a slot."""

    prepared: PreparedJob
    slot: int
    optimizer: AdapterOptimizer
    history: list[StepRecord] = field(default_factory=list)
    num_tokens: int = 0
    heldout_loss_before: float | None = None
    seconds_before: float = 0.0  # trained in earlier processes
    saved_step: int = 0  # step of the last checkpoint
    lag_tokens: float = 0.0  # see `planner/fair_share.py`
    failure: RefusalError | None = None
    joined_at: float = field(default_factory=time.monotonic)
    _open: _OpenBatch | None = None

    def __post_init__(self) -> None:
        self._order = self.prepared.build_order()
        self._lengths = [sample.num_tokens for sample in self.prepared.dataset.samples]
        self._step_tokens = -(-sum(self._lengths) // self._order.steps_per_epoch)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.prepared.key

    @property
    def step(self) -> int:
        """Optimizer steps finished."""
        return self.optimizer.progress.step

    @property
    def seconds(self) -> float:
        """Seconds on the shared base, earlier processes included."""
        return self.seconds_before + time.monotonic() - self.joined_at

    @property
    def draws(self) -> int:
        """Give the number of samples drawn so far: the first draw of the next global batch."""
        return self._order.draws(self.step).start

    def summarise(self) -> JsonObject:
        """Give what a checkpoint carries besides weights, moments and counters; JSON."""
        return {
            "heldoutLossBefore": self.heldout_loss_before,
            "history": [asdict(record) for record in self.history],
            "lagTokens": self.lag_tokens,
            "numTokens": self.num_tokens,
            "seconds": self.seconds,
        }

    def restore_summary(self, summary: JsonObject) -> None:
        """Take back what `summarise` gave."""
        self.heldout_loss_before = summary["heldoutLossBefore"]
        self.history = [StepRecord(**record) for record in summary["history"]]
        self.lag_tokens = summary.get("lagTokens", 0.0)  # checkpoints from before fair shares have none
        self.num_tokens = summary["numTokens"]
        self.seconds_before = summary["seconds"]

    def count_steps_left(self, step_limit: int | None = None) -> int:
        """Count the optimizer steps that are left, up to `step_limit`."""
        total = self.optimizer.options.total_steps
        return max(0, (total if step_limit is None else min(total, step_limit)) - self.step)

    def count_step_tokens(self, tile_tokens: int) -> int:
        """Count the tokens of a global batch in whole tiles, on average over an epoch, rounded up."""
        return -(-self._step_tokens // tile_tokens) * tile_tokens

    def build_work(self, first_step: int, num_global_batches: int) -> JobWork:
        """List global batches from `first_step` on for the planner; none is open between horizons."""
        return JobWork(
            job=self.key,
            global_batches=tuple(
                self._order.build_global_batch(step, self._lengths)
                for step in range(first_step, first_step + num_global_batches)
            ),
            priority=self.prepared.job.spec.priority,
        )

    def has_begun(self, step: int) -> bool:
        """Tell whether some of this global batch ran already."""
        return self._open is not None and self._open.step == step

    def begin(self, step: int) -> None:
        """Open a global batch, of which a segment is about to run; nothing happens if it is open."""
        if self._open is None:
            self._open = self._build_batch(step)
        assert self._open.step == step, "a plan ran two global batches of one job at once"  # noqa: S101

    def look_up(self, segment: Segment) -> SegmentSource:
        """Look up the samples of a segment, which may be of a global batch that has not begun."""
        batch = self._open if self._open is not None and self._open.step == segment.step else None
        batch = batch or self._build_batch(segment.step)
        weight = 1.0 / batch.num_supervised if batch.num_supervised else 0.0
        return build_segment_source(
            segment,
            slot=self.slot,
            samples=self.prepared.dataset.samples,
            rows=batch.rows,
            loss_weight=weight,
        )

    def close_segment(self, segment: Segment, loss_sum: float, *, run_seconds: float) -> StepRecord | None:
        """Book a segment that ran; after the last one of its global batch, take the optimizer step.

        Returns:
            The step's record, or None while the global batch goes on. `failure` is set if the step ended the job.
        """
        batch = self._open
        assert batch is not None, "a segment ended that had not begun"  # noqa: S101
        assert batch.step == segment.step, "a segment of another global batch ended"  # noqa: S101
        batch.loss_sum += loss_sum
        batch.samples_left -= len(segment.samples)
        if batch.samples_left:
            return None
        self._open = None
        learning_rate = self.optimizer.learning_rate()
        try:
            result = self.optimizer.step(batch.loss_sum, batch.num_supervised)
        except RefusalError as error:
            self.failure = error
            result = None
        self.num_tokens += batch.num_tokens
        record = _build_record(batch, result, learning_rate=learning_rate, run_seconds=run_seconds)
        self.history.append(record)
        return record

    def check_deadline(self) -> None:
        """Fail the job if `activeDeadlineSeconds` is over before its last step."""
        deadline = self.prepared.job.spec.active_deadline_seconds
        is_open = self.failure is None and not self.optimizer.finished
        if deadline is not None and is_open and self.seconds > deadline:
            self.failure = RefusalError(
                Reason.DEADLINE_EXCEEDED,
                f"spec.activeDeadlineSeconds: ran {self.seconds:.0f} s of {deadline} s allowed, at step {self.step} "
                f"of {self.optimizer.options.total_steps}",
            )

    def _build_batch(self, step: int) -> _OpenBatch:
        samples = self.prepared.dataset.samples
        rows = {draw: self._order.row(draw) for draw in self._order.draws(step)}
        return _OpenBatch(
            step=step,
            rows=rows,
            num_supervised=sum(samples[row].num_supervised for row in rows.values()),
            num_tokens=sum(samples[row].num_tokens for row in rows.values()),
            samples_left=len(rows),
        )


def _build_record(
    batch: _OpenBatch, result: StepResult | None, *, learning_rate: float, run_seconds: float
) -> StepRecord:
    return StepRecord(
        step=batch.step + 1,
        loss=result.loss if result else None,
        learning_rate=learning_rate,
        grad_norm=result.grad_norm if result else None,
        num_tokens=batch.num_tokens,
        num_supervised_tokens=batch.num_supervised,
        seconds=run_seconds,
        skipped=result is None or not result.applied,
    )
