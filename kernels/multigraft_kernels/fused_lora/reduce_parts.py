"""Add up partial sums in their order: s or ds by pairs from blocks, dA and dB into the fp32 sinks from chunks.

Shapes   parts [blocks, num_rows, R] -> rows [num_rows, R], times c = scaling / (1 - p), zero outside the pair's
         segment; beside it a factor [slots, ...] -> ready (ready_factor.py) for the base GEMM that follows
         da_parts [chunks, R, K], db_parts [chunks, R, N] -> sink a [rank, K] +=, sink b [N, rank] +=, times grad_weight
Dtypes   parts, sinks, c, grad_weight fp32; rows and ready as x
Roofline ranks 8, 16, 16, 64, T=8192, N=4096: 18 MB of ds_parts from L2 = 4 us; sinks 3 to 10 MB = 2 us
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    the order of the additions is fixed by the cut alone: no atomics, and neighbours take no part
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from multigraft_kernels.fused_lora.operands import (
    Dropout,
    dropout_arguments,
    stack_is_aligned,
    triton_dtype,
)
from multigraft_kernels.fused_lora.ready_factor import FACTOR_COLUMNS, READY_RANKS, ReadyFactor, write_ready
from multigraft_kernels.multi_lora.fused.routes import CHUNK_WORDS, SEGMENT_WORDS, TILE_ROWS, ChunkTable, RouteTables
from multigraft_kernels.multi_lora.fused.sinks import SinkTable

_BLOCK_T = 32
_BLOCK_R = 16
_BLOCK_COLUMNS = 128


@triton.jit(do_not_specialize=["num_row_programs", "num_rows", "num_blocks"])  # type: ignore[untyped-decorator]
def _reduce_rows_kernel(  # type: ignore[no-untyped-def]
    parts_ptr,
    rows_ptr,
    factor_ptr,
    ready_ptr,
    flag_ptr,
    pair_tile_ptr,
    pair_segment_ptr,
    segment_ptr,
    scaling_ptr,
    factor_table_ptr,
    adapter_ptr,
    scale_ptr,
    num_row_programs,
    num_rows,
    num_blocks,
    outputs,
    R,
    stride_slot,
    stride_rank,
    stride_out,
    stride_ready_rank,
    stride_ready_out,
    DTYPE: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    RANK_ALIGNED: tl.constexpr,
    SEGMENT_WORDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    FACTOR_COLUMNS: tl.constexpr,
    READY_R: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
    UNROLL: tl.constexpr,
):
    i_program = tl.program_id(0)
    if i_program < num_row_programs:
        PARTS: tl.constexpr = TILE_ROWS // BLOCK_T
        num_r = tl.cdiv(R, BLOCK_R)
        i_r = i_program % num_r
        i_t = i_program // num_r
        i_pair = i_t // PARTS
        i_segment = tl.load(pair_segment_ptr + i_pair)
        p_segment = segment_ptr + i_segment * SEGMENT_WORDS
        start, end, rank = tl.load(p_segment), tl.load(p_segment + 1), tl.load(p_segment + 3)
        o_row = (i_t % PARTS) * BLOCK_T + tl.arange(0, BLOCK_T)
        o_t = tl.load(pair_tile_ptr + i_pair) * TILE_ROWS + o_row
        o_r = i_r * BLOCK_R + tl.arange(0, BLOCK_R)
        m_t = (o_t >= start) & (o_t < end)
        m_tr = m_t[:, None] & (o_r < rank)[None, :]
        o_place = (i_pair.to(tl.int64) * TILE_ROWS + o_row)[:, None] * R + o_r[None, :]
        b_rows = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
        if i_r * BLOCK_R < rank:
            for i_block in range(0, num_blocks, UNROLL):
                for i in tl.static_range(UNROLL):
                    p_part = parts_ptr + tl.cast(i_block + i, tl.int64) * num_rows * R + o_place
                    b_rows += tl.load(p_part, mask=m_t[:, None] & (i_block + i < num_blocks), other=0.0)
        c = tl.load(scaling_ptr + i_segment)
        if HAS_DROPOUT:
            c *= tl.load(scale_ptr + tl.load(adapter_ptr + start))
        # By selection: a part beyond the rank or the segment may hold anything, and a factor may be infinite.
        tl.store(rows_ptr + o_place, tl.where(m_tr, b_rows * c, 0.0).to(DTYPE))
    else:
        num_columns = tl.cdiv(outputs, FACTOR_COLUMNS)
        i_ready = i_program - num_row_programs
        i_factor = (i_ready // num_columns).to(tl.int64)
        slot = tl.load(factor_table_ptr + 2 * i_factor).to(tl.int64)
        write_ready(
            factor_ptr + slot * stride_slot,
            ready_ptr + i_factor * R * outputs,
            flag_ptr + i_ready,
            tl.load(factor_table_ptr + 2 * i_factor + 1),
            outputs,
            i_ready % num_columns,
            stride_out,
            stride_rank,
            stride_ready_out,
            stride_ready_rank,
            R,
            READY_R,
            RANK_ALIGNED,
            FACTOR_COLUMNS,
        )


def reduce_rows(
    parts: torch.Tensor,
    factor: torch.Tensor,
    routes: RouteTables,
    dropout: Dropout | None,
    *,
    outputs_last: bool,
    ready: ReadyFactor | None,
) -> torch.Tensor:
    """Give s or ds, [routes.num_rows, R], in the dtype of `factor`; copy `factor` to `ready` unless that is None.

    Args:
        parts: [blocks, routes.num_rows, R] fp32.
        factor: A [slots, maxRank, outputs] with `outputs_last`, else B [slots, outputs, maxRank].
    """
    num_blocks, num_rows, R = parts.shape
    rows = torch.empty(num_rows, R, dtype=factor.dtype, device=parts.device)
    outputs = factor.shape[2 if outputs_last else 1]
    rank_dim, out_dim = (1, 2) if outputs_last else (2, 1)
    num_row_programs = routes.num_pairs * (TILE_ROWS // _BLOCK_T) * triton.cdiv(R, _BLOCK_R)
    num_ready_programs = 0 if ready is None else ready.flags.numel()
    filler = routes.segments
    adapter, *_, scales = dropout_arguments(dropout, filler)
    _reduce_rows_kernel[(num_row_programs + num_ready_programs,)](
        parts,
        rows,
        factor,
        rows if ready is None else ready.factors,
        filler if ready is None else ready.flags,
        routes.pair_tile,
        routes.pair_segment,
        routes.segments,
        routes.scaling,
        routes.factor_table,
        adapter,
        scales,
        num_row_programs,
        num_rows,
        num_blocks,
        outputs,
        R,
        factor.stride(0),
        factor.stride(rank_dim),
        factor.stride(out_dim),
        outputs if outputs_last else 1,
        1 if outputs_last else R,
        DTYPE=triton_dtype(factor.dtype),
        HAS_DROPOUT=dropout is not None,
        RANK_ALIGNED=not outputs_last and stack_is_aligned(factor),
        SEGMENT_WORDS=SEGMENT_WORDS,
        TILE_ROWS=TILE_ROWS,
        FACTOR_COLUMNS=FACTOR_COLUMNS,
        READY_R=READY_RANKS,
        BLOCK_T=_BLOCK_T,
        BLOCK_R=_BLOCK_R,
        UNROLL=8,
        num_warps=4,
    )
    return rows


@triton.jit  # type: ignore[untyped-decorator]
def _sum_chunks(  # type: ignore[no-untyped-def]
    part_ptr,
    chunk_ptr,
    order_ptr,
    weight_ptr,
    first,
    end,
    o_r,
    o_c,
    m_rc,
    R,
    C,
    CHUNK_WORDS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    b_grad = tl.zeros((BLOCK_R, BLOCK_COLUMNS), tl.float32)
    for i in range(first, end, 4):
        # Four at a time, so that their chains of three loads run side by side; added one after the other all the same.
        for j in tl.static_range(4):
            inside = i + j < end
            i_chunk = tl.load(order_ptr + i + j, mask=inside, other=0)
            weight = tl.load(weight_ptr + tl.load(chunk_ptr + i_chunk * CHUNK_WORDS))
            p_part = part_ptr + (i_chunk.to(tl.int64) * R + o_r)[:, None] * C + o_c[None, :]
            b_grad += weight * tl.load(p_part, mask=m_rc & inside, other=0.0)
    return b_grad


@triton.jit  # type: ignore[untyped-decorator]
def _add_to_sinks_kernel(  # type: ignore[no-untyped-def]
    da_ptr,
    db_ptr,
    sink_ptr,
    place_ptr,
    bounds_ptr,
    order_ptr,
    chunk_a_ptr,
    chunk_b_ptr,
    weight_ptr,
    K,
    N,
    R,
    CHUNK_WORDS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    num_r = tl.cdiv(R, BLOCK_R)
    i_sink, i_r = tl.program_id(1) // num_r, tl.program_id(1) % num_r
    rank = tl.load(place_ptr + i_sink * 8 + 6)
    if i_r * BLOCK_R < rank:
        num_a = tl.cdiv(K, BLOCK_COLUMNS)
        o_r = i_r * BLOCK_R + tl.arange(0, BLOCK_R)
        if tl.program_id(0) < num_a:
            o_c = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
            m_rc = (o_r < rank)[:, None] & (o_c < K)[None, :]
            p_bounds = bounds_ptr + i_sink * 4
            b_grad = _sum_chunks(
                da_ptr, chunk_a_ptr, order_ptr, weight_ptr, tl.load(p_bounds), tl.load(p_bounds + 1),
                o_r, o_c, m_rc, R, K, CHUNK_WORDS, BLOCK_R, BLOCK_COLUMNS,
            )  # fmt: skip
            p_place = place_ptr + i_sink * 8
            stride_r, stride_c = tl.load(p_place + 1), tl.load(p_place + 2)
        else:
            o_c = (tl.program_id(0) - num_a) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
            m_rc = (o_r < rank)[:, None] & (o_c < N)[None, :]
            p_bounds = bounds_ptr + i_sink * 4 + 2
            b_grad = _sum_chunks(
                db_ptr, chunk_b_ptr, order_ptr, weight_ptr, tl.load(p_bounds), tl.load(p_bounds + 1),
                o_r, o_c, m_rc, R, N, CHUNK_WORDS, BLOCK_R, BLOCK_COLUMNS,
            )  # fmt: skip
            p_place = place_ptr + i_sink * 8 + 3
            stride_c, stride_r = tl.load(p_place + 1), tl.load(p_place + 2)
        p_sink = (
            sink_ptr + tl.load(p_place) + o_r.to(tl.int64)[:, None] * stride_r + o_c.to(tl.int64)[None, :] * stride_c
        )
        tl.store(p_sink, tl.load(p_sink, mask=m_rc) + b_grad, mask=m_rc)


def add_to_sinks(
    da_parts: torch.Tensor,
    db_parts: torch.Tensor,
    routes: RouteTables,
    chunks_a: ChunkTable,
    chunks_b: ChunkTable,
    sinks: SinkTable,
) -> None:
    """Add grad_weight times the sum of its chunks' parts to each sink."""
    R, K, N = da_parts.shape[1], da_parts.shape[2], db_parts.shape[2]
    grid = (
        triton.cdiv(K, _BLOCK_COLUMNS) + triton.cdiv(N, _BLOCK_COLUMNS),
        sinks.num_sinks * triton.cdiv(R, _BLOCK_R),
    )
    _add_to_sinks_kernel[grid](
        da_parts,
        db_parts,
        sinks.base,
        sinks.places,
        sinks.chunk_bounds,
        sinks.chunk_order,
        chunks_a.chunks,
        chunks_b.chunks,
        routes.grad_weight,
        K,
        N,
        R,
        CHUNK_WORDS=CHUNK_WORDS,
        BLOCK_R=_BLOCK_R,
        BLOCK_COLUMNS=_BLOCK_COLUMNS,
        num_warps=4,
    )
