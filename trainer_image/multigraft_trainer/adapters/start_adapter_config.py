"""Check the adapter_config.json of an outside adapter: every key is honoured, harmless, or refused by name."""

from __future__ import annotations

import math
from typing import Any

from multigraft.api.rules import JsonObject
from multigraft_trainer.adapters.peft_tensors import list_some
from multigraft_trainer.adapters.slots import AdapterOptions

OLD_KEYS = ("enable_lora", "merge_weights")  # PEFT before 0.3
# They only select modules; the exact key set of the weights decides about that.
SELECTORS = ("target_modules", "layers_to_transform", "layers_pattern", "exclude_modules")
# Say nothing about the function that the weights compute, or are a training option of the earlier run.
HARMLESS = (
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "lora_dropout",
    "peft_version",
    "revision",
)
# Values that PEFT writes for options that are off, or that change nothing.
ACCEPTED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none",),
    "fan_in_fan_out": (False, None),
    # The others (pissa, olora, corda, loftq, ...) train against a base whose weights they changed.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
    "megatron_core": ("megatron.core", None),  # names a module that only counts with megatron_config
    "qalora_group_size": (16, None),  # only counts with use_qalora
}
REQUIRED = ("peft_type", "r", "lora_alpha")


def check_config(config: JsonObject, options: AdapterOptions) -> tuple[str, ...]:
    """Compare a PEFT config with the job that starts from it; give warnings.

    Raises:
        ValueError: Names the key, its value and what is allowed.
    """
    missing = [key for key in REQUIRED if key not in config]
    if missing:
        raise ValueError(f"key {list_some(missing)} is missing")
    _check_scaling(config, options)
    _check_targets(config.get("target_modules"), options)
    for key, value in config.items():
        if key not in ("r", "lora_alpha", "use_rslora", *SELECTORS, *HARMLESS):
            _check_key(key, value)
    return tuple(f"{key} is a key of a very old PEFT version; it is ignored" for key in OLD_KEYS if key in config)


def _check_key(key: str, value: Any) -> None:
    if key in ACCEPTED:
        # `1 in (True,)` holds in Python; JSON's 1 is not true.
        if not any(type(value) is type(allowed) and value == allowed for allowed in ACCEPTED[key]):
            raise ValueError(f"{key}: got {value!r}, want {' or '.join(map(repr, ACCEPTED[key]))}")
    elif not (value is None or value is False or value in ([], {}, "")):
        raise ValueError(f"{key}: got {value!r}, which is not supported; want it absent, null or false")


def _check_scaling(config: JsonObject, options: AdapterOptions) -> None:
    """The start weights mean what they meant only under the same rank, alpha and rule of scaling."""
    rank, alpha, use_rslora = config["r"], config["lora_alpha"], config.get("use_rslora")
    if type(rank) is not int or rank < 1:
        raise ValueError(f"r: got {rank!r}, want an integer of at least 1")
    if type(alpha) not in (int, float) or not 0 < alpha < math.inf:
        raise ValueError(f"lora_alpha: got {alpha!r}, want a number above 0")
    if use_rslora not in (True, False, None) or type(use_rslora) is int:
        raise ValueError(f"use_rslora: got {use_rslora!r}, want true or false")
    pairs = (
        ("r", rank, "lora.r", options.rank),
        ("lora_alpha", alpha, "lora.loraAlpha", options.alpha),
        ("use_rslora", bool(use_rslora), "lora.useRslora", options.use_rslora),
    )
    for key, got, field, want in pairs:
        if got != want:
            raise ValueError(f"{key} is {got}, the job's {field} is {want}; want them equal")


def _check_targets(entries: Any, options: AdapterOptions) -> None:
    if entries is None or isinstance(entries, str):
        return
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"target_modules: got {entries!r}, want a list of names or one pattern")
    idle = [
        entry
        for entry in entries
        if not any(name == entry or name.endswith(f".{entry}") for name in options.target_names)
    ]
    if idle:
        last_parts = sorted({name.rpartition(".")[2] for name in options.target_names})
        raise ValueError(f"target_modules: {list_some(idle)} is no target of the job, whose targets are {last_parts}")
