"""Export an adapter as the folder that PEFT itself would save: exactly its keys, its own rank, no padding.

    adapter_config.json, adapter_model.safetensors, README.md

The folder appears whole or not at all, also where an earlier export lies.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.model_card import build_model_card
from multigraft_trainer.adapters.peft_config import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    BaseModelName,
    build_peft_config,
    encode_peft_config,
)
from multigraft_trainer.adapters.peft_tensors import build_shapes, describe_mismatch, find_nonfinite, list_some
from multigraft_trainer.adapters.slots import AdapterOptions, LinearShape
from multigraft_trainer.storage.atomic_folder import refill_folder, replace_folder, temporary_folder
from multigraft_trainer.storage.durable_files import (
    TEMP_PREFIX,
    hash_file,
    is_plain_folder,
    make_root,
    refuse_if_not_writable,
    write_new_file,
    write_new_tensors,
)

CARD_FILE = "README.md"
# The folder is a mount, or its parent is not ours to write: what the system says then.
CANNOT_REPLACE = (errno.EBUSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)
OWN_FILES = frozenset({CONFIG_FILE, WEIGHTS_FILE, CARD_FILE})


@dataclass(frozen=True)
class ExportedAdapter:
    """Where an adapter lies."""

    folder: Path
    weights_sha256: str
    weights_bytes: int


def check_output_folder(folder: Path) -> None:
    """See before any training that an adapter can be written to `folder`: makes its parents, writes and removes a try.

    Raises:
        RefusalError: OUTPUT_NOT_WRITABLE, also if the folder holds anything but an adapter, as it would be replaced.
    """
    with refuse_if_not_writable(f"output folder {folder}"):
        make_root(folder.parent)
        _check_replaceable(folder)
        try:
            _try_to_write(folder.parent, folder.name)
        except OSError as error:
            if not _must_refill(folder, error):
                raise
            _try_to_write(folder, folder.name)


def export_adapter(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    options: AdapterOptions,
    linears: Mapping[str, LinearShape],
    *,
    base: BaseModelName,
    title: str,
    dtype: torch.dtype = torch.float32,
) -> ExportedAdapter:
    """Write the adapter, replacing an earlier export.

    Args:
        weights: `Adapter.named_weights()`, on any device.
        title: Heading of the model card, such as the job's name.
        dtype: Of the written tensors; the master is fp32.

    Raises:
        RefusalError: EXPORT_INVALID if keys or shapes are not exactly those of `options`; NON_FINITE if a tensor holds
            NaN or infinity in `dtype`; OUTPUT_NOT_WRITABLE. What was in the folder is kept then.
    """
    tensors = {key: tensor.detach().to("cpu", dtype).contiguous() for key, tensor in weights.items()}
    _check_tensors(tensors, options, linears)
    num_parameters = sum(tensor.numel() for tensor in tensors.values())
    card = build_model_card(title, options, base, num_parameters=num_parameters)

    def fill(temp: Path) -> None:
        write_new_file(temp / CONFIG_FILE, encode_peft_config(build_peft_config(options, linears, base)))
        write_new_tensors(temp / WEIGHTS_FILE, tensors)
        write_new_file(temp / CARD_FILE, card.encode())

    with refuse_if_not_writable(f"output folder {folder}"):
        make_root(folder.parent)
        _check_replaceable(folder)
        _put(folder, fill)
        sha256, num_bytes = hash_file(folder / WEIGHTS_FILE)
    return ExportedAdapter(folder, sha256, num_bytes)


def _put(folder: Path, fill: Callable[[Path], None]) -> None:
    try:
        replace_folder(folder, fill)
    except OSError as error:
        if not _must_refill(folder, error):
            raise
        refill_folder(folder, fill, last=CONFIG_FILE)


def _must_refill(folder: Path, error: OSError) -> bool:
    return error.errno in CANNOT_REPLACE and is_plain_folder(folder)


def _try_to_write(parent: Path, name: str) -> None:
    """Write and remove a folder; what a killed process left of its own try goes too."""
    with temporary_folder(parent, final_name=f"try {name}") as temp:
        write_new_file(temp / CARD_FILE, b"a try\n")
        shutil.rmtree(temp)


def _check_tensors(
    tensors: Mapping[str, torch.Tensor], options: AdapterOptions, linears: Mapping[str, LinearShape]
) -> None:
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    mismatch = describe_mismatch(shapes, build_shapes(options.rank, options.target_names, linears))
    if mismatch:
        raise RefusalError(Reason.EXPORT_INVALID, f"adapter tensors: {mismatch}")
    key = find_nonfinite(tensors)
    if key is not None:
        raise RefusalError(Reason.NON_FINITE, f"{key} holds NaN or infinity in {tensors[key].dtype}")


def _check_replaceable(folder: Path) -> None:
    if not folder.is_symlink() and not folder.exists():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise OSError("is a link or a file, want a folder or nothing")
    names = {path.name for path in folder.iterdir() if not path.name.startswith(TEMP_PREFIX)}
    foreign = sorted(names - OWN_FILES)
    if foreign:
        raise OSError(
            f"holds {list_some(foreign)}; want an empty folder or one with an adapter alone, which is replaced"
        )
