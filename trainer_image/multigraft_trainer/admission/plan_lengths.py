"""Sample lengths for `multigraft plan`: the intake of a run with the tokenizer alone, no weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft.manifests.config_map import ConfigMap
from multigraft_trainer.admission.find_rows import find_rows
from multigraft_trainer.intake.load import load_dataset
from multigraft_trainer.intake.options import IntakeOptions
from multigraft_trainer.intake.tokenizer import load_tokenizer
from multigraft_trainer.storage.base_model_source import fetch_base_model
from multigraft_trainer.storage.roots import StorageRoots


def count_lengths(
    pool: BaseModelPool, jobs: Sequence[AdapterJob], config_maps: Mapping[str, ConfigMap], directory: Path
) -> dict[str, list[int]]:
    """Count the tokens of every sample of the jobs, by job key.

    Args:
        pool: The pool whose base model's tokenizer counts.
        jobs: Jobs of the pool.
        config_maps: ConfigMaps by `namespace/name`.
        directory: Folder that relative paths start from.

    Raises:
        RefusalError: If the base or a dataset cannot be read; the message names the job.
    """
    with tempfile.TemporaryDirectory(prefix="multigraft-plan-") as temporary:
        cache_dir = Path(temporary)
        folder = fetch_base_model(
            pool.spec.base_model.storage_uri,
            revision=pool.spec.base_model.revision,
            base=directory,
            cache_dir=cache_dir,
            field="spec.baseModel.storageUri",
        )
        tokenizer = load_tokenizer(folder)
        embedding_rows = _read_vocab_size(folder)
        lengths = {}
        for job in jobs:
            try:
                roots = StorageRoots.build(
                    read_base=directory.resolve(),
                    write_base=cache_dir.resolve(),
                    allowed=tuple(pool.spec.storage.allowed_roots),
                    namespace=job.metadata.namespace,
                )
                dataset = load_dataset(
                    find_rows(job, roots, config_maps, cache_dir=cache_dir),
                    options=IntakeOptions.from_spec(job.spec.dataset, job.spec.training),
                    tokenizer=tokenizer,
                    embedding_rows=embedding_rows,
                )
            except RefusalError as error:
                raise RefusalError(error.reason, f"job {job.key}: {error.message}") from error
            lengths[job.key] = [sample.num_tokens for sample in dataset.samples]
    return lengths


def _read_vocab_size(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    if type(size) is not int:
        raise RefusalError(Reason.BASE_MODEL_INVALID, f"{folder.name}/config.json: want a whole number vocab_size")
    return size
