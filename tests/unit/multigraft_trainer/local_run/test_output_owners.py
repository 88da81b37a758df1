"""Whole runs in which a job's output meets another job's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builders.run_dir import RunDirectory
from builders.tiny_base import make_tiny_base
from multigraft_trainer.report.results import JobState


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture
def directory(base: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "dir", base=base)


def add(directory: RunDirectory, name: str, output: str) -> str:
    return directory.add_job(name, maxSteps=2, spec={"output": {"storageUri": output}})


@pytest.mark.parametrize(
    "output",
    ["adapters/default/b", "adapters/default/b/x", "adapters/default/./b/"],
    ids=["the default folder of another", "inside it", "written another way"],
)
def test_a_job_may_not_take_the_default_folder_of_another(directory: RunDirectory, tmp_path: Path, output: str) -> None:
    greedy, good = add(directory, "a", output), directory.add_job("b", maxSteps=2)
    results = directory.run(tmp_path / "out")
    assert results[greedy].reason == "InvalidSpec"
    assert good in results[greedy].message
    assert results[good].state is JobState.SUCCEEDED


@pytest.mark.parametrize("output", ["shared", "shared/x/y", "."], ids=["the same", "inside", "around"])
def test_a_job_added_before_resume_may_not_take_the_folder_of_a_finished_one(
    directory: RunDirectory, tmp_path: Path, output: str
) -> None:
    done = add(directory, "z-done", "shared/x")
    before = directory.run(tmp_path / "out")[done]
    new = add(directory, "a-new", {"shared": "shared/x", ".": "shared"}.get(output, output))
    results = directory.run(tmp_path / "out", resume=True)
    assert results[new].reason == "InvalidSpec"
    assert done in results[new].message
    assert results[done] == before


def test_the_adapter_of_a_finished_job_without_a_manifest_keeps_its_folder(
    directory: RunDirectory, tmp_path: Path
) -> None:
    done = directory.add_job("done", maxSteps=2)
    directory.run(tmp_path / "out")
    (directory.folder / "job-done.json").unlink()
    (tmp_path / "out").rename(tmp_path / "moved")
    new = add(directory, "new", "adapters/default/done")
    assert done in directory.run(tmp_path / "moved", resume=True)[new].message


def test_a_link_does_not_hide_that_two_folders_are_one(directory: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = add(directory, "first", "one")
    directory.run(out)
    (out / "link").symlink_to(out / "one")
    second = add(directory, "second", "link")
    results = directory.run(out, resume=True)
    assert first in results[second].message


def test_a_suspended_job_keeps_its_folder(directory: RunDirectory, tmp_path: Path) -> None:
    later = directory.add_job("later", spec={"suspend": True})
    greedy = add(directory, "greedy", f"adapters/{later}")
    assert later in directory.run(tmp_path / "out")[greedy].message


@pytest.mark.parametrize(
    "output", ["checkpoints/jobs/default/x", "checkpoints/pool", "checkpoints/default/x", "cache", "adapters/default"]
)
def test_an_output_may_not_lie_in_what_the_run_keeps_for_itself(
    directory: RunDirectory, tmp_path: Path, output: str
) -> None:
    job = add(directory, "greedy", output)
    assert directory.run(tmp_path / "out")[job].reason == "StorageNotAllowed"


def test_a_checkpoint_of_a_run_is_no_dataset_and_no_start_adapter(directory: RunDirectory, tmp_path: Path) -> None:
    out = tmp_path / "out"
    directory.add_job("done", maxSteps=2)
    directory.run(out, step_limit=1)
    checkpoint = next((out / "checkpoints").rglob("checkpoint-1"))
    spy = directory.add_job("spy", spec={"resumeFrom": {"storageUri": str(checkpoint)}})
    assert directory.run(out, resume=True)[spy].reason == "StorageNotAllowed"


def test_checkpoints_lie_where_the_pool_says(base: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    pool = {"checkpoint": {"storageUri": str(shared / "ckpt")}, "storage": {"allowedRoots": [str(shared)]}}
    directory = RunDirectory(tmp_path / "dir", base=base, **pool)
    job = directory.add_job("one", maxSteps=4)
    first, second = (directory.run(tmp_path / name, step_limit=2)[job] for name in ("first", "second"))
    folders = [Path(str(result.checkpoint_path)) for result in (first, second)]
    assert all(folder.is_relative_to(shared / "ckpt") for folder in folders)
    assert folders[0] != folders[1], "two runs of the same manifests keep apart"
    assert not (tmp_path / "first" / "checkpoints").exists()
    (tmp_path / "first").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "second")
    assert directory.run(tmp_path / "moved", resume=True)[job].state is JobState.SUCCEEDED
    spy = directory.add_job("spy", spec={"output": {"storageUri": str(shared)}})
    spy_inside = directory.add_job("spy-inside", spec={"output": {"storageUri": str(folders[0] / "x")}})
    results = directory.run(tmp_path / "moved", resume=True)
    assert results[spy].reason == results[spy_inside].reason == "StorageNotAllowed"


@pytest.mark.parametrize(
    "uri, want",
    [
        ("checkpoints/default/here", None),
        ("elsewhere", None),
        ("adapters/default/x", "StorageNotAllowed"),
        ("/nowhere/at/all", "StorageNotAllowed"),
        ("memory://bucket/x", "StorageNotAllowed"),
    ],
)
def test_checkpoints_of_the_pool_are_honoured_or_refused(
    base: Path, tmp_path: Path, uri: str, want: str | None
) -> None:
    directory = RunDirectory(tmp_path / "dir", base=base, checkpoint={"storageUri": uri, "intervalSteps": 1})
    job = directory.add_job("one", maxSteps=3)
    result = directory.run(tmp_path / "out", step_limit=2)[job]
    if want is not None:
        assert (result.reason, "spec.checkpoint.storageUri" in result.message) == (want, True)
        return
    assert Path(str(result.checkpoint_path)).is_relative_to(tmp_path / "out" / uri)
