"""How long each job's samples are: from a file, or from the tokenizer, if the trainer's package is installed.

A lengths file is JSON: `{"<namespace>/<name>" or "<name>": [tokens of sample 1, tokens of sample 2, ...]}`. Counting
with the tokenizer needs no weights and no GPU; the function for it is found by entry point, since this package imports
neither tokenizers nor the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft.dry_run.json_file import load_json_object
from multigraft.manifests.config_map import ConfigMap

LENGTHS_GROUP = "multigraft.lengths"
"""Entry points of this group are `CountLengths` functions."""

Lengths = Mapping[str, Sequence[int]]
CountLengths = Callable[[BaseModelPool, Sequence[AdapterJob], Mapping[str, ConfigMap], Path], Lengths]
"""Pool, its jobs, ConfigMaps by `namespace/name`, and the folder that relative paths start from."""


def load_lengths(path: Path, jobs: Sequence[AdapterJob]) -> dict[str, list[int]]:
    """Load the lengths of the jobs' samples from a lengths file, by job key.

    Raises:
        RefusalError: INVALID_DATASET, if the file is not of the form above, or a job is missing or has no samples.
    """
    data = load_json_object(path, "lengths file", Reason.INVALID_DATASET)
    return {job.key: _read_list(path, job, data) for job in jobs}


def _read_list(path: Path, job: AdapterJob, data: Mapping[str, object]) -> list[int]:
    lengths = data.get(job.key, data.get(job.metadata.name))
    if lengths is None:
        raise RefusalError(
            Reason.INVALID_DATASET, f"lengths file {path}: no entry {job.key!r} or {job.metadata.name!r}"
        )
    if not isinstance(lengths, list) or not lengths or not all(type(one) is int and one > 0 for one in lengths):
        raise RefusalError(
            Reason.INVALID_DATASET, f"lengths file {path}: {job.key}: want a list of one or more whole numbers above 0"
        )
    return lengths


def count_lengths(
    pool: BaseModelPool, jobs: Sequence[AdapterJob], config_maps: Mapping[str, ConfigMap], directory: Path
) -> Lengths:
    """Count the lengths of the jobs' samples with the base model's tokenizer, by job key.

    Raises:
        RefusalError: If a dataset or the base cannot be read, or no package that can count is installed.
    """
    points = sorted(entry_points(group=LENGTHS_GROUP), key=lambda point: point.name)
    if not points:
        raise RefusalError(Reason.NOT_SUPPORTED, "no package here can count tokens; give --lengths FILE")
    try:
        count: CountLengths = points[0].load()
    except ModuleNotFoundError as error:
        text = f"counting tokens needs {error.name}: install multigraft[trainer], or give --lengths FILE"
        raise RefusalError(Reason.NOT_SUPPORTED, text) from error
    return count(pool, jobs, config_maps, directory)
