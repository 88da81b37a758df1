"""Promise 1: alone or together, the same adapter. Shared runs against solo runs and against plain PEFT, CPU fp32."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from builders.jobs import make_job, make_samples, prepare
from builders.peft_loop import train_with_peft
from builders.pool_run import PoolRun, measure_difference, open_pool, run_pool
from builders.tiny_base import make_tiny_base
from multigraft_trainer.engine.job_run import PreparedJob
from multigraft_trainer.report.results import JobState

TOLERANCE = 1e-5  # relative, over all tensors of an adapter: fp32 rounding of differently cut matrix products
STEPS = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def linears(base: Path) -> list[str]:
    from builders.backend import load_tiny_backend

    backend, _ = load_tiny_backend(base)
    return list(backend.linears)


def make_jobs(linears: list[str], output: Path, *, dropout: bool) -> list[PreparedJob]:
    """Four jobs that differ in everything a job may choose."""

    def pick(*suffixes: str) -> tuple[str, ...]:
        return tuple(name for name in linears if name.rpartition(".")[2] in suffixes)

    rates = ("0", "0.05", "0.3", "0.1") if dropout else ("0",) * 4
    return [
        prepare(
            make_job("rank-1", lora={"r": 1, "loraAlpha": "0.5", "loraDropout": rates[0]}, globalBatchSize=3, seed=1),
            make_samples(1, 11),
            pick("q_proj", "v_proj"),
            output,
        ),
        prepare(
            make_job(
                "rank-3",
                lora={"r": 3, "loraAlpha": "6", "loraDropout": rates[1]},
                globalBatchSize=8,
                lrSchedulerType="Cosine",
                warmupSteps=4,
                seed=2,
            ),
            make_samples(2, 24),
            tuple(linears),
            output,
        ),
        prepare(
            make_job(
                "rank-8.dotted",
                namespace="team-b",
                lora={"r": 8, "loraAlpha": "16", "loraDropout": rates[2], "useRslora": True},
                globalBatchSize=1,
                lrSchedulerType="Constant",
                maxGradNorm="0",
                weightDecay="0.1",
                seed=3,
            ),
            make_samples(3, 7, min_tokens=20, max_tokens=90),
            pick("o_proj", "down_proj"),
            output,
        ),
        prepare(
            make_job(
                "rank-20",
                namespace="team-b",
                lora={"r": 20, "loraAlpha": "20", "loraDropout": rates[3]},
                globalBatchSize=5,
                lrSchedulerType="ConstantWithWarmup",
                warmupSteps=2,
                maxGradNorm="0.3",
                seed=4,
            ),
            make_samples(4, 13),
            pick("gate_proj", "up_proj", "k_proj"),
            output,
        ),
    ]


def train_alone(base: Path, folder: Path, linears: list[str], *, dropout: bool) -> dict[str, dict[str, torch.Tensor]]:
    """Train each job in a pool of its own."""
    weights = {}
    for index in range(4):
        own = folder / str(index)
        job = make_jobs(linears, own / "out", dropout=dropout)[index]
        pool = run_pool(base, own, [job])
        assert pool.results[job.key].state is JobState.SUCCEEDED, pool.results[job.key]
        weights[job.key] = pool.weights(job.key)
    return weights


@pytest.fixture(scope="module")
def alone(
    base: Path, linears: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, torch.Tensor]]:
    return train_alone(base, tmp_path_factory.mktemp("alone"), linears, dropout=True)


def kill_children(name: str) -> None:
    """Kill the child processes of this one whose command line holds `name`."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            is_meant = parent == os.getpid() and name.encode() in (entry / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if is_meant:
            os.kill(int(entry.name), signal.SIGKILL)


