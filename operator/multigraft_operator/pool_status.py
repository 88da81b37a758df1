"""Build the status of a pool from its pods and jobs."""

from __future__ import annotations

from collections.abc import Sequence

from multigraft.api.base_model_pool_status import (
    BaseModelPoolStatus,
    QueueCounts,
    SlotCounts,
    Throughput,
    TrainerPhase,
    TrainerPod,
)
from multigraft.api.condition_reasons import PoolReason
from multigraft.api.conditions import PoolCondition
from multigraft.api.control import BasePhase
from multigraft.api.reasons import Reason
from multigraft_operator.children.labels import selector_of
from multigraft_operator.condition_list import Fact, build_conditions, format_time, is_false, is_true, is_unknown
from multigraft_operator.job_stand import Kind, Stand
from multigraft_operator.observed import Observed, PodProblem, PodView, PoolView

MAX_JOBS_NAMED = 256


def build_pool_status(
    pool: PoolView, pods: Sequence[PodView], stands: Sequence[Stand], seen: Observed
) -> BaseModelPoolStatus:
    """Build the whole new status of a pool.

    Args:
        pods: Its trainer pods.
        stands: Its jobs.
    """
    wanted = pool.spec.replicas if pool.spec is not None else 0
    ready = [pod for pod in pods if pod.takes_jobs(seen.now, seen.policy.stale_seconds)]
    slots = _count_slots(ready)
    facts = {
        PoolCondition.READY: _tell_ready(pool, wanted, len(ready)),
        PoolCondition.PROGRESSING: _tell_progressing(wanted, pods, ready),
        PoolCondition.MODEL_LOADED: _tell_model(pods, ready),
        PoolCondition.CAPACITY_AVAILABLE: _tell_capacity(slots),
        PoolCondition.DRAINING: _tell_draining(pool, stands),
        PoolCondition.DEGRADED: _tell_degraded(pods, seen.refusals.get(pool.key) if len(pods) < wanted else None, seen),
    }
    conditions = build_conditions(
        pool.status.conditions,
        {str(kind): fact for kind, fact in facts.items()},
        generation=pool.generation,
        now=seen.now,
    )
    return BaseModelPoolStatus(
        observed_generation=pool.generation,
        conditions=conditions,
        replicas=len(pods),
        ready_replicas=len(ready),
        ready=f"{len(ready)}/{wanted}",
        selector=selector_of(pool.key.name),
        slots=slots,
        queue=QueueCounts(
            pending=sum(s.kind in {Kind.WAITING, Kind.REFUSED} for s in stands),
            running=sum(s.kind in {Kind.ADMITTED, Kind.LEAVING} for s in stands),
        ),
        pods=[_tell_pod(pod, stands, seen) for pod in sorted(pods, key=lambda pod: pod.name)][:64],
        throughput=_tell_throughput(ready, seen),
    )


def _count_slots(ready: Sequence[PodView]) -> SlotCounts:
    capacities = [pod.talk.state.capacity for pod in ready if pod.talk.state is not None]
    total, used = sum(c.slots for c in capacities), sum(c.slots_in_use for c in capacities)
    return SlotCounts(total=total, used=used, free=max(0, total - used), display=f"{used}/{total}")


def _tell_ready(pool: PoolView, wanted: int, num_ready: int) -> Fact:
    if pool.error:
        return is_false(Reason.INVALID_SPEC, pool.error)
    if wanted == 0:
        return is_false(PoolReason.NO_REPLICAS, "spec.replicas is 0")
    text = f"{num_ready} of {wanted} trainers are ready"
    return is_true(PoolReason.TRAINERS_READY, text) if num_ready >= wanted else is_false(
        PoolReason.TRAINERS_NOT_READY, text
    )  # fmt: skip


def _tell_progressing(wanted: int, pods: Sequence[PodView], ready: Sequence[PodView]) -> Fact:
    if len(ready) == len(pods) == wanted:
        return is_false(PoolReason.SETTLED)
    return is_true(PoolReason.TRAINERS_NOT_READY, f"{len(pods)} pods, {len(ready)} ready, {wanted} wanted")


