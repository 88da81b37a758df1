"""What a pool knows on disk: checkpoints of its jobs, results of those that ended, and the plans that ran."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from multigraft.api.reasons import RefusalError
from multigraft.planner.plan import JobWork, Plan, PlanLimits
from multigraft_trainer.adapters.peft_config import build_peft_config
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.checkpoints.job_checkpoints import PassedOver, RestoredJob
from multigraft_trainer.checkpoints.owner_claim import OwnerClaims
from multigraft_trainer.checkpoints.records import CheckpointRef
from multigraft_trainer.checkpoints.snapshot import take_snapshot
from multigraft_trainer.checkpoints.store import CheckpointStore
from multigraft_trainer.engine.job_run import JobRun, PreparedJob
from multigraft_trainer.engine.plan_journal import PlanJournal
from multigraft_trainer.report.results import JobResult


@dataclass(frozen=True)
class PoolPaths:
    """Folders of one pool that only its trainer writes to."""

    checkpoints: Path  # of its jobs, which may come from or go to another trainer of the pool
    plans: Path
    boundaries: Path | None = None  # of this trainer alone; None: beside the checkpoints of its jobs


class PoolState:
    """Saves a pool at plan boundaries and restores it. One trainer at a time."""

    def __init__(self, paths: PoolPaths, *, keep_last: int, resume: bool, claims: OwnerClaims | None = None) -> None:
        """Open the store; with `resume`, read the newest good boundary.

        Args:
            claims: Where other trainers may write to the same folders; None: nobody else does.

        Raises:
            RefusalError: INVALID_CHECKPOINT, if the newest boundary was written by a newer version.
        """
        self._store = CheckpointStore(paths.checkpoints, keep_last=keep_last, boundary_root=paths.boundaries)
        self._journal = PlanJournal(paths.plans, keep_generations=keep_last)
        self._refs: dict[str, CheckpointRef] = {}
        self.ended: dict[str, JobResult] = {}
        self.passed_over: tuple[PassedOver, ...] = ()
        self._resume, self._claims = resume, claims
        if resume:
            self._read_boundary()

    def job_folder(self, job: str) -> Path:
        """Give the folder of a job's checkpoints, by its identity; it need not exist."""
        return self._store.job_folder(job)

    def forget(self, job: str) -> None:
        """Drop the result of a job that ended, by its identity; the next boundary does not name it."""
        self.ended.pop(job, None)

    def restore(self, prepared: PreparedJob) -> RestoredJob:
        """Load the checkpoint that the newest boundary names for the job, else its newest good one, else nothing.

        Raises:
            RefusalError: INVALID_CHECKPOINT, if it was made with another spec; says what differs. CLAIM_LOST.
        """
        if self._claims is not None:
            self._claims.take(self.job_folder(prepared.identity))
        if not self._resume:
            return RestoredJob()
        return self._store.load_job(
            prepared.identity, spec=prepared.training_spec, prefer=self._refs.get(prepared.identity)
        )

    def check_claim(self, job: str) -> None:
        """Make sure that no other trainer has the job, by its identity, before something of it is written.

        Raises:
            RefusalError: CLAIM_LOST.
        """
        if self._claims is not None:
            self._claims.check(self.job_folder(job))

    def save(self, runs: Iterable[JobRun], ended: Iterable[JobResult], slots: SlotPool) -> float:
        """Save all running jobs, then the boundary that names them; gives the seconds it took.

        A job that cannot be saved gets its `failure` set and is not in the boundary; the others are saved.

        Raises:
            RefusalError: OUTPUT_NOT_WRITABLE, if the boundary itself cannot be written; everything that was good
                before is still good.
        """
        started = time.monotonic()
        self.ended |= {result.identity: result for result in ended}
        running: dict[str, CheckpointRef] = {}
        for run in runs:
            try:
                running[run.prepared.identity] = self._save_job(run, slots)
            except RefusalError as error:
                run.failure = error
        self._store.save_boundary(running=running, ended={job: result.to_json() for job, result in self.ended.items()})
        self._journal.start_generation()
        return time.monotonic() - started

    def load_plan(self, work: Sequence[JobWork], limits: PlanLimits) -> Plan | None:
        """Give the plan that already ran for this work in an interrupted run, verified anew."""
        return self._journal.load(work, limits) if self._resume else None

    def save_plan(self, work: Sequence[JobWork], plan: Plan) -> None:
        """Write a plan down before it runs."""
        self._journal.save(work, plan)

    def _save_job(self, run: JobRun, slots: SlotPool) -> CheckpointRef:
        prepared = run.prepared
        self.check_claim(prepared.identity)
        snapshot = take_snapshot(
            slots.adapter(run.slot),
            run.optimizer,
            job=prepared.identity,
            draws=run.draws,
            spec=prepared.training_spec,
            peft_config=build_peft_config(prepared.options, slots.linears, prepared.base),
            summary=run.summarise(),
        )
        ref = self._store.save_job(snapshot)
        run.saved_step = run.step
        return ref

    def _read_boundary(self) -> None:
        restored = self._store.load_newest_boundary()
        self.passed_over = restored.passed_over
        if restored.boundary is not None:
            self._refs = dict(restored.boundary.running)
            self.ended = {job: JobResult.from_json(data) for job, data in restored.boundary.ended.items()}
