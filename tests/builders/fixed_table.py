"""Adapters with given weights, as a backend sees them: no optimizer, NaN wherever a backend must not look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from multigraft_trainer.adapters.slots import AdapterOptions, LinearShape, ModuleGrads

Weights = dict[str, tuple[torch.Tensor, torch.Tensor]]  # A [rank, in], B [out, rank] by layer


def make_options(
    target_names: Sequence[str],
    *,
    rank: int = 8,
    alpha: float = 16.0,
    use_rslora: bool = False,
    dropout: float = 0.0,
    seed: int = 1,
) -> AdapterOptions:
    """Make the options of one adapter."""
    return AdapterOptions(rank, alpha, use_rslora, dropout, seed, tuple(target_names))


def make_weights(options: AdapterOptions, linears: Mapping[str, LinearShape], *, scale: float = 0.1) -> Weights:
    """Draw A and B from the adapter's seed; B is not zero, so that every gradient is alive."""
    generator = torch.Generator().manual_seed(options.seed)
    return {
        name: (
            torch.randn(options.rank, linears[name].in_features, generator=generator) * scale,
            torch.randn(linears[name].out_features, options.rank, generator=generator) * scale,
        )
        for name in options.target_names
    }


@dataclass
class FixedTable:
    """Implements `AdapterTable`. Padding, free slots and layers that an adapter does not target hold NaN."""

    linears: Mapping[str, LinearShape]
    adapters: Mapping[int, tuple[AdapterOptions, Weights]]  # by slot
    max_rank: int = 24
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __post_init__(self) -> None:
        num_slots = max(self.adapters, default=0) + 1
        self._a, self._b = {}, {}
        for name, shape in self.linears.items():
            self._a[name] = torch.full((num_slots, self.max_rank, shape.in_features), float("nan"))
            self._b[name] = torch.full((num_slots, shape.out_features, self.max_rank), float("nan"))
        self.accumulators: dict[int, dict[str, ModuleGrads]] = {}
        for slot, (options, weights) in self.adapters.items():
            for name, (a, b) in weights.items():
                self._a[name][slot, : options.rank] = a
                self._b[name][slot, :, : options.rank] = b
        for stacks in (self._a, self._b):
            stacks.update({name: stack.to(self.dtype).to(self.device) for name, stack in stacks.items()})
        self.zero_grads()

    def zero_grads(self) -> None:
        self.accumulators = {
            slot: {
                name: ModuleGrads(
                    torch.zeros(a.shape, dtype=torch.float32, device=self.device),
                    torch.zeros(b.shape, dtype=torch.float32, device=self.device),
                )
                for name, (a, b) in weights.items()
            }
            for slot, (_, weights) in self.adapters.items()
        }

    def options(self, slot: int) -> AdapterOptions:
        return self.adapters[slot][0]

    def stacked_a(self, name: str) -> torch.Tensor:
        return self._a[name]

    def stacked_b(self, name: str) -> torch.Tensor:
        return self._b[name]

    def grads(self, slot: int, name: str) -> ModuleGrads:
        return self.accumulators[slot][name]
