"""Choose the next actions. Pure: no I/O, no clock (`seen.now`), no randomness; one crash anywhere changes nothing.

What was written to the API server is the truth: a trainer is told of a job only after the job's status names that very
pod, and another pod only after the first one has let go of it or is gone. So no two trainers are ever told of one job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from multigraft.api.adapter_job_status import AdapterJobStatus
from multigraft.api.admission import select_pools
from multigraft.api.base_model_pool_status import BaseModelPoolStatus
from multigraft.api.conditions import Condition, JobCondition
from multigraft.api.control import AssignedJob, Assignments, ObjectId
from multigraft.api.reasons import Reason
from multigraft_operator.condition_list import find_changed, holds, parse_time
from multigraft_operator.decision import Decision, DesiredTrainer, EventNote, FinalizerWrite, StatusWrite
from multigraft_operator.job_stand import Kind, Stand, is_admitted, judge_job
from multigraft_operator.job_status import build_job_status
from multigraft_operator.observed import JobView, Key, Observed, PodView, PoolView
from multigraft_operator.place_pool import check_stand, place_pool
from multigraft_operator.pool_status import build_pool_status

QUIET_FIELDS = frozenset({"progress", "metrics", "checkpoints", "dataset", "throughput", "queuePosition"})
"""Parts of a status that may be told late: they change all the time."""

WARNINGS = frozenset({"Failed", "Degraded"})


def decide(seen: Observed, children_digests: Mapping[Key, str] | None = None) -> Decision:
    """Choose all actions of one pass.

    Args:
        children_digests: Of each pool, the digest of the children that it should have; None: build none.
    """
    stands = _judge_all(seen)
    of_pool = _sort_by_pool(stands)
    pods = _pods_by_pool(seen)
    unheard = frozenset(key for key, group in pods.items() if any(map(seen.is_unheard, group)))
    heard = [stand for stand in stands if _pool_key(stand) not in unheard]
    statuses = [write for stand in heard if (write := _write_job(stand, seen)) is not None]
    for key, pool in seen.pools.items():
        write = _write_pool(pool, pods[key], of_pool[key], seen) if key not in unheard else None
        statuses += [write] if write is not None else []
    return Decision(
        finalizers_on=tuple(_put_finalizers_on(heard, of_pool, seen)),
        statuses=tuple(_hold_back(statuses, seen)),
        trainers=tuple(_tell_trainers(seen)),
        finalizers_off=tuple(_take_finalizers_off(stands, of_pool, seen)),
        expired_jobs=tuple(stand.job for stand in stands if _is_expired(stand, seen)),
        pools_to_build=tuple(_find_pools_to_build(seen, children_digests or {})),
        pending_by_reason=Counter(str(s.reason) for s in stands if s.kind in {Kind.WAITING, Kind.REFUSED}),
    )


def _judge_all(seen: Observed) -> list[Stand]:
    by_uid = {pod.uid: pod for pod in seen.pods}
    first = [judge_job(job, seen, by_uid) for _, job in sorted(seen.jobs.items())]
    chosen = [_choose_pool(stand, seen) if stand.kind is Kind.WAITING else stand for stand in first]
    pods = _pods_by_pool(seen)
    of_pool: dict[Key, list[Stand]] = defaultdict(list)
    for stand in chosen:
        key = _pool_key(stand)
        if key is not None and stand.kind in {Kind.WAITING, Kind.ADMITTED, Kind.LEAVING}:
            of_pool[key].append(stand)
    placed: dict[str, Stand] = {}
    for key, group in sorted(of_pool.items()):
        pool = seen.pools.get(key)
        if pool is not None and pool.spec is not None:
            placed |= {stand.job.uid: stand for stand in place_pool(pool, pods[key], group, seen)}
    return [_keep_loss(placed.get(stand.job.uid, stand), stand) for stand in chosen]


def _keep_loss(placed: Stand, before: Stand) -> Stand:
    """Say that a job lost its pod when it waits for that, and not that a slot is missing."""
    if placed.kind is Kind.WAITING and before.reason and is_admitted(before.job):
        return replace(placed, reason=before.reason, message=f"{before.message}; {placed.message}")
    return placed


def _choose_pool(stand: Stand, seen: Observed) -> Stand:
    """Choose the pool of a waiting job: the named one, or of the selected ones that with most room."""
    job = stand.job.build_job()
    namespace = stand.job.key.namespace
    if job.spec.pool_ref is not None:
        pool = seen.pools.get(Key(namespace, job.spec.pool_ref.name))
        if pool is not None:
            return check_stand(stand, pool)
        text = f"spec.poolRef.name: no BaseModelPool {job.spec.pool_ref.name} in namespace {namespace}"
        return replace(stand, kind=Kind.REFUSED, reason=Reason.POOL_NOT_FOUND, message=text)
    views = {str(pool.key): pool for pool in seen.pools.values() if pool.key.namespace == namespace and pool.spec}
    meant = select_pools(job, [pool.build_pool() for pool in views.values()])
    checked = [check_stand(stand, views[pool.key]) for pool in meant]
    able = [found for found in checked if found.kind is Kind.WAITING]
    if able:
        return max(able, key=lambda found: (_count_free(found.pool), str(found.pool.key) if found.pool else ""))
    if checked:
        return checked[0]
    text = f"spec.poolSelector: matches 0 of {len(views)} BaseModelPools in namespace {namespace}"
    return replace(stand, kind=Kind.REFUSED, reason=Reason.POOL_NOT_FOUND, message=text)


def _count_free(pool: PoolView | None) -> int:
    if pool is None or pool.status.slots is None or pool.status.queue is None:
        return 0
    return pool.status.slots.free - pool.status.queue.pending


def _pool_key(stand: Stand) -> Key | None:
    if stand.pool is not None:
        return stand.pool.key
    return stand.pod.pool_key if stand.pod is not None else None


def _sort_by_pool(stands: Sequence[Stand]) -> dict[Key, list[Stand]]:
    of_pool: dict[Key, list[Stand]] = defaultdict(list)
    for stand in stands:
        key = _pool_key(stand)
        if key is not None and stand.kind is not Kind.TERMINAL:
            of_pool[key].append(stand)
    return of_pool


def _pods_by_pool(seen: Observed) -> dict[Key, list[PodView]]:
    by_pool: dict[Key, list[PodView]] = defaultdict(list)
    for pod in seen.pods:
        by_pool[pod.pool_key].append(pod)
    return by_pool


# Status.


def _write_job(stand: Stand, seen: Observed) -> StatusWrite | None:
    if stand.kind in {Kind.TERMINAL, Kind.DELETING}:
        return None
    status = build_job_status(stand, seen)
    return _write(stand.job, "AdapterJob", status, seen)


def _write_pool(pool: PoolView, pods: Sequence[PodView], stands: Sequence[Stand], seen: Observed) -> StatusWrite | None:
    return _write(pool, "BaseModelPool", build_pool_status(pool, pods, stands, seen), seen)


def _write(
    target: JobView | PoolView, kind: str, status: AdapterJobStatus | BaseModelPoolStatus, seen: Observed
) -> StatusWrite | None:
    if status == target.status:
        return None
    new, old = dump_status(status), dump_status(target.status)
    is_quiet = _without_noise(new) == _without_noise(old)
    if is_quiet and not _is_due(target, new, old, seen):
        return None
    changed = find_changed(target.status.conditions, status.conditions)
    events = tuple(_build_event(target, kind, condition) for condition in changed)
    return StatusWrite(target, new, events, is_quiet)


def _hold_back(writes: Sequence[StatusWrite], seen: Observed) -> list[StatusWrite]:
    """Leave out quiet writes beyond what may be written in a moment; those that waited longest come first.

    Three thousand jobs that make progress would else be a hundred writes a second, all that an API server may take.
    """
    quiet = sorted((write for write in writes if write.is_quiet), key=lambda write: _wait_began(write, seen))
    window = timedelta(seconds=seen.policy.quiet_window_seconds)
    num_recent = sum(seen.now - at < window for at in seen.written_at.values())
    kept = quiet[: max(0, seen.policy.quiet_writes_in_window - num_recent)]
    return [write for write in writes if not write.is_quiet] + kept


def _wait_began(write: StatusWrite, seen: Observed) -> tuple[float, str]:
    at = seen.written_at.get(write.target.uid)
    return (at.timestamp() if at is not None else 0.0), write.target.uid


def dump_status(status: AdapterJobStatus | BaseModelPoolStatus) -> dict[str, Any]:
    """Write a status as JSON."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _without_noise(status: Mapping[str, Any]) -> dict[str, Any]:
    loud = {name: value for name, value in status.items() if name not in QUIET_FIELDS}
    loud["conditions"] = [
        {name: value for name, value in condition.items() if name != "message"} for condition in status["conditions"]
    ]
    return loud


