"""Folders that appear whole or not at all.

A folder is filled under a temporary name beside its place, made durable, and renamed. What is in the way is exchanged
in the same system call where the kernel can, so that a reader of the path sees the old folder or the new one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from multigraft_trainer.storage.durable_files import TEMP_PREFIX, is_plain_folder, make_temp_name, sync_folder

TRASH_PREFIX = ".trash-"
AT_FDCWD = -100  # fcntl.h: a relative path starts at the working folder
RENAME_EXCHANGE = 2  # linux/fs.h
CANNOT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextmanager
def temporary_folder(parent: Path, *, final_name: str | None = None) -> Iterator[Path]:
    """Make a temporary folder in `parent` to fill; it is removed if the body fails before it was renamed away.

    Args:
        final_name: Of the folder that it becomes; what a killed process left of the same one is removed first.
    """
    temp = parent / make_temp_name(final_name)
    if is_plain_folder(temp):
        shutil.rmtree(temp)
    temp.mkdir()
    try:
        yield temp
    except BaseException:
        shutil.rmtree(temp, ignore_errors=True)
        raise


def replace_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Put a folder that `fill` fills in place of `final`, whatever plain folder is there; its files must be synced.

    Raises:
        OSError: As the system says, also if `final` is a link or a file. What was there is kept then.
    """
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise OSError(f"{final}: is a link or a file, want a folder or nothing")
    with temporary_folder(final.parent, final_name=final.name) as temp:
        fill(temp)
        sync_folder(temp)
        if not final.exists():
            move_entry(temp, final)
        elif exchange_folders(temp, final):
            sync_folder(final.parent)
            shutil.rmtree(temp)
        else:
            trash = _move_to_trash(final)
            move_entry(temp, final)
            shutil.rmtree(trash)


def refill_folder(folder: Path, fill: Callable[[Path], None], *, last: str) -> None:
    """Put the files that `fill` makes into an existing folder that cannot itself be replaced, such as a mount.

    Args:
        last: The file without which readers do not take the folder for whole; it is missing while others change.

    Raises:
        OSError: As the system says.
    """
    remove_leftovers(folder)
    with temporary_folder(folder) as temp:
        fill(temp)
        sync_folder(temp)
        (folder / last).unlink(missing_ok=True)
        sync_folder(folder)
        for path in sorted(temp.iterdir(), key=lambda path: path.name == last):
            os.rename(path, folder / path.name)  # noqa: PTH104 - the fault tests count calls of os
        temp.rmdir()
    sync_folder(folder)


def move_entry(source: Path, target: Path) -> None:
    """Rename a folder or file within its parent, durably; `target` must not exist."""
    os.rename(source, target)  # noqa: PTH104 - the fault tests count calls of os
    sync_folder(target.parent)


def exchange_folders(first: Path, second: Path) -> bool:
    """Swap two names in one step; False if kernel or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(second))


def discard_folder(folder: Path) -> None:
    """Remove a folder: renamed first, so that a half-removed one never passes for a whole one."""
    shutil.rmtree(_move_to_trash(folder))
    sync_folder(folder.parent)


def remove_leftovers(parent: Path) -> None:
    """Remove temporary and half-removed folders and files that a killed process left in `parent`."""
    for path in list(parent.iterdir()):
        if not path.name.startswith((TEMP_PREFIX, TRASH_PREFIX)):
            continue
        if is_plain_folder(path):
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError):
                path.unlink()


def _move_to_trash(folder: Path) -> Path:
    trash = folder.parent / make_temp_name().replace(TEMP_PREFIX, TRASH_PREFIX)
    move_entry(folder, trash)
    return trash
