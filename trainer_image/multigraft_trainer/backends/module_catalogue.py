"""What the clean base is made of, taken before any layer is wrapped: the ground on which targets are resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from multigraft_trainer.adapters.slots import LinearShape


@dataclass(frozen=True)
class ModuleCatalogue:
    """Names of a base model's modules, in the model's order."""

    linears: dict[str, LinearShape]  # every nn.Linear but the output head and the experts
    head: str  # output head
    embeddings: tuple[str, ...]
    experts: tuple[str, ...]  # modules and fused weights that only some tokens reach
    has_linear_experts: bool  # whether PEFT's all-linear would take experts
    others: dict[str, str]  # every other named module: name to class name


def build_catalogue(model: nn.Module) -> ModuleCatalogue:
    """Build the catalogue of a Transformers causal language model."""
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    linears: dict[str, LinearShape] = {}
    embeddings: list[str] = []
    experts = [name for name, _ in model.named_parameters() if _is_expert(name)]
    has_linear_experts = False
    others: dict[str, str] = {}
    head_name = ""
    for name, module in model.named_modules():
        if module is head:
            head_name = name
        elif _is_expert(name):
            experts.append(name)
            has_linear_experts |= isinstance(module, nn.Linear)
        elif isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
            linears[name] = LinearShape(module.in_features, module.out_features)
        elif isinstance(module, nn.Embedding):
            embeddings.append(name)
        elif name:
            others[name] = type(module).__name__
    return ModuleCatalogue(linears, head_name, tuple(embeddings), tuple(experts), has_linear_experts, others)


def _is_expert(name: str) -> bool:
    return any(part in ("experts", "expert") for part in name.split("."))
