"""Where a local run puts what it makes, and where a run to resume is found.

<out>/result.json, report.html, *.png, metrics.prom
<out>/adapters/<namespace>/<name>/          PEFT adapters (unless the job says otherwise)
<out>/checkpoints/, <out>/plans/            what a resume needs
<out>/cache/                                tokenised datasets
"""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.admission.checkpoint_root import open_checkpoint_root
from multigraft_trainer.storage.durable_files import refuse_if_not_writable
from multigraft_trainer.storage.roots import CHECKPOINTS

MARKER = "run.json"  # tells a folder of ours from any other; holds the directory that the run is of
FORMAT = 1
DEFAULT_PARENT = "runs"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def plans(self) -> Path:
        return self.path / "plans"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.prom"

    @property
    def error_log(self) -> Path:
        return self.path / "error.log"

    def read_id(self) -> str:
        """Give what tells this run from all others, wherever its folder is moved."""
        marker = json.loads((self.path / MARKER).read_text(encoding="utf-8"))
        return str(marker.get("id", "run"))


def open_checkpoints(folder: RunFolder, pool: BaseModelPool, directory: Path) -> Path:
    """Give the folder of the run's checkpoints: `checkpoints` in its own, or what the pool's spec names.

    Outside of the run's folder they lie in a folder of this run alone, as runs of the same manifests would mix.

    Raises:
        RefusalError: As `open_checkpoint_root`.
    """
    own = folder.path.resolve()
    if pool.spec.checkpoint.storage_uri is None:
        return own / CHECKPOINTS
    root = open_checkpoint_root(pool, storage_root=directory, output_root=own, default=CHECKPOINTS)
    return root if root.is_relative_to(own) else root / folder.read_id()


@contextmanager
def hold_run_folder(folder: RunFolder) -> Iterator[None]:
    """Keep other runs out of the folder; the lock ends with the process, however it ends.

    Raises:
        RefusalError: INVALID_SPEC, if another run is at work there.
    """
    with (folder.path / MARKER).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusalError(Reason.INVALID_SPEC, f"--out {folder.path}: another run is writing there now") from None
        yield


def open_run_folder(directory: Path, out: Path | None, *, resume: bool) -> RunFolder:
    """Make the folder of a new run, or find the one to resume.

    Args:
        directory: The directory of manifests.
        out: What the user asked for; by default a new folder `runs/<directory>-<time>`, and to resume the newest one.

    Raises:
        RefusalError: INVALID_SPEC, if a new run would mix with what is there, or there is nothing to resume;
            OUTPUT_NOT_WRITABLE.
    """
    if resume:
        return RunFolder(_find_run(directory, out))
    path = out or Path(DEFAULT_PARENT) / f"{directory.resolve().name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if path.is_dir() and any(path.iterdir()):
        hint = (
            "go on with it by --resume, or give another folder" if (path / MARKER).is_file() else "give another folder"
        )
        raise RefusalError(Reason.INVALID_SPEC, f"--out {path}: is not empty; {hint}")
    with refuse_if_not_writable(f"--out {path}"):
        path.mkdir(parents=True, exist_ok=True)
        marker = {"format": FORMAT, "directory": str(directory.resolve()), "id": secrets.token_hex(8)}
        try:
            with (path / MARKER).open("x", encoding="utf-8") as file:
                file.write(json.dumps(marker) + "\n")
        except FileExistsError:
            raise RefusalError(Reason.INVALID_SPEC, f"--out {path}: another run began there just now") from None
    return RunFolder(path)


def _find_run(directory: Path, out: Path | None) -> Path:
    if out is not None:
        if not (out / MARKER).is_file():
            raise RefusalError(Reason.INVALID_SPEC, f"--resume --out {out}: holds no run (no {MARKER} there)")
        return out
    found = [path for path in Path(DEFAULT_PARENT).glob("*") if _is_run_of(path, directory)]
    if not found:
        raise RefusalError(
            Reason.INVALID_SPEC, f"--resume: no earlier run of {directory} under {DEFAULT_PARENT}/; name it with --out"
        )
    return max(found, key=lambda path: (path / MARKER).stat().st_mtime)


def _is_run_of(path: Path, directory: Path) -> bool:
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
        return bool(marker["directory"] == str(directory.resolve()))
    except (OSError, ValueError, KeyError, TypeError):
        return False
