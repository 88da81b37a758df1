"""The definition of the dropout in plain numpy; the fast forms equal it bit by bit."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from multigraft_kernels.counter_dropout.rows import FEATURES_PER_CALL, DropoutRows, DropoutTable
from multigraft_kernels.philox import MASK_32, philox4x32


def build_lanes(rows: DropoutRows, table: DropoutTable, num_features: int) -> NDArray[np.uint64]:
    """Give the 16-bit lane of every token and feature, [T, K]; rows without adapter use key 0."""
    num_tokens = len(rows.adapter)
    num_calls = -(-num_features // FEATURES_PER_CALL)
    adapter = rows.adapter.cpu().numpy()
    keys = np.where(adapter >= 0, table.keys.cpu().numpy().view(np.uint64)[adapter], np.uint64(0))
    counter = np.zeros((num_tokens, num_calls, 4), dtype=np.uint64)
    counter[..., 0] = np.arange(num_calls, dtype=np.uint64)
    for word, values in enumerate((rows.position, rows.draw, rows.step), start=1):
        counter[..., word] = values.cpu().numpy().view(np.uint32).astype(np.uint64)[:, None]
    key = np.stack([keys & np.uint64(MASK_32), keys >> np.uint64(32)], axis=-1)[:, None, :]
    words = philox4x32(counter, key)
    lanes = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=-1)
    return lanes.reshape(num_tokens, num_calls * FEATURES_PER_CALL)[:, :num_features]


def build_multiplier(rows: DropoutRows, table: DropoutTable, num_features: int) -> torch.Tensor:
    """Give the fp32 factor of every token and feature, [T, K]: 0 or the scale; 0 in rows that are left alone."""
    adapter = rows.adapter.cpu().long()
    thresholds = torch.where(adapter >= 0, table.thresholds.cpu().long()[adapter], -1)
    scales = table.scales.cpu()[adapter]
    lanes = torch.from_numpy(build_lanes(rows, table, num_features).astype(np.int64))
    kept = (lanes >= thresholds[:, None]) & (thresholds >= 0)[:, None]
    return torch.where(kept, scales[:, None], 0.0)
