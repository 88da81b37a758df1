"""Place the jobs of one pool: who gets a slot now, who gives one up, and what the others are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from multigraft.api.admission import check_job_against_pool
from multigraft.api.condition_reasons import JobReason
from multigraft.api.control import BasePhase
from multigraft.api.reasons import Reason
from multigraft.planner.place_jobs import place_jobs
from multigraft.planner.placement import (
    Demand,
    Placement,
    PlacementPolicy,
    Refusal,
    RefusalKind,
    Replica,
)
from multigraft_operator.condition_list import parse_time
from multigraft_operator.job_stand import Kind, Stand
from multigraft_operator.observed import JobView, Observed, PodView, PoolView

NOMINAL_TOKENS_PER_SECOND = {"CPU": 200.0, "L40S": 5_000.0, "A100": 8_000.0, "H100": 13_000.0, "H200": 17_000.0}
"""Relative speed is what counts; H200 is design.md's goal for an 8B model, the others by their dense bf16 peak."""
NEVER = 2.0  # no move saves more than all of the load


def check_stand(stand: Stand, pool: PoolView) -> Stand:
    """Refuse a waiting job that the pool cannot take as it is."""
    if pool.error:
        return replace(stand, kind=Kind.REFUSED, reason=Reason.POOL_NOT_READY, message=f"pool {pool.key}: {pool.error}")
    if pool.deleted_at is not None:
        text = f"pool {pool.key} is being deleted"
        return replace(stand, kind=Kind.REFUSED, reason=JobReason.POOL_DRAINING, message=text, pool=pool)
    secret = _tell_of_secret(stand)
    if secret:
        return replace(stand, kind=Kind.REFUSED, reason=Reason.NOT_SUPPORTED, message=secret, pool=pool)
    refusals = check_job_against_pool(stand.job.build_job(), pool.build_pool())
    if not refusals:
        return replace(stand, pool=pool)
    text = "; ".join(f"{refusal.field}: {refusal.message}" for refusal in refusals)
    return replace(stand, kind=Kind.REFUSED, reason=refusals[0].reason, message=text, pool=pool)


def _tell_of_secret(stand: Stand) -> str:
    """Say that a job brings credentials of its own, which a running trainer cannot be given; empty if it does not."""
    assert stand.job.spec is not None  # noqa: S101
    wanted = stand.job.spec.dataset.secret_ref
    if wanted is None:
        return ""
    return (
        f"spec.dataset.secretRef.name: got {wanted.name}; credentials are the pool's, from its spec.baseModel.secretRef"
    )


def place_pool(pool: PoolView, pods: Sequence[PodView], stands: Sequence[Stand], seen: Observed) -> list[Stand]:
    """Place the jobs of one pool.

    Args:
        pods: Trainer pods of the pool.
        stands: Its jobs that are ADMITTED, WAITING or LEAVING.
    """
    assert pool.spec is not None  # noqa: S101
    ready = {pod.name: pod for pod in pods if pod.takes_jobs(seen.now, seen.policy.stale_seconds)}
    ready = {name: pod for name, pod in ready.items() if not seen.is_bad(pod)} or ready
    leaving = [stand for stand in stands if stand.kind is Kind.LEAVING]
    # Who is on a pod that is silent stays: it may be training.
    asking = [s for s in stands if s.kind is Kind.WAITING or (s.kind is Kind.ADMITTED and _name(s) in ready)]
    policy = PlacementPolicy(
        preempt_lower_priority=pool.spec.scheduling.preemption == "LowerPriority",
        min_move_gain=NEVER if leaving else PlacementPolicy.min_move_gain,
    )
    placement = place_jobs([_build_replica(pod) for pod in ready.values()], _build_demands(asking, pool, seen), policy)
    decided = _Carrier(pool, pods, ready, stands, placement, seen).carry_out()
    return [decided.get(stand.job.uid, stand) for stand in stands]


def _build_replica(pod: PodView) -> Replica:
    assert pod.talk.state is not None  # noqa: S101
    capacity = pod.talk.state.capacity
    speed = NOMINAL_TOKENS_PER_SECOND.get(pod.accelerator, 1_000.0)
    return Replica(pod.name, capacity.slots, capacity.max_rank, adapter_bytes=0, tokens_per_second=speed)


def _build_demands(asking: Sequence[Stand], pool: PoolView, seen: Observed) -> list[Demand]:
    assert pool.spec is not None  # noqa: S101
    least = timedelta(seconds=pool.spec.scheduling.preempt_min_runtime_seconds)
    return [_build_demand(stand, least, seen.now) for stand in asking]


def _build_demand(stand: Stand, least: timedelta, now: datetime) -> Demand:
    job, spec = stand.job, stand.job.spec
    assert spec is not None  # noqa: S101
    runs = stand.kind is Kind.ADMITTED
    admitted = job.status.assignment.admitted_time if runs and job.status.assignment else None
    return Demand(
        job=str(job.key),
        rank=spec.lora.r,
        adapter_bytes=0,
        step_tokens=spec.training.global_batch_size * spec.training.max_seq_length // 4,
        queued_at=int(job.created_at.timestamp()),
        priority=spec.priority,
        running_on=_name(stand) if runs else None,
        may_be_moved=admitted is not None and now - parse_time(admitted) >= least,
    )


def _name(stand: Stand) -> str:
    return stand.pod.name if stand.pod is not None else ""


