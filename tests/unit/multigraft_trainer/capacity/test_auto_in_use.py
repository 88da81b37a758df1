"""`maxTokensPerMicrobatch: Auto` as users and the operator meet it: whole local runs and the service, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file

from builders.run_dir import RunDirectory, make_rows
from builders.tiny_base import make_tiny_base
from builders.trainer_service import TrainerService
from multigraft_trainer.report.results import JobState

AUTO: dict[str, Any] = {"batching": {"maxTokensPerMicrobatch": "Auto"}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"))


def test_a_run_says_which_capacity_it_took_and_from_where(base: Path, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "dir", base=base, **AUTO)
    job = directory.add_job("one", maxSteps=3)
    result = directory.run_all(tmp_path / "out")
    assert result.jobs[0].state is JobState.SUCCEEDED
    pool = result.pool
    assert (pool.token_capacity, pool.capacity_source) == (4096, "Estimated")
    assert "GiB of free memory" in pool.capacity_detail
    assert (
        f"spec.batching.maxTokensPerMicrobatch Auto: 4,096 tokens a microbatch: {pool.capacity_detail}" in result.notes
    )
    written = json.loads((tmp_path / "out" / "result.json").read_text())["pool"]
    assert (written["tokenCapacity"], written["capacitySource"]) == (4096, "Estimated")
    families = text_string_to_metric_families((tmp_path / "out" / "metrics.prom").read_text())
    samples = {sample.name: sample for family in families for sample in family.samples}
    capacity = samples["multigraft_token_capacity"]
    assert (capacity.labels["source"], capacity.value) == ("Estimated", 4096)
    assert job == "default/one"


def test_a_run_with_a_number_says_that_it_is_the_specs(base: Path, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "dir", base=base)
    directory.add_job("one", maxSteps=1)
    result = directory.run_all(tmp_path / "out")
    assert (result.pool.token_capacity, result.pool.capacity_source) == (512, "Spec")
    assert not (tmp_path / "out" / "plans" / "capacity.json").exists()


def test_a_job_that_does_not_fit_is_refused_with_numbers_and_its_neighbour_trains(base: Path, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "dir", base=base, **AUTO)
    good, long = directory.add_job("good", maxSteps=2), directory.add_job("long", maxSteps=2, maxSeqLength=5000)
    got = directory.run(tmp_path / "out")
    assert got[good].state is JobState.SUCCEEDED
    assert (got[long].state, got[long].reason) == (JobState.FAILED, "SequenceExceedsCapacity")
    assert got[long].message == (
        "spec.training.maxSeqLength: 5000 tokens do not fit batching.maxTokensPerMicrobatch Auto, here 4096, of pool "
        "default/tiny"
    )


def test_a_base_that_cannot_be_opened_leaves_the_capacity_unknown(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    directory = RunDirectory(tmp_path / "dir", base=tmp_path / "empty", **AUTO)
    job = directory.add_job("one", maxSteps=2)
    result = directory.run_all(tmp_path / "out")
    assert result.jobs[0].job == job
    assert result.jobs[0].reason == "BaseModelInvalid"
    assert result.pool.token_capacity is None
    assert result.pool.fill is None
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_resumed_run_keeps_its_capacity_whatever_would_fit_now(base: Path, tmp_path: Path) -> None:
    """The capacity decides how the samples are packed, so another one would end in other bits."""
    directory = RunDirectory(tmp_path / "dir", base=base, **AUTO)
    jobs = [
        directory.add_job(name, rows=make_rows(20, seed=n), maxSteps=8, seed=n, maxSeqLength=128)
        for n, name in enumerate("ab")
    ]
    kept = {}
    for name in ("straight", "stopped"):
        out = tmp_path / name
        directory.run(out, step_limit=2)
        path = out / "plans" / "capacity.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tokens": 160}))  # as if memory had been short
        if name == "stopped":
            directory.run(out, resume=True, step_limit=4)
        result = directory.run_all(out, resume=True)
        assert (result.pool.token_capacity, result.pool.capacity_source) == (160, "Resumed")
        assert {job.state for job in result.jobs} == {JobState.SUCCEEDED}
        kept[name] = [load_file(out / "adapters" / job / "adapter_model.safetensors") for job in jobs]
    for straight, stopped in zip(*kept.values(), strict=True):
        assert all(straight[key].equal(stopped[key]) for key in straight)


def test_the_service_tells_the_operator_and_keeps_it_over_a_restart(base: Path, tmp_path: Path) -> None:
    service = TrainerService(tmp_path, base, pool=AUTO)
    service.start()
    capacity = service.state()["capacity"]
    assert (capacity["tokenCapacity"], capacity["capacitySource"]) == (4096, "Estimated")
    event = next(event for event in service.events() if event["event"] == "token capacity")
    assert (event["tokens"], event["source"]) == (4096, "Estimated")
    service.put(service.job("long", maxSteps=2, maxSeqLength=5000))
    report = service.wait_for_phase("long", "Failed")
    assert report["reason"] == "SequenceExceedsCapacity"
    assert "5000 tokens do not fit batching.maxTokensPerMicrobatch Auto, here 4096," in report["message"]
    service.kill()
    service.start()
    capacity = service.state()["capacity"]
    assert (capacity["tokenCapacity"], capacity["capacitySource"]) == (4096, "Resumed")
    service.kill()
