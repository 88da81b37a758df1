"""Where a job stands before anything is placed: from what was written of it, and what its trainer says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

from multigraft.api.condition_reasons import JobReason
from multigraft.api.conditions import JobCondition
from multigraft.api.control import JobReport, TrainerJobPhase
from multigraft.api.reasons import Reason
from multigraft_operator.condition_list import find_condition, format_time, holds, parse_time
from multigraft_operator.observed import JobView, Observed, PodView, PoolView

RETRYABLE = frozenset({Reason.INTERNAL_ERROR, Reason.OUT_OF_MEMORY, Reason.OUTPUT_NOT_WRITABLE, Reason.CLAIM_LOST})
"""A second try may go better: the rest depends on the job alone."""


class Kind(Enum):
    """What a job is to be after this pass."""

    TERMINAL = auto()  # it ended before; nothing changes any more
    DELETING = auto()
    SUCCEEDED = auto()  # it ends now
    FAILED = auto()
    SUSPENDED = auto()
    REFUSED = auto()  # no pool can take it as it is
    WAITING = auto()
    ADMITTED = auto()  # has a slot, or gets one now
    LEAVING = auto()  # its trainer may have it, and is to let it go


@dataclass(frozen=True)
class Stand:
    """The verdict on one job."""

    job: JobView
    kind: Kind
    reason: str = ""
    message: str = ""
    pod: PodView | None = None  # that has it, or gets it
    pool: PoolView | None = None
    report: JobReport | None = None
    position: int | None = None  # in the queue
    attempts: int = 0
    is_new: bool = False  # admitted by this pass
    is_out: bool = True  # no trainer can have it


def judge_job(job: JobView, seen: Observed, pods: Mapping[str, PodView]) -> Stand:
    """Say where a job stands. WAITING means: it may be placed.

    Args:
        pods: All trainer pods by uid.
    """
    stand = _look(job, pods)
    conditions = job.status.conditions
    if holds(conditions, JobCondition.SUCCEEDED) or holds(conditions, JobCondition.FAILED):
        return replace(stand, kind=Kind.TERMINAL)
    if job.deleted_at is not None:
        return replace(stand, kind=Kind.DELETING)
    if job.spec is None:
        return replace(stand, kind=Kind.REFUSED, reason=Reason.INVALID_SPEC, message=job.error)
    return _judge_living(job, stand, seen)


def _look(job: JobView, pods: Mapping[str, PodView]) -> Stand:
    assignment = job.status.assignment
    pod = pods.get(assignment.pod_uid or "") if assignment is not None else None
    report = pod.find_report(job) if pod is not None else None
    is_out = pod is None or pod.has_ended or pod.has_let_go(job)
    return Stand(job, Kind.WAITING, pod=pod, report=report, attempts=job.status.attempts, is_out=is_out)


def is_admitted(job: JobView) -> bool:
    """Tell whether a slot was assigned and not taken back, as far as it is written."""
    return job.status.assignment is not None and holds(job.status.conditions, JobCondition.ADMITTED)


def _judge_living(job: JobView, stand: Stand, seen: Observed) -> Stand:
    assert job.spec is not None  # noqa: S101
    ended = _find_end(job, stand, seen) if is_admitted(job) else None
    if ended is not None:
        return ended
    if job.spec.suspend:
        if stand.is_out or (not is_admitted(job) and stand.pod is None):
            return replace(stand, kind=Kind.SUSPENDED, reason=Reason.SUSPENDED, message="spec.suspend is true")
        text = "spec.suspend is true; its trainer writes a checkpoint"
        return replace(stand, kind=Kind.LEAVING, reason=Reason.SUSPENDED, message=text)
    if is_admitted(job):
        return _judge_admitted(job, stand, seen)
    if not stand.is_out:
        written = find_condition(job.status.conditions, JobCondition.ADMITTED)
        reason, message = (written.reason, written.message) if written else (JobReason.REBALANCED.value, "")
        return replace(stand, kind=Kind.LEAVING, reason=reason, message=message)
    return _judge_waiting(job, stand, seen)


def _judge_admitted(job: JobView, stand: Stand, seen: Observed) -> Stand:
    name = job.status.assignment.pod if job.status.assignment else ""
    if stand.pod is None or stand.pod.has_ended:
        text = f"trainer pod {name} is gone; the job goes on from its last checkpoint"
        return replace(stand, kind=Kind.WAITING, reason=JobReason.TRAINER_LOST, message=text, pod=None, report=None)
    pool = seen.pools.get(stand.pod.pool_key)
    if stand.pod.is_terminating:
        text = f"trainer pod {name} is leaving; it writes a checkpoint"
        return replace(stand, kind=Kind.LEAVING, reason=JobReason.TRAINER_LOST, message=text, pool=pool)
    drains = pool is not None and pool.spec is not None and pool.spec.deletion_policy != "Block"
    if pool is None or (pool.deleted_at is not None and drains):
        text = f"pool {stand.pod.pool_key} is being deleted"
        return replace(stand, kind=Kind.LEAVING, reason=JobReason.POOL_DRAINING, message=text, pool=pool)
    return replace(stand, kind=Kind.ADMITTED, reason=JobReason.SLOT_ASSIGNED, pool=pool)


def _find_end(job: JobView, stand: Stand, seen: Observed) -> Stand | None:
    report = stand.report
    if report is not None and report.attempt == job.status.attempts:
        if report.phase is TrainerJobPhase.SUCCEEDED:
            text = f"{report.step} steps; adapter at {report.output_uri}"
            return replace(stand, kind=Kind.SUCCEEDED, reason=JobReason.ADAPTER_EXPORTED, message=text)
        if report.phase is TrainerJobPhase.FAILED:
            return _judge_failure(job, stand, report)
    assert job.spec is not None  # noqa: S101
    limit = job.spec.active_deadline_seconds
    started = find_start(job)
    if limit is None or started is None or job.spec.suspend or seen.now < started + timedelta(seconds=limit):
        return None
    text = f"activeDeadlineSeconds: ran since {format_time(started)}, allowed {limit} s"
    return replace(stand, kind=Kind.FAILED, reason=Reason.DEADLINE_EXCEEDED, message=text)


def find_start(job: JobView) -> datetime | None:
    """Give when the job's active time began: when it first ran, or was last admitted."""
    if job.status.start_time is not None:
        return parse_time(job.status.start_time)
    assignment = job.status.assignment
    return parse_time(assignment.admitted_time) if assignment is not None else None


