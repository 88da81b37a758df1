"""Metrics of the service around the engine's: version, readiness, epoch, and calls of the control port."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge

from multigraft.api.base_model_pool import BaseModelPool
from multigraft_trainer.checkpoints.records import code_version
from multigraft_trainer.engine.metrics import TrainerMetrics


class ServiceMetrics:
    """The engine's metrics and the service's own, in one registry."""

    def __init__(self, pool: BaseModelPool) -> None:
        name = pool.metadata.name
        self.engine = TrainerMetrics(name, num_stages=1, base_bytes=0)
        registry = self.engine.registry
        Gauge("multigraft_build_info", "1; the label tells the version.", ["version"], registry=registry).labels(
            code_version()
        ).set(1)
        Gauge("multigraft_slots", "Slots there are.", ["pool"], registry=registry).labels(name).set(pool.spec.slots.max)
        self._base_bytes = Gauge(
            "multigraft_base_bytes", "Memory of the frozen weights.", ["pool"], registry=registry
        ).labels(name)
        self._ready = Gauge(
            "multigraft_trainer_ready", "1 while jobs can train, else 0.", ["pool"], registry=registry
        ).labels(name)
        self._epoch = Gauge(
            "multigraft_trainer_epoch", "Highest Lease epoch that was obeyed.", ["pool"], registry=registry
        ).labels(name)
        self._requests = Counter(
            "multigraft_control_requests",
            "Calls of the control port, by path of the protocol and status.",
            ["path", "status"],
            registry=registry,
        )

    def watch_readiness(self, is_ready: Callable[[], bool]) -> None:
        """Ask `is_ready` at each scrape."""
        self._ready.set_function(lambda: float(is_ready()))

    def on_base(self, num_bytes: int) -> None:
        """Hear that the base is loaded."""
        self._base_bytes.set(num_bytes)
        self.engine.on_base(num_bytes)

    def on_epoch(self, epoch: int) -> None:
        """Hear that a desired set was accepted."""
        self._epoch.set(epoch)

    def on_request(self, path: str, status: int) -> None:
        """Hear of an answered call; `path` is one of a fixed list."""
        self._requests.labels(path, str(status)).inc()
