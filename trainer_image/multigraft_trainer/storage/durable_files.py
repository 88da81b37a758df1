"""Write files so that they are on disk when we say so, and read them without following links.

The order that survives a crash at any instant: write a new name, fsync the file, rename, fsync the folder.
Source: Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014): a rename may reach the disk before data.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from multigraft.api.reasons import Reason, RefusalError

TEMP_PREFIX = ".tmp-"
CHUNK_BYTES = 4 * 1024 * 1024


@contextmanager
def refuse_if_not_writable(what: str) -> Iterator[None]:
    """Turn an operating-system error (disk full, read-only, no right, ...) into one clear refusal.

    Raises:
        RefusalError: OUTPUT_NOT_WRITABLE, with `what` could not be written and the system's own words.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RefusalError(Reason.OUTPUT_NOT_WRITABLE, f"{what}: {error}") from error


def make_temp_name(final_name: str | None = None) -> str:
    """Give a temporary name; short, as the final name may fill the 255 bytes that a file system allows.

    Args:
        final_name: Gives the same name each time, so that what a killed process left is found. None: a new name.
    """
    if final_name is None:
        return TEMP_PREFIX + secrets.token_hex(8)
    return TEMP_PREFIX + hashlib.sha256(os.fsencode(final_name)).hexdigest()[:16]


def write_new_file(path: Path, data: bytes) -> None:
    """Create a file that must not exist, write all of `data` and fsync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Create a safetensors file of contiguous CPU tensors and fsync it."""
    safetensors.torch.save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors makes it 0600, which a server under another user could not read
    _sync(path, os.O_RDONLY)


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` under a temporary name and rename it over `path`: readers see the old file or the new one."""
    temp = path.parent / make_temp_name()
    try:
        write_new_file(temp, data)
        os.rename(temp, path)  # noqa: PTH104 - the fault tests count calls of os
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of `folder` (new, renamed, removed names) durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def make_folders(folder: Path, *, below: Path) -> None:
    """Make `folder` and its parents down from the existing folder `below`, durably; no link is followed on the way.

    Raises:
        RefusalError: STORAGE_NOT_ALLOWED, if a part of the path is a symbolic link.
        OSError: As the system says.
    """
    current = below
    for part in folder.relative_to(below).parts:
        current = current / part
        if current.is_symlink():
            raise RefusalError(Reason.STORAGE_NOT_ALLOWED, f"{current}: is a symbolic link, want a folder")
        if not current.is_dir():
            current.mkdir()
            sync_folder(current.parent)


def make_root(root: Path) -> None:
    """Make a root folder and its missing parents, durably; an existing root may be a link."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    make_folders(root, below=existing)


def is_plain_folder(path: Path) -> bool:
    """Tell whether `path` is a folder and no link."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def hash_file(path: Path) -> tuple[str, int]:
    """Give SHA-256 (hex) and size in bytes of a regular file.

    Raises:
        OSError: If it is missing, a link, or no regular file.
    """
    digest, num_bytes = hashlib.sha256(), 0
    with _open_regular(path) as descriptor:
        while chunk := os.read(descriptor, CHUNK_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
    return digest.hexdigest(), num_bytes


def read_small_file(path: Path, *, max_bytes: int) -> bytes:
    """Read a regular file whole.

    Raises:
        OSError: If it is missing, a link, no regular file, or longer than `max_bytes`.
    """
    with _open_regular(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise OSError(f"{path.name}: {size} bytes, at most {max_bytes} are read")
        data = b""
        while len(data) < size and (chunk := os.read(descriptor, size - len(data))):
            data += chunk
        return data


@contextmanager
def _open_regular(path: Path) -> Iterator[int]:
    # O_NONBLOCK: opening a FIFO that somebody left there must not hang.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path.name}: is no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