def _judge_failure(job: JobView, stand: Stand, report: JobReport) -> Stand:
    assert job.spec is not None  # noqa: S101
    reason, limit = report.reason or Reason.INTERNAL_ERROR.value, job.spec.backoff_limit
    text = report.message or "the trainer gave no reason"
    if reason not in RETRYABLE:
        return replace(stand, kind=Kind.FAILED, reason=reason, message=text)
    if job.status.attempts > limit:
        text = f"{text} (try {job.status.attempts}; backoffLimit allows {limit} retries)"
        return replace(stand, kind=Kind.FAILED, reason=reason, message=text)
    text = f"{reason}: {text} (retry {job.status.attempts} of {limit} follows)"
    return replace(stand, kind=Kind.LEAVING, reason=JobReason.BACK_OFF, message=text, attempts=job.status.attempts + 1)


def _judge_waiting(job: JobView, stand: Stand, seen: Observed) -> Stand:
    free = replace(stand, pod=None, report=None)
    written = find_condition(job.status.conditions, JobCondition.ADMITTED)
    if written is None or written.reason != JobReason.BACK_OFF:
        return free
    policy = seen.policy
    wait = min(policy.max_backoff_seconds, policy.backoff_seconds * 2 ** min(20, max(0, job.status.attempts - 2)))
    if seen.now >= parse_time(written.last_transition_time) + timedelta(seconds=wait):
        return free
    return replace(free, kind=Kind.REFUSED, reason=JobReason.BACK_OFF, message=written.message)
