"""What a backend reads from the slot pool, and where it adds gradients."""

from __future__ import annotations

from typing import Protocol

import torch

from multigraft_trainer.adapters.slots import AdapterOptions, ModuleGrads


class AdapterTable(Protocol):
    """Adapters by slot. Tensors live on the backend's device; a backend reads rows `[:rank]` only, never the padding.

    `name` is always one of `options(slot).target_names` of some occupied slot. Stacks may be replaced or rewritten
    between microbatches (a step, an acquire, a release), never during one.
    """

    def options(self, slot: int) -> AdapterOptions:
        """Give rank, scaling, dropout, seed and target names of the adapter in `slot`; KeyError if the slot is free."""
        ...

    def stacked_a(self, name: str) -> torch.Tensor:
        """Give A of every slot at linear layer `name`: [slots, maxRank, in], compute dtype (the base model's)."""
        ...

    def stacked_b(self, name: str) -> torch.Tensor:
        """Give B of every slot at linear layer `name`: [slots, out, maxRank], compute dtype."""
        ...

    def grads(self, slot: int, name: str) -> ModuleGrads:
        """Give the fp32 accumulators of the adapter in `slot` at `name`; the backend adds to them in place."""
        ...
