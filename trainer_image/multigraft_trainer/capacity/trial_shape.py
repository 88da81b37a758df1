"""Microbatches that stand for what jobs will bring: lengths, and the packed tensors of random tokens.

Every token but the first of a sample is supervised, which is the most that a job can ask of the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multigraft_trainer.backends.packed import PackedMicrobatch
from multigraft_trainer.engine.pack_microbatch import SegmentSource, pack_microbatch
from multigraft_trainer.intake.samples import TokenisedSample

Shape = tuple[tuple[int, ...], ...]
"""Lengths of the samples of each adapter, in tokens."""


def build_hardest_shape(num_tokens: int, *, num_adapters: int, tile_tokens: int, longest: int | None) -> Shape:
    """Build the shape that takes the most memory: one adapter with samples as long as can be, a tile for each other.

    Args:
        num_tokens: Tokens in all.
        num_adapters: Adapters among which they are, if there is a tile for each.
        tile_tokens: Tokens of a tile.
        longest: Longest sample that the model takes; None: any.
    """
    num_others = min(num_adapters - 1, (num_tokens - 1) // tile_tokens)
    first = num_tokens - num_others * tile_tokens
    return (_cut(first, longest or first), *((tile_tokens,) for _ in range(num_others)))


def build_even_shape(num_tokens: int, *, num_adapters: int, sample_tokens: int) -> Shape:
    """Build a shape with equal shares for the adapters, cut into samples of `sample_tokens` and a rest."""
    shares = [num_tokens // num_adapters] * num_adapters
    shares[0] += num_tokens % num_adapters
    return tuple(_cut(share, sample_tokens) for share in shares if share)


def _cut(num_tokens: int, sample_tokens: int) -> tuple[int, ...]:
    full, rest = divmod(num_tokens, sample_tokens)
    return (sample_tokens,) * full + ((rest,) if rest else ())


def build_trial_microbatch(shape: Shape, slots: Sequence[int], *, vocab_size: int) -> PackedMicrobatch:
    """Build the microbatch; the adapter in `slots[i]` gets the samples of `shape[i]`. Same shape, same tokens."""
    generator = np.random.default_rng(0)
    num_targets = max(1, sum(length - 1 for lengths in shape for length in lengths))
    sources = []
    for slot, lengths in zip(slots, shape, strict=False):
        samples = tuple(
            TokenisedSample(
                row=row + 1,
                input_ids=generator.integers(0, vocab_size, length, dtype=np.int32),
                supervised=np.arange(length) > 0,
            )
            for row, length in enumerate(lengths)
        )
        sources.append(
            SegmentSource(
                slot=slot, samples=samples, draws=tuple(range(len(samples))), step=0, loss_weight=1 / num_targets
            )
        )
    return pack_microbatch(sources)