VARIANTS = {
    "one horizon after another": {},
    "whole tiles of 16": {"tile_tokens": 16, "token_capacity": 192},
    "a small capacity": {"token_capacity": 96},
    "a large capacity": {"token_capacity": 2000},
    "plans of one global batch": {"horizon_global_batches": 1},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "a larger maximum rank": {"max_rank": 64},
    "a solver in the background": {"solver_timeout_seconds": 5, "tile_tokens": 16, "token_capacity": 96},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_four_mixed_adapters_end_as_if_alone(
    base: Path,
    linears: list[str],
    alone: dict[str, dict[str, torch.Tensor]],
    tmp_path: Path,
    options: dict[str, object],
) -> None:
    pool = run_pool(base, tmp_path, make_jobs(linears, tmp_path / "out", dropout=True), **options)
    for key, want in alone.items():
        assert pool.results[key].state is JobState.SUCCEEDED, pool.results[key]
        assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_order_of_submission_does_not_matter(
    base: Path, linears: list[str], alone: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    jobs = make_jobs(linears, tmp_path / "out", dropout=True)
    pool = run_pool(base, tmp_path, [jobs[index] for index in (2, 0, 3, 1)])
    for key, want in alone.items():
        assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_fewer_slots_than_jobs_trains_all_of_them(
    base: Path, linears: list[str], alone: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    pool = run_pool(base, tmp_path, make_jobs(linears, tmp_path / "out", dropout=True), max_slots=2)
    for key, want in alone.items():
        assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_a_neighbour_that_joins_fails_and_is_replaced_changes_nothing(
    base: Path, linears: list[str], alone: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    doomed = prepare(
        make_job("doomed", learningRate="1e30", maxNonfiniteSteps=0, lrSchedulerType="Constant"),
        make_samples(9),
        tuple(linears),
        output,
    )
    replacement = prepare(make_job("replacement", maxSteps=5), make_samples(10), tuple(linears), output)
    pool = run_pool(
        base,
        tmp_path,
        make_jobs(linears, output, dropout=True),
        horizon_global_batches=1,
        at_horizon={7: lambda pool: pool.submit(doomed), 11: lambda pool: pool.submit(replacement)},
    )
    assert pool.results[doomed.key].reason == "NonFinite"
    assert pool.results[doomed.key].steps == 2  # joined at 7, failed at 9
    assert pool.results[replacement.key].state is JobState.SUCCEEDED
    for key, want in alone.items():
        assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_a_solver_killed_in_the_middle_of_the_run_changes_nothing(
    base: Path, linears: list[str], alone: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    pool = run_pool(
        base,
        tmp_path,
        make_jobs(linears, tmp_path / "out", dropout=True),
        solver_timeout_seconds=5,
        tile_tokens=16,
        token_capacity=96,
        horizon_global_batches=2,
        at_horizon=dict.fromkeys((1, 3, 5), lambda _: kill_children("solver_worker")),
    )
    for key, want in alone.items():
        assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_a_neighbour_that_leaves_changes_nothing(
    base: Path, linears: list[str], alone: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    jobs = make_jobs(linears, tmp_path / "out", dropout=True)
    left = jobs[1].key

    def leave(pool: PoolRun) -> None:
        pool.engine.remove(left)

    pool = run_pool(base, tmp_path, jobs, at_horizon={2: leave})
    assert pool.results[left].state is JobState.STOPPED
    for key, want in alone.items():
        if key != left:
            assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_plans_that_are_cut_short_again_and_again_change_nothing(
    base: Path, linears: list[str], alone: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    asked = iter(range(10**6))
    jobs = make_jobs(linears, tmp_path / "out", dropout=True)
    pool = run_pool(base, tmp_path, jobs, horizon_global_batches=16, wants_boundary=lambda: next(asked) % 3 == 2)
    assert pool.engine.horizon > 20, "every third microbatch ended a plan"
    for key, want in alone.items():
        assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_priorities_and_a_solver_change_when_steps_run_and_nothing_else(
    base: Path, linears: list[str], alone: dict[str, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    jobs = make_jobs(linears, tmp_path / "out", dropout=True)
    urgent = jobs[1].job.model_copy(update={"spec": jobs[1].job.spec.model_copy(update={"priority": 1000})})
    jobs[1] = replace(jobs[1], job=urgent)
    pool = open_pool(base, tmp_path, horizon_global_batches=2, solver_timeout_seconds=5, tile_tokens=16)
    for job in jobs:
        pool.submit(job)
    pool.engine.run_horizon()
    steps = {run.key: run.step for run in pool.engine.running}
    assert min(steps.values()) >= 1
    tokens = {run.key: run.num_tokens for run in pool.engine.running}
    others = [tokens[key] for key in tokens if key != urgent.key]
    assert tokens[urgent.key] > 1.4 * max(others)
    pool.engine.run()
    for key, want in alone.items():
        assert measure_difference(pool.weights(key), want) < TOLERANCE


def test_four_mixed_adapters_end_as_with_plain_peft(base: Path, linears: list[str], tmp_path: Path) -> None:
    jobs = make_jobs(linears, tmp_path / "out", dropout=False)
    pool = open_pool(base, tmp_path)
    initial = {}
    for job in jobs:
        slot = pool.slots.acquire(job.options)
        initial[job.key] = {key: value.clone() for key, value in pool.slots.adapter(slot).named_weights().items()}
        pool.slots.release(slot)
        pool.submit(job)
    pool.engine.run()
    for job in jobs:
        want, losses = train_with_peft(base, job, initial[job.key])
        assert pool.losses(job.key) == pytest.approx(losses, rel=1e-5)
        assert measure_difference(pool.weights(job.key), want) < TOLERANCE


def test_C06_the_shown_loss_does_not_depend_on_how_a_step_is_cut(
    base: Path, linears: list[str], tmp_path: Path
) -> None:
    """Nats per supervised token of the global batch, whether it takes 1, 2, 4 or 8 microbatches."""
    dataset = make_samples(5, 8, min_tokens=30, max_tokens=30)
    seen = []
    for samples_per_microbatch in (8, 4, 2, 1):
        folder = tmp_path / str(samples_per_microbatch)
        folder.mkdir()
        job = prepare(make_job("cut", globalBatchSize=8, maxSteps=3), dataset, tuple(linears), folder)
        pool = run_pool(base, folder, [job], token_capacity=30 * samples_per_microbatch)
        seen.append(pool.losses(job.key))
    for losses in seen[1:]:
        assert losses == pytest.approx(seen[0], rel=1e-5)
