"""The one read of x in backward: partial sums of dA = ds^T drop(x) over chunks of rows, and the mask's bits for dx.

Shapes   x [T, K], ds [num_rows, R] by pairs, holding c ds; da_parts [chunks, R, K] fp32 (an adapter's rank rows of it);
         keep [T, KEEP_STRIDE(K)] uint8: bit f % 8 of byte f // 8 says that feature f is kept (1 where nothing is dropped)
Dtypes   x, ds both bf16, fp16 or fp32; accumulation fp32
Fused    the mask is generated again; its bits (1/16 of x) spare the base GEMM of dx the generation between its tiles
Roofline T=8192 K=4096 R=64 bf16, H200 at 4.3 TB/s: 72 MB = 17 us; 4.3 GFLOP = 6 us; the mask 13 us of ALU pipe
Measured docs/benchmarks/fused_lora_h200_2026-11-30.md
Exact    no atomics: `reduce_parts` adds the parts in their order; dA depends on the adapter's rows alone
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from multigraft_kernels.fused_lora.cost import Cost
from multigraft_kernels.fused_lora.keep_mask import load_kept, pack_keep_bits, philox_words
from multigraft_kernels.fused_lora.operands import (
    Dropout,
    dot_precision,
    dropout_arguments,
    feature_rows,
    rank_block,
    triton_dtype,
    uses_prmt,
)
from multigraft_kernels.launch.choices import InputLaunch
from multigraft_kernels.multi_lora.fused.routes import CHUNK_WORDS, SEGMENT_WORDS, ChunkTable, RouteTables


def estimate_cost(T: int, K: int, R: int, itemsize: int, chunk_rows: int, *, dropout: bool) -> Cost:
    """Estimate the cost of T rows, all with one adapter of rank R."""
    parts = 4.0 * R * K * -(-T // chunk_rows)
    return Cost(2.0 * T * K * R, itemsize * (T * K + T * R) + parts + (T * K / 8 if dropout else 0.0))


def keep_stride(num_features: int) -> int:
    """Give the bytes per row of the mask's bits: whole tiles of 256 features, so that the base GEMM reads no edge."""
    return -(-num_features // 256) * 32


@triton.jit  # type: ignore[untyped-decorator]
def _sum_rows(  # type: ignore[no-untyped-def]
    x_ptr,
    p_ds,
    p_keep,
    position_ptr,
    draw_ptr,
    step_ptr,
    first,
    end,
    k,
    rank,
    K,
    R,
    stride_x,
    stride_keep,
    key,
    threshold,
    DTYPE: tl.constexpr,
    DROP: tl.constexpr,
    PAIRS: tl.constexpr,
    PRMT: tl.constexpr,
    NEED_DA: tl.constexpr,
    NEED_KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    o_r = tl.arange(0, BLOCK_R)
    o_c = k // 8 + tl.arange(0, BLOCK_K // 8)
    b_da = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
    for t in range(first, end, BLOCK_T):
        o_t = t + tl.arange(0, BLOCK_T)
        m_t = o_t < end
        if DROP:
            position = tl.load(position_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            draw = tl.load(draw_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            step = tl.load(step_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            w0, w1, w2, w3 = philox_words(o_c.to(tl.uint32), position, draw, step, key)
        else:
            w0, w1, w2, w3 = 0, 0, 0, 0
        if NEED_KEEP:
            if DROP:
                bits = pack_keep_bits(w0, w1, w2, w3, threshold)
            else:
                bits = tl.full((BLOCK_T, BLOCK_K // 8), 255, tl.uint8)
            p_bits = p_keep + o_t.to(tl.int64)[:, None] * stride_keep + o_c[None, :]
            tl.store(p_bits, bits, mask=m_t[:, None] & (o_c * 8 < K)[None, :])
        if NEED_DA:
            p_row = p_ds + o_t.to(tl.int64)[:, None] * R + o_r[None, :]
            b_ds = tl.load(p_row, mask=m_t[:, None] & (o_r < rank)[None, :], other=0.0)  # [T, R]
            b_x = load_kept(
                x_ptr, o_t, m_t, k, K, stride_x, w0, w1, w2, w3, threshold, DTYPE, DROP, PAIRS, PRMT, BLOCK_K
            )  # [T, K]
            b_da = tl.dot(tl.trans(b_ds), b_x, b_da, input_precision=PRECISION)  # [R, K]
    return b_da


@triton.jit  # type: ignore[untyped-decorator]
def _input_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    ds_ptr,
    da_ptr,
    keep_ptr,
    chunk_ptr,
    segment_ptr,
    adapter_ptr,
    position_ptr,
    draw_ptr,
    step_ptr,
    key_ptr,
    threshold_ptr,
    scale_ptr,
    K,
    R,
    stride_x,
    stride_keep,
    DTYPE: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PAIRS: tl.constexpr,
    PRMT: tl.constexpr,
    NEED_DA: tl.constexpr,
    NEED_KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK_WORDS: tl.constexpr,
    SEGMENT_WORDS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    i_k, i_chunk = tl.program_id(0), tl.program_id(1)
    p_chunk = chunk_ptr + i_chunk * CHUNK_WORDS
    first, end = tl.load(p_chunk + 1), tl.load(p_chunk + 2)
    p_segment = segment_ptr + tl.load(p_chunk) * SEGMENT_WORDS
    rank, shift = tl.load(p_segment + 3), tl.load(p_segment + 5)
    p_ds = ds_ptr + shift.to(tl.int64) * R
    k = i_k * BLOCK_K
    threshold = 0
    if HAS_DROPOUT:
        adapter = tl.load(adapter_ptr + first)
        threshold = tl.load(threshold_ptr + adapter)
    if HAS_DROPOUT and threshold > 0:
        b_da = _sum_rows(
            x_ptr, p_ds, keep_ptr, position_ptr, draw_ptr, step_ptr, first, end, k, rank, K, R, stride_x, stride_keep,
            tl.load(key_ptr + adapter), threshold,
            DTYPE, True, PAIRS, PRMT, NEED_DA, NEED_KEEP, PRECISION, BLOCK_T, BLOCK_K, BLOCK_R,
        )  # fmt: skip
    else:
        b_da = _sum_rows(
            x_ptr, p_ds, keep_ptr, position_ptr, draw_ptr, step_ptr, first, end, k, rank, K, R, stride_x, stride_keep,
            0, threshold,
            DTYPE, False, PAIRS, PRMT, NEED_DA, NEED_KEEP, PRECISION, BLOCK_T, BLOCK_K, BLOCK_R,
        )  # fmt: skip
    if NEED_DA:
        o_r = tl.arange(0, BLOCK_R)
        o_k = k + tl.arange(0, BLOCK_K)
        p_da = da_ptr + (i_chunk.to(tl.int64) * R + o_r)[:, None] * K + o_k[None, :]
        tl.store(p_da, b_da, mask=(o_r < rank)[:, None] & (o_k < K)[None, :])


def read_input(
    x: torch.Tensor,
    ds: torch.Tensor,
    routes: RouteTables,
    chunks: ChunkTable,
    dropout: Dropout | None,
    launch: InputLaunch,
    *,
    need_da: bool,
    need_keep: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give da_parts (empty if not needed) and the mask's bits (None if not needed)."""
    (T, K), R = x.shape, ds.shape[1]
    da_parts = torch.empty(chunks.num_chunks if need_da else 0, R, K, dtype=torch.float32, device=x.device)
    keep = torch.empty(T, keep_stride(K), dtype=torch.uint8, device=x.device) if need_keep else None
    rows = feature_rows(x)
    _input_kernel[(triton.cdiv(K, launch.block_k), chunks.num_chunks)](
        rows.data,
        ds,
        da_parts,
        da_parts if keep is None else keep,
        chunks.chunks,
        routes.segments,
        *dropout_arguments(dropout, routes.segments),
        K,
        R,
        rows.stride,
        keep_stride(K),
        DTYPE=triton_dtype(x.dtype),
        HAS_DROPOUT=dropout is not None,
        PAIRS=rows.by_pairs,
        PRMT=uses_prmt(x),
        NEED_DA=need_da,
        NEED_KEEP=need_keep,
        PRECISION=dot_precision(x.dtype),
        CHUNK_WORDS=CHUNK_WORDS,
        SEGMENT_WORDS=SEGMENT_WORDS,
        BLOCK_T=launch.block_t,
        BLOCK_K=launch.block_k,
        BLOCK_R=rank_block(routes.max_rank, launch.min_block_r),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return da_parts, keep
