"""`--resume` with jobs that had ended: what is kept, what is tried again, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders.run_dir import RunDirectory, make_rows
from builders.tiny_base import make_tiny_base
from multigraft_trainer.report.results import JobResult, JobState


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture
def directory(base: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "dir", base=base)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"learningRate": "2e-2"}, "training.learningRate: '0.01' there, '0.02' now"),
        ({"maxSteps": 5}, "training.maxSteps: 2 there, 5 now"),
        ({"seed": 7}, "training.seed: 42 there, 7 now"),
        ({"lora": {"r": 8}}, "lora.r: 4 there, 8 now"),
        ({"lora": {"targetModules": ["q_proj"]}}, "lora.targetModules: ['q_proj', 'v_proj'] there, ['q_proj'] now"),
        ({"rows": make_rows(12, seed=3)}, "dataset.fingerprint"),
        ({"rows": make_rows(11)}, "dataset.fingerprint"),
    ],
    ids=["rate", "steps", "seed", "rank", "targets", "other rows", "a row less"],
)
def test_a_finished_job_with_another_spec_is_refused_by_field_and_its_adapter_stays(
    directory: RunDirectory, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    job = directory.add_job("one", maxSteps=2)
    out = tmp_path / "out"
    before = directory.run(out)[job]
    directory.add_job("one", **{"maxSteps": 2, **changes})
    refused = directory.run(out, resume=True)[job]
    assert (refused.state, refused.reason) == (JobState.FAILED, "InvalidCheckpoint")
    assert named in refused.message
    assert (Path(str(before.adapter_path)) / "adapter_model.safetensors").is_file()
    directory.add_job("one", maxSteps=2)
    assert directory.run(out, resume=True)[job] == before, "the spec restored, the result is there again"


@pytest.mark.parametrize(
    "spec", [{"priority": 3}, {"activeDeadlineSeconds": 1}, {"backoffLimit": 0}], ids=lambda spec: next(iter(spec))
)
def test_what_decides_no_weights_may_change(directory: RunDirectory, tmp_path: Path, spec: dict[str, Any]) -> None:
    job = directory.add_job("one", maxSteps=2)
    before = directory.run(tmp_path / "out")[job]
    directory.add_job("one", maxSteps=2, learningRate="0.010", spec=spec)
    assert directory.run(tmp_path / "out", resume=True)[job] == before


def test_a_result_is_kept_when_its_rows_are_gone(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("one", maxSteps=2)
    before = directory.run(tmp_path / "out")[job]
    (directory.folder / "one.jsonl").unlink()
    assert directory.run(tmp_path / "out", resume=True)[job] == before


def test_a_failed_job_is_tried_again_from_its_last_checkpoint(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("slow", maxSteps=100_000, spec={"activeDeadlineSeconds": 1})
    failed = directory.run(tmp_path / "out")[job]
    assert failed.reason == "DeadlineExceeded"
    directory.add_job("slow", maxSteps=100_000, spec={"activeDeadlineSeconds": 100_000})
    again = directory.run(tmp_path / "out", resume=True, step_limit=failed.steps + 2)[job]
    assert (again.state, again.steps) == (JobState.STOPPED, failed.steps + 2)
    known = {record.step: record.loss for record in failed.history}
    kept = [record for record in again.history if record.step in known and record.loss == known[record.step]]
    assert len(kept) >= failed.steps - 2, "steps up to the checkpoint were not taken again"


def test_a_job_that_failed_before_its_first_step_is_tried_again_from_the_start(
    directory: RunDirectory, tmp_path: Path
) -> None:
    job = directory.add_job("bad", rows=[*make_rows(3), {"nothing": 1}])
    assert directory.run(tmp_path / "out")[job].reason == "InvalidDataset"
    directory.add_job("bad", rows=make_rows(4), maxSteps=2)
    result = directory.run(tmp_path / "out", resume=True)[job]
    assert (result.state, result.steps) == (JobState.SUCCEEDED, 2)


def _remove(adapter: Path) -> None:
    shutil.rmtree(adapter)


def _damage(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")


@pytest.mark.parametrize("harm", [_remove, _damage])
def test_an_adapter_that_is_not_there_any_more_is_trained_again(
    directory: RunDirectory, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    job = directory.add_job("one", maxSteps=3)
    before = directory.run(tmp_path / "out")[job]
    harm(Path(str(before.adapter_path)))
    after = directory.run(tmp_path / "out", resume=True)[job]
    assert after.state is JobState.SUCCEEDED
    assert after.adapter_sha256 == before.adapter_sha256


def test_a_new_output_of_a_finished_job_gets_the_adapter_too(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("one", maxSteps=3)
    before = directory.run(tmp_path / "out")[job]
    directory.add_job("one", maxSteps=3, spec={"output": {"storageUri": "elsewhere"}})
    after = directory.run(tmp_path / "out", resume=True)[job]
    assert after.adapter_path == str(tmp_path / "out" / "elsewhere")
    assert after.adapter_sha256 == before.adapter_sha256


def test_a_run_folder_may_be_moved(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("one", maxSteps=3)
    before = directory.run(tmp_path / "out")[job]
    (tmp_path / "out").rename(tmp_path / "moved")
    after = directory.run(tmp_path / "moved", resume=True)[job]
    assert after.adapter_path == str(tmp_path / "moved" / "adapters" / job)
    assert after.history == before.history
    assert _paths(after) == [path.replace("/out/", "/moved/") for path in _paths(before)]


def _paths(result: JobResult) -> list[str]:
    return [path for path in (result.adapter_path, result.checkpoint_path) if path is not None]
