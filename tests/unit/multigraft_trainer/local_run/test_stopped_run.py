"""Real signals in every phase of a run, and exceptions that nobody foresaw: every job has its result."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builders.run_dir import RunDirectory
from builders.tiny_base import make_tiny_base
from multigraft_trainer.engine import engine as engine_module
from multigraft_trainer.engine import job_end as job_end_module
from multigraft_trainer.local_run import local_run as module
from multigraft_trainer.local_run.stop_signals import SIGNALS
from multigraft_trainer.report.progress import SilentProgress
from multigraft_trainer.report.results import JobState, StepRecord, load_result

STOPPED, SUCCEEDED, FAILED = JobState.STOPPED, JobState.SUCCEEDED, JobState.FAILED


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(autouse=True)
def _signals_arrive() -> Iterator[None]:
    """A suite that was started in the background ignores SIGINT, and a run honours that; here it must arrive."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in (number for number, handler in before.items() if handler is signal.SIG_IGN):
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def directory(base: Path, tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "dir", base=base)
    directory.add_job("one")
    directory.add_job("two")
    return directory


class Signalling(SilentProgress):
    """Sends signals to this process when the run says a phase, or a job takes its second step."""

    def __init__(self, *signals: signal.Signals, at: str) -> None:
        self._signals = signals
        self._at = at

    def on_phase(self, text: str) -> None:
        self._send(text)

    def on_step(self, job: str, record: StepRecord) -> None:
        self._send(f"{job} step {record.step}")

    def _send(self, text: str) -> None:
        if text.startswith(self._at):
            while self._signals:
                number, *rest = self._signals
                self._signals = tuple(rest)
                os.kill(os.getpid(), number)


def states(out: Path) -> dict[str, JobState]:
    return {job.job: job.state for job in load_result(out / "result.json").jobs}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("phase", ["loading", "reading the rows of default/one", "reading the rows of default/two"])
def test_a_signal_before_training_stops_every_job(
    directory: RunDirectory, tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    before = signal.getsignal(number)
    directory.run_all(out, progress=Signalling(number, at=phase))
    assert states(out) == {"default/one": STOPPED, "default/two": STOPPED}
    assert number.name in load_result(out / "result.json").jobs[0].message
    assert signal.getsignal(number) is before
    directory.run_all(out, resume=True)
    assert states(out) == {"default/one": SUCCEEDED, "default/two": SUCCEEDED}


def test_a_signal_while_training_ends_with_a_checkpoint_and_resume_goes_on_bit_for_bit(
    directory: RunDirectory, tmp_path: Path
) -> None:
    whole = directory.run(tmp_path / "whole")
    out = tmp_path / "out"
    directory.run_all(out, progress=Signalling(signal.SIGTERM, at="default/two step 3"))
    stopped = {job.job: job for job in load_result(out / "result.json").jobs}
    assert {job.state for job in stopped.values()} == {STOPPED}
    assert all(3 <= job.steps <= 4 for job in stopped.values())
    resumed = directory.run(out, resume=True)
    assert {key: job.adapter_sha256 for key, job in resumed.items()} == {
        key: job.adapter_sha256 for key, job in whole.items()
    }


@pytest.mark.parametrize("pair", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)], ids=str)
def test_a_second_signal_ends_training_at_once_and_the_last_checkpoint_is_good(
    directory: RunDirectory, tmp_path: Path, pair: tuple[signal.Signals, signal.Signals]
) -> None:
    out = tmp_path / "out"
    directory.run_all(out, progress=Signalling(*pair, at="default/one step 4"))
    results = load_result(out / "result.json").jobs
    assert {job.state for job in results} == {STOPPED}
    assert "last checkpoint" in results[0].message
    directory.run_all(out, resume=True)
    assert states(out) == {"default/one": SUCCEEDED, "default/two": SUCCEEDED}


