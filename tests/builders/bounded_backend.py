"""A backend whose memory ends: forward and backward above a size raise what torch raises, everything else is real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from multigraft_trainer.backends.packed import PackedMicrobatch
from multigraft_trainer.backends.transformers_backend import TransformersBackend


def raise_out_of_memory(num_tokens: int) -> None:
    raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_tokens} KiB.\nGPU 0 has ...")


class BoundedBackend:
    """Passes everything on to a real backend, except what is over `most_tokens`."""

    def __init__(
        self,
        backend: TransformersBackend,
        most_tokens: int,
        *,
        on_too_large: Callable[[int], None] = raise_out_of_memory,
    ) -> None:
        self._backend = backend
        self.most_tokens = most_tokens
        self._on_too_large = on_too_large
        self.seen: list[int] = []  # tokens of each microbatch with backward

    def forward_backward(
        self, microbatch: PackedMicrobatch, *, meanwhile: Callable[[], None] | None = None
    ) -> list[float]:
        num_tokens = len(microbatch.input_ids)
        self.seen.append(num_tokens)
        # Gradients are half added when memory ends.
        losses = self._backend.forward_backward(microbatch, meanwhile=meanwhile)
        if num_tokens > self.most_tokens:
            self._on_too_large(num_tokens)
        return losses

    def forward_loss(self, microbatch: PackedMicrobatch) -> list[float]:
        return self._backend.forward_loss(microbatch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
