"""Where the gradients of A and B go: which chunks each fp32 sink sums up, in which order, and its place in memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from multigraft_kernels.multi_lora.fused.routes import ChunkTable, to_device
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment

_PLACE_WORDS = 8  # offset, stride of rows, stride of columns for A, then for B, then rank, 0


@dataclass(frozen=True)
class SinkTable:
    """Sinks are found from one of them by offsets, so that a kernel needs no list of pointers."""

    num_sinks: int
    base: torch.Tensor  # the sink that the offsets count from
    places: torch.Tensor  # [Q, 8] int64, in fp32 elements
    chunk_bounds: torch.Tensor  # [Q, 2, 2] int32, first and end in `chunk_order` for A and for B
    chunk_order: torch.Tensor  # [C_A + C_B] int32, chunks of A in the sinks' order, then of B


def build_sinks(
    segments: Sequence[LoraSegment], grads: Sequence[LoraGrads], chunks_a: ChunkTable, chunks_b: ChunkTable
) -> SinkTable:
    """Build (or take from the cache) the table; segments that share a sink are summed in the segments' order.

    Raises:
        ValueError: If a sink is not fp32 or has another shape than its segment's adapter.
    """
    base = grads[0].a
    places, members = [], []  # type: ignore[var-annotated]
    by_address: dict[tuple[int, int], int] = {}
    for segment, sink in zip(segments, grads, strict=True):
        address = (sink.a.data_ptr(), sink.b.data_ptr())
        if address not in by_address:
            by_address[address] = len(places)
            places.append(_build_place(segment, sink, base))
        members.append(by_address[address])
    device = base.device
    tables = _build_tables(tuple(places), tuple(members), chunks_a.segment_of, chunks_b.segment_of, device)
    return SinkTable(len(places), base, *tables)


def _build_place(segment: LoraSegment, sink: LoraGrads, base: torch.Tensor) -> tuple[int, ...]:
    for name, grad, dim in (("a", sink.a, 0), ("b", sink.b, 1)):
        if grad.dtype != torch.float32 or grad.shape[dim] != segment.rank:
            raise ValueError(
                f"grads: sink {name} of {segment} is {grad.dtype} {tuple(grad.shape)}, "
                f"want float32 of rank {segment.rank}"
            )
    offsets = [(grad.data_ptr() - base.data_ptr()) // 4 for grad in (sink.a, sink.b)]
    return (offsets[0], *sink.a.stride(), offsets[1], *sink.b.stride(), segment.rank, 0)


@functools.lru_cache(maxsize=4096)
def _build_tables(
    places: tuple[tuple[int, ...], ...],
    members: tuple[int, ...],
    chunks_a: tuple[int, ...],
    chunks_b: tuple[int, ...],
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    bounds = np.zeros((len(places), 2, 2), np.int32)
    order: list[int] = []
    for side, chunks in enumerate((chunks_a, chunks_b)):
        for sink in range(len(places)):
            bounds[sink, side, 0] = len(order)
            order += [chunk for chunk, segment in enumerate(chunks) if members[segment] == sink]
            bounds[sink, side, 1] = len(order)
    words = np.array(places, np.int64).view(np.int32)
    table, bounds_on_device, order_on_device = to_device([words, bounds, np.array(order, np.int32)], device)
    return table.view(torch.int64), bounds_on_device, order_on_device
