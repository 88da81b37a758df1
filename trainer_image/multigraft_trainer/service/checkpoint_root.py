"""Where a pool's trainers keep checkpoints: one folder for all of them, so that a job may move from pod to pod."""

from __future__ import annotations

from pathlib import Path

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.service.settings import TrainerSettings
from multigraft_trainer.storage.output import open_output
from multigraft_trainer.storage.roots import StorageRoots

_FIELD = "spec.checkpoint.storageUri"
DEFAULT = "checkpoints"  # below the output root; in it a folder for each namespace, which others may not touch


def open_checkpoint_root(pool: BaseModelPool, settings: TrainerSettings) -> Path:
    """Make the folder and prove that it can be written.

    Raises:
        RefusalError: STORAGE_NOT_ALLOWED, OUTPUT_NOT_WRITABLE; NOT_SUPPORTED if it is not a mounted file system.
    """
    uri = pool.spec.checkpoint.storage_uri
    if uri is None:
        uri = f"{DEFAULT}/{pool.metadata.namespace}"
    roots = StorageRoots.build(
        read_base=settings.storage_root.resolve(),
        write_base=settings.output_root.resolve(),
        allowed=tuple(pool.spec.storage.allowed_roots),
        namespace=pool.metadata.namespace,
    )
    output = open_output(uri, roots, field=_FIELD, cache_dir=settings.cache_dir)
    if not output.location.is_local:
        text = f"{_FIELD}: got {uri!r}; checkpoints need a mounted file system, as they are renamed when complete"
        raise RefusalError(Reason.NOT_SUPPORTED, text)
    return output.path
