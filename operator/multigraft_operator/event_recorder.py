"""Tell users by Kubernetes Events: one object per kind of news, counted, not one per pass."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from typing import Any

from multigraft.api.schema import API_VERSION
from multigraft_operator.condition_list import format_time
from multigraft_operator.decision import EventNote
from multigraft_operator.kube_api import ApiError, KubeApi
from multigraft_operator.metrics import OperatorMetrics

MAX_REMEMBERED = MAX_QUEUED = 10_000
COMPONENT = "multigraft-operator"
_log = logging.getLogger(__name__)


class EventRecorder:
    """Applies Events on stable names, in its own time; a failure is logged and never in the way."""

    def __init__(self, api: KubeApi, metrics: OperatorMetrics) -> None:
        self._api, self._metrics = api, metrics
        self._seen: dict[str, tuple[int, str]] = {}  # name: how often, since when
        self._queue: dict[str, dict[str, Any]] = {}  # by name, in order: what is to be applied
        self._awake = asyncio.Event()

    def tell(self, note: EventNote) -> None:
        """Take one change to be told soon; the same change again before that is only counted."""
        now = format_time(datetime.now(UTC))
        name = _build_name(note)
        if len(self._queue) >= MAX_QUEUED and name not in self._queue:
            self._metrics.events_dropped.inc()
            return
        count, first = self._seen.get(name, (0, now))
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[name] = (count + 1, first)
        self._queue[name] = _build(note, name, count + 1, first, now)
        self._awake.set()

    async def run(self) -> None:
        """Tell, one by one, for ever."""
        while True:
            await self._awake.wait()
            await self.flush()

    async def flush(self) -> None:
        """Tell all that waits."""
        self._awake.clear()
        while self._queue:
            event = self._queue.pop(next(iter(self._queue)))
            try:
                await self._api.apply(event)
                self._metrics.events.labels(event["reason"]).inc()
            except ApiError as error:
                self._metrics.events_dropped.inc()
                _log.warning("event not told: %s", error)


def _build_name(note: EventNote) -> str:
    digest = hashlib.sha256(f"{note.uid}/{note.reason}".encode()).hexdigest()[:16]
    return f"{note.name[:200].rstrip('.-')}.{digest}"


def _build(note: EventNote, name: str, count: int, first: str, now: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": note.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": note.kind,
            "namespace": note.namespace,
            "name": note.name,
            "uid": note.uid,
        },
        "reason": note.reason,
        "message": note.message[:1024],
        "type": "Warning" if note.is_warning else "Normal",
        "count": count,
        "firstTimestamp": first,
        "lastTimestamp": now,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
    }
