"""Locks that the kernel releases when their holder dies, however it dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.05


@dataclass
class HeldLock:
    """An open, locked file. A child process that inherits `descriptor` holds the same lock."""

    descriptor: int

    def release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _take(path: Path, operation: int, *, create: bool) -> HeldLock:
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return HeldLock(descriptor)


def take_exclusive(path: Path) -> HeldLock:
    """Wait for the lock on `path`, creating the file where needed."""
    return _take(path, fcntl.LOCK_EX, create=True)


def take_shared(path: Path, *, create: bool = False) -> HeldLock:
    """Lock `path` together with every other holder of a shared lock on it.

    Raises:
        FileNotFoundError: If there is no such file and it is not to be created.
    """
    return _take(path, fcntl.LOCK_SH, create=create)


def try_exclusive(path: Path) -> HeldLock | None:
    """Return the lock on `path`, or None if another process holds it.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    try:
        return _take(path, fcntl.LOCK_EX | fcntl.LOCK_NB, create=False)
    except BlockingIOError:
        return None


def is_held(path: Path) -> bool:
    """Tell whether some process holds a lock on `path`; a file that is not there is not locked."""
    try:
        lock = try_exclusive(path)
    except FileNotFoundError:
        return False
    if lock is not None:
        lock.release()
    return lock is None


def wait_until_free(path: Path, timeout_seconds: float) -> bool:
    """Wait until nobody holds a lock on the file that is at `path` now, be it deleted meanwhile.

    Returns:
        Whether that was in time.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    descriptor = os.open(path, os.O_RDWR)
    deadline = time.monotonic() + timeout_seconds
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(POLL_SECONDS)
            else:
                return True
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock on `path` for a block of code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = take_exclusive(path)
    try:
        yield
    finally:
        lock.release()
