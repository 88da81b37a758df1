"""One job inside the service: what is wanted of it, where it stands, and how that is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from multigraft.api.control import AssignedJob, JobReport, TrainerJobPhase
from multigraft.api.reasons import Reason
from multigraft_trainer.engine.job_end import build_row_account
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.report.results import JobResult, JobState, RowAccount
from multigraft_trainer.service.figures import JobFigures

# What may change while a job trains; any other change is another training.
_LIVE_FIELDS = frozenset(
    {"priority", "suspend", "active_deadline_seconds", "backoff_limit", "ttl_seconds_after_finished"}
)


class Place(Enum):
    """Where a job is."""

    INTAKE = auto()  # its rows are being read
    READY = auto()  # prepared, not yet given to the engine
    ENGINE = auto()  # the engine has it, in a slot or waiting for one
    PARKED = auto()  # checkpointed and out, as it is suspended
    ENDED = auto()  # succeeded or failed


@dataclass
class JobEntry:
    """A job that the service has begun with. Changed only under the trainer's lock."""

    assigned: AssignedJob
    place: Place
    prepared: PreparedJob | None = None
    result: JobResult | None = None  # of a job that ended or is parked
    is_leaving: bool = False  # the engine was told to let it go

    @property
    def identity(self) -> str:
        """`namespace/name/uid`."""
        return f"{self.assigned.key}/{self.assigned.id.uid}"

    def is_kept_by(self, wanted: AssignedJob | None) -> bool:
        """Tell whether the job goes on as it is: same object, same try, same training, not suspended.

        One that succeeded stays so.
        """
        mine = self.assigned
        if wanted is None or wanted.id != mine.id:
            return False
        if self.result is not None and self.result.state is JobState.SUCCEEDED:
            return True
        is_same = wanted.attempt == mine.attempt and _fixed_part(wanted) == _fixed_part(mine)
        return is_same and not wanted.spec.suspend


def _fixed_part(assigned: AssignedJob) -> Any:
    return assigned.spec.model_dump(exclude=set(_LIVE_FIELDS)), assigned.rows


def report_absent(wanted: AssignedJob, *, is_base_ready: bool) -> JobReport:
    """Tell of a job that is wanted and not begun with."""
    if wanted.spec.suspend:
        return _build(wanted, TrainerJobPhase.STOPPED, reason=Reason.SUSPENDED, message="spec.suspend is true")
    if not is_base_ready:
        text = "the base model is being loaded"
        return _build(wanted, TrainerJobPhase.WAITING, reason=Reason.POOL_NOT_READY, message=text)
    return _build(wanted, TrainerJobPhase.LOADING, message="waits for its turn at intake")


def report_entry(
    entry: JobEntry, figures: JobFigures | None, *, keeps: bool, slots: tuple[int, int], checkpoint_uri: str | None
) -> JobReport:
    """Tell of a job that the service has begun with.

    Args:
        figures: What the engine says of it; None without a slot.
        keeps: Whether it is to go on; if not, and it has a slot, it is leaving.
        slots: In use, and in all.
        checkpoint_uri: Folder of its checkpoints.
    """
    assigned = entry.assigned
    if figures is not None and entry.place is Place.ENGINE:
        phase = TrainerJobPhase.RUNNING if keeps else TrainerJobPhase.CHECKPOINTING
        return _build(assigned, phase, **_tell_figures(figures, checkpoint_uri), **_tell_prepared(entry.prepared))
    if entry.result is not None:
        return _report_result(assigned, entry.result, checkpoint_uri)
    if entry.place is Place.INTAKE:
        return _build(assigned, TrainerJobPhase.LOADING, message="reading its rows")
    in_use, num_slots = slots
    if in_use < num_slots:
        return _build(assigned, TrainerJobPhase.LOADING, message="joins next", **_tell_prepared(entry.prepared))
    text = f"{in_use} of {num_slots} slots are in use"
    return _build(
        assigned, TrainerJobPhase.WAITING, reason=Reason.NO_FREE_SLOT, message=text, **_tell_prepared(entry.prepared)
    )


def _report_result(assigned: AssignedJob, result: JobResult, checkpoint_uri: str | None) -> JobReport:
    phases = {JobState.SUCCEEDED: TrainerJobPhase.SUCCEEDED, JobState.FAILED: TrainerJobPhase.FAILED}
    phase = phases.get(result.state, TrainerJobPhase.STOPPED)
    last = result.history[-1] if result.history else None
    return _build(
        assigned,
        phase,
        reason=Reason(result.reason) if result.reason else None,
        message=result.message or None,
        step=result.steps,
        total_steps=result.total_steps,
        skipped_steps=result.num_skipped_steps,
        tokens=result.num_tokens,
        seconds=result.seconds,
        loss=last.loss if last else None,
        learning_rate=last.learning_rate if last else None,
        grad_norm=last.grad_norm if last else None,
        heldout_loss_before=result.heldout_loss_before,
        heldout_loss_after=result.heldout_loss_after,
        checkpoint_step=result.steps if phase is TrainerJobPhase.STOPPED and result.steps else None,
        checkpoint_uri=checkpoint_uri if result.checkpoint_path else None,
        output_uri=result.adapter_path,
        output_digest=f"sha256:{result.adapter_sha256}" if result.adapter_sha256 else None,
        output_bytes=result.adapter_bytes,
        **_tell_rows(result.rows),
    )


def _tell_figures(figures: JobFigures, checkpoint_uri: str | None) -> dict[str, Any]:
    last = figures.last
    return {
        "slot": figures.slot,
        "step": figures.step,
        "total_steps": figures.total_steps,
        "skipped_steps": figures.skipped_steps,
        "tokens": figures.tokens,
        "seconds": figures.seconds,
        "loss": last.loss if last else None,
        "learning_rate": last.learning_rate if last else None,
        "grad_norm": last.grad_norm if last else None,
        "heldout_loss_before": figures.heldout_loss_before,
        "checkpoint_step": figures.checkpoint_step or None,
        "checkpoint_uri": checkpoint_uri if figures.checkpoint_step else None,
    }


def _tell_prepared(prepared: PreparedJob | None) -> dict[str, Any]:
    return {} if prepared is None else _tell_rows(build_row_account(prepared.dataset.report))


def _tell_rows(rows: RowAccount | None) -> dict[str, Any]:
    if rows is None:
        return {}
    return {
        "rows_read": rows.num_read,
        "rows_used": rows.num_trained,
        "rows_truncated": rows.num_truncated,
        "rows_dropped": dict(rows.num_dropped_by_code),
    }


def _build(assigned: AssignedJob, phase: TrainerJobPhase, *, reason: Reason | None = None, **fields: Any) -> JobReport:
    return JobReport(
        namespace=assigned.id.namespace,
        name=assigned.id.name,
        uid=assigned.id.uid,
        generation=assigned.generation,
        attempt=assigned.attempt,
        phase=phase,
        reason=reason.value if reason else None,
        rank=assigned.spec.lora.r,
        **{name: value for name, value in fields.items() if not _is_not_finite(value)},
    )


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
