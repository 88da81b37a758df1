"""The operator's own figures, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

NAMESPACE = "multigraft_operator"


class OperatorMetrics:
    """Counters and gauges of one operator process; no label grows with the number of objects."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.leader = Gauge("leader", "1 while this process leads.", namespace=NAMESPACE, registry=registry)
        self.epoch = Gauge("epoch", "Lease epoch of this leader.", namespace=NAMESPACE, registry=registry)
        self.reconcile_seconds = Histogram(
            "reconcile_seconds", "Seconds of one pass.", namespace=NAMESPACE, registry=registry
        )
        self.reconcile_errors = Counter(
            "reconcile_errors", "Passes that failed.", namespace=NAMESPACE, registry=registry
        )
        self.watch_age = Gauge(
            "watch_age_seconds", "Seconds since any watch event.", namespace=NAMESPACE, registry=registry
        )
        self.objects = Gauge("objects", "Objects seen.", ["kind"], namespace=NAMESPACE, registry=registry)
        self.status_writes = Counter(
            "status_writes", "Statuses written.", ["kind"], namespace=NAMESPACE, registry=registry
        )
        self.conflicts = Counter("conflicts", "Writes refused as stale.", namespace=NAMESPACE, registry=registry)
        self.events = Counter("events", "Kubernetes Events told.", ["reason"], namespace=NAMESPACE, registry=registry)
        self.events_dropped = Counter(
            "events_dropped", "Events given up: too many, or refused.", namespace=NAMESPACE, registry=registry
        )
        self.trainer_calls = Counter(
            "trainer_calls", "Calls to trainers.", ["outcome"], namespace=NAMESPACE, registry=registry
        )
        self._requests = Counter(
            "api_requests", "Requests to the API server; code 0: no answer.", ["verb", "code"],
            namespace=NAMESPACE, registry=registry,
        )  # fmt: skip
        self._pending = Gauge(
            "pending_jobs", "Jobs without a slot, by reason.", ["reason"], namespace=NAMESPACE, registry=registry
        )
        Info("build", "What was built.", namespace=NAMESPACE, registry=registry).info(
            {"version": version("multigraft")}
        )

    def count_request(self, verb: str, code: int) -> None:
        self._requests.labels(verb, str(code)).inc()

    def set_pending(self, by_reason: Mapping[str, int]) -> None:
        """Set the jobs that wait; reasons that nobody has any more are removed."""
        self._pending.clear()
        for reason, number in by_reason.items():
            self._pending.labels(reason).set(number)

    def render(self) -> bytes:
        """Write all in Prometheus' text format."""
        return generate_latest(self._registry)
