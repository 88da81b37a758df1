"""The one checker of storage: which places a job may read and write.

A place is allowed when it lies, with every symbolic link followed, inside one of the pool's roots, and not in a part of
the output root that belongs to another namespace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Self

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.uri import LOCAL, ParsedUri, parse_uri, refuse

# Folders of the output root whose first level is a namespace.
OWNED_FOLDERS = ("adapters", "checkpoints")
# What a run itself writes below the output root.
RUN_FILES = (
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

    @classmethod
    def build(
        cls,
        *,
        read_base: str | os.PathLike[str],
        write_base: str | os.PathLike[str],
        allowed: tuple[str, ...] = (),
        namespace: str,
    ) -> Self:
        """Build the roots.

        Args:
            read_base: Storage root: a folder or URI. In a local run the folder of the manifests.
            write_base: Output root: a folder or URI.
            allowed: The pool's `spec.storage.allowedRoots`, for reading and writing.
            namespace: Namespace of the job.

        Raises:
            RefusalError: `StorageNotAllowed` if a root is malformed or a relative path.
        """
        roots = [_parse_root(os.fspath(root), "storage root") for root in (read_base, write_base)]
        more = tuple(_parse_root(root, "spec.storage.allowedRoots") for root in allowed)
        return cls(roots[0], roots[1], more, namespace, (os.fspath(read_base), os.fspath(write_base), *allowed))

    def check_read(self, uri: str, *, field: str) -> Location:
        """Check a place that a job wants to read.

        Raises:
            RefusalError: `StorageNotAllowed`, naming the field, the value and what is allowed.
        """
        place = self._resolve(uri, self.read_base, field)
        if not any(place.is_within(root) for root in (self.read_base, self.write_base, *self.allowed)):
            raise self._outside(uri, field)
        self._check_owner(place, uri, field)
        return Location(uri, field, place)

    def check_write(self, uri: str, *, field: str) -> Location:
        """Check a folder that a job wants to write.

        Raises:
            RefusalError: `StorageNotAllowed`, naming the field, the value and what is allowed.
        """
        place = self._resolve(uri, self.write_base, field)
        roots = (self.write_base, *self.allowed)
        if not any(place.is_within(root) for root in roots):
            raise self._outside(uri, field)
        if place in roots:
            raise refuse(field, uri, "is a storage root itself; name a folder in it")
        if place.scheme == "hf":
            raise refuse(field, uri, "is on the model hub, which is read only here")
        self._check_owner(place, uri, field)
        return Location(uri, field, place)

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
        """Refuse what belongs to another namespace: <output root>/adapters/<namespace>/..., and the folder above it."""
        if not place.is_within(self.write_base):
            return
        below = place.parts[len(self.write_base.parts) :]
        if below and below[0] in RUN_FILES:
            raise refuse(field, uri, f"is {below[0]} of the run itself; name another folder")
        if below and below[0] in OWNED_FOLDERS and (len(below) == 1 or below[1] != self.namespace):
            mine = f"{below[0]}/{self.namespace}/..."
            raise refuse(field, uri, f"belongs to other namespaces; below the output root this job may use {mine}")


def check_distinct_outputs(outputs: Mapping[str, Location]) -> None:
    """Check that no two jobs write into the same folder or into one another's.

    Args:
        outputs: Where each job writes, by job key.

    Raises:
        RefusalError: `InvalidSpec`, naming both jobs.
    """
    for (job, one), (other_job, other) in combinations(sorted(outputs.items()), 2):
        if one.place.is_within(other.place) or other.place.is_within(one.place):
            text = f"{one.field} of {job} and of {other_job} lie in one another; each job needs a folder of its own"
            raise RefusalError(Reason.INVALID_SPEC, text)


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
