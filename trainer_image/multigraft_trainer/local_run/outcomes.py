"""What became of each job of a run; at the end there is one result per job, whatever happened."""

from __future__ import annotations

from collections.abc import Sequence

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.engine.job_end import build_row_account
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.report.progress import Progress
from multigraft_trainer.report.results import JobResult, JobState


class Outcomes:
    """Results by job; the first that is booked for a job counts."""

    def __init__(self, jobs: Sequence[AdapterJob], progress: Progress) -> None:
        self._jobs = tuple(jobs)
        self._progress = progress
        self._results: dict[str, JobResult] = {}

    def book(self, result: JobResult) -> None:
        """Book the result of a job that is out of the engine, or never goes in."""
        self._results.setdefault(result.job, result)

    def fail(self, job: AdapterJob, error: RefusalError) -> None:
        """Book a job that fails outside the engine, and tell."""
        if job.key not in self._results:
            self._results[job.key] = _build(job, JobState.FAILED, error.reason.value, error.message)
            self._progress.on_end(job.key, JobState.FAILED, f"{error.reason}: {error.message}")

    def fail_rest(self, error: RefusalError) -> None:
        """Fail every job that has no result yet."""
        for job in self._jobs:
            self.fail(job, error)

    def suspend(self, job: AdapterJob) -> None:
        """Book a job that is not to run."""
        self.book(_build(job, JobState.SUSPENDED, Reason.SUSPENDED.value, "spec.suspend is true"))

    def stop_rest(self, message: str) -> None:
        """Book every job that has no result yet as stopped; it goes on, or begins, when the run is resumed."""
        for job in self._jobs:
            self.book(_build(job, JobState.STOPPED, "", message))

    def leave_waiting(self, waiting: PreparedJob, message: str) -> None:
        """Book a job that never got a slot."""
        self.book(
            JobResult(
                job=waiting.key,
                state=JobState.PENDING,
                rank=waiting.options.rank,
                reason=Reason.NO_FREE_SLOT.value,
                message=message,
                total_steps=waiting.optimizer_options.total_steps,
                rows=build_row_account(waiting.dataset.report),
            )
        )

    def collect(self) -> tuple[JobResult, ...]:
        """Give the results in the order of the jobs; one without a result failed, and says so."""
        lost = RefusalError(Reason.INTERNAL_ERROR, "the run ended without a result of this job")
        self.fail_rest(lost)
        return tuple(self._results[job.key] for job in self._jobs)


def _build(job: AdapterJob, state: JobState, reason: str, message: str) -> JobResult:
    return JobResult(job=job.key, state=state, rank=job.spec.lora.r, reason=reason, message=message)
