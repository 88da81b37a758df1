"""The checkpoints of jobs on disk: saved whole or not at all, restored from the newest good one.

    <root>/jobs/<namespace>/<name>/checkpoint-<step>/    what is in it: checkpoint_folder.py

A save fills a temporary folder, syncs it, renames it, and writes the marker last. One trainer writes to a root at a
time. Names that are not ours are left alone and never opened.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from multigraft.api.reasons import Reason, RefusalError
from multigraft.api.rules import JsonObject
from multigraft_trainer.adapters.peft_tensors import find_nonfinite
from multigraft_trainer.checkpoints.checkpoint_folder import (
    FOLDER_PATTERN,
    AdapterSnapshot,
    CorruptCheckpointError,
    IncompleteCheckpointError,
    UnreadableCheckpointError,
    fill_folder,
    has_our_manifest,
    load_folder,
    read_marker,
    verify_folder,
    write_marker,
)
from multigraft_trainer.checkpoints.quarantine import make_room, set_aside
from multigraft_trainer.checkpoints.records import CheckpointRef, NewerFormatError
from multigraft_trainer.checkpoints.training_spec import describe_difference
from multigraft_trainer.storage.atomic_folder import discard_folder, move_entry, remove_leftovers, temporary_folder
from multigraft_trainer.storage.durable_files import is_plain_folder, make_folders, make_root, refuse_if_not_writable
from multigraft_trainer.storage.job_path import build_job_path

REPLACED_PREFIX = ".replaced-"  # a good checkpoint that makes room for another of the same step
OWN_NAME = re.compile(f"({re.escape(REPLACED_PREFIX)})?{FOLDER_PATTERN.pattern}")


@dataclass(frozen=True)
class PassedOver:
    """A checkpoint that was not used, for an event."""

    name: str
    why: str


@dataclass(frozen=True)
class RestoredJob:
    """What was found for a job; `snapshot` is None if it has to start from zero."""

    snapshot: AdapterSnapshot | None = None
    ref: CheckpointRef | None = None
    passed_over: tuple[PassedOver, ...] = ()


class JobCheckpoints:
    """Checkpoints of the jobs below one root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, job: str) -> Path:
        """Give the folder of a job's checkpoints; it need not exist."""
        return self._root / "jobs" / build_job_path(job)

    def save(self, snapshot: AdapterSnapshot) -> CheckpointRef:
        """Save one job; whatever goes wrong, the earlier checkpoints stay good.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE; NON_FINITE if a tensor holds NaN or infinity.
        """
        _check_finite(snapshot)
        job, step = snapshot.state.job, snapshot.state.step
        final = self.folder(job) / f"checkpoint-{step}"
        with refuse_if_not_writable(f"checkpoint of {job} at step {step}"):
            make_root(self._root)
            make_folders(final.parent, below=self._root)
            remove_leftovers(final.parent)
            return CheckpointRef(job=job, step=step, manifest_sha256=_save_folder(final, snapshot))

    def load(self, job: str, *, spec: JsonObject, prefer: CheckpointRef | None = None) -> RestoredJob:
        """Load exactly `prefer` if it is good, else the job's newest good checkpoint by number, else nothing.

        A complete but changed checkpoint is set aside by rename, so that no restart tries it again.

        Raises:
            RefusalError: INVALID_CHECKPOINT, if the checkpoint was made with another spec (says what differs) or by a
                newer version.
        """
        passed_over: list[PassedOver] = []
        for folder in self._rank(job, prefer):
            try:
                sha256 = verify_folder(folder)
                snapshot = load_folder(folder)
                _check_owner(folder, snapshot, job)
            except IncompleteCheckpointError as error:
                passed_over.append(PassedOver(folder.name, f"is incomplete: {error}"))
            except CorruptCheckpointError as error:
                passed_over.append(PassedOver(folder.name, f"is corrupt: {error}; {set_aside(folder)}"))
            except UnreadableCheckpointError as error:
                passed_over.append(PassedOver(folder.name, f"cannot be read: {error}"))
            except NewerFormatError as error:
                raise RefusalError(Reason.INVALID_CHECKPOINT, f"{folder.name} of {job}: {error}") from error
            else:
                _check_spec(folder, snapshot, spec)
                ref = CheckpointRef(job=job, step=snapshot.state.step, manifest_sha256=sha256)
                return RestoredJob(snapshot, ref, tuple(passed_over))
        return RestoredJob(passed_over=tuple(passed_over))

    def holds(self, ref: CheckpointRef) -> bool:
        """Tell whether a complete checkpoint of this content is there, by its marker alone."""
        return any(_marker_of(folder) == ref.manifest_sha256 for folder in self._list(ref.job))

    def prune(self, job: str, *, keep_last: int, pinned: Collection[str] = ()) -> None:
        """Remove all but the newest `keep_last` complete checkpoints and those whose manifest hash is pinned.

        Folders without a manifest of ours stay.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last: got {keep_last}, want at least 1")
        steps: set[int] = set()  # of complete ones; a replaced one does not count beside that which replaced it
        with refuse_if_not_writable(f"old checkpoints of {job}"):
            for folder in self._list(job):
                marker, step = _marker_of(folder), _step_of(folder)
                is_newest = marker is not None and step not in steps and len(steps) < keep_last
                if is_newest:
                    steps.add(step)
                if not is_newest and marker not in pinned and has_our_manifest(folder):
                    discard_folder(folder)

    def _rank(self, job: str, prefer: CheckpointRef | None) -> list[Path]:
        folders = self._list(job)
        if prefer is None:
            return folders
        return sorted(folders, key=lambda folder: _marker_of(folder) != prefer.manifest_sha256)  # stable: then by step

    def _list(self, job: str) -> list[Path]:
        """Give what bears a checkpoint's name, newest step first; of one step, the one in place first."""
        folder = self.folder(job)
        if not is_plain_folder(folder):
            return []
        own = [path for path in folder.iterdir() if OWN_NAME.fullmatch(path.name)]
        return sorted(own, key=lambda path: (-_step_of(path), path.name.startswith(REPLACED_PREFIX)))


