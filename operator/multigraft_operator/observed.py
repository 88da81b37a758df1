"""What the operator sees: the objects of the API server and what the trainers say, as plain values for `decide`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from multigraft.api.adapter_job import AdapterJob, AdapterJobSpec
from multigraft.api.adapter_job_status import AdapterJobStatus
from multigraft.api.base_model_pool import BaseModelPool, BaseModelPoolSpec
from multigraft.api.base_model_pool_status import BaseModelPoolStatus
from multigraft.api.control import BasePhase, InlineRows, JobReport, TrainerState
from multigraft.api.schema import ObjectMeta

FINALIZER = "multigraft.dev/loaded"
"""On a job while a trainer may have it, and on a pool while jobs are loaded there."""


class Key(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class ObjectView:
    """What the API server's own fields say of an object."""

    key: Key
    uid: str
    generation: int
    resource_version: str
    created_at: datetime
    deleted_at: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    error: str = ""  # why `spec` cannot be read

    @property
    def has_finalizer(self) -> bool:
        return FINALIZER in self.finalizers

    def build_meta(self) -> ObjectMeta:
        return ObjectMeta(
            name=self.key.name,
            namespace=self.key.namespace,
            uid=self.uid,
            generation=self.generation,
            labels=dict(self.labels),
        )


@dataclass(frozen=True)
class JobView(ObjectView):
    """An AdapterJob."""

    spec: AdapterJobSpec | None = None
    status: AdapterJobStatus = field(default_factory=AdapterJobStatus)

    def build_job(self) -> AdapterJob:
        """Build the job without its status; its spec must be readable."""
        assert self.spec is not None, "only of jobs whose spec is readable"  # noqa: S101
        return AdapterJob(
            api_version="multigraft.dev/v1alpha1", kind="AdapterJob", metadata=self.build_meta(), spec=self.spec
        )


@dataclass(frozen=True)
class PoolView(ObjectView):
    """A BaseModelPool."""

    spec: BaseModelPoolSpec | None = None
    status: BaseModelPoolStatus = field(default_factory=BaseModelPoolStatus)

    def build_pool(self) -> BaseModelPool:
        """Build the pool without its status; its spec must be readable."""
        assert self.spec is not None, "only of pools whose spec is readable"  # noqa: S101
        return BaseModelPool(
            api_version="multigraft.dev/v1alpha1", kind="BaseModelPool", metadata=self.build_meta(), spec=self.spec
        )


@dataclass(frozen=True)
class Talk:
    """What a trainer last said, and what it was last told."""

    state: TrainerState | None = None
    heard_at: datetime | None = None
    confirmed: frozenset[str] | None = None  # uids of the desired set that it took last; None: not known


@dataclass(frozen=True)
class PodProblem:
    """Why a pod does not run, in Kubernetes' words."""

    reason: str
    message: str


@dataclass(frozen=True)
class PodView:
    """A trainer pod."""

    name: str
    namespace: str
    uid: str
    pool: str
    created_at: datetime
    accelerator: str = ""
    node: str = ""
    address: str = ""
    is_terminating: bool = False
    has_ended: bool = False  # phase Succeeded or Failed
    problem: PodProblem | None = None
    talk: Talk = field(default_factory=Talk)

    @property
    def pool_key(self) -> Key:
        return Key(self.namespace, self.pool)

    @property
    def can_be_asked(self) -> bool:
        return bool(self.address) and not self.has_ended

    def is_fresh(self, now: datetime, stale_seconds: float) -> bool:
        """Tell whether the trainer was heard of lately."""
        heard = self.talk.heard_at
        return heard is not None and (now - heard).total_seconds() <= stale_seconds

    def takes_jobs(self, now: datetime, stale_seconds: float) -> bool:
        """Tell whether the trainer can take jobs."""
        state = self.talk.state
        return (
            self.can_be_asked
            and not self.is_terminating
            and state is not None
            and not state.stopping
            and state.base.phase is BasePhase.READY
            and self.is_fresh(now, stale_seconds)
        )

    def find_report(self, job: JobView) -> JobReport | None:
        """Give what the trainer says of this very object; None if nothing."""
        if self.talk.state is None:
            return None
        return next((report for report in self.talk.state.jobs if report.uid == job.uid), None)

    def has_let_go(self, job: JobView) -> bool:
        """Tell whether the trainer was told of a set without the job, and has it no more."""
        confirmed = self.talk.confirmed
        return confirmed is not None and job.uid not in confirmed and self.find_report(job) is None


@dataclass(frozen=True)
class Policy:
    """What the operator is told of times and limits; seconds."""

    stale_seconds: float = 20.0  # a trainer not heard of for so long is not believed any more
    quiet_seconds: float = 30.0  # least time between two writes that only tell of progress or wording
    quiet_writes_in_window: int = 30  # of all objects together: ten a second
    quiet_window_seconds: float = 3.0
    backoff_seconds: float = 10.0  # before the second try; doubled for each further one
    max_backoff_seconds: float = 300.0
    max_failures_on_pod: int = 2  # of one job, before it is put on another pod if that is possible
    max_failing_jobs: int = 3  # on one pod, before others are preferred for all


@dataclass(frozen=True)
class Observed:
    """All that `decide` may know."""

    now: datetime
    epoch: int
    jobs: Mapping[Key, JobView] = field(default_factory=dict)
    pools: Mapping[Key, PoolView] = field(default_factory=dict)
    pods: tuple[PodView, ...] = ()
    children_digests: Mapping[Key, str] = field(default_factory=dict)  # of each pool: what was applied last
    rows: Mapping[str, InlineRows] = field(default_factory=dict)  # by uid of the job
    refusals: Mapping[Key, PodProblem] = field(default_factory=dict)  # by pool: why a pod could not be made
    failures: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by uids of job and pod: failed tries there
    written_at: Mapping[str, datetime] = field(default_factory=dict)  # by uid: last status write of this process
    began_at: datetime | None = None  # when this process began to lead
    policy: Policy = field(default_factory=Policy)

    def is_avoided(self, pod: PodView, job: JobView) -> bool:
        """Tell whether the job failed so often on the pod that it should try another."""
        return self.failures.get((job.uid, pod.uid), 0) >= self.policy.max_failures_on_pod

    def is_bad(self, pod: PodView) -> bool:
        """Tell whether so many jobs failed on the pod that it is hardly their fault."""
        return sum(uid == pod.uid for _, uid in self.failures) >= self.policy.max_failing_jobs

    def is_unheard(self, pod: PodView) -> bool:
        """Tell whether the pod is older than this process, which has had no time yet to hear of it."""
        if self.began_at is None or pod.talk.heard_at is not None or pod.created_at >= self.began_at:
            return False
        in_time = self.now < self.began_at + timedelta(seconds=self.policy.stale_seconds)
        return in_time and pod.can_be_asked and not pod.is_terminating
