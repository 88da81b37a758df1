"""The operator's own picture of the API server: filled by watches, corrected by lists and by its own writes.

Watches may miss deletions (after a gap that ends in 410) or die unnoticed, so a list every minute or so is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from multigraft_operator.children.labels import DIGEST_ANNOTATION
from multigraft_operator.observed import JobView, Key, PodView, PoolView, Talk
from multigraft_operator.read_objects import key_of, read_job, read_pod, read_pool, read_pool_of_set

KINDS = ("AdapterJob", "BaseModelPool", "StatefulSet", "Pod")


class ObjectCache:
    """Objects by kind and uid; only a newer version takes the place of an older one."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._raw: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in KINDS}
        self._views: dict[str, JobView | PoolView] = {}
        self._heard: dict[str, int] = {}  # by uid: newest version that a watch told
        self._late: dict[str, int] = {}  # by uid: version that a list knew and no watch had told
        self.on_change = on_change
        self.talks: dict[str, Talk] = {}
        self.missed_by_watches = 0  # objects that two lists in a row knew better

    def count(self, kind: str) -> int:
        return len(self._raw[kind])

    def hear(self, kind: str, event: str | None, raw: Mapping[str, Any]) -> None:
        """Take what a watch tells."""
        uid = raw["metadata"]["uid"]
        self._heard[uid] = max(self._heard.get(uid, 0), _version(raw))
        if event == "DELETED":
            self.forget(kind, uid)
        else:
            self.take(kind, raw)

    def take(self, kind: str, raw: Mapping[str, Any]) -> None:
        """Take an object as it is now."""
        uid = raw["metadata"]["uid"]
        old = self._raw[kind].get(uid)
        if old is not None and _version(old) >= _version(raw):
            return
        self._raw[kind][uid] = _trim(kind, raw)
        if kind == "AdapterJob":
            self._views[uid] = read_job(raw)
        elif kind == "BaseModelPool":
            self._views[uid] = read_pool(raw)
        self.on_change()

    def hear_trainers(self, talks: Mapping[str, Talk]) -> None:
        """Take what trainers said, by uid of the pod."""
        is_news = any(self.talks.get(uid, Talk()).state != talk.state for uid, talk in talks.items())
        self.talks.update(talks)
        if is_news:
            self.on_change()

    def forget(self, kind: str, uid: str) -> None:
        """Forget an object that is gone."""
        if self._raw[kind].pop(uid, None) is not None:
            self.on_change()
        self._views.pop(uid, None)
        self.talks.pop(uid, None)

    def replace(self, kind: str, items: list[dict[str, Any]], list_version: str, namespace: str = "") -> None:
        """Take a whole list: what it lacks is gone, unless it is newer than the list.

        Args:
            namespace: That the list is of; empty: all.
        """
        listed = {item["metadata"]["uid"] for item in items}
        for uid, raw in list(self._raw[kind].items()):
            is_meant = not namespace or key_of(raw).namespace == namespace
            if is_meant and uid not in listed and _version(raw) <= int(list_version):
                self.forget(kind, uid)
        for item in items:
            self.take(kind, item)
        self._compare_with_watch(items)

    def _compare_with_watch(self, items: list[dict[str, Any]]) -> None:
        for item in items:
            uid, version = item["metadata"]["uid"], _version(item)
            heard = self._heard.get(uid, 0)
            if heard < self._late.get(uid, 0):
                self.missed_by_watches += 1
            if heard < version:
                self._late[uid] = version
            else:
                self._late.pop(uid, None)

    def find(self, uid: str) -> JobView | PoolView | None:
        return self._views.get(uid)

    @property
    def jobs(self) -> dict[Key, JobView]:
        return {view.key: view for view in self._views.values() if isinstance(view, JobView)}

    @property
    def pools(self) -> dict[Key, PoolView]:
        return {view.key: view for view in self._views.values() if isinstance(view, PoolView)}

    @property
    def pods(self) -> tuple[PodView, ...]:
        names = {uid: name for uid, raw in self._raw["StatefulSet"].items() if (name := read_pool_of_set(raw))}
        read = [read_pod(raw, names) for raw in self._raw["Pod"].values()]
        return tuple(replace(pod, talk=self.talks.get(pod.uid, Talk())) for pod in read if pod is not None)

    def find_set(self, pool: Key) -> Mapping[str, Any] | None:
        """Give the StatefulSet of a pool as it is."""
        return next(
            (
                raw
                for raw in self._raw["StatefulSet"].values()
                if Key(key_of(raw).namespace, read_pool_of_set(raw) or "") == pool
            ),
            None,
        )

    @property
    def children_digests(self) -> dict[Key, str]:
        """Give, by pool, the digest on its StatefulSet."""
        digests = {}
        for raw in self._raw["StatefulSet"].values():
            name, digest = read_pool_of_set(raw), (raw["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION)
            if name is not None and digest is not None:
                digests[Key(key_of(raw).namespace, name)] = str(digest)
        return digests


def _trim(kind: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keep what is read later: of our own kinds the view is, and managed fields are half of an object."""
    if kind in {"AdapterJob", "BaseModelPool"}:
        kept = ("name", "namespace", "uid", "resourceVersion")
        return {"metadata": {name: raw["metadata"][name] for name in kept if name in raw["metadata"]}}
    return {**raw, "metadata": {name: value for name, value in raw["metadata"].items() if name != "managedFields"}}


def _version(raw: Mapping[str, Any]) -> int:
    return int(raw["metadata"]["resourceVersion"])