def _is_due(target: JobView | PoolView, new: Mapping[str, Any], old: Mapping[str, Any], seen: Observed) -> bool:
    """Tell whether a quiet change is to be written now: something but the time of measuring changed, long after."""
    if _without_clock(new) == _without_clock(old):
        return False
    written = seen.written_at.get(target.uid)
    return written is None or seen.now - written >= timedelta(seconds=seen.policy.quiet_seconds)


def _without_clock(status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {k: v for k, v in value.items() if k != "updatedTime"} if isinstance(value, dict) else value
        for name, value in status.items()
    }


def _build_event(target: JobView | PoolView, kind: str, condition: Condition) -> EventNote:
    is_warning = condition.type in WARNINGS and condition.status == "True"
    message = condition.message or f"{condition.type} is {condition.status}"
    return EventNote(
        kind, target.key.namespace, target.key.name, target.uid, condition.reason, message, is_warning=is_warning
    )


# Trainers.


def _tell_trainers(seen: Observed) -> list[DesiredTrainer]:
    jobs: dict[str, list[AssignedJob]] = defaultdict(list)
    for _, job in sorted(seen.jobs.items()):
        if _belongs_to_a_trainer(job):
            assert job.status.assignment is not None  # noqa: S101
            jobs[job.status.assignment.pod_uid or ""].append(_build_assigned(job, seen))
    told = []
    for pod in sorted(seen.pods, key=lambda pod: pod.uid):
        pool = seen.pools.get(pod.pool_key)
        if pool is None or not pod.can_be_asked or pod.is_terminating:
            continue
        pool_id = ObjectId(namespace=pool.key.namespace, name=pool.key.name, uid=pool.uid)
        told.append(
            DesiredTrainer(pod, Assignments(epoch=seen.epoch, pool=pool_id, pod=pod.name, jobs=jobs.get(pod.uid, [])))
        )
    return told


