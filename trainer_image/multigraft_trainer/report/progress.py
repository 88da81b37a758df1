"""Live progress of a run: a table that redraws itself on a terminal, plain lines every few seconds elsewhere.

The engine calls; nothing here calls back. No control codes leave when the output is not a terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from multigraft_trainer.report.numbers import format_loss
from multigraft_trainer.report.printable import printable
from multigraft_trainer.report.results import JobState, StepRecord

PLAIN_INTERVAL_SECONDS = 5.0


class Progress(Protocol):
    """What the engine tells while it works."""

    def on_phase(self, text: str) -> None:
        """Say what the run does now, for example `loading the base model`."""
        ...

    def on_note(self, text: str) -> None:
        """Say what the user should know, and stays true."""
        ...

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int = 0) -> None:
        """Say that a job joined, with the steps that it has already taken when it resumes."""
        ...

    def on_microbatch(self, tokens_by_job: Mapping[str, int], *, token_capacity: int, seconds: float) -> None:
        """Say that a microbatch ran: real tokens per job, the room there was, and how long it took."""
        ...

    def on_step(self, job: str, record: StepRecord) -> None:
        """Say that a job took (or skipped) an optimizer step."""
        ...

    def on_end(self, job: str, state: JobState, message: str = "") -> None:
        """Say that a job left the shared base."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; may be called twice."""
        ...


@dataclass
class JobProgress:
    """The last that is known of one job."""

    job: str
    rank: int
    total_steps: int
    steps: int = 0
    loss: float | None = None
    num_tokens: int = 0
    state: str = "Running"


@dataclass
class RunProgress:
    """Sums over the run so far; pure bookkeeping under both kinds of display."""

    jobs: dict[str, JobProgress] = field(default_factory=dict)
    phase: str = ""
    num_tokens: int = 0
    room_tokens: int = 0
    busy_seconds: float = 0.0
    last_fill: float = 0.0
    last_tokens_by_job: Mapping[str, int] = field(default_factory=dict)
    last_capacity: int = 1

    def add_microbatch(self, tokens_by_job: Mapping[str, int], token_capacity: int, seconds: float) -> None:
        num_tokens = sum(tokens_by_job.values())
        self.num_tokens += num_tokens
        self.room_tokens += token_capacity
        self.busy_seconds += seconds
        self.last_fill = num_tokens / token_capacity
        self.last_tokens_by_job = dict(tokens_by_job)
        self.last_capacity = token_capacity
        for job, tokens in tokens_by_job.items():
            self.jobs[job].num_tokens += tokens

    def add_step(self, job: str, record: StepRecord) -> None:
        self.jobs[job].steps = record.step
        self.jobs[job].loss = record.loss

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def fill(self) -> float:
        return self.num_tokens / self.room_tokens if self.room_tokens else 0.0


def open_progress(console: Console, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Give the display that suits the console."""
    if quiet:
        return SilentProgress()
    return LiveProgress(console) if console.is_terminal else PlainProgress(console, clock=clock)


class SilentProgress:
    """Shows nothing."""

    def on_phase(self, text: str) -> None: ...
    def on_note(self, text: str) -> None: ...
    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int = 0) -> None: ...
    def on_microbatch(self, tokens_by_job: Mapping[str, int], *, token_capacity: int, seconds: float) -> None: ...
    def on_step(self, job: str, record: StepRecord) -> None: ...
    def on_end(self, job: str, state: JobState, message: str = "") -> None: ...
    def close(self) -> None: ...


class PlainProgress:
    """Prints a line per phase and per finished job, and one summary line every few seconds."""

    def __init__(
        self,
        console: Console,
        *,
        interval_seconds: float = PLAIN_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._last_printed = clock()
        self.seen = RunProgress()

    def on_phase(self, text: str) -> None:
        self.seen.phase = text
        self._print(text)

    def on_note(self, text: str) -> None:
        self._print(f"note: {text}")

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int = 0) -> None:
        self.seen.jobs[job] = JobProgress(job, rank, total_steps, steps)

    def on_microbatch(self, tokens_by_job: Mapping[str, int], *, token_capacity: int, seconds: float) -> None:
        self.seen.add_microbatch(tokens_by_job, token_capacity, seconds)
        if self._clock() - self._last_printed >= self._interval_seconds:
            self._print(format_progress_line(self.seen))
            self._last_printed = self._clock()

    def on_step(self, job: str, record: StepRecord) -> None:
        self.seen.add_step(job, record)

    def on_end(self, job: str, state: JobState, message: str = "") -> None:
        if job in self.seen.jobs:
            self.seen.jobs[job].state = state.value
        self._print(f"{job}: {state.value}" + (f": {message}" if message else ""))

    def close(self) -> None: ...

    def _print(self, text: str) -> None:
        # One line per event whatever the width: logs are grepped.
        self._console.print(Text(printable(text)), soft_wrap=True, highlight=False)


class LiveProgress:
    """Redraws one table while the run goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.seen = RunProgress()
        self._live = Live(console=console, refresh_per_second=4, get_renderable=lambda: render_progress(self.seen))
        self._live.start()

    def on_phase(self, text: str) -> None:
        self.seen.phase = text

    def on_note(self, text: str) -> None:
        self._console.print(Text(printable(f"note: {text}")))

    def on_job(self, job: str, *, rank: int, total_steps: int, steps: int = 0) -> None:
        self.seen.jobs[job] = JobProgress(job, rank, total_steps, steps)

    def on_microbatch(self, tokens_by_job: Mapping[str, int], *, token_capacity: int, seconds: float) -> None:
        self.seen.add_microbatch(tokens_by_job, token_capacity, seconds)

    def on_step(self, job: str, record: StepRecord) -> None:
        self.seen.add_step(job, record)

    def on_end(self, job: str, state: JobState, message: str = "") -> None:
        if job in self.seen.jobs:
            self.seen.jobs[job].state = state.value
        if message:
            self._console.print(Text(printable(f"{job}: {state.value}: {message}")))

    def close(self) -> None:
        self._live.stop()


def format_progress_line(seen: RunProgress) -> str:
    """Give the run in one line: `12/64 steps  214 tokens/s  fill 97 %  sql 3/20 loss 2.41 ...`."""
    steps = sum(job.steps for job in seen.jobs.values())
    total = sum(job.total_steps for job in seen.jobs.values())
    head = f"{steps}/{total} steps  {seen.tokens_per_second:.0f} tokens/s  fill {100 * seen.fill:.0f} %"
    jobs = [f"{job.job} {job.steps}/{job.total_steps} loss {format_loss(job.loss)}" for job in seen.jobs.values()]
    return "  |  ".join([head, *jobs])


def render_progress(seen: RunProgress) -> Table:
    """Give the table of the live display: a row per job, sums in the caption."""
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        title=Text(printable(seen.phase)),
        title_justify="left",
        caption=f"{seen.tokens_per_second:.0f} tokens/s, microbatches {100 * seen.fill:.0f} % full",
        caption_justify="left",
    )
    table.add_column("job", overflow="fold")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)  # of the last microbatch
    for job in seen.jobs.values():
        share = seen.last_tokens_by_job.get(job.job, 0) / seen.last_capacity
        table.add_row(
            Text(printable(job.job)),
            str(job.rank),
            f"{job.steps}/{job.total_steps}",
            ProgressBar(total=max(job.total_steps, 1), completed=job.steps, width=8),
            format_loss(job.loss),
            f"{job.num_tokens:,}",
            f"{100 * share:.0f} %" if job.state == "Running" else job.state,
        )
    return table
