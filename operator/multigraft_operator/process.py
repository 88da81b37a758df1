"""One operator process: wait for the Lease, then lead until that is lost or the process is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from multigraft_operator.apply import Applier, PrunedStatusError
from multigraft_operator.cache import ObjectCache
from multigraft_operator.event_recorder import EventRecorder
from multigraft_operator.kube_api import KubeApi, open_kube_api
from multigraft_operator.lease import LeaderLease, LeadershipLostError, StandaloneEpoch
from multigraft_operator.metrics import OperatorMetrics
from multigraft_operator.probes import ProbeServer
from multigraft_operator.reconciler import Reconciler
from multigraft_operator.settings import OperatorSettings
from multigraft_operator.trainer_talk import TrainerTalk
from multigraft_operator.watch import Watch

STUCK_SECONDS = 180.0
FLUSH_SECONDS = 3.0  # for events that still wait at the end
OK, LOST = 0, 1
_log = logging.getLogger(__name__)


class OperatorProcess:
    """Everything that runs in one process."""

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._metrics = OperatorMetrics()
        self._cache = ObjectCache()
        self._watch = Watch(settings, self._cache, self._take_signals)
        self._reconciler: Reconciler | None = None
        self._stopped = asyncio.Event()

    async def run(self) -> int:
        """Run until stopped by SIGTERM or SIGINT (0), or until leadership or the watches are lost (1)."""
        self._take_signals()
        api = await open_kube_api(self._metrics)
        try:
            probes = ProbeServer(
                self._metrics,
                find_illness=self.find_illness,
                find_unreadiness=self.find_unreadiness,
                before_metrics=self._refresh_metrics,
            )
            return await self._run_until_first(self._lead(api), probes.run(self._settings.http_port))
        finally:
            await api.close()

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)

    async def _lead(self, api: KubeApi) -> int:
        election = self._build_election(api)
        await election.acquire()
        self._metrics.leader.set(1)
        settings = self._settings
        talk = TrainerTalk(
            settings.key, settings.children.control_port, self._metrics, poll_seconds=settings.poll_seconds
        )
        recorder = EventRecorder(api, self._metrics)
        applier = Applier(api, self._cache, talk, recorder, self._metrics, election.check)
        self._reconciler = Reconciler(settings, api, self._cache, applier, election, self._metrics)
        self._cache.on_change = self._reconciler.wake
        try:
            return await self._run_until_first(
                self._reconciler.run(), self._watch.run(), recorder.run(), election.keep()
            )
        finally:
            self._metrics.leader.set(0)
            await talk.close()
            if self._stopped.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(recorder.flush(), FLUSH_SECONDS)
                await election.release()

    def _build_election(self, api: KubeApi) -> LeaderLease | StandaloneEpoch:
        if self._settings.is_standalone:
            return StandaloneEpoch()
        settings = self._settings
        return LeaderLease(api, namespace=settings.namespace, name=settings.lease_name, identity=settings.identity)

    async def _run_until_first(self, *parts: Coroutine[Any, Any, Any]) -> int:
        """Run all until one ends or the process is told to stop; then end the others."""
        tasks = [asyncio.ensure_future(part) for part in parts]
        stop = asyncio.ensure_future(self._stopped.wait())
        done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, stop):
            task.cancel()
        await asyncio.wait([*tasks, stop], timeout=10)
        code = OK if stop in done else LOST
        for task in done - {stop}:
            code = self._explain_end(task)
        return code

    def _explain_end(self, task: asyncio.Future[Any]) -> int:
        error = task.exception()
        if error is None:
            return task.result() if isinstance(task.result(), int) else LOST
        if isinstance(error, LeadershipLostError):
            _log.error("leadership lost: %s", error)
        elif isinstance(error, PrunedStatusError):
            _log.error("cannot work: %s", error)
        else:
            _log.error("a part of the operator ended", exc_info=error)
        return LOST

    def find_illness(self) -> str:
        """Say why this process should be started anew; empty if it should not."""
        if self._reconciler is None:
            return ""  # a standby waits for the Lease
        if self._cache.missed_by_watches:
            return f"watches missed {self._cache.missed_by_watches} changes that lists showed"
        age = asyncio.get_running_loop().time() - self._reconciler.last_pass_at
        return f"no pass was done for {age:.0f} s" if age > STUCK_SECONDS else ""

    def find_unreadiness(self) -> str:
        """Say why this process is not ready; a standby is, as it would take over at once."""
        if self._reconciler is None:
            return ""
        return "" if self._reconciler.is_synced else "objects are not listed yet"

    def _refresh_metrics(self) -> None:
        self._metrics.watch_age.set(time.monotonic() - self._watch.last_event_at)
