"""What keys the dropout: four numbers per token row, one key and one threshold per adapter and layer.

Lane of feature f at a token: Philox4x32-7 with counter (f // 8, position, draw, step) and the 64-bit key of (adapter
seed, layer) gives four 32-bit words; word (f % 8) // 2 holds two 16-bit lanes, the low half for even f. The feature
is kept when lane >= threshold, threshold = round(p * 65536), and kept values are multiplied by
65536 / (65536 - threshold).

So p is quantised to a multiple of 1/65536 (p = 0.1 drops 6554/65536 = 0.100006), and the scale is exact for what is
really dropped. A p that rounds to 1, or one above 0 that rounds to 0, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

LANES = 65_536
FEATURES_PER_CALL = 8
NOT_TARGETED = -1


def build_threshold(p: float) -> int:
    """Give the number of the 65,536 lane values that are dropped.

    Raises:
        ValueError: If p is not in [0, 1), rounds to 1, or is above 0 and rounds to 0.
    """
    if not math.isfinite(p) or not 0 <= p < 1:
        raise ValueError(f"dropout: got {p}, allowed are 0 <= p < 1")
    threshold = round(p * LANES)
    if threshold == LANES or (threshold == 0 and p > 0):
        raise ValueError(
            f"dropout: got {p}, which rounds to {threshold}/65536; allowed are 0 and 1/65536 to 65535/65536"
        )
    return threshold


@dataclass(frozen=True)
class DropoutRows:
    """The counters of T token rows, the same for all layers of a microbatch; int32 holds the bits of a uint32."""

    adapter: torch.Tensor  # [T] int32, row of the tables; -1: no adapter, the row is left alone
    position: torch.Tensor  # [T] int32, position of the token in its sample
    draw: torch.Tensor  # [T] int32, visit number of the sample
    step: torch.Tensor  # [T] int32, optimizer step

    def to(self, device: torch.device) -> DropoutRows:
        """Copy to `device`, in one transfer."""
        stacked = copy_to(device, torch.stack([self.adapter, self.position, self.draw, self.step]))
        return DropoutRows(*stacked.unbind())


@dataclass(frozen=True)
class DropoutTable:
    """Keys and thresholds of G adapters at one layer."""

    keys: torch.Tensor  # [G] int64, the bits of a uint64: key word 0 is the low half
    thresholds: torch.Tensor  # [G] int32; -1: the adapter does not target this layer, its rows are left alone
    scales: torch.Tensor  # [G] fp32, 65536 / (65536 - threshold)

    @classmethod
    def build(cls, keys: Sequence[int], thresholds: Sequence[int]) -> DropoutTable:
        """Build the table on the CPU from 64-bit keys and thresholds."""
        return cls(
            keys=torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64)),
            thresholds=torch.tensor(thresholds, dtype=torch.int32),
            scales=torch.tensor([build_scale(threshold) for threshold in thresholds], dtype=torch.float32),
        )

    def to(self, device: torch.device) -> DropoutTable:
        """Copy to `device`."""
        return DropoutTable(
            copy_to(device, self.keys),
            copy_to(device, self.thresholds),
            copy_to(device, self.scales),
        )


def copy_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Copy without waiting for a GPU; towards the CPU one must wait, or what is read may not have arrived."""
    if device.type == "cpu":
        return tensor.to(device)
    pinned = tensor if tensor.is_cuda else tensor.pin_memory()  # from other memory the host waits for the stream
    return pinned.to(device, non_blocking=True)


def build_scale(threshold: int) -> float:
    """Give the factor of kept values; 1 where nothing is dropped."""
    return LANES / (LANES - threshold) if threshold > 0 else 1.0
