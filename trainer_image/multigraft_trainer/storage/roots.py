"""The one checker of storage: which places a job may read and write.

A place is allowed when it lies, with every symbolic link followed, inside one of the pool's roots, and not in what
belongs to another namespace or to the run itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from multigraft.api.reasons import RefusalError
from multigraft_trainer.storage.atomic_folder import TRASH_PREFIX
from multigraft_trainer.storage.durable_files import TEMP_PREFIX
from multigraft_trainer.storage.uri import LOCAL, ParsedUri, parse_uri, refuse

ADAPTERS = "adapters"  # below the output root; its first level is a namespace
CHECKPOINTS = "checkpoints"  # below the output root; no job reads or writes there
# What a run itself writes below the output root.
RUN_FILES = (
    CHECKPOINTS,
    "cache",
    "result.json",
    "report.html",
    "loss_curves.png",
    "plan.png",
    "metrics.prom",
    "run.json",
    "error.log",
    "plans",
)
_SHOWN_ROOTS = 4


@dataclass(frozen=True)
class Location:
    """A place that was checked."""

    uri: str  # as the user wrote it
    field: str  # that holds it, for messages
    place: ParsedUri  # absolute; a local one is real, without symbolic links

    @property
    def is_local(self) -> bool:
        return self.place.scheme == LOCAL

    @property
    def path(self) -> str:
        """Give the path as fsspec takes it."""
        return self.place.path

    @property
    def shown(self) -> str:
        """Give it as it stands in results: the path of a local place, the URI of a remote one."""
        return self.path if self.is_local else self.uri


@dataclass(frozen=True)
class StorageRoots:
    """Where jobs of one namespace may read and write.

    A path without scheme is relative to `read_base` when it is read and to `write_base` when it is written.
    """

    read_base: ParsedUri
    write_base: ParsedUri
    allowed: tuple[ParsedUri, ...]
    namespace: str
    shown: tuple[str, ...] = field(repr=False)  # the roots as they were written, for messages
    private: tuple[ParsedUri, ...] = ()  # folders of the run itself, wherever they lie

    @classmethod
    def build(
        cls,
        *,
        read_base: str | os.PathLike[str],
        write_base: str | os.PathLike[str],
        allowed: tuple[str, ...] = (),
        namespace: str,
        private: Iterable[str | os.PathLike[str]] = (),
    ) -> Self:
        """Build the roots.

        Args:
            read_base: Storage root: a folder or URI. In a local run the folder of the manifests.
            write_base: Output root: a folder or URI.
            allowed: The pool's `spec.storage.allowedRoots`, for reading and writing.
            namespace: Namespace of the job.
            private: Folders that no job may read or write, such as the run's checkpoints and cache.

        Raises:
            RefusalError: `StorageNotAllowed` if a root is malformed or a relative path.
        """
        roots = [_parse_root(os.fspath(root), "storage root") for root in (read_base, write_base)]
        more = tuple(_parse_root(root, "spec.storage.allowedRoots") for root in allowed)
        shown = (os.fspath(read_base), os.fspath(write_base), *allowed)
        own = tuple(_parse_root(os.fspath(folder), "folder of the run") for folder in private)
        return cls(roots[0], roots[1], more, namespace, shown, own)

    def check_read(self, uri: str, *, field: str) -> Location:
        """Check a place that a job wants to read.

        Raises:
            RefusalError: `StorageNotAllowed`, naming the field, the value and what is allowed.
        """
        place = self._resolve(uri, self.read_base, field)
        if not any(place.is_within(root) for root in (self.read_base, self.write_base, *self.allowed)):
            raise self._outside(uri, field)
        self._check_owner(place, uri, field)
        self._check_private(place, uri, field)
        return Location(uri, field, place)

    def check_write(self, uri: str, *, field: str) -> Location:
        """Check a folder that a job wants to write.

        Raises:
            RefusalError: `StorageNotAllowed`, naming the field, the value and what is allowed.
        """
        place = self._resolve_write(uri, field)
        self._check_owner(place, uri, field)
        below = self._below_output_root(place)
        if below == (ADAPTERS, self.namespace):
            raise refuse(field, uri, f"is the folder of all adapters of {self.namespace}; name a folder in it")
        if place.parts[-1].startswith((TEMP_PREFIX, TRASH_PREFIX)):
            raise refuse(field, uri, "bears the name of a temporary folder")
        self._check_private(place, uri, field)
        for own in self.private:
            if own.is_within(place):
                raise refuse(field, uri, "has checkpoints or the cache of the run in it; name another folder")
        return Location(uri, field, place)

    def check_checkpoints(self, uri: str, *, field: str) -> Location:
        """Check the folder that a pool names for its checkpoints: a place to write, `checkpoints/<namespace>` included.

        Raises:
            RefusalError: `StorageNotAllowed`, naming the field, the value and what is allowed.
        """
        place = self._resolve_write(uri, field)
        below = self._below_output_root(place)
        if below[:1] == (CHECKPOINTS,) and below[1:2] != (self.namespace,):
            mine = f"{CHECKPOINTS}/{self.namespace}"
            raise refuse(field, uri, f"belongs to other namespaces; below the output root this pool may use {mine}")
        if below[:1] == (ADAPTERS,):
            raise refuse(field, uri, f"lies among the adapters of jobs; use {CHECKPOINTS}/{self.namespace}/...")
        if below[:1] != (CHECKPOINTS,):
            self._check_owner(place, uri, field)
        return Location(uri, field, place)

    def _resolve_write(self, uri: str, field: str) -> ParsedUri:
        place = self._resolve(uri, self.write_base, field)
        roots = (self.write_base, *self.allowed)
        if not any(place.is_within(root) for root in roots):
            raise self._outside(uri, field)
        if any(root.is_within(place) for root in roots):
            raise refuse(field, uri, "is a storage root itself; name a folder in it")
        if place.scheme == "hf":
            raise refuse(field, uri, "is on the model hub, which is read only here")
        return place

    def _resolve(self, uri: str, base: ParsedUri, field: str) -> ParsedUri:
        parsed = parse_uri(uri, field=field)
        if parsed.is_relative:
            parsed = ParsedUri(base.scheme, base.parts + parsed.parts, is_relative=False)
        return _follow_links(parsed, field, uri)

    def _outside(self, uri: str, field: str) -> RefusalError:
        more = f" and {len(self.shown) - _SHOWN_ROOTS} more" if len(self.shown) > _SHOWN_ROOTS else ""
        roots = ", ".join(root[-60:] for root in self.shown[:_SHOWN_ROOTS])
        return refuse(field, uri, f"lies outside the allowed storage (links followed): {roots}{more}")

    def _check_owner(self, place: ParsedUri, uri: str, field: str) -> None:
        """Refuse what belongs to the run, or to another namespace: <output root>/adapters/<namespace>/..."""
        below = self._below_output_root(place)
        mine = f"{ADAPTERS}/{self.namespace}/..."
        if below[:1] and below[0] in RUN_FILES:
            raise refuse(field, uri, f"is {below[0]} of the run itself; a job may use {mine} or a name of its own")
        if below[:1] == (ADAPTERS,) and below[1:2] != (self.namespace,):
            raise refuse(field, uri, f"belongs to other namespaces; below the output root this job may use {mine}")

    def _below_output_root(self, place: ParsedUri) -> tuple[str, ...]:
        return place.parts[len(self.write_base.parts) :] if place.is_within(self.write_base) else ()

    def _check_private(self, place: ParsedUri, uri: str, field: str) -> None:
        if any(place.is_within(own) for own in self.private):
            raise refuse(field, uri, "lies in a folder of the run itself (checkpoints, cache)")


def _parse_root(root: str, field: str) -> ParsedUri:
    parsed = parse_uri(root, field=field)
    if parsed.is_relative:
        raise refuse(field, root, "is relative; an absolute path or a URI is needed")
    return _follow_links(parsed, field, root)


def _follow_links(place: ParsedUri, field: str, uri: str) -> ParsedUri:
    """Follow the symbolic links of a local path, as far as it exists."""
    if place.scheme != LOCAL:
        return place
    try:
        real = os.path.realpath(place.path)
    except OSError:
        raise refuse(field, uri, "cannot be resolved") from None
    return ParsedUri(LOCAL, tuple(part for part in real.split("/") if part), is_relative=False)
