"""Read a safetensors file without trust: a plain file, its header first, then only the tensors that are asked for."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

FLOAT_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class TensorHeader:
    """What a file's header says of one tensor."""

    shape: tuple[int, ...]
    dtype: str  # safetensors' name: F32, BF16, ...


def check_plain_file(path: Path) -> None:
    """Refuse what is missing, a symbolic link, or no regular file, without opening it.

    Raises:
        ValueError: Says which of these it is.
    """
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise ValueError(f"{path.name}: {error.strerror or error}") from error
    if stat.S_ISLNK(mode):
        raise ValueError(f"{path.name}: is a symbolic link, want the file itself")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path.name}: is no regular file")


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """Read names, shapes and dtypes; no tensor data.

    Raises:
        ValueError: If it is no plain, whole safetensors file.
    """
    check_plain_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - not a dict
            return {key: TensorHeader(tuple(part.get_shape()), part.get_dtype()) for key, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name}: is no whole safetensors file: {error}") from error


def read_tensors(path: Path, keys: Iterable[str]) -> dict[str, torch.Tensor]:
    """Read the named tensors to the CPU, in their own dtype.

    Raises:
        ValueError: If it is no plain, whole safetensors file with these tensors.
    """
    check_plain_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in keys}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name}: is no whole safetensors file: {error}") from error
