"""What one trainer process is told from outside: files, folders, ports and its own name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft.manifests.load import load_manifests


@dataclass(frozen=True)
class TrainerSettings:
    """Everything but the pool itself."""

    pool_file: Path  # manifest of the BaseModelPool, JSON or YAML, with its metadata.uid
    pod_name: str
    token_file: Path  # bearer tokens of the control port, one a line
    storage_root: Path  # relative dataset and model paths start here
    output_root: Path  # relative output and checkpoint paths start here; outlives the pod
    cache_dir: Path  # tokenised datasets, downloads; may be lost
    state_dir: Path  # the last desired set; lives as long as the pod
    host: str = "0.0.0.0"  # noqa: S104 (a pod's own address is not known before it runs; a NetworkPolicy guards it)
    control_port: int = 8080
    metrics_port: int = 9090
    linger_seconds: float = 30.0  # how long a base that cannot be loaded is told of before the process ends


def load_pool(path: Path) -> BaseModelPool:
    """Read the manifest of the pool that this trainer serves.

    Raises:
        RefusalError: INVALID_SPEC, if the file is not exactly one valid BaseModelPool with a uid.
    """
    if not path.is_file():
        raise RefusalError(Reason.INVALID_SPEC, f"--pool-file {path}: no such file")
    found = load_manifests([path])
    if found.problems:
        raise RefusalError(Reason.INVALID_SPEC, "; ".join(str(problem) for problem in found.problems[:5]))
    if len(found.pools) != 1:
        raise RefusalError(Reason.INVALID_SPEC, f"--pool-file {path}: got {len(found.pools)} BaseModelPools, want 1")
    pool = found.pools[0]
    if pool.metadata.uid is None:
        raise RefusalError(Reason.INVALID_SPEC, f"--pool-file {path}: BaseModelPool {pool.key} has no metadata.uid")
    return pool
