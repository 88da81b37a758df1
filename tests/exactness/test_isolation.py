"""Promise 4: one job's fault stays its own. Each faulty job runs beside two good ones, which lose no step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from builders.cases import case_file
from builders.pool_run import measure_difference
from builders.run_dir import RunDirectory, make_rows
from builders.tiny_base import make_tiny_base
from multigraft_trainer.report.results import JobResult, JobState

GOOD = ("default/good-a", "default/good-b")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


def make_directory(folder: Path, base: Path, **pool: object) -> RunDirectory:
    directory = RunDirectory(folder, base=base, **pool)
    directory.add_job("good-a", lora={"loraDropout": "0.1"}, seed=1)
    directory.add_job("good-b", rows=make_rows(9, seed=3), lora={"r": 8}, globalBatchSize=3, seed=2)
    return directory


def load_weights(out: Path, job: str) -> dict[str, torch.Tensor]:
    return load_file(out / "adapters" / job / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def undisturbed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    results = make_directory(folder / "dir", base).run(folder / "out")
    assert all(results[job].state is JobState.SUCCEEDED for job in GOOD)
    return folder / "out"


def add_nan(directory: RunDirectory, _: Path) -> str:
    return directory.add_job("faulty", learningRate="1e30", maxNonfiniteSteps=1, lrSchedulerType="Constant")


def add_bad_rows(directory: RunDirectory, _: Path) -> str:
    return directory.add_job("faulty", rows=case_file("A07", "data.jsonl"))


def add_unknown_token(directory: RunDirectory, _: Path) -> str:
    # the tokenizer of the tiny base gives the next added token an id just outside the embedding; see `oversized_base`
    return directory.add_job("faulty", rows=[{"messages": [
        {"role": "user", "content": "say <extra>"}, {"role": "assistant", "content": "<extra>"}]}] * 4)  # fmt: skip


def add_unwritable_output(directory: RunDirectory, tmp_path: Path) -> str:
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots" / "file").write_text("in the way")
    return directory.add_job("faulty", spec={"output": {"storageUri": f"{tmp_path}/roots/file/adapter"}})


FAULTS: dict[str, tuple[Callable[[RunDirectory, Path], str], str]] = {
    "a loss that turns NaN": (add_nan, "NonFinite"),
    "bad rows": (add_bad_rows, "InvalidDataset"),
    "an output folder that cannot be written": (add_unwritable_output, "OutputNotWritable"),
}


@pytest.mark.parametrize("add_fault, reason", FAULTS.values(), ids=FAULTS.keys())
def test_E04_a_faulty_job_fails_alone_and_its_neighbours_lose_no_step(
    base: Path, undisturbed: Path, tmp_path: Path, add_fault: Callable[[RunDirectory, Path], str], reason: str
) -> None:
    directory = make_directory(tmp_path / "dir", base, storage={"allowedRoots": [str(tmp_path / "roots")]})
    faulty = add_fault(directory, tmp_path)
    results = directory.run(tmp_path / "out")
    assert results[faulty].state is JobState.FAILED
    assert results[faulty].reason == reason
    assert results[faulty].message
    expect_good(results, tmp_path / "out", undisturbed)
    assert not (tmp_path / "out" / "adapters" / faulty / "adapter_model.safetensors").exists()


def test_A17_an_id_outside_the_embedding_fails_its_job_before_any_training(
    base: Path, undisturbed: Path, tmp_path: Path
) -> None:
    oversized = make_tiny_base(tmp_path / "oversized", "llama")
    add_token_outside_embedding(oversized)
    directory = make_directory(tmp_path / "dir", oversized)
    faulty = add_unknown_token(directory, tmp_path)
    results = directory.run(tmp_path / "out")
    assert results[faulty].reason == "TokenOutOfRange"
    assert results[faulty].steps == 0
    assert "512" in results[faulty].message
    expect_good(results, tmp_path / "out", undisturbed)


@pytest.mark.parametrize("name", ["empty", "blank", "bom_only", "allbad"])
def test_A11_a_file_without_a_usable_row_fails_its_job_alone(
    base: Path, undisturbed: Path, tmp_path: Path, name: str
) -> None:
    directory = make_directory(tmp_path / "dir", base)
    faulty = directory.add_job("faulty", rows=case_file("A11", f"{name}.jsonl"), dataset={"badRowPolicy": "Skip"})
    results = directory.run(tmp_path / "out")
    assert results[faulty].state is JobState.FAILED
    assert results[faulty].reason == "DatasetEmpty"
    expect_good(results, tmp_path / "out", undisturbed)


def test_B19_the_last_good_checkpoint_of_a_job_that_turns_nan_is_kept_and_named(base: Path, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "dir", base=base)
    job = directory.add_job(
        "late", lrSchedulerType="Linear", learningRate="1e30", warmupSteps=5, maxSteps=12, maxNonfiniteSteps=0
    )
    result = directory.run(tmp_path / "out")[job]
    assert result.reason == "NonFinite"
    assert result.adapter_path is None
    assert result.checkpoint_path is not None
    kept = sorted(Path(result.checkpoint_path).glob("checkpoint-*"))
    assert kept
    for folder in kept:
        tensors = load_file(folder / "adapter_model.safetensors")
        assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_J05_a_result_never_shows_zero_for_nan(base: Path, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "dir", base=base)
    job = directory.add_job("nan", learningRate="1e30", maxNonfiniteSteps=2, lrSchedulerType="Constant")
    directory.run(tmp_path / "out")
    text = (tmp_path / "out" / "result.json").read_text()
    data = json.loads(text, parse_constant=lambda name: pytest.fail(f"bare {name} in result.json"))
    history = next(entry for entry in data["jobs"] if entry["job"] == job)["history"]
    assert [record["skipped"] for record in history] == [False, True, True, True]
    assert all(record["loss"] != 0 for record in history)
    assert history[-1]["loss"] is None or history[-1]["gradNorm"] is None
    assert "NaN" not in (tmp_path / "out" / "metrics.prom").read_text()


def expect_good(results: dict[str, JobResult], out: Path, undisturbed: Path) -> None:
    for job in GOOD:
        assert results[job].state is JobState.SUCCEEDED, results[job].message
        assert results[job].steps == 6
        assert not results[job].num_skipped_steps
        assert measure_difference(load_weights(out, job), load_weights(undisturbed, job)) < 1e-5


def add_token_outside_embedding(base: Path) -> None:
    """Give the tokenizer one token more than the embedding has rows."""
    path = base / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    used = {token["id"] for token in tokenizer["added_tokens"]} | set(tokenizer["model"]["vocab"].values())
    token = dict(tokenizer["added_tokens"][0])
    token |= {"id": max(used) + 1, "content": "<extra>", "special": False}
    assert token["id"] == 512
    tokenizer["added_tokens"].append(token)
    path.write_text(json.dumps(tokenizer))
