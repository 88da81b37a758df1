import io
from dataclasses import replace

import pytest
from rich.console import Console

from builders.run_result import make_job, make_result
from multigraft_trainer.report.result_table import render_result_table
from multigraft_trainer.report.results import JobState, RunResult


def show(result: RunResult, width: int = 120, notes: tuple[str, ...] = ()) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False, _environ={})
    console.print(render_result_table(result, notes=notes))
    return console.file.getvalue()


def test_a_row_has_steps_tokens_and_losses():
    row = next(line for line in show(make_result()).splitlines() if line.startswith("default/alpha"))
    want = ["default/alpha", "Succeeded", "8", "3/3", "1,300", "3.881", "->", "3.136"]
    assert row.split() == want


def test_the_place_of_each_adapter_stands_below_the_table():
    assert "adapter: out/adapters/default/alpha" in show(make_result()).splitlines()


def test_a_failed_job_says_why_below_the_table():
    job = make_job(state=JobState.FAILED, reason="NonFinite", message="3 steps in a row", adapter_path=None)
    assert "default/alpha: Failed: NonFinite: 3 steps in a row" in show(make_result(job)).splitlines()


@pytest.mark.parametrize("state", [JobState.STOPPED, JobState.FAILED])
def test_stopped_and_failed_jobs_are_told_how_to_go_on(state):
    text = show(make_result(make_job(state=state, adapter_path=None)))
    assert "stopped and failed jobs go on from their last checkpoints with --resume" in text.splitlines()


def test_notes_that_were_not_shown_during_the_run_are_in_the_table():
    result = replace(make_result(), notes=("pool default/tiny: [b]one[/b] process",))
    assert "note: pool default/tiny: [b]one[/b] process" in show(result, notes=result.notes).splitlines()
    assert "note:" not in show(result)
    assert "--resume" not in show(make_result())


def test_a_job_without_heldout_rows_or_dataset_shows_dashes():
    job = make_job(heldout_loss_before=None, heldout_loss_after=None, total_steps=None, steps=0, adapter_path=None)
    row = next(line for line in show(make_result(job)).splitlines() if line.startswith("default/alpha"))
    assert row.split() == ["default/alpha", "Succeeded", "8", "0", "1,300", "-"]


def test_the_last_line_sums_up_the_run():
    got = show(make_result(), width=200).splitlines()[-1]
    assert got == (
        "1 adapters on one prepared/tiny (3 MiB), 240 tokens at 120/s, microbatches 80 % full, 20 s in all, "
        "peak memory 3.00 GiB"
    )


def test_names_and_losses_are_whole_in_a_terminal_of_80_columns():
    text = show(
        make_result(make_job("default/stdlib-summaries", steps=500, total_steps=500, num_tokens=123_456)), width=80
    )
    assert "default/stdlib-summaries" in text
    assert "3.881 -> 3.136" in text
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_markup_and_control_codes_in_names_and_messages_are_not_obeyed():
    job = make_job("default/[red]x", reason="NoWork", message="a\x1b[31mb", state=JobState.FAILED)
    text = show(make_result(job))
    assert "[red]x" in text
    assert "\x1b" not in text
