"""Bring what a job reads onto this machine: local places as they are, remote ones downloaded once per version."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec.core

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.roots import Location, StorageRoots
from multigraft_trainer.storage.uri import PACKAGES, ParsedUri, refuse

Options = Mapping[str, Any]  # fsspec's storage options, credentials among them: never shown

_MAX_FILES = 10_000


def fetch_file(
    uri: str,
    roots: StorageRoots,
    *,
    field: str,
    cache_dir: Path,
    missing: Reason = Reason.DATASET_NOT_FOUND,
    options: Options | None = None,
) -> Path:
    """Give a local path of a file that a job may read.

    Args:
        field: The field that names it, for messages.
        cache_dir: Where remote files are kept.
        missing: Reason if there is no such file.
        options: fsspec's storage options.

    Raises:
        RefusalError: `StorageNotAllowed`, `NotSupported` if a package is missing for the scheme, or `missing`.
    """
    location = roots.check_read(uri, field=field)
    if location.is_local:
        path = Path(location.path)
        if not path.is_file():
            what = "is a folder; a file is needed" if path.is_dir() else "is no file"
            raise refuse(field, uri, what if path.exists() else "does not exist", missing)
        return path
    with _remote(location, missing, options) as (files, name):
        if files.info(name)["type"] != "file":
            raise refuse(field, uri, "is a folder; a file is needed", missing)
        folder = cache_dir / "downloads" / _version_key(location.place, [(name, files.ukey(name))])
        return _download(files, name, folder / location.place.parts[-1])


def fetch_folder(
    uri: str,
    roots: StorageRoots,
    *,
    field: str,
    cache_dir: Path,
    missing: Reason,
    only: Sequence[str] = ("*",),
    options: Options | None = None,
) -> Path:
    """Give a local path of a folder that a job may read.

    Args:
        only: Patterns of relative paths; of a remote folder only these files are downloaded, of a local one only these
            must not lead outside the allowed storage.

    Raises:
        RefusalError: As `fetch_file`.
    """
    location = roots.check_read(uri, field=field)
    if not location.is_local:
        return download_folder(location, cache_dir=cache_dir, missing=missing, only=only, options=options)
    folder = Path(location.path)
    if not folder.is_dir():
        raise refuse(field, uri, "is no folder" if folder.exists() else "does not exist", missing)
    for path in _walk(folder):
        relative = path.relative_to(folder).as_posix()
        if path.is_symlink() and _matches(relative, only) and not _may_read(roots, os.path.realpath(path), field):
            raise refuse(field, uri, f"holds {relative[:80]!a}, a link that leads outside the allowed storage")
    return folder


def download_folder(
    location: Location, *, cache_dir: Path, missing: Reason, only: Sequence[str], options: Options | None = None
) -> Path:
    """Download the files of a remote folder that match `only`, once per version of them all."""
    with _remote(location, missing, options) as (files, root):
        wanted = {name: _relative(name, root, location) for name in sorted(files.find(root))}
        wanted = {name: relative for name, relative in wanted.items() if _matches(relative, only)}
        if not wanted:
            raise refuse(location.field, location.uri, "holds no such files", missing)
        if len(wanted) > _MAX_FILES:
            raise refuse(location.field, location.uri, f"holds more than {_MAX_FILES} files", missing)
        versions = [(relative, files.ukey(name)) for name, relative in wanted.items()]
        folder = cache_dir / "downloads" / _version_key(location.place, versions)
        for name, relative in wanted.items():
            _download(files, name, folder / relative)
        return folder


def open_remote(location: Location, options: Options | None) -> tuple[Any, str]:
    """Open the file system of a remote place; give it and the place's name there.

    Raises:
        RefusalError: `NotSupported`, naming the package to install.
    """
    scheme = location.place.scheme
    try:
        files, name = fsspec.core.url_to_fs(f"{scheme}://{location.path}", **(options or {}))
    except ImportError:
        what = f"needs the package {PACKAGES.get(scheme, scheme)}: pip install {PACKAGES.get(scheme, scheme)}"
        raise refuse(location.field, location.uri, what, Reason.NOT_SUPPORTED) from None
    files.invalidate_cache()  # of listings: fsspec keeps file systems, and with them what was there before
    return files, str(name)


@contextmanager
def _remote(location: Location, missing: Reason, options: Options | None) -> Iterator[tuple[Any, str]]:
    """Open the file system; whatever its library raises becomes a refusal, since its texts may hold credentials."""
    try:
        yield open_remote(location, options)
    except RefusalError:
        raise
    except FileNotFoundError:
        raise refuse(location.field, location.uri, "does not exist", missing) from None
    except PermissionError:
        raise refuse(location.field, location.uri, "may not be read with these credentials", missing) from None
    except Exception as error:
        raise refuse(location.field, location.uri, f"cannot be read ({type(error).__name__})", missing) from error


def _download(files: Any, name: str, target: Path) -> Path:
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".download-")
    os.close(handle)
    try:
        with files.open(name, "rb") as source, Path(temporary).open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**22)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return target


def _version_key(place: ParsedUri, versions: Sequence[tuple[str, Any]]) -> str:
    return hashlib.sha256(
        repr((place.scheme, place.path, [(name, str(key)) for name, key in versions])).encode()
    ).hexdigest()


def _relative(name: str, root: str, location: Location) -> str:
    """Give a listed file's path below the folder; a listing is data from outside and must not lead out of it."""
    prefix = root.rstrip("/") + "/"
    relative = name.removeprefix(prefix)
    if not name.startswith(prefix) or any(part in ("", ".", "..") for part in relative.split("/")):
        raise refuse(location.field, location.uri, "lists a file outside itself")
    return relative


def _may_read(roots: StorageRoots, path: str, field: str) -> bool:
    try:
        roots.check_read(path, field=field)
    except RefusalError:
        return False
    return True


def _matches(relative: str, only: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(relative, pattern) for pattern in only)


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            yield Path(parent, name)
