"""The one read of x in backward: partial sums of dA = ds^T drop(x) over chunks of rows, and the mask's bits for dx.

Shapes   x [T, K], ds [num_rows, R] by pairs, holding c ds; da_parts [chunks, R, K] fp32 (an adapter's rank rows of it);
         keep [T, KEEP_STRIDE(K)] uint8: bit f % 8 of byte f // 8 says that feature f is kept (1 where nothing is
         dropped)
Dtypes   x, ds both bf16, fp16 or fp32; accumulation fp32
Fused    the mask is generated again; its bits (1/16 of x) spare the base GEMM of dx the generation between its tiles
Roofline T=8192 K=4096 R=64 bf16, H200 at 4.3 TB/s: 72 MB = 17 us; 4.3 GFLOP = 6 us; the mask 13 us of ALU pipe
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
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
    uses_ptx,
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
    K,
    R,
    stride_x,
    stride_keep,
    DTYPE: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PAIRS: tl.constexpr,
    PTX: tl.constexpr,
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
    k = i_k * BLOCK_K
    o_r = tl.arange(0, BLOCK_R)
    o_k = k + tl.arange(0, BLOCK_K)
    o_c = k // 8 + tl.arange(0, BLOCK_K // 8)
    threshold, key = 0, 0
    if HAS_DROPOUT:
        adapter = tl.load(adapter_ptr + first)
        threshold = tl.maximum(tl.load(threshold_ptr + adapter), 0)
        key = tl.load(key_ptr + adapter)
    # x by words of two features (PAIRS), or by features
    WIDTH: tl.constexpr = 2 if PAIRS else 1
    o_t = first + tl.arange(0, BLOCK_T)
    o_x = k // WIDTH + tl.arange(0, BLOCK_K // WIDTH)
    p_x = x_ptr + o_t.to(tl.int64)[:, None] * stride_x + o_x[None, :]
    p_row = ds_ptr + (o_t + shift).to(tl.int64)[:, None] * R + o_r[None, :]
    p_bits = keep_ptr + o_t.to(tl.int64)[:, None] * stride_keep + o_c[None, :]
    b_da = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
    for _ in range(first, end, BLOCK_T):
        m_t = o_t < end
        w0, w1, w2, w3 = 0, 0, 0, 0
        if HAS_DROPOUT:
            position = tl.load(position_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            draw = tl.load(draw_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            step = tl.load(step_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            w0, w1, w2, w3 = philox_words(o_c.to(tl.uint32), position, draw, step, key)
        if NEED_KEEP:
            bits = pack_keep_bits(w0, w1, w2, w3, threshold, PTX)
            tl.store(p_bits, bits, mask=m_t[:, None] & (o_c * 8 < K)[None, :])
        if NEED_DA:
            # Columns up to R hold zeros beyond the adapter's rank; a mask by rank would make these 2-byte loads.
            b_ds = tl.load(p_row, mask=m_t[:, None] & (o_r < R)[None, :], other=0.0)  # [T, R]
            m_x = m_t[:, None] & (o_x < K // WIDTH)[None, :]
            b_x = load_kept(p_x, m_x, w0, w1, w2, w3, threshold, DTYPE, HAS_DROPOUT, PAIRS, PTX)  # [T, K]
            b_da = tl.dot(tl.trans(b_ds), b_x, b_da, input_precision=PRECISION)  # [R, K]
        o_t += BLOCK_T
        p_x += BLOCK_T * stride_x
        p_row += BLOCK_T * R
        p_bits += BLOCK_T * stride_keep
    if NEED_DA:
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
        *dropout_arguments(dropout, routes.segments)[:-1],
        K,
        R,
        rows.stride,
        keep_stride(K),
        DTYPE=triton_dtype(x.dtype),
        HAS_DROPOUT=dropout is not None,
        PAIRS=rows.by_pairs,
        PTX=uses_ptx(x),
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
