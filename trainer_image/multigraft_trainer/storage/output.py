"""Folders that a job writes: made and tried before training starts, uploaded afterwards if they are remote."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.fetch import Options, open_remote
from multigraft_trainer.storage.roots import Location, StorageRoots
from multigraft_trainer.storage.uri import refuse


@dataclass(frozen=True)
class OutputFolder:
    """A folder to write to; `publish` brings its files to where they belong."""

    location: Location
    path: Path  # local: the folder itself, or for a remote one a folder beside it on this machine
    options: Options | None = None

    def publish(self, *, last: str | None = None) -> None:
        """Upload the files of a remote folder; a local one is where it belongs already.

        Args:
            last: Name of the file whose presence tells readers that the others are complete.

        Raises:
            RefusalError: `OutputNotWritable`.
        """
        if self.location.is_local:
            return
        files = sorted(path for path in self.path.rglob("*") if path.is_file())
        files.sort(key=lambda path: path.name == last)
        try:
            remote, root = open_remote(self.location, self.options)
            for path in files:
                target = f"{root}/{path.relative_to(self.path).as_posix()}"
                remote.makedirs(target.rpartition("/")[0], exist_ok=True)
                remote.put_file(str(path), target)
        except RefusalError:
            raise
        except Exception as error:
            raise _not_writable(self.location, type(error).__name__) from error


def open_output(
    uri: str, roots: StorageRoots, *, field: str, cache_dir: Path, options: Options | None = None
) -> OutputFolder:
    """Make the folder that a job writes, and prove that it can be written.

    Raises:
        RefusalError: `StorageNotAllowed`, `NotSupported` if a package is missing for the scheme, `OutputNotWritable`.
    """
    location = roots.check_write(uri, field=field)
    if location.is_local:
        path = Path(location.path)
        make_writable_folder(location)
        # made folders may have been links put there since: look again
        return OutputFolder(roots.check_write(uri, field=field), path)
    _try_remote(location, options)
    name = hashlib.sha256(f"{location.place.scheme}://{location.path}".encode()).hexdigest()
    path = cache_dir / "outputs" / name
    path.mkdir(parents=True, exist_ok=True)
    return OutputFolder(location, path, options)


def make_writable_folder(location: Location) -> None:
    """Make a local folder and prove that it can be written.

    Raises:
        RefusalError: `OutputNotWritable`.
    """
    path = Path(location.path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        raise _not_writable(location, error.strerror or type(error).__name__) from None


def _try_remote(location: Location, options: Options | None) -> None:
    try:
        remote, root = open_remote(location, options)
        probe = f"{root}/.multigraft-{uuid.uuid4().hex}"
        remote.makedirs(root, exist_ok=True)
        remote.pipe_file(probe, b"x")
        remote.rm_file(probe)
    except RefusalError:
        raise
    except Exception as error:
        raise _not_writable(location, type(error).__name__) from error


def _not_writable(location: Location, why: str) -> RefusalError:
    return refuse(location.field, location.uri, f"cannot be written: {why}", Reason.OUTPUT_NOT_WRITABLE)
