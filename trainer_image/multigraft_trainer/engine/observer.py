"""What the engine tells about itself while it runs: progress, metrics and records listen, none of them steers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multigraft.planner.plan import Plan
from multigraft_trainer.report.progress import Progress
from multigraft_trainer.report.results import JobState, StepRecord


@dataclass(frozen=True)
class MicrobatchRecord:
    """One microbatch that ran."""

    tokens_by_job: Mapping[str, int]  # real tokens
    padded_tokens: int  # tokens after padding to tiles
    token_capacity: int
    seconds: float

    @property
    def num_tokens(self) -> int:
        return sum(self.tokens_by_job.values())


class EngineObserver:
    """Listens to an engine; does nothing by itself. Calls come from the engine's thread, in order."""

    def on_phase(self, text: str) -> None:
        """Hear what the engine does now besides training, for example `exporting`."""

    def on_note(self, job: str, text: str) -> None:
        """Hear of something the user should know of a job that goes on."""

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int) -> None:
        """Hear that the job holds a slot and trains on after `steps` steps."""

    def on_plan(self, horizon: int, plan: Plan) -> None:
        """Hear that a verified plan is about to run."""

    def on_microbatch(self, record: MicrobatchRecord) -> None:
        """Hear that a microbatch ran."""

    def on_step(self, job: str, record: StepRecord) -> None:
        """Hear that a job took (or skipped) an optimizer step."""

    def on_checkpoint(self, horizon: int, *, seconds: float) -> None:
        """Hear that all jobs were saved at the boundary before this horizon."""

    def on_end(self, job: str, state: JobState, message: str) -> None:
        """Hear that a job left its slot."""


class Observers(EngineObserver):
    """Hands every call on to several observers."""

    def __init__(self, observers: Sequence[EngineObserver]) -> None:
        self._observers = tuple(observers)

    def on_phase(self, text: str) -> None:
        for observer in self._observers:
            observer.on_phase(text)

    def on_note(self, job: str, text: str) -> None:
        for observer in self._observers:
            observer.on_note(job, text)

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int) -> None:
        for observer in self._observers:
            observer.on_job(job, rank=rank, total_steps=total_steps, steps=steps)

    def on_plan(self, horizon: int, plan: Plan) -> None:
        for observer in self._observers:
            observer.on_plan(horizon, plan)

    def on_microbatch(self, record: MicrobatchRecord) -> None:
        for observer in self._observers:
            observer.on_microbatch(record)

    def on_step(self, job: str, record: StepRecord) -> None:
        for observer in self._observers:
            observer.on_step(job, record)

    def on_checkpoint(self, horizon: int, *, seconds: float) -> None:
        for observer in self._observers:
            observer.on_checkpoint(horizon, seconds=seconds)

    def on_end(self, job: str, state: JobState, message: str) -> None:
        for observer in self._observers:
            observer.on_end(job, state, message)


class ProgressObserver(EngineObserver):
    """Shows the engine's calls on a progress display."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_phase(self, text: str) -> None:
        self._progress.on_phase(text)

    def on_note(self, job: str, text: str) -> None:
        self._progress.on_note(f"{job}: {text}")

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int) -> None:
        self._progress.on_job(job, rank=rank, total_steps=total_steps, steps=steps)

    def on_microbatch(self, record: MicrobatchRecord) -> None:
        self._progress.on_microbatch(record.tokens_by_job, token_capacity=record.token_capacity, seconds=record.seconds)

    def on_step(self, job: str, record: StepRecord) -> None:
        self._progress.on_step(job, record)

    def on_end(self, job: str, state: JobState, message: str) -> None:
        self._progress.on_end(job, state, message)