def test_a_signal_during_the_export_lets_it_end(directory: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "out"
    directory.run_all(out, progress=Signalling(signal.SIGTERM, at="default/one: exporting"))
    assert states(out)["default/one"] is SUCCEEDED


def test_a_signal_during_the_report_costs_the_report_alone(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(module, "write_report", draw)
    out = tmp_path / "out"
    directory.run_all(out)
    assert states(out) == {"default/one": SUCCEEDED, "default/two": SUCCEEDED}
    assert not (out / "report.html").exists()


def test_signals_while_result_json_is_written_wait(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = module.save_result

    def signalled(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        save(*arguments)

    monkeypatch.setattr(module, "save_result", signalled)
    directory.run_all(tmp_path / "out")
    assert states(tmp_path / "out") == {"default/one": SUCCEEDED, "default/two": SUCCEEDED}


def test_a_signal_that_the_parent_ignores_stays_ignored(directory: RunDirectory, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        directory.run_all(tmp_path / "out", progress=Signalling(signal.SIGHUP, at="training"))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert states(tmp_path / "out") == {"default/one": SUCCEEDED, "default/two": SUCCEEDED}


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    "error, want",
    [
        (KeyError("surprise"), "InternalError"),
        (MemoryError(), "OutOfMemory"),
        (OSError(28, "No space left on device"), "OutputNotWritable"),
        (OSError(5, "Input/output error"), "InternalError"),
    ],
    ids=["a fault of ours", "memory", "disk", "another error of the system"],
)
def test_what_nobody_foresaw_while_preparing_fails_that_job_alone(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, want: str
) -> None:
    prepare = module.prepare_job
    monkeypatch.setattr(
        module, "prepare_job", lambda job, context: (_raise(error) if "one" in job.key else prepare)(job, context)
    )
    out = tmp_path / "out"
    results = directory.run(out)
    assert (results["default/one"].state, results["default/one"].reason) == (FAILED, want)
    assert type(error).__name__ in results["default/one"].message
    assert results["default/two"].state is SUCCEEDED
    assert type(error).__name__ in (out / "error.log").read_text()


@pytest.mark.parametrize("name", ["open_shared_base", "TrainerMetrics", "EngineOptions", "refuse_taken_outputs"])
def test_what_nobody_foresaw_elsewhere_still_leaves_a_result_for_each_job(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, name, _raise(KeyError("surprise")))
    if name == "EngineOptions":
        monkeypatch.setattr(module.EngineOptions, "from_spec", _raise(KeyError("surprise")), raising=False)
    out = tmp_path / "out"
    directory.run_all(out)
    results = load_result(out / "result.json").jobs
    assert {(job.state, job.reason) for job in results} == {(FAILED, "InternalError")}
    assert "surprise" in results[0].message
    assert "KeyError" in (out / "error.log").read_text()


def test_a_crash_of_the_engine_leaves_a_result_for_each_job(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Engine, "run_horizon", _raise(RuntimeError("surprise")))
    directory.run_all(tmp_path / "out")
    assert set(states(tmp_path / "out").values()) == {FAILED}, "none trained, and none says so by exit code 0"


@pytest.mark.parametrize("place", ["start_job", "evaluate_loss", "export_adapter"])
def test_what_nobody_foresaw_at_the_start_or_the_end_of_a_job_fails_it_alone(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (directory.folder / "heldout.jsonl").write_bytes((directory.folder / "one.jsonl").read_bytes())
    directory.add_job("one", dataset={"evalStorageUri": "heldout.jsonl"})
    where = engine_module if place == "start_job" else job_end_module
    real = getattr(where, place)
    calls: list[str] = []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(place)
        if len(calls) == 1:
            raise ValueError("surprise")
        return real(*arguments, **options)

    monkeypatch.setattr(where, place, fail_once)
    results = directory.run(tmp_path / "out")
    assert (results["default/one"].state, results["default/one"].reason) == (FAILED, "InternalError")
    assert "surprise" in results["default/one"].message
    assert results["default/two"].state is SUCCEEDED
