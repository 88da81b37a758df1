"""What the engine asks of a training backend."""

from __future__ import annotations

from typing import Protocol

from multigraft_trainer.adapters.slots import LinearShape
from multigraft_trainer.backends.packed import PackedMicrobatch


class Backend(Protocol):
    """A frozen base model that runs packed microbatches through the adapters in its slots."""

    @property
    def linears(self) -> dict[str, LinearShape]:
        """Give every linear layer that an adapter may target, by full module name, in the model's order."""
        ...

    @property
    def vocab_size(self) -> int:
        """Give the number of rows of the embedding table; every token id is below it."""
        ...

    def forward_backward(self, microbatch: PackedMicrobatch) -> list[float]:
        """Run forward and backward; add each adapter's gradients to its accumulators in the slot pool.

        Returns:
            Per segment, the sum of its token losses in nats (not divided by anything; NaN stays NaN).
        """
        ...

    def forward_loss(self, microbatch: PackedMicrobatch) -> list[float]:
        """Run forward only, without dropout; returns as `forward_backward`."""
        ...
