"""Check a Hugging Face folder before anything of it is imported or loaded.

The folder is someone else's data. Only JSON and safetensors are read; a folder that asks for code of its own, or whose
weights are pickles, incomplete or of an unknown kind, is refused here with the file and the reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from multigraft.api.reasons import Reason, RefusalError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_READ_BY_NAME = ("*.json", "*.jinja", "*.safetensors", "*.model", "*.txt")
_MAX_JSON_BYTES = 64 * 1024 * 1024  # an index of 100,000 tensors is about 10 MB

# RoPE types whose frequencies depend on the longest position in the microbatch: a neighbour would change the result.
_BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


def check_base_folder(folder: Path) -> dict[str, Any]:
    """Check the folder and give its config.json.

    Raises:
        RefusalError: RemoteCodeRefused if a JSON file asks for code, NotSupported for a kind of model that is not
            trained here, BaseModelInvalid if files are missing, unreadable or unsafe.
    """
    if not folder.is_dir():
        raise _invalid(f"{folder} is not a folder")
    _refuse_special_files(folder)
    for path in sorted(folder.glob("*.json")):
        _refuse_code(path)
    if (folder / "adapter_config.json").exists():
        raise _invalid(f"{folder} holds adapter_config.json: a base model folder is wanted, not an adapter")
    config = _read_config(folder)
    num_tensors = _check_weights(folder)
    num_layers = config.get("num_hidden_layers")
    if isinstance(num_layers, int) and num_layers > num_tensors:  # else Transformers would build them all first
        raise _invalid(f"config.json: num_hidden_layers is {num_layers}, but the weights hold {num_tensors} tensors")
    return config


def _refuse_special_files(folder: Path) -> None:
    """Refuse what cannot be read as a file: opening a FIFO would wait for ever."""
    for pattern in _READ_BY_NAME:
        for path in sorted(folder.glob(pattern)):
            if not path.is_file():
                raise _invalid(f"{path.name} is a folder, a broken link or a special file; a regular file is wanted")


def _refuse_code(path: Path) -> None:
    if path.name in ("tokenizer.json", _INDEX):
        return
    data = _read_json(path)
    if isinstance(data, dict) and data.get("auto_map"):
        raise RefusalError(
            Reason.REMOTE_CODE_REFUSED,
            f"{path.name} of the base model has auto_map, which runs code from the model folder; allowed are "
            "architectures that are part of Transformers",
        )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise _invalid(f"config.json is missing in {folder}")
    config = _read_json(path)
    if not isinstance(config, dict):
        raise _invalid("config.json must hold a JSON object")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise _invalid(f"config.json: model_type is {model_type!r}, which Transformers does not know")
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _unsupported(f"config.json: model_type {model_type!r} has no causal language model")
    _refuse_unsupported(config)
    return config


def _refuse_unsupported(config: dict[str, Any]) -> None:
    if config.get("quantization_config"):
        method = (config["quantization_config"] or {}).get("quant_method")
        raise _unsupported(f"config.json: quantization_config ({method!r}); allowed are fp32, bf16 and fp16 weights")
    if config.get("is_encoder_decoder"):
        raise _unsupported("config.json: is_encoder_decoder; allowed are decoder-only models")
    for part in ("vision_config", "audio_config", "text_config"):
        if config.get(part):
            raise _unsupported(f"config.json: {part}; allowed are plain text models")
    for rope_type in _find_rope_types(config):
        if rope_type in _BATCH_DEPENDENT_ROPE:
            raise _unsupported(
                f"config.json: RoPE type {rope_type!r} depends on the longest sample of a microbatch, so that "
                "neighbours would change an adapter's result"
            )


def _find_rope_types(config: dict[str, Any]) -> list[str]:
    """Collect `rope_type` (or the older `type`) of rope_scaling and rope_parameters, one level of layer types deep."""
    found = []
    for key in ("rope_scaling", "rope_parameters"):
        values = config.get(key) or {}
        nested = [value for value in values.values() if isinstance(value, dict)]
        found += [str(entry.get("rope_type", entry.get("type", ""))) for entry in (values, *nested)]
    return found


def _check_weights(folder: Path) -> int:
    """Check the files of weights and give the number of tensors in them."""
    if (folder / _INDEX).is_file():
        files = _read_index(folder / _INDEX)
        for name, keys in files.items():
            if not (folder / name).is_file():
                raise _invalid(f"{_INDEX} lists {name}, which is not in the folder")
            missing = keys - _read_keys(folder / name)
            if missing:
                raise _invalid(f"{name} lacks the tensor {min(missing)}, which {_INDEX} lists there")
        return sum(map(len, files.values()))
    if (folder / _SINGLE).is_file():
        return len(_read_keys(folder / _SINGLE))
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    found = f"; {pickles[0]} is a pickle and is never opened" if pickles else ""
    raise _invalid(f"neither {_SINGLE} nor {_INDEX} in {folder}{found}")


def _read_index(path: Path) -> dict[str, set[str]]:
    """Give the tensors that the index expects in each file."""
    index = _read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _invalid(f"{path.name}: weight_map must be a non-empty object")
    files: dict[str, set[str]] = {}
    for key, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise _invalid(f"{path.name}: {key} lies in {name!r}; allowed are .safetensors files of the folder itself")
        files.setdefault(name, set()).add(key)
    return files


def _read_keys(path: Path) -> set[str]:
    try:
        with safe_open(str(path), framework="pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise _invalid(f"{path.name} is not a whole safetensors file: {error}") from error


def _read_json(path: Path) -> Any:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise _invalid(f"{path.name} has {path.stat().st_size} bytes, allowed are {_MAX_JSON_BYTES}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise _invalid(f"{path.name} is not JSON: {error}") from error


def _invalid(message: str) -> RefusalError:
    return RefusalError(Reason.BASE_MODEL_INVALID, message)


def _unsupported(message: str) -> RefusalError:
    return RefusalError(Reason.NOT_SUPPORTED, message)
