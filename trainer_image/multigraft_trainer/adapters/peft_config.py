"""adapter_config.json: the small stable set of PEFT's keys that old and new readers understand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from multigraft.api.rules import JsonObject
from multigraft_trainer.adapters.slots import AdapterOptions, LinearShape

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PEFT_VERSION = "0.21.2"  # whose format these files have; the tests load them with it


@dataclass(frozen=True)
class BaseModelName:
    """How others find the base: hub name or folder, and revision of a hub model."""

    name: str
    revision: str | None = None


def build_peft_config(options: AdapterOptions, linears: Mapping[str, LinearShape], base: BaseModelName) -> JsonObject:
    """Build the content of adapter_config.json; numbers that are whole are written as integers (alpha 16, not 16.0)."""
    return {
        "base_model_name_or_path": base.name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": int(options.alpha) if options.alpha.is_integer() else options.alpha,
        "lora_dropout": options.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "peft_version": PEFT_VERSION,
        "r": options.rank,
        "revision": base.revision,
        "target_modules": choose_target_modules(options, linears),
        "task_type": "CAUSAL_LM",
        "use_rslora": options.use_rslora,
    }


def encode_peft_config(config: JsonObject) -> bytes:
    """Give the file's bytes, as PEFT lays them out: two spaces, sorted keys."""
    return (json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def choose_target_modules(options: AdapterOptions, linears: Mapping[str, LinearShape]) -> list[str] | str:
    """Choose what PEFT's config says: the job's own entries if they select exactly its targets, else full names.

    PEFT takes an entry of a list for a full name or for the end of one, from a dot on, and a text for a regular
    expression. Only the whole model can tell what else an entry matches (experts, heads), so entries come from the
    backend's resolved targets and are never made up here from last name parts.
    """
    entries = options.peft_targets
    if isinstance(entries, str):
        return entries
    selected = {name for name in linears if any(f".{name}".endswith(f".{entry}") for entry in entries)}
    return sorted(entries if selected == set(options.target_names) else options.target_names)