def _belongs_to_a_trainer(job: JobView) -> bool:
    """Tell whether a trainer should have the job, by what is written of it alone."""
    return (
        is_admitted(job)
        and job.has_finalizer
        and job.deleted_at is None
        and job.spec is not None
        and not is_terminal(job)
    )


def is_terminal(job: JobView) -> bool:
    """Tell whether the job has ended, for good."""
    return any(holds(job.status.conditions, kind) for kind in (JobCondition.SUCCEEDED, JobCondition.FAILED))


def _build_assigned(job: JobView, seen: Observed) -> AssignedJob:
    assert job.spec is not None  # noqa: S101
    return AssignedJob(
        id=ObjectId(namespace=job.key.namespace, name=job.key.name, uid=job.uid),
        generation=job.generation,
        attempt=job.status.attempts,
        spec=job.spec,
        rows=seen.rows.get(job.uid),
    )


# Finalizers and ends.


def _put_finalizers_on(
    stands: Sequence[Stand], of_pool: Mapping[Key, Sequence[Stand]], seen: Observed
) -> list[FinalizerWrite]:
    jobs = [FinalizerWrite(s.job, wanted=True) for s in stands if s.kind is Kind.ADMITTED and not s.job.has_finalizer]
    pools = [
        FinalizerWrite(pool, wanted=True)
        for pool in seen.pools.values()
        if pool.deleted_at is None and not pool.has_finalizer and _is_loaded(pool, of_pool)
    ]
    return jobs + pools


def _take_finalizers_off(
    stands: Sequence[Stand], of_pool: Mapping[Key, Sequence[Stand]], seen: Observed
) -> list[FinalizerWrite]:
    jobs = [FinalizerWrite(s.job, wanted=False) for s in stands if s.job.has_finalizer and _may_go(s, seen)]
    pools = [
        FinalizerWrite(pool, wanted=False)
        for pool in seen.pools.values()
        if pool.has_finalizer and (not _is_loaded(pool, of_pool) or _is_forced(pool, seen))
    ]
    return jobs + pools


def _may_go(stand: Stand, seen: Observed) -> bool:
    """Tell whether no trainer has the job, or one was given time enough to let a deleted one go."""
    if stand.kind in {Kind.ADMITTED, Kind.LEAVING, Kind.SUCCEEDED, Kind.FAILED}:
        return False
    if stand.is_out:
        return True
    if stand.kind is not Kind.DELETING or stand.job.deleted_at is None:
        return False
    pool = seen.pools.get(stand.pod.pool_key) if stand.pod is not None else None
    seconds = pool.spec.drain_timeout_seconds if pool is not None and pool.spec is not None else 0
    return seen.now >= stand.job.deleted_at + timedelta(seconds=seconds)


def _is_loaded(pool: PoolView, of_pool: Mapping[Key, Sequence[Stand]]) -> bool:
    return any(
        stand.kind in {Kind.ADMITTED, Kind.LEAVING} or (stand.kind is Kind.DELETING and not stand.is_out)
        for stand in of_pool.get(pool.key, ())
    )


def _is_forced(pool: PoolView, seen: Observed) -> bool:
    if pool.deleted_at is None:
        return False
    if pool.spec is None or pool.spec.deletion_policy == "Force":
        return True
    timeout = timedelta(seconds=pool.spec.drain_timeout_seconds)
    return pool.spec.deletion_policy == "Drain" and seen.now >= pool.deleted_at + timeout


def _is_expired(stand: Stand, seen: Observed) -> bool:
    job = stand.job
    if stand.kind is not Kind.TERMINAL or job.spec is None or job.deleted_at is not None:
        return False
    ttl, ended = job.spec.ttl_seconds_after_finished, job.status.completion_time
    return ttl is not None and ended is not None and seen.now >= parse_time(ended) + timedelta(seconds=ttl)


def _find_pools_to_build(seen: Observed, wanted: Mapping[Key, str]) -> list[PoolView]:
    return [
        pool
        for key, pool in sorted(seen.pools.items())
        if pool.deleted_at is None and key in wanted and seen.children_digests.get(key) != wanted[key]
    ]
