"""The jobs of one trainer: what is desired, what was begun, and how one is brought to the other.

Callers change the desired set and read reports; the intake's thread begins with jobs and books them as ready; the
engine's thread hands over between two plans. All of it under one lock, held for moments only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from multigraft.api.control import AssignedJob, Assignments, ControlReason, JobReport
from multigraft.api.reasons import Reason
from multigraft_trainer.checkpoints.owner_claim import Claim
from multigraft_trainer.engine.engine import Engine
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.engine.pool_state import PoolState
from multigraft_trainer.report.results import JobResult, JobState
from multigraft_trainer.service.desired_set import DesiredSet, FencedError
from multigraft_trainer.service.figures import Figures
from multigraft_trainer.service.job_entry import JobEntry, Place, report_absent, report_entry


class JobTable:
    """Jobs by `namespace/name`; one object of a name at a time, the next one only when the former is out."""

    def __init__(self, desired: DesiredSet, figures: Figures, *, num_slots: int) -> None:
        self._desired = desired
        self._figures = figures
        self._num_slots = num_slots
        self._changed = threading.Condition()
        self._entries: dict[str, JobEntry] = {}
        self._state: PoolState | None = None  # None: no base yet, so nothing can begin
        self._is_dirty = False  # something changed that the engine's thread has not looked at
        self._is_stopping = False

    @property
    def epoch(self) -> int:
        """Give the highest epoch that was obeyed."""
        return self._desired.epoch

    def build_claim(self, owner: str) -> Claim:
        """Build the claim of now on jobs' folders."""
        return Claim(self._desired.epoch, self._desired.sequence, owner)

    @property
    def is_stopping(self) -> bool:
        """Tell whether the process ends."""
        return self._is_stopping

    def open(self, state: PoolState) -> None:
        """Tell that jobs can begin."""
        with self._touch():
            self._state = state

    def request_stop(self) -> None:
        """Begin with nothing more, and let `align` end once every job is out."""
        with self._touch():
            self._is_stopping = True

    def assign(self, wanted: Assignments) -> bool:
        """Make `wanted` the desired set; tells whether anything changed. Raises as `DesiredSet.accept`."""
        with self._touch():
            if self._is_stopping:
                raise FencedError(ControlReason.STOPPING, "the trainer checkpoints its jobs and ends")
            return self._desired.accept(wanted)

    def report(self) -> list[JobReport]:
        """Tell of every desired job, and of those that are still leaving."""
        with self._changed:
            slots = (self._figures.slots_in_use, self._num_slots)
            reports = [self._report(key, entry, slots) for key, entry in self._entries.items() if self._is_told(entry)]
            told = {(report.key, report.uid) for report in reports}
            absent = [job for job in self._desired.jobs.values() if (job.key, job.id.uid) not in told]
            return reports + [report_absent(job, is_base_ready=self._state is not None) for job in absent]

    def _is_told(self, entry: JobEntry) -> bool:
        wanted = self._wanted(entry)
        return entry.place is Place.ENGINE or (wanted is not None and wanted.id == entry.assigned.id)

    def _report(self, key: str, entry: JobEntry, slots: tuple[int, int]) -> JobReport:
        keeps = entry.is_kept_by(self._wanted(entry)) and not self._is_stopping
        uri = str(self._state.job_folder(entry.identity)) if self._state else None
        return report_entry(entry, self._figures.of(key), keeps=keeps, slots=slots, checkpoint_uri=uri)

    # For the engine's thread.

    def align(self, engine: Engine) -> bool:
        """Bring the engine to what is desired, at a plan boundary; waits while there is nothing to run.

        Returns:
            Whether to run on; False once a stop was asked for and every job is out.
        """
        with self._changed:
            while True:
                self._is_dirty = False
                for entry in list(self._entries.values()):
                    self._align_job(engine, entry)
                if self._is_stopping:
                    return bool(engine.running)
                if engine.running or engine.waiting:
                    return True
                self._changed.wait_for(lambda: self._is_dirty or self._is_stopping)

    def waits_for_boundary(self) -> bool:
        """Tell whether a job is to join or leave the engine, which it does at the next plan boundary."""
        with self._changed:
            return any(self._is_out_of_line(entry) for entry in self._entries.values())

    def book_end(self, result: JobResult) -> None:
        """Book a job that is out of the engine."""
        with self._touch():
            entry = self._entries[result.job]
            entry.is_leaving = False
            entry.prepared = None
            if result.state is not JobState.STOPPED:
                entry.place, entry.result = Place.ENDED, result
            elif self._is_stopping or self._is_only_suspended(entry):
                reason = "" if self._is_stopping else Reason.SUSPENDED.value
                entry.place, entry.result = Place.PARKED, replace(result, reason=reason)
            else:
                self._forget(entry)

    def _align_job(self, engine: Engine, entry: JobEntry) -> None:
        wanted = self._wanted(entry)
        if wanted is not None and entry.is_kept_by(wanted):
            self._update(engine, entry, wanted)
            if entry.place is Place.READY and not self._is_stopping:
                self._hand_over(engine, entry)
        elif entry.place is Place.ENGINE:
            self._let_go(engine, entry)
        elif entry.place is Place.READY or (entry.place is not Place.INTAKE and not self._is_only_suspended(entry)):
            self._forget(entry)

    def _hand_over(self, engine: Engine, entry: JobEntry) -> None:
        assert entry.prepared is not None, "a ready job is prepared"  # noqa: S101
        if self._state is not None:
            self._state.forget(entry.identity)  # the result of an earlier try
        engine.submit(entry.prepared)
        entry.place = Place.ENGINE

    def _let_go(self, engine: Engine, entry: JobEntry) -> None:
        if entry.is_leaving:
            return
        key = entry.assigned.key
        entry.is_leaving = any(run.key == key for run in engine.running)
        engine.remove(key)
        if not entry.is_leaving:  # it only waited for a slot, and is out
            self._forget(entry)

    def _update(self, engine: Engine, entry: JobEntry, wanted: AssignedJob) -> None:
        """Take over a new generation of which only priority, deadline and the like differ."""
        if entry.assigned == wanted:
            return
        entry.assigned = wanted
        if entry.prepared is not None:
            entry.prepared = replace(entry.prepared, job=wanted.build_job())
            if entry.place is Place.ENGINE:
                engine.update(entry.prepared.job)

    def _forget(self, entry: JobEntry) -> None:
        del self._entries[entry.assigned.key]
        if self._state is not None:
            self._state.forget(entry.identity)
        self._changed.notify_all()  # intake may begin with the name anew

    # For the intake's thread.

    def list_neighbours(self, entry: JobEntry) -> tuple[list[AssignedJob], list[AssignedJob]]:
        """Give the other jobs: those that have begun, and those that are desired and have not."""
        with self._changed:
            begun = [other.assigned for other in self._entries.values() if other is not entry]
            keys = {job.key for job in begun} | {entry.assigned.key}
            return begun, [job for job in self._desired.jobs.values() if job.key not in keys]

    def wait_for_intake(self) -> JobEntry | None:
        """Wait for the most important job that is wanted and not begun with, and begin; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._find_next() is not None)
            wanted = self._find_next()
            if self._is_stopping or wanted is None:
                return None
            entry = JobEntry(wanted, Place.INTAKE)
            self._entries[wanted.key] = entry
            return entry

    def book_intake(self, entry: JobEntry, prepared: PreparedJob | None, result: JobResult | None) -> None:
        """Book a job as ready, or as ended with `result`; nothing if it is not wanted any more."""
        with self._touch():
            if not entry.is_kept_by(self._wanted(entry)):
                del self._entries[entry.assigned.key]
                return
            entry.result = result
            entry.place = Place.READY if prepared is not None else Place.ENDED
            if prepared is not None:  # priority or deadline may have changed meanwhile
                entry.prepared = replace(prepared, job=entry.assigned.build_job())

    def _find_next(self) -> AssignedJob | None:
        if self._state is None:
            return None
        found = [job for job in self._desired.jobs.values() if not job.spec.suspend and self._may_begin(job)]
        return max(found, key=lambda job: job.spec.priority, default=None)  # of equals the first

    def _may_begin(self, wanted: AssignedJob) -> bool:
        entry = self._entries.get(wanted.key)
        return entry is None or (entry.place is Place.PARKED and entry.assigned.id == wanted.id)

    # Under the lock.

    def _wanted(self, entry: JobEntry) -> AssignedJob | None:
        return self._desired.jobs.get(entry.assigned.key)

    def _is_out_of_line(self, entry: JobEntry) -> bool:
        if entry.place is Place.ENGINE:
            return not entry.is_leaving and not entry.is_kept_by(self._wanted(entry))
        return entry.place is Place.READY and not self._is_stopping

    def _is_only_suspended(self, entry: JobEntry) -> bool:
        wanted = self._wanted(entry)
        return wanted is not None and wanted.spec.suspend and wanted.id == entry.assigned.id

    @contextmanager
    def _touch(self) -> Iterator[None]:
        """Hold the lock, then wake whoever has to look again."""
        with self._changed:
            try:
                yield
            finally:
                self._is_dirty = True
                self._changed.notify_all()
