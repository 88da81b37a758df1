"""Keep the children of pools as they should be: applied when that changes, put back when someone changed them."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from multigraft_operator.cache import ObjectCache
from multigraft_operator.children.build import build_children, find_digest
from multigraft_operator.kube_api import ApiError, KubeApi, build_path
from multigraft_operator.metrics import OperatorMetrics
from multigraft_operator.observed import Key, PodProblem, PoolView
from multigraft_operator.read_objects import read_refusal
from multigraft_operator.settings import OperatorSettings

RETRY_SECONDS = 10.0
ASK_SECONDS = 15.0  # between two looks at the events of a StatefulSet that lacks pods
_log = logging.getLogger(__name__)


class ChildrenKeeper:
    """Builds children once per generation of a pool and applies them, the StatefulSet last."""

    def __init__(
        self,
        settings: OperatorSettings,
        api: KubeApi,
        cache: ObjectCache,
        metrics: OperatorMetrics,
        check_lead: Callable[[], None],
    ) -> None:
        self._settings, self._api, self._cache = settings, api, cache
        self._metrics, self._check_lead = metrics, check_lead
        self._built: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._next_try: dict[Key, float] = {}
        self._applied: dict[str, tuple[float, int]] = {}  # by uid of the pool: when, and the set's generation then
        self._next_look: dict[Key, float] = {}
        self.refusals: dict[Key, PodProblem] = {}

    def digest_wanted(self, pools: Mapping[Key, PoolView]) -> dict[Key, str]:
        """Give the digest of the children that each readable pool should have."""
        readable = {key: pool for key, pool in pools.items() if pool.spec is not None}
        names = {(pool.uid, pool.generation) for pool in readable.values()}
        self._built = {name: built for name, built in self._built.items() if name in names}
        uids = {pool.uid for pool in readable.values()}
        self._applied = {uid: applied for uid, applied in self._applied.items() if uid in uids}
        return {key: find_digest(self._children_of(pool)) for key, pool in readable.items()}

    def find_good(self, pools: Mapping[Key, PoolView]) -> dict[Key, str]:
        """Give the digests of the children that are there, without those that are to be applied again all the same."""
        digests = self._cache.children_digests
        return {key: digest for key, digest in digests.items() if key in pools and not self._is_due(pools[key])}

    def _is_due(self, pool: PoolView) -> bool:
        """Tell whether the StatefulSet was changed by hand, or the other children were not looked after for long.

        Others than the StatefulSet are not watched: that would need the right to read every Secret.
        """
        now, raw = asyncio.get_running_loop().time(), self._cache.find_set(pool.key)
        generation = int(raw["metadata"].get("generation", 0)) if raw is not None else 0
        if pool.uid not in self._applied:  # by a former process; spread over the pause, so that pools do not crowd
            spread = zlib.crc32(pool.uid.encode()) / 2**32
            self._applied[pool.uid] = (now - spread * self._settings.reapply_seconds, generation)
        at, seen = self._applied[pool.uid]
        was_changed = generation != seen and now >= at + RETRY_SECONDS  # not at once: no race with another controller
        return was_changed or now >= at + self._settings.reapply_seconds

    def _children_of(self, pool: PoolView) -> list[dict[str, Any]]:
        name = (pool.uid, pool.generation)
        if name not in self._built:
            self._built[name] = build_children(pool, self._settings.children, self._settings.key)
        return self._built[name]

    async def apply(self, pool: PoolView) -> None:
        """Apply all children of a pool; a refusal is logged, and tried again a little later."""
        now = asyncio.get_running_loop().time()
        if now < self._next_try.get(pool.key, 0.0):
            return
        try:
            for child in self._children_of(pool):
                self._check_lead()
                raw = await self._api.apply(child)
                if child["kind"] == "StatefulSet":
                    self._cache.take("StatefulSet", raw)
                    self._applied[pool.uid] = (now, int(raw["metadata"].get("generation", 0)))
        except ApiError as error:
            _log.warning("children of pool %s not applied: %s", pool.key, error)
            self._metrics.reconcile_errors.inc()
            self._next_try[pool.key] = now + RETRY_SECONDS

    async def look_for_refusals(self, pools: Mapping[Key, PoolView]) -> None:
        """Learn why pods of pools cannot be made: only the StatefulSet's events say so."""
        num_pods: dict[Key, int] = {}
        for pod in self._cache.pods:
            num_pods[pod.pool_key] = num_pods.get(pod.pool_key, 0) + 1
        lacking = {key: pool for key, pool in pools.items() if pool.spec and num_pods.get(key, 0) < pool.spec.replicas}
        self.refusals = {key: problem for key, problem in self.refusals.items() if key in lacking}
        self._next_look = {key: at for key, at in self._next_look.items() if key in lacking}
        now = asyncio.get_running_loop().time()
        for key in lacking:
            raw = self._cache.find_set(key)
            if raw is not None and now >= self._next_look.setdefault(key, now + 2):
                self._next_look[key] = now + ASK_SECONDS
                await self._look(key, raw["metadata"]["uid"])

    async def _look(self, pool: Key, set_uid: str) -> None:
        events: list[dict[str, Any]] = []
        fields = f"involvedObject.uid={set_uid},reason=FailedCreate"
        try:
            async for page, _ in self._api.list_pages(build_path("v1", "Event", pool.namespace), fields=fields):
                events += page
        except ApiError as error:
            _log.warning("events of the StatefulSet of pool %s not read: %s", pool, error)
            return
        problem = read_refusal(events)
        if problem is not None:
            self.refusals[pool] = problem
