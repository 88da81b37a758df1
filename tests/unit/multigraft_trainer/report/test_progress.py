import io

import pytest
from rich.console import Console

from builders.run_result import make_step
from multigraft_trainer.report.progress import (
    LiveProgress,
    PlainProgress,
    SilentProgress,
    format_progress_line,
    open_progress,
    render_progress,
)
from multigraft_trainer.report.results import JobState


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, _environ={})


def text_of(console: Console) -> str:
    return console.file.getvalue()


def run_two_jobs(progress, clock=None, seconds_per_microbatch=2.0):
    progress.on_phase("training")
    progress.on_job("default/alpha", rank=8, total_steps=2)
    progress.on_job("default/beta", rank=4, total_steps=4, steps=1)
    for step in (1, 2):
        if clock:
            clock.now += seconds_per_microbatch
        progress.on_microbatch({"default/alpha": 60, "default/beta": 30}, token_capacity=100, seconds=0.5)
        progress.on_step("default/alpha", make_step(step))
    progress.on_end("default/alpha", JobState.SUCCEEDED)
    progress.on_end("default/beta", JobState.FAILED, "NonFinite: 3 steps in a row")
    progress.close()
    progress.close()


def test_a_file_gets_plain_lines_without_control_codes():
    console, clock = make_console(terminal=False), Clock()
    run_two_jobs(PlainProgress(console, interval_seconds=3.0, clock=clock), clock)
    lines = text_of(console).splitlines()
    assert lines == [
        "training",
        "2/6 steps  180 tokens/s  fill 90 %  |  default/alpha 1/2 loss 4.000  |  default/beta 1/4 loss -",
        "default/alpha: Succeeded",
        "default/beta: Failed: NonFinite: 3 steps in a row",
    ]
    assert "\x1b" not in text_of(console)
    assert "\r" not in text_of(console)


def test_a_long_line_is_not_wrapped_in_a_file():
    console = make_console(terminal=False)
    PlainProgress(console).on_end("default/alpha", JobState.FAILED, "x" * 500)
    assert len(text_of(console).splitlines()) == 1


def test_control_characters_of_a_message_do_not_reach_the_output():
    console = make_console(terminal=False)
    PlainProgress(console).on_end("default/alpha", JobState.FAILED, "bad\x1b[2Jrow\nnext")
    assert text_of(console) == "default/alpha: Failed: bad [2Jrow next\n"


def test_a_terminal_gets_a_table_that_ends_with_the_last_state():
    console = make_console(terminal=True)
    run_two_jobs(LiveProgress(console))
    text = text_of(console)
    assert "default/alpha" in text
    assert "2/2" in text
    assert "180 tokens/s, microbatches 90 % full" in text
    assert "NonFinite: 3 steps in a row" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is shown again"


def test_the_display_suits_the_console():
    assert isinstance(open_progress(make_console(terminal=False)), PlainProgress)
    assert isinstance(open_progress(make_console(terminal=False), quiet=True), SilentProgress)
    live = open_progress(make_console(terminal=True))
    live.close()
    assert isinstance(live, LiveProgress)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_J05_a_loss_that_is_not_finite_is_a_dash_and_not_zero(loss):
    progress = PlainProgress(make_console(terminal=False))
    progress.on_job("default/alpha", rank=8, total_steps=2)
    progress.on_step("default/alpha", make_step(1, loss=loss))
    assert format_progress_line(progress.seen).endswith("default/alpha 1/2 loss -")


def test_markup_in_a_name_is_shown_and_not_obeyed():
    console = make_console(terminal=False)
    progress = PlainProgress(console)
    progress.on_job("default/[bold]x", rank=8, total_steps=0)
    console.print(render_progress(progress.seen))
    assert "default/[bold]x" in text_of(console)
