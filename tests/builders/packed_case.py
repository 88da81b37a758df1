"""Made-up samples and packed microbatches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from multigraft_trainer.backends.packed import PackedMicrobatch
from multigraft_trainer.engine.pack_microbatch import SegmentSource, pack_microbatch
from multigraft_trainer.intake.samples import TokenisedSample

Part = tuple[int, Sequence[tuple[TokenisedSample, int]]]  # slot, (sample, draw) in order


def make_sample(num_tokens: int, *, num_supervised: int | None = None, seed: int = 0) -> TokenisedSample:
    """Make a sample of random ids whose last `num_supervised` tokens (default: all but the first) are targets."""
    generator = np.random.default_rng((seed, num_tokens))
    supervised = np.zeros(num_tokens, dtype=bool)
    count = max(0, num_tokens - 1) if num_supervised is None else num_supervised
    supervised[num_tokens - count :] = True
    return TokenisedSample(
        row=seed + 1, input_ids=generator.integers(0, 256, num_tokens, dtype=np.int32), supervised=supervised
    )


def make_packed(parts: Sequence[Part], *, weights: dict[int, float] | None = None, step: int = 0) -> PackedMicrobatch:
    """Pack segments; `weights` are the loss weights by slot (default 1)."""
    weights = weights or {}
    return pack_microbatch(
        [
            SegmentSource(
                slot=slot,
                samples=tuple(sample for sample, _ in samples),
                draws=tuple(draw for _, draw in samples),
                step=step,
                loss_weight=weights.get(slot, 1.0),
            )
            for slot, samples in parts
        ]
    )


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Give ||got - want|| / ||want||; NaN and a zero `want` with a non-zero `got` give values above any tolerance."""
    difference = (got.double() - want.double()).norm().item()
    size = want.double().norm().item()
    if size == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / size if difference == difference else float("inf")