def _save_folder(final: Path, snapshot: AdapterSnapshot) -> str:
    replaced = final.parent / f"{REPLACED_PREFIX}{final.name}"
    with temporary_folder(final.parent) as temp:
        sha256 = fill_folder(temp, snapshot)
        if _is_good(final, sha256):
            discard_folder(temp)
            return sha256
        _make_room(final, replaced)
        move_entry(temp, final)
    write_marker(final, sha256)
    if is_plain_folder(replaced):
        discard_folder(replaced)
    return sha256


def _make_room(final: Path, replaced: Path) -> None:
    """Move away what bears the name: a good checkpoint stays loadable until the new one is complete."""
    if not final.is_symlink() and not final.exists():
        return
    if not _is_good(final):
        _clear_away(final)
        return
    if is_plain_folder(replaced):
        discard_folder(replaced)
    move_entry(final, replaced)


def _clear_away(final: Path) -> None:
    if _marker_of(final) is None and has_our_manifest(final):
        discard_folder(final)
    else:
        make_room(final)


def _is_good(folder: Path, manifest_sha256: str | None = None) -> bool:
    try:
        found = verify_folder(folder)
    except (IncompleteCheckpointError, CorruptCheckpointError, UnreadableCheckpointError, NewerFormatError):
        return False
    return manifest_sha256 in (None, found)


def _marker_of(folder: Path) -> str | None:
    try:
        return read_marker(folder)
    except IncompleteCheckpointError:
        return None


def _step_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _check_owner(folder: Path, snapshot: AdapterSnapshot, job: str) -> None:
    state = snapshot.state
    if (state.job, state.step) != (job, _step_of(folder)):
        raise CorruptCheckpointError(f"its state is of {state.job} at step {state.step}")


def _check_spec(folder: Path, snapshot: AdapterSnapshot, spec: JsonObject) -> None:
    difference = describe_difference(snapshot.state.spec, spec)
    if difference:
        raise RefusalError(
            Reason.INVALID_CHECKPOINT,
            f"{folder.name} of {snapshot.state.job} was made with another spec: {difference}. Restore the spec, or "
            "start anew under another name or output folder",
        )


def _check_finite(snapshot: AdapterSnapshot) -> None:
    key = find_nonfinite({**snapshot.weights, **snapshot.moments})
    if key is not None:
        raise RefusalError(Reason.NON_FINITE, f"checkpoint of {snapshot.state.job}: {key} holds NaN or infinity")
