"""Whole local runs on a tiny base: what a user sees for good and for bad jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from peft import PeftConfig
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file

from builders.cases import case_file
from builders.pickle_canary import PickleCanary
from builders.run_dir import RunDirectory, make_rows
from builders.tiny_base import make_tiny_base
from multigraft.api.reasons import RefusalError
from multigraft.manifests.load import load_manifests
from multigraft_trainer.local_run.run_folder import hold_run_folder, open_run_folder
from multigraft_trainer.report.results import JobState, load_result


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture
def directory(base: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "dir", base=base)


def test_a_run_leaves_everything_a_user_needs(directory: RunDirectory, tmp_path: Path) -> None:
    (directory.folder / "heldout.jsonl").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in make_rows(5)))
    job = directory.add_job("one", maxSteps=8, dataset={"evalStorageUri": "heldout.jsonl"})
    out = tmp_path / "out"
    result = directory.run(out)[job]
    assert result.state is JobState.SUCCEEDED
    assert (result.steps, result.total_steps) == (8, 8)
    assert result.heldout_loss_before is not None
    assert result.heldout_loss_after is not None
    assert result.heldout_loss_after < result.heldout_loss_before
    assert result.rows is not None
    assert (result.rows.num_read, result.rows.num_trained) == (12, 12)
    assert Path(str(result.adapter_path)) == out / "adapters" / job
    assert PeftConfig.from_pretrained(result.adapter_path).r == 4
    assert {path.name for path in out.iterdir()} >= {
        "result.json", "metrics.prom", "report.html", "loss_curves.png", "plan.png", "adapters", "checkpoints",
    }  # fmt: skip
    assert load_result(out / "result.json").jobs[0] == result


def test_metrics_file_is_in_the_text_format_and_counts_what_ran(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("one", maxSteps=3)
    result = directory.run(tmp_path / "out")[job]
    text = (tmp_path / "out" / "metrics.prom").read_text()
    samples = {
        (sample.name, sample.labels.get("kind") or sample.labels.get("job")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["multigraft_tokens_total", "real"] == result.num_tokens
    assert samples["multigraft_job_steps_total", "one"] == 3
    assert samples["multigraft_slots_in_use", None] == 0
    assert samples["multigraft_job_loss", "one"] == pytest.approx(result.history[-1].loss)


def test_A12_less_data_than_one_global_batch_still_takes_a_step(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("tiny-data", rows=case_file("A12", "data.jsonl"), globalBatchSize=8, numTrainEpochs=1)
    result = directory.run(tmp_path / "out")[job]
    assert result.state is JobState.SUCCEEDED
    assert result.steps == 1
    assert result.rows is not None
    assert result.history[0].num_supervised_tokens > 0


def test_B13_a_name_with_dots_trains_exports_and_labels_like_any_other(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("team-a.support-v1.2")
    out = tmp_path / "out"
    result = directory.run(out)[job]
    assert result.state is JobState.SUCCEEDED
    keys = load_file(Path(str(result.adapter_path)) / "adapter_model.safetensors").keys()
    assert not any("support" in key for key in keys)
    assert 'job="team-a.support-v1.2"' in (out / "metrics.prom").read_text()


@pytest.mark.parametrize(
    "targets, named",
    [(["q_proj", "v_porj"], "v_porj"), (["nothing"], "nothing"), ([".*wrong.*"], ".*wrong.*")],
    ids=["one entry of two matches nothing", "the only entry matches nothing", "an expression matches nothing"],
)
def test_B15_a_target_that_matches_nothing_fails_the_job_and_names_it(
    directory: RunDirectory, tmp_path: Path, targets: list[str], named: str
) -> None:
    job = directory.add_job("wrong", lora={"targetModules": targets})
    good = directory.add_job("good")
    results = directory.run(tmp_path / "out")
    assert results[job].reason == "TargetModulesNotFound"
    assert named in results[job].message
    assert results[good].state is JobState.SUCCEEDED


def test_K04_a_start_adapter_in_pickle_form_is_refused_unopened(directory: RunDirectory, tmp_path: Path) -> None:
    start = directory.folder / "start"
    start.mkdir()
    (start / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    canary = PickleCanary(tmp_path / "canary")
    (start / "adapter_model.bin").write_bytes(canary.data)
    job = directory.add_job("warm", spec={"resumeFrom": {"storageUri": "start"}})
    result = directory.run(tmp_path / "out")[job]
    assert result.reason == "InvalidStartAdapter"
    assert not canary.was_loaded


def test_a_job_goes_on_from_the_adapter_of_another_run(directory: RunDirectory, tmp_path: Path) -> None:
    first = directory.add_job("first", maxSteps=8)
    adapter = Path(str(directory.run(tmp_path / "first")[first].adapter_path))
    adapter.rename(directory.folder / "start")
    second = directory.add_job("second", maxSteps=2, spec={"resumeFrom": {"storageUri": "start"}})
    results = directory.run(tmp_path / "second")
    assert results[second].state is JobState.SUCCEEDED
    assert results[second].history[0].loss < results[first].history[0].loss  # type: ignore[operator]


def test_D11_resume_without_a_checkpoint_starts_from_zero_and_leaves_foreign_files_alone(
    directory: RunDirectory, tmp_path: Path
) -> None:
    job = directory.add_job("one")
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text("{}")
    foreign = out / "checkpoints" / "jobs" / job / "checkpoint-99"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_text("mine")
    result = directory.run(out, resume=True)[job]
    assert result.state is JobState.SUCCEEDED
    assert result.steps == 6
    assert (foreign / "notes.txt").read_text() == "mine"


def test_steps_stops_each_job_and_resume_finishes_it_on_the_same_schedule(
    directory: RunDirectory, tmp_path: Path
) -> None:
    job = directory.add_job("one", maxSteps=6)
    whole = directory.run(tmp_path / "whole")[job]
    stopped = directory.run(tmp_path / "out", step_limit=2)[job]
    assert (stopped.state, stopped.steps, stopped.total_steps) == (JobState.STOPPED, 2, 6)
    finished = directory.run(tmp_path / "out", resume=True)[job]
    assert finished.state is JobState.SUCCEEDED
    assert [record.learning_rate for record in finished.history] == [record.learning_rate for record in whole.history]
    assert [record.loss for record in finished.history] == [record.loss for record in whole.history]


def test_resume_keeps_the_results_of_jobs_that_ended(directory: RunDirectory, tmp_path: Path) -> None:
    done = directory.add_job("done", maxSteps=2)
    longer = directory.add_job("longer", maxSteps=9)
    first = directory.run(tmp_path / "out", step_limit=4)
    second = directory.run(tmp_path / "out", resume=True)
    assert first[done].state is JobState.SUCCEEDED
    assert second[done] == first[done]
    assert (second[longer].state, second[longer].steps) == (JobState.SUCCEEDED, 9)


def test_a_suspended_job_does_not_run(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("later", spec={"suspend": True})
    good = directory.add_job("now")
    results = directory.run(tmp_path / "out")
    assert (results[job].state, results[job].reason) == (JobState.SUSPENDED, "Suspended")
    assert results[good].state is JobState.SUCCEEDED


def test_K05_a_base_that_brings_code_fails_all_its_jobs_and_runs_none_of_it(tmp_path: Path) -> None:
    base = make_tiny_base(tmp_path / "base", "llama")
    config = json.loads((base / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_canary.Canary"}
    (base / "config.json").write_text(json.dumps(config))
    canary = tmp_path / "canary"
    (base / "modeling_canary.py").write_text(f"import os\nos.mkdir({str(canary)!r})\n")
    directory = RunDirectory(tmp_path / "dir", base=base)
    job = directory.add_job("one")
    result = directory.run(tmp_path / "out")[job]
    assert result.reason == "RemoteCodeRefused"
    assert not canary.exists()


def test_higher_priority_gets_the_only_slot_first(base: Path, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "dir", base=base, slots={"max": 1, "maxRank": 8})
    directory.add_job("a-low", maxSteps=2)
    directory.add_job("b-high", maxSteps=2, spec={"priority": 10})
    result = directory.run_all(tmp_path / "out")
    started = {job.job: job.history[0].seconds for job in result.jobs}
    assert started["default/b-high"] < started["default/a-low"]


def test_a_deadline_fails_the_job_with_both_times(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job("slow", maxSteps=100_000, spec={"activeDeadlineSeconds": 1})
    result = directory.run(tmp_path / "out")[job]
    assert result.reason == "DeadlineExceeded"
    assert "of 1 s allowed" in result.message


def test_rows_from_a_config_map(directory: RunDirectory, tmp_path: Path) -> None:
    rows = "".join(json.dumps(row) + "\n" for row in make_rows(8))
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rows"}, "data": {"train": rows}}
    (directory.folder / "rows.json").write_text(json.dumps(document))
    job = directory.add_job("inline", dataset={"storageUri": None, "configMapRef": {"name": "rows", "key": "train"}})
    result = directory.run(tmp_path / "out")[job]
    assert result.state is JobState.SUCCEEDED, result.message
    assert result.rows is not None
    assert result.rows.num_trained == 8


def test_two_jobs_may_not_write_into_one_folder(directory: RunDirectory, tmp_path: Path) -> None:
    first = directory.add_job("first", spec={"output": {"storageUri": "adapters/default/shared"}})
    second = directory.add_job("second", spec={"output": {"storageUri": "adapters/default/shared"}})
    results = directory.run(tmp_path / "out")
    assert results[first].state is JobState.SUCCEEDED
    assert results[second].reason == "InvalidSpec"
    assert first in results[second].message


def test_a_second_run_is_kept_out_of_the_folder(directory: RunDirectory, tmp_path: Path) -> None:
    directory.add_job("one")
    folder = open_run_folder(directory.folder, tmp_path / "out", resume=False)
    with hold_run_folder(folder), pytest.raises(RefusalError, match="another run is writing there now"):
        directory.run(tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    "targets, want",
    [
        (["q_proj", "v_proj"], {"q_proj", "v_proj"}),
        (["all-linear"], {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ([r".*\.0\..*_proj"], r".*\.0\..*_proj"),
    ],
    ids=["suffixes", "all-linear as PEFT writes it", "an expression"],
)
def test_the_exported_config_names_targets_as_peft_does(
    directory: RunDirectory, tmp_path: Path, targets: list[str], want: set[str] | str
) -> None:
    job = directory.add_job("one", maxSteps=2, lora={"targetModules": targets})
    result = directory.run(tmp_path / "out")[job]
    assert PeftConfig.from_pretrained(result.adapter_path).target_modules == want


def test_J06_numbers_written_as_text_are_numbers_before_the_first_step(directory: RunDirectory, tmp_path: Path) -> None:
    job = directory.add_job(
        "text",
        learningRate="1E-3",
        weightDecay="0.01",
        adamBeta1="0.8",
        adamEpsilon="1e-7",
        lrSchedulerType="Cosine",
        warmupSteps=2,
        lora={"loraAlpha": "8.0", "loraDropout": "0.1"},
    )
    result = directory.run(tmp_path / "out")[job]
    assert result.state is JobState.SUCCEEDED, result.message
    assert [record.learning_rate for record in result.history[:3]] == pytest.approx([0.0, 5e-4, 1e-3])


def test_E10_an_option_that_cannot_be_honoured_is_refused_not_switched_off(directory: RunDirectory) -> None:
    directory.add_job("one", distributedOptimizer=True)
    problems = load_manifests([directory.folder]).problems
    assert [problem.field for problem in problems] == ["spec.training.distributedOptimizer"]


@pytest.mark.parametrize("output", ["result.json", "report.html", "plans", "plans/x", "metrics.prom"])
def test_an_output_may_not_take_the_place_of_the_runs_own_files(
    directory: RunDirectory, tmp_path: Path, output: str
) -> None:
    job = directory.add_job("greedy", spec={"output": {"storageUri": output}})
    good = directory.add_job("good", maxSteps=2)
    results = directory.run(tmp_path / "out")
    assert results[job].reason == "StorageNotAllowed"
    assert results[good].state is JobState.SUCCEEDED
