"""Load a checked Hugging Face folder as a frozen causal language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.attention import ATTENTION_NAME
from multigraft_trainer.backends.base_folder import check_base_folder

_SHOWN = 300


def load_base_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """Load the model, frozen, in evaluation mode, with the packed attention.

    Raises:
        RefusalError: As `check_base_folder`; BaseModelInvalid too if tensors are missing, left over, of the wrong shape
            or not finite; NotSupported if the architecture does not take an attention function from outside.
    """
    check_base_folder(folder)
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=None,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # `_check_loading` names them; Transformers would only print them
            attn_implementation=ATTENTION_NAME,
            output_loading_info=True,
        )
        loaded[0].to(device).eval().requires_grad_(False)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise RefusalError(Reason.OUT_OF_MEMORY, f"base model: {folder} does not fit: {error}") from error
    except Exception as error:  # whatever a folder makes Transformers raise is a fault of the folder
        raise _describe(error, folder) from error
    model, info = loaded
    _check_loading(info)
    _check_finite(model)
    return model


def _describe(error: Exception, folder: Path) -> RefusalError:
    if isinstance(error, KeyError) and ATTENTION_NAME in str(error):
        return RefusalError(
            Reason.NOT_SUPPORTED, f"base model: this architecture takes no attention function from outside ({folder})"
        )
    text = " ".join(str(error).split())[:_SHOWN]  # some are pages long
    return RefusalError(Reason.BASE_MODEL_INVALID, f"Transformers cannot load {folder}: {text}")


def _check_loading(info: dict[str, Any]) -> None:
    faults = {
        "missing_keys": "are missing",
        "unexpected_keys": "belong to no part of the model",
        "mismatched_keys": "have the wrong shape",
        "error_msgs": "were reported",
    }
    for key, what in faults.items():
        names = sorted(str(name) for name in info.get(key) or ())
        if names:
            raise RefusalError(
                Reason.BASE_MODEL_INVALID, f"base model: {len(names)} tensors {what}, the first is {names[0]}"
            )


def _check_finite(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise RefusalError(Reason.BASE_MODEL_INVALID, f"base model: {name} holds NaN or infinity")
