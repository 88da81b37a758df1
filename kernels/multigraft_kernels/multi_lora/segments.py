"""Which token rows belong to which adapter at one linear layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LoraSegment:
    """Contiguous token rows of one adapter that targets the layer. Rows in no segment see the frozen layer alone."""

    slot: int  # row of the stacked A and B
    start: int  # first token row, inclusive
    end: int  # last token row, exclusive
    rank: int  # rows of A and columns of B that are read; the rest of the stack is padding
    scaling: float
    grad_weight: float = 1.0  # factor of this segment's contribution to dA and dB


@dataclass(frozen=True)
class LoraGrads:
    """fp32 accumulators of one segment's adapter at the layer."""

    a: torch.Tensor  # [rank, K]
    b: torch.Tensor  # [N, rank]


def check_segments(segments: Sequence[LoraSegment], num_tokens: int, num_slots: int, max_rank: int) -> None:
    """Check that segments are ascending, disjoint, inside the tokens, and that slots and ranks exist.

    Raises:
        ValueError: Naming the segment and what is allowed.
    """
    end = 0
    for segment in segments:
        if not end <= segment.start <= segment.end <= num_tokens:
            raise ValueError(
                f"segment {segment}: want {end} <= start <= end <= {num_tokens} tokens, ascending and disjoint"
            )
        if not 0 <= segment.slot < num_slots:
            raise ValueError(f"segment {segment}: slot must be in [0, {num_slots})")
        if not 1 <= segment.rank <= max_rank:
            raise ValueError(f"segment {segment}: rank must be in [1, {max_rank}]")
        end = segment.end
