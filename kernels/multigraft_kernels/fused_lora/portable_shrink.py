"""The one read of x in forward, in Triton:  s = c drop(x) A^T  (drop masks without scaling, c = scaling / (1 - p)).

Shapes   x [T, K], A [slots, maxRank, K]; s [num_rows, R] by pairs (multi_lora/fused/routes.py), zero outside the pair's
         segment; R is the largest rank rounded up to 16. Beside it, by further programs, B [slots, N, maxRank] -> ready
         (ready_factor.py) where a Hopper GEMM follows
Dtypes   x, A, B, s all bf16, fp16 or fp32; accumulation and c fp32; one rounding, at the store
Fused    the mask is made in registers while x passes; c is applied to the fp32 sum, so x is masked but never scaled
Where    all devices, fp32, sides that TMA cannot reach, and Triton's CPU interpreter
Roofline T=8192 K=4096 R=64 bf16, H200 at 4.3 TB/s: 69 MB = 16 us; 4.3 GFLOP = 6 us; the mask 11 us of ALU pipe. 47 us
         measured (why, as far as known: docs/experiment-log.md); hopper_shrink.py is the answer to that
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    a row of s depends on that row and its adapter alone, bit by bit
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from multigraft_kernels.fused_lora.cost import Cost
from multigraft_kernels.fused_lora.keep_mask import load_kept, philox_words
from multigraft_kernels.fused_lora.operands import (
    Dropout,
    dot_precision,
    dropout_arguments,
    feature_rows,
    rank_block,
    rank_columns,
    stack_is_aligned,
    triton_dtype,
    uses_ptx,
)
from multigraft_kernels.fused_lora.ready_factor import FACTOR_COLUMNS, READY_RANKS, ReadyFactor, write_ready
from multigraft_kernels.launch.choices import ShrinkLaunch
from multigraft_kernels.multi_lora.fused.routes import SEGMENT_WORDS, TILE_ROWS, RouteTables


def estimate_cost(T: int, K: int, R: int, itemsize: int, num_adapters: int = 1) -> Cost:
    """Estimate the cost of T rows, all with adapters of rank R."""
    return Cost(2.0 * T * K * R, float(itemsize) * (T * K + num_adapters * R * K + T * R))


@triton.jit(do_not_specialize=["num_pair_programs"])  # type: ignore[untyped-decorator]
def _shrink_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    a_ptr,
    b_ptr,
    s_ptr,
    ready_ptr,
    flag_ptr,
    pair_tile_ptr,
    pair_segment_ptr,
    segment_ptr,
    scaling_ptr,
    factor_table_ptr,
    adapter_ptr,
    position_ptr,
    draw_ptr,
    step_ptr,
    key_ptr,
    threshold_ptr,
    scale_ptr,
    num_pair_programs,
    K,
    N,
    R,
    stride_x,
    stride_slot,
    stride_rank,
    stride_b_slot,
    stride_b_out,
    DTYPE: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
    PAIRS: tl.constexpr,
    PTX: tl.constexpr,
    PRECISION: tl.constexpr,
    SEGMENT_WORDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    FACTOR_COLUMNS: tl.constexpr,
    STACK_ALIGNED: tl.constexpr,
    READY_R: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    i_program = tl.program_id(0)
    if i_program < num_pair_programs:
        PARTS: tl.constexpr = TILE_ROWS // BLOCK_T
        i_pair, i_part = i_program // PARTS, i_program % PARTS
        i_segment = tl.load(pair_segment_ptr + i_pair)
        p_segment = segment_ptr + i_segment * SEGMENT_WORDS
        start, end = tl.load(p_segment), tl.load(p_segment + 1)
        slot, rank = tl.load(p_segment + 2), tl.load(p_segment + 3)
        o_row = i_part * BLOCK_T + tl.arange(0, BLOCK_T)  # row in the tile
        o_t = tl.load(pair_tile_ptr + i_pair) * TILE_ROWS + o_row
        m_t = (o_t >= start) & (o_t < end)
        o_r, o_k = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_K)
        m_r = o_r < rank
        p_a = a_ptr + slot.to(tl.int64) * stride_slot + o_r.to(tl.int64)[:, None] * stride_rank + o_k[None, :]
        # x by words of two features (PAIRS), or by features
        WIDTH: tl.constexpr = 2 if PAIRS else 1
        o_x = tl.arange(0, BLOCK_K // WIDTH)
        p_x = x_ptr + o_t.to(tl.int64)[:, None] * stride_x + o_x[None, :]
        c = tl.load(scaling_ptr + i_segment)
        threshold, key, position, draw, step = 0, 0, 0, 0, 0
        if HAS_DROPOUT:
            adapter = tl.load(adapter_ptr + start)
            # An adapter that drops nothing takes part with threshold 0: a second loop would double the shared memory.
            threshold = tl.maximum(tl.load(threshold_ptr + adapter), 0)
            c *= tl.load(scale_ptr + adapter)
            key = tl.load(key_ptr + adapter)
            position = tl.load(position_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            draw = tl.load(draw_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
            step = tl.load(step_ptr + o_t, mask=m_t, other=0).to(tl.uint32, bitcast=True)
        b_s = tl.zeros((BLOCK_R, BLOCK_T), tl.float32)
        for k in range(0, K, BLOCK_K):
            b_a = tl.load(p_a, mask=m_r[:, None] & (o_k < K - k)[None, :], other=0.0)  # [R, K]
            w0, w1, w2, w3 = 0, 0, 0, 0
            if HAS_DROPOUT:
                o_c = (k // 8 + tl.arange(0, BLOCK_K // 8)).to(tl.uint32)
                w0, w1, w2, w3 = philox_words(o_c, position, draw, step, key)
            m_x = m_t[:, None] & (o_x < (K - k) // WIDTH)[None, :]
            b_x = load_kept(p_x, m_x, w0, w1, w2, w3, threshold, DTYPE, HAS_DROPOUT, PAIRS, PTX)  # [T, K]
            b_s = tl.dot(b_a, tl.trans(b_x), b_s, input_precision=PRECISION)  # [R, T]
            p_a += BLOCK_K
            p_x += BLOCK_K // WIDTH
        p_s = s_ptr + (i_pair.to(tl.int64) * TILE_ROWS + o_row)[:, None] * R + o_r[None, :]
        # By selection: zero rows of x times an infinite A would be NaN.
        b_s = tl.where(m_t[:, None], tl.trans(b_s * c), 0.0)
        tl.store(p_s, b_s.to(DTYPE), mask=(o_r < R)[None, :])
    else:
        num_columns = tl.cdiv(N, FACTOR_COLUMNS)
        i_ready = i_program - num_pair_programs
        i_factor = (i_ready // num_columns).to(tl.int64)
        ready_slot = tl.load(factor_table_ptr + 2 * i_factor).to(tl.int64)
        write_ready(
            b_ptr + ready_slot * stride_b_slot,
            ready_ptr + i_factor * N * R,
            flag_ptr + i_ready,
            tl.load(factor_table_ptr + 2 * i_factor + 1),
            N,
            i_ready % num_columns,
            stride_b_out,
            1,
            R,
            1,
            R,
            READY_R,
            STACK_ALIGNED,
            FACTOR_COLUMNS,
        )


def shrink(
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    routes: RouteTables,
    dropout: Dropout | None,
    launch: ShrinkLaunch,
    *,
    ready: ReadyFactor | None = None,
) -> torch.Tensor:
    """Give s, [routes.num_rows, R]; copy B to `ready` unless that is None."""
    R = rank_columns(routes.max_rank)
    s = torch.empty(routes.num_rows, R, dtype=x.dtype, device=x.device)
    rows = feature_rows(x)
    num_pair_programs = routes.num_pairs * (TILE_ROWS // launch.block_t)
    num_ready_programs = 0 if ready is None else ready.flags.numel()
    _shrink_kernel[(num_pair_programs + num_ready_programs,)](
        rows.data,
        a,
        b,
        s,
        s if ready is None else ready.factors,
        routes.segments if ready is None else ready.flags,
        routes.pair_tile,
        routes.pair_segment,
        routes.segments,
        routes.scaling,
        routes.factor_table,
        *dropout_arguments(dropout, routes.segments),
        num_pair_programs,
        x.shape[1],
        b.shape[1],
        R,
        rows.stride,
        a.stride(0),
        a.stride(1),
        b.stride(0),
        b.stride(1),
        DTYPE=triton_dtype(x.dtype),
        HAS_DROPOUT=dropout is not None,
        PAIRS=rows.by_pairs,
        PTX=uses_ptx(x),
        PRECISION=dot_precision(x.dtype),
        SEGMENT_WORDS=SEGMENT_WORDS,
        TILE_ROWS=TILE_ROWS,
        FACTOR_COLUMNS=FACTOR_COLUMNS,
        STACK_ALIGNED=stack_is_aligned(b),
        READY_R=READY_RANKS,
        BLOCK_T=launch.block_t,
        BLOCK_K=launch.block_k,
        BLOCK_R=rank_block(routes.max_rank, launch.min_block_r),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return s
