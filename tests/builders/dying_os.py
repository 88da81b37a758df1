"""An operating system that dies at the n-th call: nothing more reaches the disk, and what was not synced is lost.

It keeps the books of fsync itself and does not wait for the real disk, so that hundreds of deaths fit in a test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "chmod")


class DiedError(BaseException):
    """The process is gone. A BaseException, so that no handler of errors sees it."""


@dataclass
class DyingOs:
    """Counts system calls; from call `die_at` on, every one fails as if the process no longer ran."""

    die_at: int | None = None
    num_calls: int = 0
    synced: set[int] = field(default_factory=set)  # inodes of synced files and folders
    unsynced_names: dict[str, str] = field(default_factory=dict)  # folder -> the call that changed its names

    def step(self, name: str, args: tuple[Any, ...]) -> None:
        """Count one call, or die."""
        self.num_calls += 1
        if self.die_at is not None and self.num_calls > self.die_at:
            raise DiedError(f"{name}{args}")


@contextmanager
def dying_os(die_at: int | None = None) -> Iterator[DyingOs]:
    """Run the body on a system that dies after `die_at` calls (never, if None); the body must not catch `DiedError`."""
    system = DyingOs(die_at)
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, _wrap(system, name, getattr(os, name)))
        # shutil decides once, by identity of these functions, whether it may walk by descriptor
        patch.setattr(shutil, "_use_fd_functions", False)
        yield system


def lose_unsynced(root: Path, system: DyingOs, *, known: set[int]) -> None:
    """Cut every file that was written since and never synced to half, as a power cut may."""
    for path in root.rglob("*"):
        inode = path.lstat().st_ino
        if path.is_file() and inode not in known and inode not in system.synced:
            os.truncate(path, path.stat().st_size // 2)


def list_inodes(root: Path) -> set[int]:
    """Give the inodes of all files below `root`."""
    return {path.lstat().st_ino for path in root.rglob("*") if path.is_file()}


def _wrap(system: DyingOs, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if name == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)  # reading changes nothing
        system.step(name, args)
        if name == "fsync":
            system.synced.add(os.fstat(args[0]).st_ino)
            system.unsynced_names.pop(str(Path(f"/proc/self/fd/{args[0]}").readlink()), None)
            return None
        result = real(*args, **kwargs)
        if name in ("mkdir", "open"):
            system.unsynced_names[str(Path(args[0]).parent)] = name
        elif name == "rename":
            system.unsynced_names.pop(str(args[0]), None)
            system.unsynced_names[str(Path(args[1]).parent)] = name
        return result

    return call
