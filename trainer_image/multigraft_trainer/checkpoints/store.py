"""The checkpoint store of one pool: save every job, then the boundary that names them; restore the same.

A save at a plan boundary: `save_job` for each resident job, then `save_boundary` once. A restore:
`load_newest_boundary`, then `load_job` for each job with the reference that the boundary names. If every job comes back
with exactly that reference, running the same plans (`engine.plan_journal`) repeats the uninterrupted run bit for bit; a
job whose part was damaged comes back with its own newest good checkpoint and the work is planned anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from multigraft.api.reasons import Reason, RefusalError
from multigraft.api.rules import JsonObject
from multigraft_trainer.checkpoints.checkpoint_folder import AdapterSnapshot
from multigraft_trainer.checkpoints.job_checkpoints import JobCheckpoints, RestoredJob
from multigraft_trainer.checkpoints.pool_boundary import BoundaryFiles, RestoredBoundary
from multigraft_trainer.checkpoints.records import CheckpointRef, NewerFormatError


class CheckpointStore:
    """Checkpoints of one pool below `root`, a folder that only this trainer writes to; made on the first save."""

    def __init__(self, root: Path, *, keep_last: int = 2, boundary_root: Path | None = None) -> None:
        """Open the store; with `boundary_root`, several trainers keep the checkpoints of their jobs below one `root`.

        Args:
            boundary_root: Folder that only this trainer writes to; default: `root`.
        """
        if keep_last < 1:
            raise ValueError(f"checkpoint.keepLast: got {keep_last}, want at least 1")
        self._jobs = JobCheckpoints(root)
        self._boundaries = BoundaryFiles(boundary_root or root)
        self._keep_last = keep_last

    def job_folder(self, job: str) -> Path:
        """Give the folder of a job's checkpoints; it need not exist."""
        return self._jobs.folder(job)

    def save_job(self, snapshot: AdapterSnapshot) -> CheckpointRef:
        """Save one job; removes nothing. Raises as `JobCheckpoints.save`."""
        return self._jobs.save(snapshot)

    def load_job(self, job: str, *, spec: JsonObject, prefer: CheckpointRef | None = None) -> RestoredJob:
        """Load `prefer`, else the newest good checkpoint, else nothing. Raises as `JobCheckpoints.load`."""
        return self._jobs.load(job, spec=spec, prefer=prefer)

    def save_boundary(self, *, running: Mapping[str, CheckpointRef], ended: Mapping[str, JsonObject]) -> int:
        """Write the boundary that names `running`, then remove what neither a kept boundary nor keepLast needs.

        Args:
            running: Checkpoint of each job that goes on, as `save_job` gave it.
            ended: Result of each finished or failed job; NaN in it comes back as None.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE; everything that was good before is still good.
            ValueError: If a checkpoint in `running` is not there.
        """
        for job, ref in running.items():
            if ref.job != job or not self._jobs.holds(ref):
                raise ValueError(f"boundary: {job} has no checkpoint {ref.folder_name} {ref.manifest_sha256}")
        number = self._boundaries.save(running=running, ended=ended)
        kept = self._boundaries.prune(keep_last=self._keep_last)
        pinned = {ref.manifest_sha256 for boundary in kept for ref in boundary.running.values()}
        for job in (*running, *ended):
            self._jobs.prune(job, keep_last=self._keep_last, pinned=pinned)
        return number

    def load_newest_boundary(self) -> RestoredBoundary:
        """Load the newest good boundary; empty on a first start.

        Raises:
            RefusalError: INVALID_CHECKPOINT, if it was written by a newer version.
        """
        try:
            return self._boundaries.load_newest()
        except NewerFormatError as error:
            raise RefusalError(Reason.INVALID_CHECKPOINT, f"pool checkpoint: {error}") from error
