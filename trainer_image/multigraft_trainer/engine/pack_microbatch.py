"""Build what the backend takes from what the planner decided: look up tokens, positions, targets and routing.

Pure: the same plan and datasets give the same tensors, whatever else is in the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from multigraft.planner.plan import Segment
from multigraft_trainer.backends.packed import PackedMicrobatch, PackedSample, PackedSegment
from multigraft_trainer.intake.samples import TokenisedSample


@dataclass(frozen=True)
class SegmentSource:
    """Where the tokens of one segment come from and where they go."""

    slot: int  # -1: the base model alone
    samples: tuple[TokenisedSample, ...]  # in the segment's order
    draws: tuple[int, ...]
    step: int
    loss_weight: float  # 1 / supervised tokens of the whole global batch


def build_segment_source(
    segment: Segment, *, slot: int, samples: Sequence[TokenisedSample], rows: Mapping[int, int], loss_weight: float
) -> SegmentSource:
    """Look up the samples of a planned segment.

    Args:
        segment: The planned segment.
        slot: Slot of the segment's adapter.
        samples: The job's dataset.
        rows: Index into `samples` of each draw of the segment.
        loss_weight: 1 / supervised tokens of the adapter's whole global batch.
    """
    return SegmentSource(
        slot=slot,
        samples=tuple(samples[rows[ref.draw]] for ref in segment.samples),
        draws=tuple(ref.draw for ref in segment.samples),
        step=segment.step,
        loss_weight=loss_weight,
    )


def pack_microbatch(sources: Sequence[SegmentSource]) -> PackedMicrobatch:
    """Lay the segments one after another, the tokens of each contiguous."""
    tokens: list[NDArray[np.int32]] = []
    positions: list[NDArray[np.int64]] = []
    segments: list[PackedSegment] = []
    offset = 0
    for source in sources:
        segment, offset = _pack_segment(source, offset)
        segments.append(segment)
        tokens.extend(sample.input_ids for sample in source.samples)
        positions.extend(np.arange(sample.num_tokens) for sample in source.samples)
    return PackedMicrobatch(input_ids=_to_tensor(tokens), positions=_to_tensor(positions), segments=tuple(segments))


def _pack_segment(source: SegmentSource, start: int) -> tuple[PackedSegment, int]:
    offset = start
    packed: list[PackedSample] = []
    target_positions: list[NDArray[np.int64]] = []
    target_ids: list[NDArray[np.int32]] = []
    for sample, draw in zip(source.samples, source.draws, strict=True):
        packed.append(PackedSample(start=offset, end=offset + sample.num_tokens, draw=draw))
        targets = np.flatnonzero(sample.supervised)
        target_positions.append(targets - 1 + offset)  # the hidden state one token earlier predicts the target
        target_ids.append(sample.input_ids[targets])
        offset += sample.num_tokens
    segment = PackedSegment(
        slot=source.slot,
        start=start,
        end=offset,
        step=source.step,
        loss_weight=source.loss_weight,
        samples=tuple(packed),
        target_positions=_to_tensor(target_positions),
        target_ids=_to_tensor(target_ids),
    )
    return segment, offset


def _to_tensor(parts: Sequence[NDArray[np.int32] | NDArray[np.int64]]) -> torch.Tensor:
    if not parts:
        return torch.empty(0, dtype=torch.int64)
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