class _Carrier:
    """Turns a placement, which is of the future, into what may be done now."""

    def __init__(
        self,
        pool: PoolView,
        pods: Sequence[PodView],
        ready: dict[str, PodView],
        stands: Sequence[Stand],
        placement: Placement,
        seen: Observed,
    ) -> None:
        self._pool, self._pods, self._ready, self._stands = pool, pods, ready, stands
        self._placement, self._seen = placement, seen
        self._evictions = {eviction.job: eviction for eviction in placement.evictions}
        self._moves = {move.job: move for move in placement.moves}
        self._occupied = dict.fromkeys(ready, 0)
        for stand in stands:
            if stand.kind in {Kind.ADMITTED, Kind.LEAVING} and not (stand.kind is Kind.LEAVING and stand.is_out):
                name = _name(stand)
                self._occupied[name] = self._occupied.get(name, 0) + 1

    def carry_out(self) -> dict[str, Stand]:
        order = sorted(self._stands, key=lambda s: (-_priority(s), s.job.created_at, s.job.key))
        return {stand.job.uid: self._carry(stand) for stand in order}

    def _carry(self, stand: Stand) -> Stand:
        job = str(stand.job.key)
        if stand.kind is Kind.ADMITTED and _name(stand) in self._ready:
            return self._keep_or_evict(stand, job)
        if stand.kind is not Kind.WAITING:
            return stand
        target = self._placement.replica_of.get(job)
        if target is not None:
            return self._admit(stand, self._avoid(stand.job, self._ready[target]))
        reason, message, position = self._explain(self._placement.refusals[job])
        return replace(stand, reason=reason, message=message, position=position)

    def _keep_or_evict(self, stand: Stand, job: str) -> Stand:
        if self._placement.replica_of.get(job) == _name(stand):
            return stand
        if job in self._evictions:
            text = f"gives its slot on {_name(stand)} to {self._evictions[job].in_favour_of}, which has priority"
            return replace(stand, kind=Kind.LEAVING, reason=JobReason.PREEMPTED, message=text)
        if job in self._moves:
            move = self._moves[job]
            text = f"moves from {move.source} to {move.target}: {move.gain:.0%} less load on the fullest pod"
            return replace(stand, kind=Kind.LEAVING, reason=JobReason.REBALANCED, message=text)
        text = f"no longer fits pod {_name(stand)}"
        return replace(stand, kind=Kind.LEAVING, reason=JobReason.SPEC_CHANGED, message=text)

    def _avoid(self, job: JobView, pod: PodView) -> PodView:
        """Give another pod with a free slot for a job that failed on this one again and again; else this one."""
        if not self._seen.is_avoided(pod, job):
            return pod
        others = [other for other in self._ready.values() if not self._seen.is_avoided(other, job)]
        free = [other for other in others if self._occupied[other.name] < _slots(other)]
        return min(free, key=lambda other: (self._occupied[other.name], other.name), default=pod)

    def _admit(self, stand: Stand, pod: PodView) -> Stand:
        slots = _slots(pod)
        if self._occupied[pod.name] >= slots:
            text = f"has a place on {pod.name} once a job has left it: {self._occupied[pod.name]} of {slots} slots held"
            return replace(stand, reason=JobReason.WAITING_FOR_PREEMPTED_JOBS, message=text, position=1)
        self._occupied[pod.name] += 1
        return replace(
            stand,
            kind=Kind.ADMITTED,
            reason=JobReason.SLOT_ASSIGNED,
            message=f"a slot of {pod.name}",
            pod=pod,
            pool=self._pool,
            attempts=max(1, stand.attempts),
            report=None,
            is_new=True,
            is_out=False,
        )

    def _explain(self, refusal: Refusal) -> tuple[str, str, int]:
        position = coarse(refusal.position)
        turn = f"position {position} in the queue of pool {self._pool.key.name}"
        if refusal.kind is RefusalKind.NO_REPLICA:
            return Reason.POOL_NOT_READY, f"{self._tell_pods()}; {turn}", position
        if refusal.kind is RefusalKind.RANK_TOO_HIGH:
            text = f"needs rank {refusal.needed}, the trainers of pool {self._pool.key} allow {refusal.free}"
            return Reason.RANK_EXCEEDS_POOL, text, position
        total = sum(pod.talk.state.capacity.slots for pod in self._ready.values() if pod.talk.state)
        held = ", ".join(refusal.held_by) or "jobs that are leaving"
        if refusal.kind is RefusalKind.NO_FREE_SLOT:
            text = f"needs 1 slot, 0 of {total} are free on {len(self._ready)} pods; held by {held}; {turn}"
            return Reason.NO_FREE_SLOT, text, position
        text = f"needs {refusal.needed} bytes for its adapter, {refusal.free} are free; held by {held}; {turn}"
        return JobReason.MEMORY_DOES_NOT_FIT, text, position

    def _tell_pods(self) -> str:
        assert self._pool.spec is not None  # noqa: S101
        text = f"0 of {self._pool.spec.replicas} trainer pods of pool {self._pool.key} can take jobs"
        refusal = self._seen.refusals.get(self._pool.key)
        if refusal is not None and len(self._pods) < self._pool.spec.replicas:
            return f"{text}; {refusal.reason}: {refusal.message}"
        for pod in self._pods:
            if pod.problem is not None:
                return f"{text}; {pod.name}: {pod.problem.reason} {pod.problem.message}"
            state = pod.talk.state
            if state is not None and state.base.phase is BasePhase.FAILED:
                return f"{text}; {pod.name}: {state.base.reason} {state.base.message}"
        return text


def _slots(pod: PodView) -> int:
    assert pod.talk.state is not None  # noqa: S101
    return pod.talk.state.capacity.slots


def _priority(stand: Stand) -> int:
    return stand.job.spec.priority if stand.job.spec is not None else 0


def coarse(position: int) -> int:
    """Round a queue position down, so that one departure does not change the status of all who wait."""
    if position <= 10:
        return position
    step = 10 if position <= 100 else 100
    return position // step * step
