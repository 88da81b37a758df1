"""The pool's base model on this machine: device, weights, tokenizer, and what identifies it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from multigraft.api.base_model_pool import BaseModelPool, Dtype
from multigraft_trainer.adapters.peft_config import BaseModelName
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.backends.base_identity import fingerprint_base
from multigraft_trainer.backends.transformers_backend import TransformersBackend, open_transformers_backend
from multigraft_trainer.intake.tokenizer import IntakeTokenizer, load_tokenizer
from multigraft_trainer.storage.base_model_source import fetch_base_model

_DTYPES = {Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16, Dtype.FP32: torch.float32}


@dataclass(frozen=True)
class SharedBase:
    """Everything that all jobs of a pool share."""

    backend: TransformersBackend
    slots: SlotPool
    tokenizer: IntakeTokenizer
    name: BaseModelName
    fingerprint: str
    num_parameters: int
    num_bytes: int


def choose_device(pool: BaseModelPool) -> torch.device:
    """Take a GPU if the pool wants one and one is here, else the CPU."""
    wants_gpu = any(accelerator.name != "CPU" for accelerator in pool.spec.gpu.accelerators)
    return torch.device("cuda" if wants_gpu and torch.cuda.is_available() else "cpu")


def name_device(device: torch.device) -> str:
    """Give what a device calls itself, such as `NVIDIA H200`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def open_shared_base(pool: BaseModelPool, directory: Path, cache_dir: Path) -> SharedBase:
    """Find, check and load the base model of a pool, with its slots.

    Raises:
        RefusalError: BASE_MODEL_INVALID, REMOTE_CODE_REFUSED, NOT_SUPPORTED or STORAGE_NOT_ALLOWED.
    """
    spec = pool.spec
    folder = fetch_base_model(
        spec.base_model.storage_uri,
        revision=spec.base_model.revision,
        base=directory,
        cache_dir=cache_dir,
        field="spec.baseModel.storageUri",
    )
    device, dtype = choose_device(pool), _DTYPES[spec.base_model.dtype]
    backend = open_transformers_backend(
        folder, dtype=dtype, device=device, gradient_checkpointing=spec.batching.gradient_checkpointing
    )
    slots = SlotPool(
        backend.linears,
        max_slots=spec.slots.max,
        max_rank=spec.slots.max_rank,
        device=device,
        compute_dtype=dtype,
    )
    backend.attach(slots)
    return SharedBase(
        backend=backend,
        slots=slots,
        tokenizer=load_tokenizer(folder),
        name=BaseModelName(_build_base_name(spec.base_model.storage_uri, folder), spec.base_model.revision),
        fingerprint=fingerprint_base(folder),
        num_parameters=backend.num_parameters,
        num_bytes=backend.num_bytes,
    )


def _build_base_name(uri: str, folder: Path) -> str:
    """Name the base as others find it: the hub name, or the folder on this machine."""
    return uri.removeprefix("hf://") if uri.startswith("hf://") else str(folder)
