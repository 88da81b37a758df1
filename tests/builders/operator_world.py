"""A world for `decide`: jobs, pools, pods and trainers as values, and an API server that does as it is told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from multigraft.api.adapter_job import AdapterJobSpec
from multigraft.api.adapter_job_status import AdapterJobStatus
from multigraft.api.base_model_pool import BaseModelPoolSpec
from multigraft.api.base_model_pool_status import BaseModelPoolStatus
from multigraft.api.conditions import Condition
from multigraft.api.control import (
    Assignments,
    BasePhase,
    BaseState,
    Capacity,
    JobReport,
    TrainerJobPhase,
    TrainerState,
)
from multigraft_operator.decide import decide
from multigraft_operator.decision import Decision, EventNote
from multigraft_operator.observed import FINALIZER, JobView, Key, Observed, PodView, Policy, PoolView, Talk

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def make_job(name: str = "a", *, namespace: str = "team-a", created: int = 0, **spec: Any) -> JobView:
    """Build a job; keyword arguments are fields of its spec in camelCase, `lora` and `training` are merged."""
    lora, training = {"r": 8, **spec.pop("lora", {})}, {"maxSteps": 10, **spec.pop("training", {})}
    if "poolSelector" not in spec:
        spec.setdefault("poolRef", {"name": "tiny"})
    whole = {"dataset": {"storageUri": "rows.jsonl"}, "lora": lora, "training": training, **spec}
    return JobView(
        key=Key(namespace, name),
        uid=f"uid-{namespace}-{name}",
        generation=1,
        resource_version="1",
        created_at=START + timedelta(seconds=created),
        spec=AdapterJobSpec.model_validate(whole),
    )


def make_pool(
    name: str = "tiny", *, namespace: str = "team-a", labels: dict[str, str] | None = None, **spec: Any
) -> PoolView:
    """Build a pool; keyword arguments are fields of its spec in camelCase."""
    whole = {"baseModel": {"storageUri": "base"}, "gpu": {"accelerators": [{"name": "CPU"}]}, **spec}
    return PoolView(
        key=Key(namespace, name),
        uid=f"uid-{namespace}-{name}",
        generation=1,
        resource_version="1",
        created_at=START,
        labels=labels or {},
        spec=BaseModelPoolSpec.model_validate(whole),
    )


@dataclass
class PlainTrainer:
    """A trainer that obeys at once; a job runs until the test says otherwise."""

    pod: str
    pool: str
    slots: int = 2
    max_rank: int = 64
    epoch: int = 0
    base: BasePhase = BasePhase.READY
    is_reachable: bool = True
    is_slow_to_leave: bool = False
    jobs: dict[str, JobReport] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)

    def take(self, wanted: Assignments) -> bool:
        """Take a desired set; tells whether it was obeyed."""
        if not self.is_reachable or wanted.epoch < self.epoch:
            return False
        self.epoch = wanted.epoch
        kept = {job.id.uid: job for job in wanted.jobs}
        for uid in list(self.jobs):
            if uid not in kept and not self.is_slow_to_leave:
                del self.jobs[uid]
            elif uid not in kept:
                self.jobs[uid] = self.jobs[uid].model_copy(update={"phase": TrainerJobPhase.CHECKPOINTING})
        for uid, job in kept.items():
            if uid not in self.jobs or self.jobs[uid].attempt < job.attempt:
                self.jobs[uid] = JobReport(
                    namespace=job.id.namespace,
                    name=job.id.name,
                    uid=uid,
                    generation=job.generation,
                    attempt=job.attempt,
                    phase=TrainerJobPhase.RUNNING,
                    slot=len(self.jobs) % self.slots,
                    step=1,
                    total_steps=10,
                    seconds=1.0,
                    rank=job.spec.lora.r,
                )
        return True

    def say(self, uid: str, phase: TrainerJobPhase, **fields: Any) -> None:
        """Set what is told of a job."""
        self.jobs[uid] = self.jobs[uid].model_copy(update={"phase": phase, **fields})

    def state(self) -> TrainerState:
        return TrainerState(
            pod=self.pod,
            pool=self.pool,
            start_id="s",
            version="0",
            epoch=self.epoch,
            base=BaseState(phase=self.base),
            capacity=Capacity(slots=self.slots, slots_in_use=len(self.jobs), max_rank=self.max_rank, token_capacity=64),
            jobs=list(self.jobs.values()),
        )


class World:
    """Jobs, pools, pods and trainers; `step` decides once and carries out."""

    def __init__(self, *, epoch: int = 1) -> None:
        self.now = START + timedelta(minutes=1)
        self.epoch = epoch
        self.jobs: dict[Key, JobView] = {}
        self.pools: dict[Key, PoolView] = {}
        self.pods: dict[str, PodView] = {}
        self.trainers: dict[str, PlainTrainer] = {}
        self.events: list[EventNote] = []
        self.written_at: dict[str, datetime] = {}
        self.failures: dict[tuple[str, str], int] = {}  # by uids of job and pod
        self.num_writes = 0
        self.most_holders = 0  # the most trainers that ever had one job at once

    def add(self, *objects: JobView | PoolView) -> World:
        for found in objects:
            if isinstance(found, JobView):
                self.jobs[found.key] = found
            else:
                self.pools[found.key] = found
        return self

    def add_pod(
        self, pool: str = "tiny", number: int = 0, *, namespace: str = "team-a", uid: str = "", **trainer: Any
    ) -> PlainTrainer:
        name = f"{pool}-cpu-{number}"
        uid = uid or f"pod-{namespace}-{name}"
        self.pods[uid] = PodView(
            name, namespace, uid, pool, created_at=START, accelerator="CPU", node="n1", address=f"10.0.0.{number}"
        )
        self.trainers[uid] = PlainTrainer(name, f"{namespace}/{pool}", **trainer)
        return self.trainers[uid]

    def job(self, name: str = "a", namespace: str = "team-a") -> JobView:
        return self.jobs[Key(namespace, name)]

    def change(self, name: str, namespace: str = "team-a", **fields: Any) -> None:
        """Change a view of a job: `deleted_at`, or fields of the spec."""
        job = self.job(name, namespace)
        if "deleted_at" in fields:
            if not job.finalizers:
                del self.jobs[job.key]
                return
            self.jobs[job.key] = replace(job, deleted_at=fields["deleted_at"])
            return
        assert job.spec is not None
        spec = job.spec.model_copy(update=fields)
        self.jobs[job.key] = replace(job, spec=spec, generation=job.generation + 1)

    def remove_pod(self, uid: str) -> None:
        del self.pods[uid]
        self.trainers.pop(uid, None)

    def seen(self, **policy: Any) -> Observed:
        return Observed(
            now=self.now,
            epoch=self.epoch,
            jobs=dict(self.jobs),
            pools=dict(self.pools),
            pods=tuple(self.pods.values()),
            failures=dict(self.failures),
            written_at=dict(self.written_at),
            policy=Policy(**policy),
        )

    def listen(self) -> None:
        """Hear every trainer that can be reached."""
        for uid, trainer in self.trainers.items():
            if trainer.is_reachable and uid in self.pods:
                talk = self.pods[uid].talk
                self.pods[uid] = replace(self.pods[uid], talk=replace(talk, state=trainer.state(), heard_at=self.now))

    def forget(self) -> None:
        """Start the operator anew: what only it knew is gone."""
        self.epoch += 1
        self.written_at.clear()
        self.pods = {uid: replace(pod, talk=Talk()) for uid, pod in self.pods.items()}

    def step(self, *, seconds: float = 1.0, most_actions: int = 10**9) -> Decision:
        """Let time go by, hear the trainers, decide, and carry out at most so many actions."""
        self.now += timedelta(seconds=seconds)
        self.listen()
        decision = decide(self.seen())
        for action in self._actions(decision)[:most_actions]:
            action()
        held = [uid for trainer in self.trainers.values() for uid in trainer.jobs]
        self.most_holders = max([self.most_holders, *(held.count(uid) for uid in held)])
        return decision

    def settle(self, *, steps: int = 12, seconds: float = 1.0) -> World:
        for _ in range(steps):
            self.step(seconds=seconds)
        return self

    def _actions(self, decision: Decision) -> list[Any]:
        actions: list[Any] = [lambda w=w: self._finalizer(w.target, True) for w in decision.finalizers_on]
        actions += [lambda w=w: self._status(w) for w in decision.statuses]
        actions += [lambda t=t: self._tell(t.pod, t.assignments) for t in decision.trainers]
        actions += [lambda w=w: self._finalizer(w.target, False) for w in decision.finalizers_off]
        actions += [lambda j=j: self.jobs.pop(j.key, None) for j in decision.expired_jobs]
        return actions

    def _finalizer(self, target: JobView | PoolView, wanted: bool) -> None:
        self.num_writes += 1
        table: Any = self.jobs if isinstance(target, JobView) else self.pools
        current = table[target.key]
        table[target.key] = replace(current, finalizers=(FINALIZER,) if wanted else ())
        if not wanted and current.deleted_at is not None:
            del table[target.key]

    def _status(self, write: Any) -> None:
        self.num_writes += 1
        self.events += write.events
        self.written_at[write.target.uid] = self.now
        if isinstance(write.target, JobView):
            status: Any = AdapterJobStatus.model_validate(write.status)
            self.jobs[write.target.key] = replace(self.jobs[write.target.key], status=status)
        else:
            status = BaseModelPoolStatus.model_validate(write.status)
            self.pools[write.target.key] = replace(self.pools[write.target.key], status=status)

    def _tell(self, pod: PodView, wanted: Assignments) -> None:
        trainer = self.trainers.get(pod.uid)
        if trainer is None:
            return
        took = trainer.take(wanted)
        talk = self.pods[pod.uid].talk
        if took:
            confirmed = frozenset(job.id.uid for job in wanted.jobs)
            talk = Talk(trainer.state(), self.now, confirmed)
        else:
            talk = replace(talk, confirmed=None)
        self.pods[pod.uid] = replace(self.pods[pod.uid], talk=talk)


def conditions_of(job: JobView | PoolView) -> dict[str, Condition]:
    return {condition.type: condition for condition in job.status.conditions}
