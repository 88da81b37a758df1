"""Watch the API server through kopf, in its low-level style: handlers fill the cache and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import kopf
from kopf._core.engines.peering import Identity

from multigraft.api.schema import GROUP, VERSION
from multigraft_operator.cache import ObjectCache
from multigraft_operator.children.labels import MANAGED_BY, MANAGED_BY_LABEL, POD_SELECTOR
from multigraft_operator.kopf_storages import NoDiffs, NoProgress
from multigraft_operator.settings import OperatorSettings

OURS = {MANAGED_BY_LABEL: MANAGED_BY}
MAX_BACKOFF_SECONDS = 30


class EndlessBackoffs:
    """Seconds between tries of a request: an API server that is upgraded must not end the process."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13, 21), itertools.repeat(MAX_BACKOFF_SECONDS))


class Watch:
    """The watches of one operator process."""

    def __init__(self, settings: OperatorSettings, cache: ObjectCache, take_signals: Callable[[], None]) -> None:
        self._settings, self._cache, self._take_signals = settings, cache, take_signals
        self.last_event_at = time.monotonic()

    async def run(self) -> None:
        """Watch until cancelled; returns or raises if kopf gives up."""
        namespaces = self._settings.watch_namespaces
        others = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=self._build_registry(),
            settings=build_kopf_settings(),
            standalone=True,
            identity=Identity(self._settings.identity),  # else kopf asks for the user's name, and a bare uid has none
            clusterwide=not namespaces,
            namespaces=namespaces,
        )
        self._take_signals()  # back from kopf, which has just put its own handlers in place of ours
        await kopf.run_tasks(tasks, ignored=others)

    def _build_registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(login)
        on: Callable[..., Any] = kopf.on.event
        on(GROUP, VERSION, "adapterjobs", registry=registry, id="jobs")(self._handler("AdapterJob"))
        on(GROUP, VERSION, "basemodelpools", registry=registry, id="pools")(self._handler("BaseModelPool"))
        on("apps", "v1", "statefulsets", registry=registry, id="sets", labels=OURS)(self._handler("StatefulSet"))
        on("", "v1", "pods", registry=registry, id="pods", labels=OURS)(self._handler("Pod"))
        return registry

    def _handler(self, kind: str) -> Callable[..., Any]:
        async def hear(event: Any, **_: Any) -> None:
            self.last_event_at = time.monotonic()
            self._cache.hear(kind, event["type"], event["object"])

        return hear


def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Log in with the pod's own rights, or those of KUBECONFIG."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


def build_kopf_settings() -> kopf.OperatorSettings:
    """Build kopf's settings; the reasons are in docs/operator.md."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.networking.enforce_retry_after = True
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.reconnect_backoff = 1
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["pods"] = POD_SELECTOR
    settings.watching.label_selectors["apps", "statefulsets"] = POD_SELECTOR
    settings.persistence.finalizer = f"{GROUP}/kopf"  # never set: no handler of ours needs one
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    settings.execution.default_backoff = 10
    settings.process.ultimate_exiting_timeout = 25
    return settings
