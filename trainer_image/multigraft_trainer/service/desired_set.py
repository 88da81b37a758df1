"""The desired set that was accepted last, fenced by epoch and kept on disk for a restart inside the same pod."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.control import AssignedJob, Assignments, ControlReason
from multigraft_trainer.service.json_log import EventLog
from multigraft_trainer.storage.durable_files import make_root, refuse_if_not_writable, replace_file

FILE = "assignments.json"

_log = EventLog(__name__)


class FencedError(Exception):
    """A set that this trainer must not obey."""

    def __init__(self, reason: ControlReason, message: str, *, current_epoch: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.current_epoch = current_epoch


class DesiredSet:
    """What this trainer should have. Not thread-safe: its owner holds a lock."""

    def __init__(self, pool: BaseModelPool, pod_name: str, state_dir: Path) -> None:
        """Take up what an earlier process of this pod had accepted, if it is of this pool."""
        self._pool = pool
        self._pod_name = pod_name
        self._path = state_dir / FILE
        self.epoch = 0
        self.sequence = 0  # of the set that was obeyed last
        self.jobs: dict[str, AssignedJob] = {}
        self._take_up()

    def accept(self, wanted: Assignments) -> bool:
        """Make `wanted` the desired set, on disk before this returns; tells whether anything changed.

        Raises:
            FencedError: If it is stale or meant for another pool or pod; nothing changes.
            RefusalError: OUTPUT_NOT_WRITABLE; nothing changes.
        """
        self._check(wanted)
        jobs = {job.key: job for job in wanted.jobs}
        if wanted.epoch == self.epoch and jobs == self.jobs:
            self.sequence = wanted.sequence
            return False
        with refuse_if_not_writable(f"desired set in {self._path.parent}"):
            make_root(self._path.parent)
            replace_file(self._path, wanted.model_dump_json(by_alias=True, exclude_none=True).encode())
        self.epoch, self.sequence, self.jobs = wanted.epoch, wanted.sequence, jobs
        return True

    def _check(self, wanted: Assignments) -> None:
        if (wanted.pool.key, wanted.pool.uid) != (self._pool.key, self._pool.metadata.uid):
            got = f"{wanted.pool.key} ({wanted.pool.uid})"
            raise FencedError(
                ControlReason.WRONG_POOL, f"serves pool {self._pool.key} ({self._pool.metadata.uid}), not {got}"
            )
        if wanted.pod not in (None, self._pod_name):
            raise FencedError(ControlReason.WRONG_POD, f"is pod {self._pod_name}, not {wanted.pod}")
        if wanted.epoch < self.epoch:
            raise FencedError(
                ControlReason.STALE_EPOCH,
                f"epoch: got {wanted.epoch}, have obeyed {self.epoch}",
                current_epoch=self.epoch,
            )

        if wanted.epoch == self.epoch and wanted.sequence < self.sequence:
            text = f"sequence: got {wanted.sequence} of epoch {wanted.epoch}, have obeyed {self.sequence}"
            raise FencedError(ControlReason.STALE_SET, text)

    def _take_up(self) -> None:
        try:
            kept = Assignments.model_validate_json(self._path.read_bytes())
            self._check(kept)
        except FileNotFoundError:
            return
        except (OSError, ValidationError, FencedError) as error:
            _log.warning("an earlier desired set is passed over", reason=type(error).__name__)
            return
        self.epoch, self.sequence = kept.epoch, kept.sequence
        self.jobs = {job.key: job for job in kept.jobs}
        _log.info("took up the desired set of an earlier process", epoch=self.epoch, jobs=len(self.jobs))
