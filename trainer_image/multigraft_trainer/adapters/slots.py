"""Slots: places for adapters on one shared base, and what the backend needs to know of the adapter in each."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LinearShape:
    """A linear layer of the base that may be adapted."""

    in_features: int
    out_features: int


@dataclass(frozen=True)
class AdapterOptions:
    """What an adapter's spec says of its shape, targets resolved against the clean base."""

    rank: int
    alpha: float
    use_rslora: bool
    dropout: float  # 0 <= p < 1
    seed: int
    target_names: tuple[str, ...]  # full module names, in the base model's order
    peft_targets: tuple[str, ...] | str = ()  # what a PEFT config says to select these; empty: their full names

    @property
    def scaling(self) -> float:
        """Give the factor of the update: alpha / rank, or alpha / sqrt(rank) with rsLoRA (arXiv:2312.03732)."""
        return self.alpha / (self.rank**0.5 if self.use_rslora else self.rank)


@dataclass(frozen=True)
class ModuleGrads:
    """fp32 gradient accumulators of one adapter at one linear layer; the backend adds to them in place."""

    a: torch.Tensor  # [rank, in]
    b: torch.Tensor  # [out, rank]
