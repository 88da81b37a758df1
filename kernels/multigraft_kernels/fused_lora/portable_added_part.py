"""The adapters' part of an output alone, for a library GEMM to add to:  c = bias + s B^T  or  c = keep (ds A).

Shapes   s [num_rows, R] by pairs, factor by strides: B [slots, N, maxRank] or A [slots, maxRank, K]; c [T, outputs];
         keep [T, keep_stride] bits (portable_input.py)
Dtypes   s, factor, c all bf16, fp16 or fp32; accumulation fp32, one rounding at the store and one more in the library
Where    shapes and devices that hopper_gemm.py does not cover
Roofline T=8192 outputs=4096 bf16, H200 at 4.3 TB/s: 67 MB written here, read again by the library: 31 us in all
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    a row takes only its own adapter's product, by selection: what stands in a neighbour's factor cannot reach it
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from multigraft_kernels.fused_lora.operands import dot_precision, triton_dtype
from multigraft_kernels.launch.choices import AddedLaunch
from multigraft_kernels.multi_lora.fused.routes import SEGMENT_WORDS, TILE_ROWS, RouteTables


@triton.jit(do_not_specialize=["T"])  # type: ignore[untyped-decorator]
def _added_part_kernel(  # type: ignore[no-untyped-def]
    s_ptr,
    factor_ptr,
    bias_ptr,
    keep_ptr,
    c_ptr,
    tile_pairs_ptr,
    pair_segment_ptr,
    segment_ptr,
    T,
    outputs,
    R,
    stride_slot,
    stride_rank,
    stride_out,
    stride_keep,
    DTYPE: tl.constexpr,
    MASKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    SEGMENT_WORDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    i_o, i_t = tl.program_id(0), tl.program_id(1)
    o_row = tl.arange(0, TILE_ROWS)
    o_t = i_t * TILE_ROWS + o_row
    o_o = i_o * BLOCK_O + tl.arange(0, BLOCK_O)
    m_to = (o_t < T)[:, None] & (o_o < outputs)[None, :]
    b_c = tl.zeros((TILE_ROWS, BLOCK_O), tl.float32)
    for pair in range(tl.load(tile_pairs_ptr + 2 * i_t), tl.load(tile_pairs_ptr + 2 * i_t + 1)):
        p_segment = segment_ptr + tl.load(pair_segment_ptr + pair) * SEGMENT_WORDS
        start, end, slot, rank = (
            tl.load(p_segment),
            tl.load(p_segment + 1),
            tl.load(p_segment + 2),
            tl.load(p_segment + 3),
        )
        p_factor = factor_ptr + slot.to(tl.int64) * stride_slot + o_o.to(tl.int64)[None, :] * stride_out
        p_s = s_ptr + (tl.cast(pair, tl.int64) * TILE_ROWS + o_row)[:, None] * R
        b_part = tl.zeros((TILE_ROWS, BLOCK_O), tl.float32)
        for r in range(0, rank, BLOCK_R):
            o_r = r + tl.arange(0, BLOCK_R)
            b_s = tl.load(p_s + o_r[None, :], mask=(o_r < R)[None, :], other=0.0)  # [T, R], zero beyond the rank
            m_factor = (o_r < rank)[:, None] & (o_o < outputs)[None, :]
            b_f = tl.load(p_factor + o_r.to(tl.int64)[:, None] * stride_rank, mask=m_factor, other=0.0)  # [R, O]
            b_part = tl.dot(b_s, b_f, b_part, input_precision=PRECISION)
        b_c = tl.where(((o_t >= start) & (o_t < end))[:, None], b_part, b_c)
    if MASKED:
        p_keep = keep_ptr + o_t.to(tl.int64)[:, None] * stride_keep + (o_o // 8)[None, :]
        bits = tl.load(p_keep, mask=m_to, other=0).to(tl.int32)
        b_c = tl.where(((bits >> (o_o % 8)[None, :]) & 1) != 0, b_c, 0.0)
    if HAS_BIAS:
        b_c += tl.load(bias_ptr + o_o, mask=o_o < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(c_ptr + o_t.to(tl.int64)[:, None] * outputs + o_o[None, :], b_c.to(DTYPE), mask=m_to)


def compute_added_part(
    s: torch.Tensor,
    factor: torch.Tensor,
    num_tokens: int,
    routes: RouteTables,
    launch: AddedLaunch,
    *,
    outputs_last: bool,
    bias: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
) -> torch.Tensor:
    """Give c, [T, outputs], `outputs_last` for A [slots, maxRank, outputs], not for B [slots, outputs, maxRank]."""
    rank_dim, out_dim = (1, 2) if outputs_last else (2, 1)
    outputs = factor.shape[out_dim]
    c = s.new_empty(num_tokens, outputs)
    filler = routes.segments
    _added_part_kernel[(triton.cdiv(outputs, launch.block_o), triton.cdiv(num_tokens, TILE_ROWS))](
        s,
        factor,
        filler if bias is None else bias,
        filler if keep is None else keep,
        c,
        routes.tile_pairs,
        routes.pair_segment,
        routes.segments,
        num_tokens,
        outputs,
        s.shape[1],
        factor.stride(0),
        factor.stride(rank_dim),
        factor.stride(out_dim),
        0 if keep is None else keep.shape[1],
        DTYPE=triton_dtype(s.dtype),
        MASKED=keep is not None,
        HAS_BIAS=bias is not None,
        PRECISION=dot_precision(s.dtype),
        SEGMENT_WORDS=SEGMENT_WORDS,
        TILE_ROWS=TILE_ROWS,
        BLOCK_O=launch.block_o,
        BLOCK_R=max(16, min(launch.block_r, triton.next_power_of_2(routes.max_rank))),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return c
