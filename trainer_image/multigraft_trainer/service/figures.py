"""The figures of the jobs that train, of the plan and of the speed: written by the engine's thread, read by any."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from multigraft.api.control import PlanState
from multigraft.planner.plan import Plan
from multigraft_trainer.engine.job_run import JobRun
from multigraft_trainer.engine.observer import EngineObserver, MicrobatchRecord
from multigraft_trainer.report.results import JobState, StepRecord
from multigraft_trainer.service.json_log import EventLog

WINDOW_SECONDS = 60.0

_log = EventLog(__name__)


@dataclass(frozen=True)
class JobFigures:
    """Where a job in a slot stands."""

    slot: int
    step: int
    total_steps: int
    tokens: int
    seconds: float
    skipped_steps: int
    checkpoint_step: int
    heldout_loss_before: float | None
    last: StepRecord | None = None


class Figures(EngineObserver):
    """Listens to the engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, JobFigures] = {}
        self._plan: PlanState | None = None
        self._speed: deque[tuple[float, int]] = deque()  # when each microbatch began, and its real tokens
        self.list_runs: Callable[[], tuple[JobRun, ...]] = tuple

    def of(self, job: str) -> JobFigures | None:
        """Give the figures of a job; None if it holds no slot."""
        with self._lock:
            return self._jobs.get(job)

    @property
    def plan(self) -> PlanState | None:
        """Give the plan that runs; None if no job holds a slot."""
        with self._lock:
            return self._plan if self._jobs else None

    @property
    def slots_in_use(self) -> int:
        """Count the jobs that hold a slot."""
        with self._lock:
            return len(self._jobs)

    def measure_tokens_per_second(self) -> float | None:
        """Measure the speed over the last minute or the time since training began; None if nothing ran in it."""
        now = self._clock()
        with self._lock:
            while self._speed and self._speed[0][0] < now - WINDOW_SECONDS:
                self._speed.popleft()
            if not self._speed:
                return None
            seconds = max(now - self._speed[0][0], 1e-9)
            return sum(tokens for _, tokens in self._speed) / seconds

    def on_note(self, job: str, text: str) -> None:
        _log.warning(text, job=job)

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int) -> None:
        _log.info("job runs", job=job, rank=rank, step=steps, totalSteps=total_steps)
        self._look_at_runs()

    def on_plan(self, horizon: int, plan: Plan) -> None:  # noqa: ARG002 (the protocol's name)
        state = PlanState(
            fill=plan.fill,
            microbatches=plan.num_microbatches,
            lower_bound=plan.lower_bound,
            outcome=plan.outcome.value,
        )
        with self._lock:
            self._plan = state

    def on_microbatch(self, record: MicrobatchRecord) -> None:
        with self._lock:
            self._speed.append((self._clock() - record.seconds, record.num_tokens))

    def on_step(self, job: str, record: StepRecord) -> None:  # noqa: ARG002
        self._look_at_runs()

    def on_checkpoint(self, horizon: int, *, seconds: float) -> None:
        _log.info("checkpoint", horizon=horizon, seconds=round(seconds, 3))
        self._look_at_runs()

    def on_end(self, job: str, state: JobState, message: str) -> None:
        _log.info("job left", job=job, state=state.value, message=message or None)
        with self._lock:
            self._jobs.pop(job, None)

    def _look_at_runs(self) -> None:
        """Copy what the runs say; called by the engine's thread, which alone changes them."""
        found = {run.key: _read_run(run) for run in self.list_runs()}
        with self._lock:
            self._jobs = found


def _read_run(run: JobRun) -> JobFigures:
    progress = run.optimizer.progress
    return JobFigures(
        slot=run.slot,
        step=run.step,
        total_steps=run.optimizer.options.total_steps,
        tokens=run.num_tokens,
        seconds=run.seconds,
        skipped_steps=progress.skipped_nonfinite + progress.skipped_no_tokens,
        checkpoint_step=run.saved_step,
        heldout_loss_before=run.heldout_loss_before,
        last=run.history[-1] if run.history else None,
    )
