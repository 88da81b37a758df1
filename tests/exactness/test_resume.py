"""Promise 3: stop at any instant, go on exactly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builders.backend import load_tiny_backend
from builders.jobs import make_job, make_samples, prepare
from builders.killable_run import run_until_killed
from builders.pool_run import PoolRun, measure_difference, run_pool
from builders.resume_jobs import make_resume_jobs
from builders.tiny_base import make_tiny_base
from multigraft_trainer.report.results import JobState

JOBS = ("team-a/short", "team-a/long", "team-a/cosine")
KILLS = 30


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def linears(base: Path) -> list[str]:
    return list(load_tiny_backend(base)[0].linears)


def load_weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {job: load_file(folder / "adapters" / job / "adapter_model.safetensors") for job in JOBS}


@pytest.fixture(scope="module")
def uninterrupted(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    points = run_until_killed(base, folder, at=None, resume=False)
    assert points is not None
    return folder, points


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_random_point_the_pool_goes_on_bit_for_bit(
    base: Path, uninterrupted: tuple[Path, int], tmp_path: Path, number: int
) -> None:
    want_folder, num_points = uninterrupted
    # one point in each thirtieth of the run, so that every kind of operation is hit
    at = int((number + random.Random(number).random()) * num_points / KILLS)
    assert run_until_killed(base, tmp_path, at=at, resume=False) is None
    assert run_until_killed(base, tmp_path, at=None, resume=True) is not None
    assert json.loads((tmp_path / "losses.json").read_text()) == json.loads((want_folder / "losses.json").read_text())
    want = load_weights(want_folder)
    for job, got in load_weights(tmp_path).items():
        assert got.keys() == want[job].keys()
        assert all(torch.equal(got[key], want[job][key]) for key in got), f"{job} differs after a kill at point {at}"


def test_killed_again_and_again_the_pool_still_ends_bit_for_bit(
    base: Path, uninterrupted: tuple[Path, int], tmp_path: Path
) -> None:
    want_folder, num_points = uninterrupted
    rng = random.Random(7)
    resume = False
    for _ in range(6):
        run_until_killed(base, tmp_path, at=rng.randrange(num_points // 4, num_points // 2), resume=resume)
        resume = True
    assert run_until_killed(base, tmp_path, at=None, resume=True) is not None
    want = load_weights(want_folder)
    for job, got in load_weights(tmp_path).items():
        assert all(torch.equal(got[key], want[job][key]) for key in got)


def test_a_job_that_goes_on_among_other_neighbours_ends_as_if_alone(
    base: Path, linears: list[str], uninterrupted: tuple[Path, int], tmp_path: Path
) -> None:
    job = make_resume_jobs(linears, tmp_path)[1]
    first = run_pool(base, tmp_path, [job], step_limit=4)
    assert first.results[job.key].state is JobState.STOPPED
    other = prepare(make_job("other", maxSteps=6, globalBatchSize=5), make_samples(8), tuple(linears), tmp_path)
    second = run_pool(base, tmp_path, [other, job], resume=True)
    assert second.results[job.key].state is JobState.SUCCEEDED
    assert second.results[job.key].steps == 10
    want = load_weights(uninterrupted[0])[job.key]
    assert measure_difference(second.weights(job.key), want) < 1e-5


def test_a_stop_loses_no_step_and_resumes_to_the_same_weights(
    base: Path, linears: list[str], uninterrupted: tuple[Path, int], tmp_path: Path
) -> None:
    jobs = make_resume_jobs(linears, tmp_path)

    def stop(pool: PoolRun) -> None:
        pool.engine.request_stop()

    # a stop in the middle of a plan: the global batches that have begun are finished, nothing else is started
    class StopAfterMicrobatches:
        def __init__(self, pool: PoolRun, count: int) -> None:
            self.left = count
            run = pool.backend.forward_backward

            def forward_backward(microbatch: object, **options: Any) -> list[float]:
                self.left -= 1
                if self.left == 0:
                    stop(pool)
                return run(microbatch, **options)  # type: ignore[arg-type]

            pool.backend.forward_backward = forward_backward  # type: ignore[method-assign]

    first = run_pool(base, tmp_path, jobs, at_horizon={0: lambda pool: StopAfterMicrobatches(pool, 3) and None})
    assert {result.state for result in first.results.values()} == {JobState.STOPPED}
    taken = {key: result.steps for key, result in first.results.items()}
    assert any(taken.values())
    second = run_pool(base, tmp_path, make_resume_jobs(linears, tmp_path), resume=True)
    want = load_weights(uninterrupted[0])
    for job in JOBS:
        assert [record.step for record in second.results[job].history] == list(range(1, second.results[job].steps + 1))
        assert measure_difference(second.weights(job), want[job]) < 1e-5


def test_another_spec_is_refused_on_resume_and_says_what_differs(
    base: Path, linears: list[str], tmp_path: Path
) -> None:
    job = make_resume_jobs(linears, tmp_path)[1]
    run_pool(base, tmp_path, [job], step_limit=2)
    changed = prepare(
        make_job("long", lora={"r": 8, "loraDropout": "0.05"}, globalBatchSize=2, maxSteps=10, seed=2, warmupSteps=1),
        make_samples(2, 9, max_tokens=20),
        tuple(linears),
        tmp_path,
    )
    pool = run_pool(base, tmp_path, [changed], resume=True)
    assert pool.results[job.key].reason == "InvalidCheckpoint"
    assert "warmupSteps" in pool.results[job.key].message


def test_D04_a_resumed_adapter_is_the_saved_one_not_a_fresh_one(base: Path, linears: list[str], tmp_path: Path) -> None:
    job = make_resume_jobs(linears, tmp_path)[1]
    run_pool(base, tmp_path, [job], step_limit=6)
    seen: dict[str, float] = {}

    def look(pool: PoolRun) -> None:
        run = pool.backend.forward_backward

        def forward_backward(microbatch: object, **options: Any) -> list[float]:
            adapter = pool.slots.adapter(pool.slots.occupied[0])
            largest = max(float(t.abs().max()) for key, t in adapter.named_weights().items() if "lora_B" in key)
            seen.setdefault("lora_B", largest)
            return run(microbatch, **options)  # type: ignore[arg-type]

        pool.backend.forward_backward = forward_backward  # type: ignore[method-assign]

    pool = run_pool(base, tmp_path, [job], resume=True, at_horizon={0: look})
    losses = [record.loss for record in pool.results[job.key].history]
    assert seen["lora_B"] > 0
    assert losses[6] is not None
    assert losses[0] is not None
    assert losses[6] < losses[0]
