"""Leader election by a Lease, outside kopf; each change of leader counts up, and that count is the epoch.

A leader that could not renew in time must stop: trainers refuse its lower epoch from then on.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from multigraft_operator.kube_api import ApiError, KubeApi, build_path

DURATION_SECONDS, RENEW_DEADLINE_SECONDS, RETRY_SECONDS = 15, 10.0, 2.0
"""As the operators of the Go world have it."""

API_VERSION = "coordination.k8s.io/v1"
_log = logging.getLogger(__name__)


class LeadershipLostError(Exception):
    """Another process leads, or the Lease could not be renewed in time."""


class LeaderLease:
    """One process' hold on the Lease."""

    def __init__(self, api: KubeApi, *, namespace: str, name: str, identity: str) -> None:
        self._api = api
        self._path = build_path(API_VERSION, "Lease", namespace, name)
        self._collection = build_path(API_VERSION, "Lease", namespace)
        self._namespace, self._name, self._identity = namespace, name, identity
        self._held: dict[str, Any] = {}
        self._observed: tuple[str, float] = ("", 0.0)  # the holder's last sign of life, and when we saw it
        self._renewed_at = 0.0  # by the loop's clock, before the request was sent
        self._lock = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """Give the epoch of the hold; at least 1."""
        return int(self._held["spec"]["leaseTransitions"])

    async def acquire(self) -> None:
        """Wait until this process leads."""
        while True:
            try:
                if await self._try_to_acquire():
                    _log.info("leads with epoch %d", self.epoch)
                    return
            except ApiError as error:
                _log.warning("cannot get the Lease: %s", error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _try_to_acquire(self) -> bool:
        try:
            lease = await self._api.get(self._path)
        except ApiError as error:
            if not error.is_gone:
                raise
            return await self._write(self._build({}, transitions=1), is_new=True)
        spec = lease.get("spec") or {}
        is_own = spec.get("holderIdentity") == self._identity  # left by a former process in this pod's container
        if spec.get("holderIdentity") and not is_own and not self._has_expired(lease):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + 1
        return await self._write(self._build(lease, transitions=transitions), is_new=False)

    def _has_expired(self, lease: dict[str, Any]) -> bool:
        """Tell whether the holder gave no sign of life for so long, by our own clock: clocks of machines differ."""
        sign, now = lease["metadata"]["resourceVersion"], asyncio.get_running_loop().time()
        if sign != self._observed[0]:
            self._observed = (sign, now)
            return False
        return bool(now - self._observed[1] > int(lease["spec"].get("leaseDurationSeconds") or DURATION_SECONDS))

    def _build(self, old: dict[str, Any], *, transitions: int, holder: str | None = None) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata = old.get("metadata") or {"name": self._name, "namespace": self._namespace}
        return {
            "apiVersion": API_VERSION,
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity if holder is None else holder,
                "leaseDurationSeconds": DURATION_SECONDS,
                "leaseTransitions": transitions,
                "acquireTime": (old.get("spec") or {}).get("acquireTime") or now,
                "renewTime": now,
            },
        }

    async def _write(self, lease: dict[str, Any], *, is_new: bool) -> bool:
        sent_at = asyncio.get_running_loop().time()
        try:
            if is_new:
                self._held = await self._api.create(self._collection, lease)
            else:
                self._held = await self._api.replace(self._path, lease)
        except ApiError as error:
            if error.is_conflict or error.is_gone:
                return False  # another was faster
            raise
        self._renewed_at = sent_at
        return True

    def check(self) -> None:
        """Make sure that the Lease is ours still: a process that was stopped for a while must write nothing any more.

        Raises:
            LeadershipLostError: If it was not renewed in time.
        """
        age = asyncio.get_running_loop().time() - self._renewed_at
        if age > RENEW_DEADLINE_SECONDS:
            raise LeadershipLostError(f"the Lease was not renewed for {age:.0f} s")

    async def keep(self) -> None:
        """Renew for as long as it goes.

        Raises:
            LeadershipLostError: If this process does not lead any more.
        """
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                async with asyncio.timeout(RENEW_DEADLINE_SECONDS / 2):
                    await self._renew(self.epoch)
            except (ApiError, TimeoutError) as error:
                _log.warning("the Lease could not be renewed: %s", error)
                self.check()

    async def raise_epoch(self, at_least: int) -> None:
        """Count the epoch up to `at_least`, as long as the Lease is ours: someone deleted the former Lease.

        Raises:
            LeadershipLostError: If it is not.
        """
        await self._renew(max(at_least, self.epoch))

    async def _renew(self, transitions: int) -> None:
        async with self._lock:
            if await self._write(self._build(self._held, transitions=transitions), is_new=False):
                return
            lease = await self._api.get(self._path)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") != self._identity:
                raise LeadershipLostError(f"{spec.get('holderIdentity') or 'nobody'} holds the Lease")
            if spec.get("leaseTransitions") not in {self.epoch, transitions}:
                raise LeadershipLostError(f"another process holds the Lease in the name of {self._identity}, too")
            self._held = lease  # a renewal whose answer was lost

    async def release(self) -> None:
        """Give the Lease back, so that the next one need not wait."""
        try:
            await self._write(self._build(self._held, transitions=self.epoch, holder=""), is_new=False)
        except ApiError as error:
            _log.info("Lease not given back: %s", error)


class StandaloneEpoch:
    """In place of a Lease where one process alone is run: the epoch is the second of its start."""

    def __init__(self) -> None:
        self.epoch = int(datetime.now(UTC).timestamp())

    async def acquire(self) -> None:
        """Lead at once."""

    def check(self) -> None:
        """Lead for ever."""

    async def keep(self) -> None:
        """Lead for ever."""
        await asyncio.Event().wait()

    async def raise_epoch(self, at_least: int) -> None:
        """Count the epoch up."""
        self.epoch = max(self.epoch, at_least)

    async def release(self) -> None:
        """Do nothing."""
