"""Tables on the device that tell each program of the fused kernels its rows, its adapter and its factors.

Rows are cut in two ways, and neither needs segments to be multiples of anything:

- A *pair* is one tile of TILE_ROWS rows of the base GEMM with one segment that has rows in it. S and dS are stored by
  pairs: row t of a segment is at t + shift(segment), rows of the tile outside the segment are zero. So the base
  GEMM adds an adapter's part by multiplying whole tiles, and none is padded but where two segments meet in one.
- A *chunk* is up to `chunk_rows` rows of one segment, counted from the segment's start. Gradients of A and B
  are sums over chunks in their order, so neighbours change neither the cut nor the order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from multigraft_kernels.multi_lora.segments import LoraSegment

TILE_ROWS = 128  # rows of a base GEMM tile, on every device
SEGMENT_WORDS = 8  # start, end, slot, rank, factor, shift, 0, 0
CHUNK_WORDS = 4  # segment, first row, end row, 0

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class RouteTables:
    """The rows of one microbatch at the layers that the same adapters target."""

    num_tokens: int
    num_pairs: int
    factors: tuple[tuple[int, int], ...]  # (slot, rank) of each adapter that has rows
    max_rank: int
    pair_tile: torch.Tensor  # [P] int32, GEMM tile of rows
    pair_segment: torch.Tensor  # [P] int32
    pair_factor: torch.Tensor  # [P] int32, index in `factors`
    tile_pairs: torch.Tensor  # [tiles, 2] int32, first pair and end
    segments: torch.Tensor  # [S, SEGMENT_WORDS] int32
    factor_table: torch.Tensor  # [G, 2] int32, slot and rank
    scaling: torch.Tensor  # [S] fp32
    grad_weight: torch.Tensor  # [S] fp32

    @property
    def num_rows(self) -> int:
        """Give the number of rows of S and dS as stored by pairs."""
        return self.num_pairs * TILE_ROWS


@dataclass(frozen=True)
class ChunkTable:
    """The chunks of the segments, in order."""

    num_chunks: int
    chunks: torch.Tensor  # [C, CHUNK_WORDS] int32
    segment_of: tuple[int, ...]


def build_routes(segments: Sequence[LoraSegment], num_tokens: int, device: torch.device) -> RouteTables:
    """Build (or take from the cache) the tables of segments that all have rows.

    Args:
        segments: Ascending, disjoint and checked against the tokens and stacks.
    """
    return _build_routes(tuple(segments), num_tokens, device)


def build_chunks(segments: Sequence[LoraSegment], chunk_rows: int, device: torch.device) -> ChunkTable:
    """Build (or take from the cache) the chunks of up to `chunk_rows` rows."""
    return _build_chunks(tuple((s.start, s.end) for s in segments), chunk_rows, device)


@functools.lru_cache(maxsize=64)
def _build_routes(segments: tuple[LoraSegment, ...], num_tokens: int, device: torch.device) -> RouteTables:
    factors = list(dict.fromkeys((segment.slot, segment.rank) for segment in segments))
    rows, pair_tile, pair_segment = [], [], []  # type: ignore[var-annotated]
    tile_pairs = np.zeros((-(-num_tokens // TILE_ROWS), 2), np.int32)
    for index, segment in enumerate(segments):
        first, end = segment.start // TILE_ROWS, -(-segment.end // TILE_ROWS)
        shift = (len(pair_tile) - first) * TILE_ROWS
        factor = factors.index((segment.slot, segment.rank))
        rows.append((segment.start, segment.end, segment.slot, segment.rank, factor, shift, 0, 0))
        for tile in range(first, end):
            if tile_pairs[tile, 1] == 0:
                tile_pairs[tile, 0] = len(pair_tile)
            pair_tile.append(tile)
            pair_segment.append(index)
            tile_pairs[tile, 1] = len(pair_tile)
    table = np.array(rows, np.int32)
    ints = (pair_tile, pair_segment, table[pair_segment, 4], tile_pairs, table, factors)
    floats = ([s.scaling for s in segments], [s.grad_weight for s in segments])
    arrays = [np.asarray(values, np.int32) for values in ints]
    arrays += [np.asarray(values, np.float32).view(np.int32) for values in floats]
    tensors = to_device(arrays, device)
    return RouteTables(  # type: ignore[misc]
        num_tokens,
        len(pair_tile),
        tuple(factors),
        max(rank for _, rank in factors),
        *tensors[:6],
        scaling=tensors[6].view(torch.float32),
        grad_weight=tensors[7].view(torch.float32),
    )


@functools.lru_cache(maxsize=64)
def _build_chunks(bounds: tuple[tuple[int, int], ...], chunk_rows: int, device: torch.device) -> ChunkTable:
    chunks = [
        (index, row, min(row + chunk_rows, end), 0)
        for index, (start, end) in enumerate(bounds)
        for row in range(start, end, chunk_rows)
    ]
    (table,) = to_device([np.array(chunks, np.int32)], device)
    return ChunkTable(len(chunks), table, tuple(chunk[0] for chunk in chunks))


def to_device(arrays: Sequence[Ints], device: torch.device) -> list[torch.Tensor]:
    """Copy int32 arrays in one transfer that does not wait for the device; each starts on 16 bytes."""
    starts = np.cumsum([0, *(-(-array.size // 4) * 4 for array in arrays)])
    blob = torch.zeros(max(int(starts[-1]), 4), dtype=torch.int32, pin_memory=device.type == "cuda")
    for array, start in zip(arrays, starts, strict=False):
        blob[start : start + array.size] = torch.from_numpy(array.reshape(-1))
    blob = blob.to(device, non_blocking=True)
    return [blob[start : start + array.size].view(array.shape) for array, start in zip(arrays, starts, strict=False)]
