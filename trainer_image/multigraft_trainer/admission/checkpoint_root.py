"""Where the checkpoints of a pool lie: the folder that `spec.checkpoint.storageUri` names, checked and tried."""

from __future__ import annotations

from pathlib import Path

from multigraft.api.base_model_pool import BaseModelPool
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.storage.output import make_writable_folder
from multigraft_trainer.storage.roots import StorageRoots

_FIELD = "spec.checkpoint.storageUri"


def open_checkpoint_root(pool: BaseModelPool, *, storage_root: Path, output_root: Path, default: str) -> Path:
    """Make the folder and prove that it can be written.

    Args:
        storage_root: Where relative paths that are read start.
        output_root: Where relative paths that are written start.
        default: Used if the pool names none.

    Raises:
        RefusalError: STORAGE_NOT_ALLOWED, OUTPUT_NOT_WRITABLE; NOT_SUPPORTED if it is not a mounted file system.
    """
    uri = pool.spec.checkpoint.storage_uri
    roots = StorageRoots.build(
        read_base=storage_root.resolve(),
        write_base=output_root.resolve(),
        allowed=tuple(pool.spec.storage.allowed_roots),
        namespace=pool.metadata.namespace,
    )
    location = roots.check_checkpoints(default if uri is None else uri, field=_FIELD)
    if not location.is_local:
        text = f"{_FIELD}: got {uri!r}; checkpoints need a mounted file system, as they are renamed when complete"
        raise RefusalError(Reason.NOT_SUPPORTED, text)
    make_writable_folder(location)
    return Path(roots.check_checkpoints(location.path, field=_FIELD).path)  # it may have become a link: look again
