"""A microbatch as the backend takes it: token ids, positions, boundaries, routing, targets. Built from a plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PackedSample:
    """One sample inside the microbatch; attention never crosses its bounds."""

    start: int  # first token, inclusive
    end: int  # last token, exclusive
    draw: int  # visit number in the job's sample order; with `step` it keys the dropout


@dataclass(frozen=True)
class PackedSegment:
    """The contiguous tokens of one adapter; its samples cover [start, end) without gaps."""

    slot: int  # -1: no adapter, the base model alone
    start: int
    end: int
    step: int  # optimizer step of the adapter that these samples belong to
    loss_weight: float  # 1 / supervised tokens of the adapter's whole global batch
    samples: tuple[PackedSample, ...]
    target_positions: torch.Tensor  # [M] int64, offsets in the microbatch whose hidden state predicts a target
    target_ids: torch.Tensor  # [M] int64, the token to predict at each of them


@dataclass(frozen=True)
class PackedMicrobatch:
    """Tokens of one or more adapters, one after another; T tokens in all."""

    input_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, restarting at 0 with each sample
    segments: tuple[PackedSegment, ...]

    @property
    def samples(self) -> tuple[PackedSample, ...]:
        """Give all samples in token order."""
        return tuple(sample for segment in self.segments for sample in segment.samples)
