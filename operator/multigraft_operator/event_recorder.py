"""Tell users by Kubernetes Events: one object per kind of news, counted, not one per pass."""

from __future__ import annotations

import hashlib
import logging
from datetime import UTC, datetime
from typing import Any

from multigraft.api.schema import API_VERSION
from multigraft_operator.condition_list import format_time
from multigraft_operator.decision import EventNote
from multigraft_operator.kube_api import ApiError, KubeApi
from multigraft_operator.metrics import OperatorMetrics

MAX_REMEMBERED = 10_000
COMPONENT = "multigraft-operator"
_log = logging.getLogger(__name__)


class EventRecorder:
    """Applies Events on stable names; a failure is logged and never in the way."""

    def __init__(self, api: KubeApi, metrics: OperatorMetrics) -> None:
        self._api, self._metrics = api, metrics
        self._seen: dict[str, tuple[int, str]] = {}  # name: how often, since when

    async def tell(self, note: EventNote) -> None:
        """Tell one change."""
        now = format_time(datetime.now(UTC))
        name = _build_name(note)
        count, first = self._seen.get(name, (0, now))
        if len(self._seen) >= MAX_REMEMBERED:
            self._seen.clear()
        self._seen[name] = (count + 1, first)
        try:
            await self._api.apply(_build(note, name, count + 1, first, now))
            self._metrics.events.labels(note.reason).inc()
        except ApiError as error:
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
