"""PEFT's tensors of an adapter: their names and shapes, and what is wrong with a given set.

`base_model.model.<module>.lora_A.weight` [rank, in] and `...lora_B.weight` [out, rank], where <module> is the dotted
path in the causal LM. No adapter name, no slot and no wrapper prefix is part of a key.
Source: peft.utils.save_and_load.get_peft_model_state_dict (0.21), which cuts the adapter's name out of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch

from multigraft_trainer.adapters.slots import LinearShape

PREFIX = "base_model.model."
MAX_NAMED = 5  # names that one message lists; a wrong prefix would list hundreds

Factor = Literal["A", "B"]
Shape = tuple[int, ...]


def build_key(module: str, factor: Factor) -> str:
    """Name the tensor of one factor at one linear layer."""
    return f"{PREFIX}{module}.lora_{factor}.weight"


def build_shapes(rank: int, target_names: Iterable[str], linears: Mapping[str, LinearShape]) -> dict[str, Shape]:
    """Give the exact key set of an adapter with the shape of each tensor."""
    shapes: dict[str, Shape] = {}
    for name in target_names:
        linear = linears[name]
        shapes[build_key(name, "A")] = (rank, linear.in_features)
        shapes[build_key(name, "B")] = (linear.out_features, rank)
    return shapes


def describe_mismatch(got: Mapping[str, Shape], want: Mapping[str, Shape]) -> str:
    """Say which keys are missing, which are extra and which shapes differ; empty if they are equal."""
    missing = [key for key in want if key not in got]
    extra = [key for key in got if key not in want]
    shapes = [
        f"{key} has shape {list(got[key])}, want {list(want[key])}"
        for key in want
        if key in got and got[key] != want[key]
    ]
    parts = []
    if missing:
        parts.append(f"missing {list_some(missing)}")
    if extra:
        parts.append(f"not expected {list_some(extra)}")
    if shapes:
        parts.append(list_some(shapes))
    return "; ".join(parts)


def find_nonfinite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Give the first key whose tensor holds NaN or infinity."""
    return next((key for key, tensor in tensors.items() if not torch.isfinite(tensor).all()), None)


def list_some(items: list[str]) -> str:
    """Join the first few items and count the rest."""
    more = f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
    return ", ".join(items[:MAX_NAMED]) + more
