"""Held-out loss of an adapter, or of the base model alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from multigraft_trainer.backends.backend import Backend
from multigraft_trainer.engine.pack_microbatch import SegmentSource, pack_microbatch
from multigraft_trainer.intake.samples import TokenisedSample

BASE_ALONE = -1


def evaluate_loss(
    backend: Backend, samples: Sequence[TokenisedSample], *, slot: int = BASE_ALONE, token_capacity: int
) -> float:
    """Measure the mean loss in nats per supervised token, without dropout; NaN if nothing is supervised.

    Args:
        backend: The frozen base with its slots.
        samples: Held-out samples.
        slot: The adapter to apply; `BASE_ALONE` for none.
        token_capacity: Most tokens of one forward.
    """
    loss_sum = sum(sum_losses(backend, chunk, slot=slot) for chunk in _cut(samples, token_capacity))
    num_supervised = sum(sample.num_supervised for sample in samples)
    return loss_sum / num_supervised if num_supervised else math.nan


def sum_losses(backend: Backend, samples: Sequence[TokenisedSample], *, slot: int) -> float:
    """Sum the token losses of samples that fit one forward, in nats, without dropout."""
    draws = tuple(range(len(samples)))  # without dropout any draw will do
    source = SegmentSource(slot=slot, samples=tuple(samples), draws=draws, step=0, loss_weight=1.0)
    return sum(backend.forward_loss(pack_microbatch([source])))


def _cut(samples: Sequence[TokenisedSample], token_capacity: int) -> Iterator[tuple[TokenisedSample, ...]]:
    chunk: list[TokenisedSample] = []
    num_tokens = 0
    for sample in samples:
        if chunk and num_tokens + sample.num_tokens > token_capacity:
            yield tuple(chunk)
            chunk, num_tokens = [], 0
        chunk.append(sample)
        num_tokens += sample.num_tokens
    if chunk:
        yield tuple(chunk)
