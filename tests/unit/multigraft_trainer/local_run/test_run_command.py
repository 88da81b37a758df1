"""`multigraft run` as a command: exit codes and one-line errors."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from builders.run_dir import RunDirectory, make_rows
from builders.tiny_base import make_tiny_base
from multigraft_trainer.local_run.run_command import run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture
def directory(base: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "dir", base=base)


def call(*arguments: object) -> tuple[int, str]:
    got = CliRunner().invoke(run, [str(argument) for argument in arguments])
    assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
    return got.exit_code, got.output


def test_success_prints_the_table_and_exits_0(directory: RunDirectory, tmp_path: Path) -> None:
    directory.add_job("one", maxSteps=2)
    code, text = call(directory.folder, "--out", tmp_path / "out", "--quiet")
    assert code == 0, text
    assert "default/one" in text
    assert "Succeeded" in text
    assert "report.html" in text


def test_a_failed_job_exits_1_and_says_why(directory: RunDirectory, tmp_path: Path) -> None:
    directory.add_job("bad", rows=[*make_rows(3), {"nothing": 1}])
    code, text = call(directory.folder, "--out", tmp_path / "out", "--quiet")
    assert code == 1
    assert "InvalidDataset" in text


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--resume"], "holds no run"),
        (["--pool", "other"], "want a BaseModelPool other, found default/tiny"),
    ],
    ids=["nothing to resume", "no pool of that name"],
)
def test_wrong_input_exits_2_with_one_line(
    directory: RunDirectory, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    directory.add_job("one")
    code, text = call(directory.folder, "--out", tmp_path / "out", *arguments)
    assert code == 2
    assert problem in text
    assert text.count("\n") == 1


def test_a_wrong_manifest_exits_2_before_anything_is_written(directory: RunDirectory, tmp_path: Path) -> None:
    directory.add_job("one", learningRate="-1")
    code, text = call(directory.folder, "--out", tmp_path / "out")
    assert code == 2
    assert "spec.training.learningRate" in text
    assert not (tmp_path / "out").exists()


def test_a_folder_with_files_is_not_mixed_with_a_new_run(directory: RunDirectory, tmp_path: Path) -> None:
    directory.add_job("one")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    code, text = call(directory.folder, "--out", out)
    assert code == 2
    assert "is not empty" in text
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_no_job_exits_2(directory: RunDirectory) -> None:
    code, text = call(directory.folder)
    assert code == 2
    assert "no AdapterJob" in text


def test_progress_without_a_terminal_has_no_control_codes(directory: RunDirectory, tmp_path: Path) -> None:
    directory.add_job("one", maxSteps=2)
    code, text = call(directory.folder, "--out", tmp_path / "out")
    assert code == 0
    assert "\x1b" not in text
    assert json.loads((tmp_path / "out" / "result.json").read_text())["jobs"][0]["state"] == "Succeeded"


def test_a_taken_metrics_port_exits_2_before_anything_is_written(directory: RunDirectory, tmp_path: Path) -> None:
    directory.add_job("one")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, text = call(directory.folder, "--out", tmp_path / "out", "--metrics-port", port)
    assert code == 2
    assert f"--metrics-port {port}" in text
    assert not (tmp_path / "out").exists()
