"""Find a job's training rows: a file in storage, or a key of a ConfigMap written to the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from multigraft.api.adapter_job import AdapterJob
from multigraft.api.reasons import Reason, RefusalError
from multigraft.manifests.config_map import ConfigMap
from multigraft_trainer.storage.fetch import fetch_file
from multigraft_trainer.storage.roots import StorageRoots

ROW_SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def find_rows(job: AdapterJob, roots: StorageRoots, config_maps: Mapping[str, ConfigMap], *, cache_dir: Path) -> Path:
    """Give a local path of the rows.

    Args:
        roots: Storage that jobs of the job's namespace may touch.
        config_maps: ConfigMaps by `namespace/name`.

    Raises:
        RefusalError: DATASET_NOT_FOUND, or as `fetch_file`.
    """
    dataset = job.spec.dataset
    if dataset.storage_uri is not None:
        return fetch_file(dataset.storage_uri, roots, field="spec.dataset.storageUri", cache_dir=cache_dir)
    assert dataset.config_map_ref is not None, "the kind's rule: exactly one source"  # noqa: S101
    name, key = dataset.config_map_ref.name, dataset.config_map_ref.key
    config_map = config_maps.get(f"{job.metadata.namespace}/{name}")
    if config_map is None or key not in config_map.files:
        what = f"ConfigMap {job.metadata.namespace}/{name}" + (
            f" has no key {key!r}" if config_map else " is not there"
        )
        raise RefusalError(Reason.DATASET_NOT_FOUND, f"spec.dataset.configMapRef: {what}")
    content = config_map.files[key]
    folder = cache_dir / "config-maps" / hashlib.sha256(content).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (key if key.endswith(ROW_SUFFIXES) else f"{key}.jsonl")
    path.write_bytes(content)
    return path
