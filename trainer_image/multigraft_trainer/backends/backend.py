"""What the engine asks of a training backend."""

from __future__ import annotations

from collections.abc import Callable
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

    def prepare(self, microbatch: PackedMicrobatch) -> None:
        """Do the host's part of the microbatch that comes next, while the device works on another one.

        Only a hint: it changes no result and raises nothing. It holds for this very object, if that is what
        `forward_backward` gets next, and if no slot is acquired or released until then.
        """
        ...

    def forward_backward(
        self, microbatch: PackedMicrobatch, *, meanwhile: Callable[[], None] | None = None
    ) -> list[float]:
        """Run forward and backward; add each adapter's gradients to its accumulators in the slot pool.

        Args:
            meanwhile: Called once the device has all its work and before the losses are waited for.
        Returns:
            Per segment, the sum of its token losses in nats (not divided by anything; NaN stays NaN).
        """
        ...

    def forward_loss(self, microbatch: PackedMicrobatch) -> list[float]:
        """Run forward only, without dropout; returns as `forward_backward`."""
        ...
