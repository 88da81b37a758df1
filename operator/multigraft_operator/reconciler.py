"""The one serial pass: observe, decide, apply; whatever happens only wakes it."""

from __future__ import annotations

import asyncio
import base64
import logging
from datetime import UTC, datetime
from typing import Any, Protocol

from multigraft.api.control import InlineRows
from multigraft.api.schema import API_VERSION
from multigraft_operator.apply import Applier
from multigraft_operator.cache import KINDS, ObjectCache
from multigraft_operator.children.labels import POD_SELECTOR
from multigraft_operator.children_keeper import ChildrenKeeper
from multigraft_operator.decide import decide, is_terminal
from multigraft_operator.job_stand import is_admitted
from multigraft_operator.kube_api import ApiError, KubeApi, build_path
from multigraft_operator.lease import LeadershipLostError
from multigraft_operator.metrics import OperatorMetrics
from multigraft_operator.observed import JobView, Observed
from multigraft_operator.settings import OperatorSettings
from multigraft_operator.trainer_talk import StaleEpochError

API_VERSIONS = {"AdapterJob": API_VERSION, "BaseModelPool": API_VERSION, "StatefulSet": "apps/v1", "Pod": "v1"}
OURS_ALONE = frozenset({"StatefulSet", "Pod"})  # listed by our label: there are many others
DEBOUNCE_SECONDS = 0.05
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 30.0
_log = logging.getLogger(__name__)


class Election(Protocol):
    """Whoever says that we lead."""

    @property
    def epoch(self) -> int: ...

    async def raise_epoch(self, at_least: int) -> None: ...

    def check(self) -> None: ...


class Reconciler:
    """Brings the cluster to what its objects say, pass by pass."""

    def __init__(
        self,
        settings: OperatorSettings,
        api: KubeApi,
        cache: ObjectCache,
        applier: Applier,
        election: Election,
        metrics: OperatorMetrics,
    ) -> None:
        self._settings, self._api, self._cache = settings, api, cache
        self._applier, self._election, self._metrics = applier, election, metrics
        self._awake = asyncio.Event()
        self._rows: dict[str, InlineRows] = {}
        self._rows_missing: set[str] = set()
        self._children = ChildrenKeeper(settings, api, cache, metrics, election.check)
        self._began_at = datetime.now(UTC)
        self.is_synced = False
        self.last_pass_at = asyncio.get_running_loop().time()

    def wake(self) -> None:
        """Ask for a pass soon."""
        self._awake.set()

    async def run(self) -> None:
        """Run passes for ever.

        Raises:
            LeadershipLostError: If a later leader is at work.
        """
        next_list, failures = 0.0, 0
        clock = asyncio.get_running_loop()
        while True:
            try:
                if clock.time() >= next_list:
                    await self._list_all()
                    next_list = clock.time() + self._settings.relist_seconds
                await self.run_pass()
                failures = 0
            except StaleEpochError as error:
                await self._raise_epoch(error)
            except ApiError as error:
                failures += 1
                _log.warning("pass failed: %s", error)
                self._metrics.reconcile_errors.inc()
                await asyncio.sleep(min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(failures, 5)))
            await self._wait()

    async def _raise_epoch(self, error: StaleEpochError) -> None:
        """Go above the trainer's epoch; that fails if the Lease is not ours any more."""
        _log.warning("%s; going above it", error)
        try:
            await self._election.raise_epoch(error.current_epoch + 1)
        except ApiError as refusal:
            raise LeadershipLostError(f"{error}, and the Lease cannot be written: {refusal}") from refusal

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._settings.poll_seconds):
                await self._awake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(DEBOUNCE_SECONDS)

    async def run_pass(self) -> None:
        """Observe, decide, apply, once."""
        self._awake.clear()
        with self._metrics.reconcile_seconds.time():
            await self._load_rows()
            seen = self._observe()
            decision = decide(seen, self._children.digest_wanted(seen.pools))
            await self._applier.carry_out(decision)
            for pool in decision.pools_to_build:
                await self._children.apply(pool)
            await self._children.look_for_refusals(seen.pools)
        self._metrics.set_pending(decision.pending_by_reason)
        self._metrics.epoch.set(self._election.epoch)
        for kind in KINDS:
            self._metrics.objects.labels(kind).set(self._cache.count(kind))
        self.last_pass_at = asyncio.get_running_loop().time()

    def _observe(self) -> Observed:
        pools = self._cache.pools
        return Observed(
            now=datetime.now(UTC),
            epoch=self._election.epoch,
            jobs=self._cache.jobs,
            pools=pools,
            pods=self._cache.pods,
            children_digests=self._children.find_good(pools),
            refusals=self._children.refusals,
            rows=self._rows,
            failures=self._applier.failures,
            written_at=self._applier.written_at,
            began_at=self._began_at,
            policy=self._settings.policy,
        )

    # Lists.

    async def _list_all(self) -> None:
        for kind in KINDS:
            for namespace in self._settings.watch_namespaces or ("",):
                await self._list(kind, namespace)
        self.is_synced = True

    async def _list(self, kind: str, namespace: str) -> None:
        items: list[dict[str, Any]] = []
        version = "0"
        path = build_path(API_VERSIONS[kind], kind, namespace)
        selector = POD_SELECTOR if kind in OURS_ALONE else ""
        async for page, version_of_list in self._api.list_pages(path, selector):
            items += page
            version = version_of_list
        self._cache.replace(kind, items, version, namespace)

    # Rows of ConfigMaps.

    async def _load_rows(self) -> None:
        """Read the rows of jobs that a trainer has or gets; once per job, so that an edit does not begin it anew."""
        jobs = [job for job in self._cache.jobs.values() if is_admitted(job) and not is_terminal(job)]
        wanted = {job.uid: job for job in jobs if job.spec is not None and job.spec.dataset.config_map_ref is not None}
        self._rows = {uid: rows for uid, rows in self._rows.items() if uid in wanted}
        self._rows_missing &= set(wanted)
        for uid, job in wanted.items():
            if uid not in self._rows and uid not in self._rows_missing:
                await self._load_rows_of(job)

    async def _load_rows_of(self, job: JobView) -> None:
        reference = job.spec.dataset.config_map_ref if job.spec is not None else None
        if reference is None:
            return
        try:
            raw = await self._api.get(build_path("v1", "ConfigMap", job.key.namespace, reference.name))
        except ApiError as error:
            if error.status == 0:
                raise
            _log.warning("rows of %s not read: %s", job.key, error)
            self._rows_missing.add(job.uid)
            return
        text, binary = (raw.get("data") or {}).get(reference.key), (raw.get("binaryData") or {}).get(reference.key)
        content = base64.b64encode(text.encode()) if text is not None else binary
        if content is None:
            self._rows_missing.add(job.uid)
        else:
            self._rows[job.uid] = InlineRows.model_validate({"key": reference.key, "content": content})
