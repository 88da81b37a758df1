"""Admission and intake of one job: from its manifest to a `PreparedJob`, or one typed error. No GPU work.

The local run and the service both take their jobs in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.admission import check_job_against_pool
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft.api.schema import parse_decimal
from multigraft.manifests.config_map import ConfigMap
from multigraft_trainer.adapters.export import check_output_folder
from multigraft_trainer.adapters.optimizer import OptimizerOptions
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.adapters.start_adapter import load_start_adapter
from multigraft_trainer.admission.find_rows import find_rows
from multigraft_trainer.admission.shared_base import SharedBase
from multigraft_trainer.backends.targets import ResolvedTargets
from multigraft_trainer.checkpoints.training_spec import build_training_spec
from multigraft_trainer.engine.job_run import PreparedJob, count_total_steps
from multigraft_trainer.intake.load import load_dataset
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.samples import TokenisedDataset
from multigraft_trainer.storage.fetch import fetch_file, fetch_folder
from multigraft_trainer.storage.output import OutputFolder, open_output
from multigraft_trainer.storage.roots import Location, StorageRoots

OUTPUT_FIELD = "spec.output.storageUri"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class IntakeContext:
    """What all jobs of a run share at intake."""

    pool: BaseModelPool
    base: SharedBase
    directory: Path  # relative dataset paths start here
    output_root: Path  # relative output paths start here
    cache_dir: Path
    config_maps: Mapping[str, ConfigMap]
    private: tuple[Path, ...] = ()  # folders of the run itself, which no job may touch
    knows_uids: bool = False  # jobs are objects of an API server: another uid is another job, whatever its name
    measured_capacity: int | None = None  # tokens of a microbatch, where the pool says Auto

    def build_roots(self, namespace: str) -> StorageRoots:
        """Build the storage that jobs of a namespace may touch."""
        return StorageRoots.build(
            read_base=self.directory.resolve(),
            write_base=self.output_root.resolve(),
            allowed=tuple(self.pool.spec.storage.allowed_roots),
            namespace=namespace,
            private=[folder.resolve() for folder in self.private],
        )


@dataclass(frozen=True)
class Intake:
    """A prepared job and what its user should know."""

    prepared: PreparedJob
    notes: tuple[str, ...]


def prepare_job(job: AdapterJob, context: IntakeContext) -> Intake:
    """Check a job against its pool and base, read its rows, and try its output folder.

    Raises:
        RefusalError: With the job's first fault; nothing of the job runs then.
    """
    refusals = check_job_against_pool(job, context.pool, measured_capacity=context.measured_capacity)
    if refusals:
        text = "; ".join(f"{refusal.field}: {refusal.message}" for refusal in refusals)
        raise RefusalError(refusals[0].reason, text)
    roots = context.build_roots(job.metadata.namespace)
    targets = context.base.backend.resolve_targets(job.spec.lora.target_modules)
    options = build_adapter_options(job, targets)
    dataset = load_training_rows(job, context)
    heldout = _load_heldout(job, roots, context)
    optimizer_options = OptimizerOptions.from_spec(
        job.spec.training, total_steps=count_total_steps(job, len(dataset.samples))
    )
    start_weights, notes = _load_start(job, options, roots, context)
    prepared = PreparedJob(
        job=job,
        options=options,
        optimizer_options=optimizer_options,
        dataset=dataset,
        base=context.base.name,
        training_spec=build_training_spec(
            job, base_model=context.base.fingerprint, dataset_fingerprint=dataset.fingerprint
        ),
        output=_open_output(job, roots, context),
        uid=job.metadata.uid if context.knows_uids else None,
        heldout=heldout,
        start_weights=start_weights,
    )
    return Intake(prepared, (*_note_targets(targets.count_by_part()), *notes))


def load_training_rows(job: AdapterJob, context: IntakeContext) -> TokenisedDataset:
    """Find and tokenise a job's rows. Raises as `find_rows` and `load_dataset`."""
    roots = context.build_roots(job.metadata.namespace)
    return _load(job, find_rows(job, roots, context.config_maps, cache_dir=context.cache_dir), context)


def locate_output(job: AdapterJob, roots: StorageRoots) -> Location:
    """Say where a job writes its adapter; nothing is made there.

    Raises:
        RefusalError: STORAGE_NOT_ALLOWED.
    """
    return roots.check_write(_output_uri(job), field=OUTPUT_FIELD)


def build_adapter_options(job: AdapterJob, targets: ResolvedTargets) -> AdapterOptions:
    """Read the shape of a job's adapter."""
    lora = job.spec.lora
    return AdapterOptions(
        rank=lora.r,
        alpha=float(parse_decimal(lora.lora_alpha)),
        use_rslora=lora.use_rslora,
        dropout=float(parse_decimal(lora.lora_dropout)),
        seed=job.spec.training.seed,
        target_names=targets.names,
        peft_targets=targets.peft_entries,
    )


def _load(job: AdapterJob, path: Path, context: IntakeContext) -> TokenisedDataset:
    return load_dataset(
        path,
        options=IntakeOptions.from_spec(job.spec.dataset, job.spec.training),
        tokenizer=context.base.tokenizer,
        embedding_rows=context.base.backend.vocab_size,
        cache_dir=context.cache_dir,
    )


def _load_heldout(job: AdapterJob, roots: StorageRoots, context: IntakeContext) -> TokenisedDataset | None:
    uri = job.spec.dataset.eval_storage_uri
    if uri is None:
        return None
    path = fetch_file(uri, roots, field="spec.dataset.evalStorageUri", cache_dir=context.cache_dir)
    return _load(job, path, context)


def _load_start(
    job: AdapterJob, options: AdapterOptions, roots: StorageRoots, context: IntakeContext
) -> tuple[Mapping[str, torch.Tensor] | None, tuple[str, ...]]:
    if job.spec.resume_from is None:
        return None, ()
    folder = fetch_folder(
        job.spec.resume_from.storage_uri,
        roots,
        field="spec.resumeFrom.storageUri",
        cache_dir=context.cache_dir,
        missing=Reason.INVALID_START_ADAPTER,
        only=ADAPTER_FILES,
    )
    start = load_start_adapter(folder, options, context.base.backend.linears, base=context.base.name)
    return start.weights, start.warnings


def _open_output(job: AdapterJob, roots: StorageRoots, context: IntakeContext) -> OutputFolder:
    output = open_output(_output_uri(job), roots, field=OUTPUT_FIELD, cache_dir=context.cache_dir)
    check_output_folder(output.path)
    return output


def _output_uri(job: AdapterJob) -> str:
    return job.spec.output.storage_uri or f"adapters/{job.key}"


def _note_targets(count_by_part: Mapping[str, int]) -> tuple[str, ...]:
    if len(count_by_part) < 2:
        return ()
    counts = ", ".join(f"{part}: {count}" for part, count in count_by_part.items())
    return (f"spec.lora.targetModules matches layers in several parts of the model ({counts})",)
