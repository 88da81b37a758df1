"""Build the status of a job from the verdict on it; `phase` is derived from the conditions at the very end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from multigraft.api.adapter_job_status import (
    AdapterJobStatus,
    Assignment,
    Checkpoints,
    DatasetCounts,
    DroppedRows,
    JobPhase,
    Metric,
    OutputStatus,
    Progress,
)
from multigraft.api.condition_reasons import JobReason
from multigraft.api.conditions import Condition, ConditionStatus, JobCondition
from multigraft.api.control import JobReport, TrainerJobPhase
from multigraft_operator.condition_list import (
    Fact,
    build_conditions,
    find_condition,
    format_time,
    holds,
    is_false,
    is_true,
    is_unknown,
)
from multigraft_operator.job_stand import Kind, Stand
from multigraft_operator.observed import Observed

LOSING_SLOT = frozenset({JobReason.PREEMPTED})


def build_job_status(stand: Stand, seen: Observed) -> AdapterJobStatus:
    """Build the whole new status of a living job, or of one that ends now."""
    old, now = stand.job.status, seen.now
    is_fresh = stand.pod is None or stand.is_new or stand.pod.is_fresh(now, seen.policy.stale_seconds)
    facts = {str(kind): fact for kind, fact in _tell(stand, is_fresh).items()}
    conditions = build_conditions(old.conditions, facts, generation=stand.job.generation, now=now)
    report = stand.report if is_fresh else None
    changes: dict[str, Any] = {
        "observed_generation": stand.job.generation,
        "conditions": conditions,
        "assignment": _build_assignment(stand, seen),
        "queue_position": stand.position,
        "attempts": stand.attempts,
        "preemptions": old.preemptions + _counts_as_preemption(stand),
        "start_time": _find_start_time(stand, report, now),
        "completion_time": format_time(now) if stand.kind in {Kind.SUCCEEDED, Kind.FAILED} else None,
        **(_build_figures(stand, report, now) if report is not None else {}),
    }
    changes["phase"], changes["reason"] = summarise(conditions)
    return old.model_copy(update=changes)


def _tell(stand: Stand, is_fresh: bool) -> dict[JobCondition, Fact]:
    """Say every condition."""
    admitted = stand.kind is Kind.ADMITTED
    facts = {
        JobCondition.VALIDATED: _tell_validated(stand),
        JobCondition.QUOTA_RESERVED: is_true(JobReason.NO_QUOTA_SET, "no tenant queue limits this job"),
        JobCondition.ADMITTED: _tell_admitted(stand),
        JobCondition.LOADED: is_false(JobReason.NOT_ADMITTED),
        JobCondition.RUNNING: is_false(JobReason.NOT_ADMITTED),
        JobCondition.PREEMPTED: _tell_preempted(stand),
        JobCondition.SUSPENDED: is_false(JobReason.NOT_SUSPENDED),
        JobCondition.SUCCEEDED: is_unknown(JobReason.NOT_FINISHED),
        JobCondition.FAILED: is_false(JobReason.NOT_FAILED),
    }
    if admitted:
        facts |= _tell_trainer(stand, is_fresh)
    elif stand.kind is Kind.LEAVING:
        leaving = is_false(JobReason.CHECKPOINTING, stand.message)
        facts |= {JobCondition.LOADED: leaving, JobCondition.RUNNING: leaving}
    elif stand.kind is Kind.SUSPENDED:
        facts[JobCondition.SUSPENDED] = is_true(stand.reason, stand.message)
    elif stand.kind in {Kind.SUCCEEDED, Kind.FAILED}:
        facts |= _tell_end(stand)
    return facts


def _tell_end(stand: Stand) -> dict[JobCondition, Fact]:
    finished = is_false(JobReason.FINISHED)
    facts = {JobCondition.ADMITTED: finished, JobCondition.LOADED: finished, JobCondition.RUNNING: finished}
    if stand.kind is Kind.SUCCEEDED:
        return facts | {JobCondition.SUCCEEDED: is_true(stand.reason, stand.message)}
    failed, not_succeeded = is_true(stand.reason, stand.message), is_false(stand.reason, stand.message)
    return facts | {JobCondition.FAILED: failed, JobCondition.SUCCEEDED: not_succeeded}


def _tell_validated(stand: Stand) -> Fact:
    if stand.kind is Kind.REFUSED and stand.reason != JobReason.BACK_OFF:
        return is_false(stand.reason, stand.message)
    if stand.kind in {Kind.SUSPENDED, Kind.REFUSED} and stand.pool is None:
        before = find_condition(stand.job.status.conditions, JobCondition.VALIDATED)
        return (
            Fact(before.status, before.reason, before.message) if before else is_unknown(JobReason.PENDING_EVALUATION)
        )
    return is_true(JobReason.SPEC_FITS_POOL)


def _tell_admitted(stand: Stand) -> Fact:
    if stand.kind is not Kind.ADMITTED:
        return is_false(stand.reason or JobReason.PENDING_EVALUATION, stand.message)
    name = stand.pod.name if stand.pod is not None else ""
    report = stand.report
    slot = f"slot {report.slot} of {name}" if report is not None and report.slot is not None else f"a slot of {name}"
    return is_true(JobReason.SLOT_ASSIGNED, slot)


def _tell_preempted(stand: Stand) -> Fact:
    if stand.kind is Kind.LEAVING and stand.reason in LOSING_SLOT:
        return is_true(stand.reason, stand.message)
    before = find_condition(stand.job.status.conditions, JobCondition.PREEMPTED)
    waits = stand.kind in {Kind.WAITING, Kind.REFUSED, Kind.LEAVING}
    if waits and before is not None and before.status is ConditionStatus.TRUE:
        return is_true(before.reason, before.message)
    return is_false(JobReason.NOT_PREEMPTED)


def _tell_trainer(stand: Stand, is_fresh: bool) -> dict[JobCondition, Fact]:
    """Say what the trainer says: nothing is loaded or running on our own word."""
    name = stand.pod.name if stand.pod is not None else ""
    if not is_fresh:
        silent = is_unknown(JobReason.TRAINER_UNREACHABLE, f"trainer {name} was not heard of lately")
        if stand.pod is not None and stand.pod.problem is not None:
            problem = stand.pod.problem
            silent = is_unknown(problem.reason, f"trainer {name} was not heard of lately: {problem.message}")
        return {JobCondition.LOADED: silent, JobCondition.RUNNING: silent}
    report = stand.report
    if report is None or report.attempt != stand.attempts:
        waits = is_false(JobReason.LOADING, f"not yet taken up by {name}")
        return {JobCondition.LOADED: waits, JobCondition.RUNNING: waits}
    if report.phase is TrainerJobPhase.RUNNING:
        loaded = is_true(JobReason.ADAPTER_LOADED, f"slot {report.slot} of {name}")
        return {JobCondition.LOADED: loaded, JobCondition.RUNNING: is_true(JobReason.TRAINING)}
    reason = report.reason or (
        JobReason.CHECKPOINTING if report.phase is TrainerJobPhase.CHECKPOINTING else JobReason.LOADING
    )
    waits = is_false(reason, f"{name}: {report.message or report.phase}")
    return {JobCondition.LOADED: waits, JobCondition.RUNNING: waits}


def _build_assignment(stand: Stand, seen: Observed) -> Assignment | None:
    old = stand.job.status.assignment
    if stand.is_new and stand.pod is not None:
        return Assignment(
            pool=stand.pod.pool,
            pod=stand.pod.name,
            pod_uid=stand.pod.uid,
            accelerator=stand.pod.accelerator or None,
            epoch=seen.epoch,
            admitted_time=format_time(seen.now),
        )
    if stand.kind in {Kind.WAITING, Kind.SUSPENDED, Kind.REFUSED} or old is None:
        return None  # nobody has it
    slot = stand.report.slot if stand.report is not None else None
    return old if slot is None or slot == old.slot else old.model_copy(update={"slot": slot})


def _counts_as_preemption(stand: Stand) -> int:
    is_losing = stand.kind is Kind.LEAVING and stand.reason in LOSING_SLOT
    return int(is_losing and holds(stand.job.status.conditions, JobCondition.ADMITTED))


def _find_start_time(stand: Stand, report: JobReport | None, now: datetime) -> str | None:
    if stand.kind is Kind.SUSPENDED:
        return None  # as for a Job of Kubernetes, the deadline begins anew
    old = stand.job.status.start_time
    runs = stand.kind is Kind.ADMITTED and report is not None and report.phase is TrainerJobPhase.RUNNING
    ends = stand.kind is Kind.SUCCEEDED
    return format_time(now) if old is None and (runs or ends) else old


def _build_figures(stand: Stand, report: JobReport, now: datetime) -> dict[str, Any]:
    figures: dict[str, Any] = {"metrics": _build_metrics(report)}
    if report.total_steps is not None:
        figures["progress"] = _build_progress(report, report.total_steps, now)
    if report.rows_read is not None and report.rows_used is not None:
        dropped = [DroppedRows(reason=why, count=count) for why, count in sorted(report.rows_dropped.items())][:16]
        figures["dataset"] = DatasetCounts(
            rows_read=report.rows_read,
            rows_used=report.rows_used,
            rows_truncated=report.rows_truncated or 0,
            dropped=dropped,
        )
    if report.checkpoint_step is not None and report.checkpoint_uri is not None:
        figures["checkpoints"] = _build_checkpoints(stand, report, now)
    if stand.kind is Kind.SUCCEEDED and report.output_uri is not None:
        figures["output"] = OutputStatus(
            uri=report.output_uri,
            digest=report.output_digest or "",
            bytes=report.output_bytes or 0,
            rank=report.rank,
        )
    return figures


def _build_checkpoints(stand: Stand, report: JobReport, now: datetime) -> Checkpoints:
    old = stand.job.status.checkpoints
    step, uri = report.checkpoint_step or 0, report.checkpoint_uri or ""
    if old is not None and (old.latest_step, old.latest_uri) == (step, uri):
        return old
    return Checkpoints(latest_step=step, latest_uri=uri, time=format_time(now))


def _build_progress(report: JobReport, total: int, now: datetime) -> Progress:
    remaining = None
    if report.step and report.phase is TrainerJobPhase.RUNNING:
        remaining = math.ceil(report.seconds / report.step * max(0, total - report.step))
    return Progress(
        step=report.step,
        max_steps=total,
        display=f"{report.step}/{total}",
        percentage=min(100, 100 * report.step // max(1, total)),
        tokens=report.tokens,
        skipped_steps=report.skipped_steps,
        estimated_remaining_seconds=remaining,
        updated_time=format_time(now),
    )


def _build_metrics(report: JobReport) -> list[Metric]:
    figures = {
        "loss": report.loss,
        "learningRate": report.learning_rate,
        "gradNorm": report.grad_norm,
        "evalLossBefore": report.heldout_loss_before,
        "evalLoss": report.heldout_loss_after,
    }
    return [Metric(name=name, value=f"{value:.6g}") for name, value in figures.items() if value is not None]


def summarise(conditions: Sequence[Condition]) -> tuple[JobPhase, str]:
    """Derive phase and its reason from the conditions."""
    found = {condition.type: condition for condition in conditions}
    for kind, phase in (
        (JobCondition.SUCCEEDED, JobPhase.SUCCEEDED),
        (JobCondition.FAILED, JobPhase.FAILED),
        (JobCondition.SUSPENDED, JobPhase.SUSPENDED),
        (JobCondition.RUNNING, JobPhase.RUNNING),
    ):
        if found[kind].status is ConditionStatus.TRUE:
            return phase, found[kind].reason
    admitted, running = found[JobCondition.ADMITTED], found[JobCondition.RUNNING]
    if running.reason == JobReason.CHECKPOINTING:
        return JobPhase.CHECKPOINTING, admitted.reason
    if admitted.status is ConditionStatus.TRUE:
        is_taken = running.reason == JobReason.LOADING or running.status is ConditionStatus.UNKNOWN
        return JobPhase.LOADING if is_taken else JobPhase.ADMITTED, running.reason
    if found[JobCondition.PREEMPTED].status is ConditionStatus.TRUE:
        return JobPhase.PREEMPTED, admitted.reason
    is_valid = found[JobCondition.VALIDATED].status is ConditionStatus.TRUE
    return JobPhase.QUEUED if is_valid else JobPhase.PENDING, admitted.reason
