"""AdapterJobs and prepared jobs for engine tests: random tokens in place of intake, everything else real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from multigraft.api.adapter_job import AdapterJob
from multigraft_trainer.adapters.optimizer import OptimizerOptions
from multigraft_trainer.adapters.peft_config import BaseModelName
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.checkpoints.training_spec import build_training_spec
from multigraft_trainer.engine.job_run import PreparedJob, count_total_steps
from multigraft_trainer.intake.samples import IntakeReport, TokenisedDataset, TokenisedSample
from multigraft_trainer.storage.output import OutputFolder, open_output
from multigraft_trainer.storage.roots import StorageRoots


def make_job(
    name: str, *, namespace: str = "team-a", lora: dict[str, Any] | None = None, spec: dict[str, Any] | None = None,
    **training: Any,
) -> AdapterJob:  # fmt: skip
    """Build a job; `lora`, `spec` and keyword arguments are camelCase fields of the manifest."""
    training.setdefault("learningRate", "1e-2")
    if "numTrainEpochs" not in training:
        training.setdefault("maxSteps", 20)
    return AdapterJob.model_validate(
        {
            "apiVersion": "multigraft.dev/v1alpha1",
            "kind": "AdapterJob",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "poolRef": {"name": "tiny"},
                "dataset": {"storageUri": "rows.jsonl"},
                "lora": lora or {},
                "training": training,
                **(spec or {}),
            },
        }
    )


def make_samples(
    seed: int, num_samples: int = 24, *, min_tokens: int = 4, max_tokens: int = 40, vocab_size: int = 256
) -> TokenisedDataset:
    """Make samples of random lengths and tokens; about half of each sample is supervised."""
    rng = np.random.default_rng(seed)
    samples = []
    for row in range(num_samples):
        num_tokens = int(rng.integers(min_tokens, max_tokens + 1))
        supervised = np.zeros(num_tokens, dtype=np.bool_)
        supervised[num_tokens // 2 :] = True
        supervised[0] = False
        ids = rng.integers(0, vocab_size, num_tokens).astype(np.int32)
        samples.append(TokenisedSample(row=row + 1, input_ids=ids, supervised=supervised))
    report = IntakeReport(num_rows=num_samples, num_trained=num_samples, num_truncated=0)
    return TokenisedDataset(samples=tuple(samples), report=report, fingerprint=f"random-{seed}-{num_samples}")


def open_job_output(job: AdapterJob, output_root: Path) -> OutputFolder:
    """Open the folder of a job's adapter below `output_root`."""
    roots = StorageRoots.build(read_base=output_root, write_base=output_root, namespace=job.metadata.namespace)
    return open_output(f"adapters/{job.key}", roots, field="spec.output.storageUri", cache_dir=output_root / "cache")


def prepare(
    job: AdapterJob, dataset: TokenisedDataset, target_names: tuple[str, ...], output_root: Path, **changes: Any
) -> PreparedJob:
    """Prepare a job as the runner would after intake."""
    lora, training = job.spec.lora, job.spec.training
    fields: dict[str, Any] = {
        "job": job,
        "options": AdapterOptions(
            rank=lora.r,
            alpha=float(lora.lora_alpha),
            use_rslora=lora.use_rslora,
            dropout=float(lora.lora_dropout),
            seed=training.seed,
            target_names=target_names,
        ),
        "optimizer_options": OptimizerOptions.from_spec(
            training, total_steps=count_total_steps(job, len(dataset.samples))
        ),
        "dataset": dataset,
        "base": BaseModelName("tiny"),
        "training_spec": build_training_spec(job, base_model="tiny", dataset_fingerprint=dataset.fingerprint),
        "output": open_job_output(job, output_root),
    }
    return PreparedJob(**{**fields, **changes})
