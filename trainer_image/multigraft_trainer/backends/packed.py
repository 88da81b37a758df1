"""A microbatch as the backend takes it: token ids, positions, boundaries, routing, targets. Built from a plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from multigraft.api.reasons import Reason, RefusalError


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


def check_packed(microbatch: PackedMicrobatch, vocab_size: int) -> None:
    """Check what would otherwise train on the wrong rows, or kill the device for all adapters.

    Raises:
        RefusalError: TokenOutOfRange, if an id is not below `vocab_size`.
        ValueError: If segments or samples do not cover the tokens in order, or a target lies outside its segment.
    """
    num_tokens = len(microbatch.input_ids)
    if microbatch.positions.shape != microbatch.input_ids.shape:
        raise ValueError(f"positions: got {len(microbatch.positions)}, want one for each of {num_tokens} tokens")
    ids = torch.cat([microbatch.input_ids, *(segment.target_ids for segment in microbatch.segments)])
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise RefusalError(
            Reason.TOKEN_OUT_OF_RANGE,
            f"token ids from {int(ids.min())} to {int(ids.max())}; the embedding has {vocab_size} rows",
        )
    end = 0
    for segment in microbatch.segments:
        if segment.start != end or segment.end < segment.start:
            raise ValueError(f"segment [{segment.start}, {segment.end}): want start {end} and end >= start")
        _check_segment(segment)
        end = segment.end
    if end != num_tokens:
        raise ValueError(f"segments end at token {end}, want {num_tokens}")


def _check_segment(segment: PackedSegment) -> None:
    end = segment.start
    for sample in segment.samples:
        if sample.start != end or sample.end < sample.start:
            raise ValueError(f"sample [{sample.start}, {sample.end}): want start {end} and end >= start")
        end = sample.end
    if end != segment.end:
        raise ValueError(f"samples end at token {end}, want {segment.end}")
    targets = segment.target_positions
    if targets.shape != segment.target_ids.shape:
        raise ValueError(f"target_ids: got {len(segment.target_ids)}, want one for each of {len(targets)} positions")
    if len(targets) and not segment.start <= int(targets.min()) <= int(targets.max()) < segment.end:
        raise ValueError(f"target_positions: want all in [{segment.start}, {segment.end})")