def _tell_model(pods: Sequence[PodView], ready: Sequence[PodView]) -> Fact:
    for pod in pods:
        state = pod.talk.state
        if state is not None and state.base.phase is BasePhase.FAILED:
            return is_false(state.base.reason or Reason.BASE_MODEL_INVALID, f"{pod.name}: {state.base.message}")
    if ready:
        return is_true(PoolReason.BASE_LOADED, f"on {len(ready)} of {len(pods)} pods")
    return is_false(PoolReason.BASE_LOADING) if pods else is_unknown(PoolReason.NO_REPLICAS)


def _tell_capacity(slots: SlotCounts) -> Fact:
    text = f"{slots.free} of {slots.total} slots are free"
    return is_true(PoolReason.SLOTS_FREE, text) if slots.free else is_false(PoolReason.NO_FREE_SLOT, text)


def _tell_draining(pool: PoolView, stands: Sequence[Stand]) -> Fact:
    if pool.deleted_at is None or pool.spec is None:
        return is_false(PoolReason.NOT_DRAINING)
    loaded = [str(stand.job.key) for stand in stands if stand.kind in {Kind.ADMITTED, Kind.LEAVING}]
    blocks = pool.spec.deletion_policy == "Block"
    reason = PoolReason.DELETION_BLOCKED if blocks else PoolReason.JOBS_LEAVING
    return is_true(reason, f"{len(loaded)} jobs are still loaded: {', '.join(loaded[:5])}")


def _tell_degraded(pods: Sequence[PodView], refusal: PodProblem | None, seen: Observed) -> Fact:
    if refusal is not None:
        return is_true(refusal.reason, refusal.message)
    for pod in sorted(pods, key=lambda pod: pod.name):
        if pod.problem is not None:
            return is_true(pod.problem.reason, f"{pod.name}: {pod.problem.message}")
    bad = sorted(pod.name for pod in pods if seen.is_bad(pod))
    if bad:
        text = (
            f"{', '.join(bad)}: tries of {seen.policy.max_failing_jobs} jobs or more failed there; others are preferred"
        )
        return is_true(PoolReason.POD_FAILING, text)
    return is_false(PoolReason.HEALTHY)


def _tell_pod(pod: PodView, stands: Sequence[Stand], seen: Observed) -> TrainerPod:
    state = pod.talk.state
    on_pod = [
        str(stand.job.key)
        for stand in stands
        if stand.pod is not None and stand.pod.uid == pod.uid and stand.kind in {Kind.ADMITTED, Kind.LEAVING}
    ]
    return TrainerPod(
        name=pod.name,
        node=pod.node or None,
        accelerator=pod.accelerator or None,
        phase=_find_phase(pod, seen),
        slots_used=min(256, state.capacity.slots_in_use) if state is not None else 0,
        jobs=sorted(on_pod)[:MAX_JOBS_NAMED],
        epoch=state.epoch if state is not None else 0,
    )


def _find_phase(pod: PodView, seen: Observed) -> TrainerPhase:
    if pod.is_terminating:
        return TrainerPhase.DRAINING
    if pod.takes_jobs(seen.now, seen.policy.stale_seconds):
        return TrainerPhase.READY
    state = pod.talk.state
    if pod.has_ended or pod.problem is not None or (state is not None and state.base.phase is BasePhase.FAILED):
        return TrainerPhase.FAILED
    return TrainerPhase.LOADING if pod.address else TrainerPhase.PENDING


def _tell_throughput(ready: Sequence[PodView], seen: Observed) -> Throughput | None:
    speeds = [pod.talk.state.capacity.tokens_per_second for pod in ready if pod.talk.state is not None]
    known = [speed for speed in speeds if speed is not None]
    if not known:
        return None
    return Throughput(tokens_per_second=round(sum(known)), updated_time=format_time(seen.now))
