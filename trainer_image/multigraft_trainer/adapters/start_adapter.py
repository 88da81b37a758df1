"""Start from an outside PEFT adapter (`resumeFrom`): its weights only, into a fresh optimizer.

Only adapter_config.json and adapter_model.safetensors are read; whatever else lies beside them is never opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from multigraft.api.reasons import Reason, RefusalError
from multigraft.api.rules import JsonObject
from multigraft_trainer.adapters.peft_config import CONFIG_FILE, WEIGHTS_FILE, BaseModelName
from multigraft_trainer.adapters.peft_tensors import build_shapes, describe_mismatch, find_nonfinite, list_some
from multigraft_trainer.adapters.slots import AdapterOptions, LinearShape
from multigraft_trainer.adapters.start_adapter_config import check_config
from multigraft_trainer.adapters.tensor_file import (
    FLOAT_DTYPES,
    TensorHeader,
    check_plain_file,
    read_headers,
    read_tensors,
)
from multigraft_trainer.storage.durable_files import read_small_file

MAX_CONFIG_BYTES = 1024 * 1024  # PEFT writes about 1 KB; the full names of all targets of a large model come to 50 KB
# Names that torch.compile, FSDP, activation checkpointing and DDP put into the path of what they wrap.
WRAPPER_PARTS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
DDP_PREFIX = "module."


@dataclass(frozen=True)
class StartAdapter:
    """Weights to start from, and what the user should know."""

    weights: Mapping[str, torch.Tensor]  # fp32 on the CPU, by PEFT key
    warnings: tuple[str, ...]


def load_start_adapter(
    folder: Path, options: AdapterOptions, linears: Mapping[str, LinearShape], *, base: BaseModelName
) -> StartAdapter:
    """Read an adapter that has exactly the job's shape.

    Args:
        folder: Already resolved and found to be inside the allowed storage.
        base: The pool's base; only its name is compared, and only to explain a mismatch.

    Raises:
        RefusalError: INVALID_START_ADAPTER, naming the file, the key and what is wanted.
    """
    try:
        return _load(folder, options, linears, base)
    except (ValueError, OSError) as error:
        raise RefusalError(Reason.INVALID_START_ADAPTER, f"resumeFrom {folder}: {error}") from error


def _load(
    folder: Path, options: AdapterOptions, linears: Mapping[str, LinearShape], base: BaseModelName
) -> StartAdapter:
    config = _read_config(folder / CONFIG_FILE)
    try:
        warnings = list(check_config(config, options))
    except ValueError as error:
        raise ValueError(f"{CONFIG_FILE}: {error}") from error
    recorded = config.get("base_model_name_or_path")
    if recorded != base.name:
        warnings.append(f"{CONFIG_FILE} names the base {recorded!r}, the pool's is {base.name!r}")
    path = folder / WEIGHTS_FILE
    _refuse_pickle(folder)
    headers = read_headers(path)
    names = _clean_names(headers)
    if any(clean != raw for clean, raw in names.items()):
        warnings.append(f"{WEIGHTS_FILE}: wrapper prefixes were taken off its keys")
    _check_headers({clean: headers[raw] for clean, raw in names.items()}, options, linears, recorded, base)
    stored = read_tensors(path, names.values())
    weights = {clean: stored[raw].to(torch.float32) for clean, raw in names.items()}
    key = find_nonfinite(weights)
    if key is not None:
        raise ValueError(f"{WEIGHTS_FILE}: {key} holds NaN or infinity")
    return StartAdapter(weights, tuple(warnings))


def _read_config(path: Path) -> JsonObject:
    check_plain_file(path)
    try:
        return dict(**json.loads(read_small_file(path, max_bytes=MAX_CONFIG_BYTES), parse_constant=_refuse_constant))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, TypeError) as error:
        raise ValueError(f"{path.name}: is no JSON object: {error}") from error


def _refuse_pickle(folder: Path) -> None:
    if not (folder / WEIGHTS_FILE).exists() and any(folder.glob("adapter_model.bin*")):
        raise ValueError(
            f"{WEIGHTS_FILE}: is missing, and adapter_model.bin is a pickle, which is never opened; save the adapter "
            "with safe_serialization=True"
        )


def _clean_names(headers: Mapping[str, Any]) -> dict[str, str]:
    """Map each key without wrapper prefixes to the key in the file."""
    names: dict[str, str] = {}
    for raw in headers:
        clean = raw
        for part in WRAPPER_PARTS:
            clean = clean.replace(part, "")
        clean = clean.removeprefix(DDP_PREFIX)
        if clean in names:
            raise ValueError(f"{WEIGHTS_FILE}: {names[clean]} and {raw} are the same tensor")
        names[clean] = raw
    return names


def _check_headers(
    headers: Mapping[str, TensorHeader],
    options: AdapterOptions,
    linears: Mapping[str, LinearShape],
    recorded_base: Any,
    base: BaseModelName,
) -> None:
    want = build_shapes(options.rank, options.target_names, linears)
    if not headers.keys() & want.keys():
        found = list_some(list(headers)) or "no tensor at all"
        raise ValueError(f"{WEIGHTS_FILE}: no key fits the job; it holds {found}; want {list_some(list(want))}")
    mismatch = describe_mismatch({key: header.shape for key, header in headers.items()}, want)
    if mismatch:
        raise ValueError(
            f"{WEIGHTS_FILE}, made for base {recorded_base!r}, does not fit base {base.name!r}: {mismatch}"
        )
    for key, header in headers.items():
        if header.dtype not in FLOAT_DTYPES:
            raise ValueError(f"{WEIGHTS_FILE}: {key} is {header.dtype}, want one of {list(FLOAT_DTYPES)}")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{CONFIG_FILE}: holds {text}, which is no JSON")
