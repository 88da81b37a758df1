"""Carry out a decision. Each write tests the version that was seen; what became stale is left to the next pass."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from multigraft.api.condition_reasons import JobReason
from multigraft.api.schema import API_VERSION
from multigraft_operator.cache import ObjectCache
from multigraft_operator.decision import Decision, FinalizerWrite, StatusWrite
from multigraft_operator.event_recorder import EventRecorder
from multigraft_operator.kube_api import ApiError, KubeApi, build_path
from multigraft_operator.metrics import OperatorMetrics
from multigraft_operator.observed import FINALIZER, JobView, PoolView
from multigraft_operator.trainer_talk import TrainerTalk

CONCURRENCY = 32
_log = logging.getLogger(__name__)
Item = TypeVar("Item")


class Applier:
    """Writes to the API server and talks to trainers, in the order that `Decision` gives."""

    def __init__(
        self,
        api: KubeApi,
        cache: ObjectCache,
        talk: TrainerTalk,
        recorder: EventRecorder,
        metrics: OperatorMetrics,
        check_lead: Callable[[], None],
    ) -> None:
        self._api, self._cache, self._talk, self._recorder = api, cache, talk, recorder
        self._metrics, self._check_lead = metrics, check_lead
        self._gate = asyncio.Semaphore(CONCURRENCY)
        self._versions: dict[str, str] = {}
        self.written_at: dict[str, datetime] = {}
        self.failures: Counter[tuple[str, str]] = Counter()  # by uids of job and pod, since this process leads

    async def carry_out(self, decision: Decision) -> None:
        """Carry out everything but the children.

        Raises:
            StaleEpochError: If a trainer obeys a later leader.
            LeadershipLostError: From `check_lead`, which is asked before each write.
            PrunedStatusError: If the CRDs are too old.
        """
        self._versions = {}
        await self._for_each(decision.finalizers_on, self._write_finalizer)
        await self._for_each(decision.statuses, self._write_status)
        self._cache.hear_trainers(await self._talk.talk_to_all(decision.trainers))
        await self._for_each(decision.finalizers_off, self._write_finalizer)
        await self._for_each(decision.expired_jobs, self._delete)
        self.failures = Counter(
            {(job, pod): number for (job, pod), number in self.failures.items() if number and self._cache.find(job)}
        )
        self.written_at = {uid: at for uid, at in self.written_at.items() if self._cache.find(uid) is not None}

    async def _for_each(self, items: Iterable[Item], act: Callable[[Item], Awaitable[None]]) -> None:
        async def guarded(item: Item) -> None:
            async with self._gate:
                await act(item)

        await asyncio.gather(*(guarded(item) for item in items))

    async def _write_finalizer(self, write: FinalizerWrite) -> None:
        others = [name for name in write.target.finalizers if name != FINALIZER]
        wanted = [*others, FINALIZER] if write.wanted else others
        operation = {"op": "add", "path": "/metadata/finalizers", "value": wanted}
        await self._patch(write.target, path_of_view(write.target), operation)

    async def _write_status(self, write: StatusWrite) -> None:
        operation = {"op": "add", "path": "/status", "value": dict(write.status)}
        written = await self._patch(write.target, f"{path_of_view(write.target)}/status", operation)
        if written is None:
            return
        check_kept(write, written)
        self.written_at[write.target.uid] = datetime.now(UTC)
        self._count_failure(write)
        self._metrics.status_writes.labels(kind_of(write.target)).inc()
        for note in write.events:
            self._recorder.tell(note)

    def _count_failure(self, write: StatusWrite) -> None:
        target = write.target
        if isinstance(target, JobView) and target.status.assignment is not None:
            failed = any(note.reason == JobReason.BACK_OFF for note in write.events)
            self.failures[target.uid, target.status.assignment.pod_uid or ""] += int(failed)

    async def _patch(
        self, target: JobView | PoolView, path: str, operation: dict[str, Any]
    ) -> Mapping[str, Any] | None:
        """Write; gives the object as it is then, or None if the write was refused."""
        version = self._versions.get(target.uid, target.resource_version)
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        self._check_lead()
        try:
            raw = await self._api.patch(path, [test, operation])
        except ApiError as error:
            self._on_refusal(target, error)
            return None
        self._versions[target.uid] = raw["metadata"]["resourceVersion"]
        if "deletionTimestamp" in raw["metadata"] and not raw["metadata"].get("finalizers"):
            self._cache.forget(kind_of(target), target.uid)  # its last finalizer is off: the server has deleted it
        else:
            self._cache.take(kind_of(target), raw)
        return raw

    def _on_refusal(self, target: JobView | PoolView, error: ApiError) -> None:
        if error.is_gone:
            self._cache.forget(kind_of(target), target.uid)
        elif error.is_conflict:
            self._metrics.conflicts.inc()
            _log.info("stale write of %s left to the next pass: %s", target.key, error.message)
        else:
            _log.warning("write of %s failed: %s", target.key, error)

    async def _delete(self, job: JobView) -> None:
        self._check_lead()
        try:
            await self._api.delete(path_of_view(job), uid=job.uid)
        except ApiError as error:
            self._on_refusal(job, error)


class PrunedStatusError(Exception):
    """The API server dropped fields of a status: its CRDs are older than this operator."""


def check_kept(write: StatusWrite, raw: Mapping[str, Any]) -> None:
    """Make sure that the API server kept every field: without that, each pass would write anew, and read less.

    Raises:
        PrunedStatusError: Naming the fields.
    """
    lost = sorted(find_lost(write.status, raw.get("status") or {}, "status"))
    if lost:
        kind = kind_of(write.target)
        raise PrunedStatusError(f"the CRD of {kind} drops {', '.join(lost[:5])}; update the CRDs to this version first")


def find_lost(sent: Any, kept: Any, path: str) -> Iterator[str]:
    """Yield the paths of `sent` that `kept` lacks."""
    if isinstance(sent, Mapping):
        for name, value in sent.items():
            if not isinstance(kept, Mapping) or name not in kept:
                yield f"{path}.{name}"
            else:
                yield from find_lost(value, kept[name], f"{path}.{name}")
    elif isinstance(sent, list) and isinstance(kept, list):
        for before, after in zip(sent, kept, strict=False):
            yield from find_lost(before, after, path)


def kind_of(view: JobView | PoolView) -> str:
    """Give the kind of a view."""
    return "AdapterJob" if isinstance(view, JobView) else "BaseModelPool"


def path_of_view(view: JobView | PoolView) -> str:
    """Give the path of the object that a view is of."""
    return build_path(API_VERSION, kind_of(view), view.key.namespace, view.key.name)
