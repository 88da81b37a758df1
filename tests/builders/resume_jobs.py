"""Three small jobs that differ in length, batch, dropout and schedule, for resume tests."""

from __future__ import annotations

from pathlib import Path

from builders.jobs import make_job, make_samples, prepare
from multigraft_trainer.engine.job_run import PreparedJob


def make_resume_jobs(linears: list[str], folder: Path) -> list[PreparedJob]:
    """Prepare the jobs; their adapters go below `folder`."""
    attention = tuple(name for name in linears if "self_attn" in name)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        prepare(
            make_job("short", lora={"r": 3, "loraDropout": "0.3"}, globalBatchSize=3, maxSteps=5, seed=1),
            make_samples(1, 7, max_tokens=20),
            attention,
            folder,
        ),
        prepare(
            make_job(
                "long", lora={"r": 8, "loraDropout": "0.05"}, globalBatchSize=2, maxSteps=10, warmupSteps=3, seed=2
            ),
            make_samples(2, 9, max_tokens=20),
            tuple(linears),
            folder,
        ),
        prepare(
            make_job("cosine", lora={"r": 1}, globalBatchSize=4, numTrainEpochs=3, lrSchedulerType="Cosine", seed=3),
            make_samples(3, 9, max_tokens=20),
            attention[:3],
            folder,
        ),
    ]
