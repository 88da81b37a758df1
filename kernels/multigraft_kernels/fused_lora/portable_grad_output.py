"""The one read of dy in backward: partial sums of ds = dy B over blocks of outputs, of dB = dy^T s over chunks of rows.

Shapes   dy [T, N], B [slots, N, maxRank], s [num_rows, R] by pairs; ds_parts [N / BLOCK_N, num_rows, R] fp32,
         db_parts [chunks, R, N] fp32; of each only what a chunk's rank and rows cover is written
Dtypes   dy, B, s all bf16, fp16 or fp32; accumulation fp32
Fused    a tile of dy lies in shared memory once and is the right operand of both products; no mask, no scaling here
Roofline T=8192 N=4096 R=64 bf16, H200 at 4.3 TB/s: 68 MB = 16 us; 8.6 GFLOP = 11 us beside it; partial sums of ranks
         8, 16, 16, 64 with BLOCK_N=256, chunks of 1024 rows: 24 MB written, mostly to L2 (4 us)
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    no atomics: `reduce_parts` adds the parts in their order; a row of ds depends on that row and its adapter
         alone, dB on the adapter's rows alone, whatever stands around them
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from multigraft_kernels.fused_lora.cost import Cost
from multigraft_kernels.fused_lora.operands import dot_precision, rank_block, stack_is_aligned
from multigraft_kernels.launch.choices import GradOutputLaunch
from multigraft_kernels.multi_lora.fused.routes import CHUNK_WORDS, SEGMENT_WORDS, ChunkTable, RouteTables


def estimate_cost(T: int, N: int, R: int, itemsize: int, block_n: int, chunk_rows: int) -> Cost:
    """Estimate the cost of T rows, all with one adapter of rank R."""
    parts = 4.0 * R * (T * -(-N // block_n) + N * -(-T // chunk_rows))
    return Cost(4.0 * T * N * R, itemsize * (T * N + N * R + T * R) + parts)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _grad_output_kernel(  # type: ignore[no-untyped-def]
    dy_ptr,
    b_ptr,
    s_ptr,
    ds_ptr,
    db_ptr,
    chunk_ptr,
    segment_ptr,
    num_rows,
    N,
    R,
    stride_dy,
    stride_b_slot,
    stride_b_out,
    one,
    NEED_DB: tl.constexpr,
    STACK_ALIGNED: tl.constexpr,
    PRECISION: tl.constexpr,
    CHUNK_WORDS: tl.constexpr,
    SEGMENT_WORDS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    i_n, i_chunk = tl.program_id(0), tl.program_id(1)
    p_chunk = chunk_ptr + i_chunk * CHUNK_WORDS
    first, end = tl.load(p_chunk + 1), tl.load(p_chunk + 2)
    p_segment = segment_ptr + tl.load(p_chunk) * SEGMENT_WORDS
    slot, rank, shift = tl.load(p_segment + 2), tl.load(p_segment + 3), tl.load(p_segment + 5)

    o_r = tl.arange(0, BLOCK_R)
    o_n = i_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Ranks are read and written in whole sixteens where memory allows: a mask by rank would split rows into single
    # values
    rank_16 = (rank + 15) // 16 * 16
    m_r, m_16, m_n = o_r < rank, o_r < rank_16, o_n < N
    p_b = b_ptr + slot.to(tl.int64) * stride_b_slot + o_n.to(tl.int64)[:, None] * stride_b_out + o_r[None, :]
    b_b = tl.load(p_b, mask=m_n[:, None] & (m_16 if STACK_ALIGNED else m_r)[None, :], other=0.0)  # [N, R]
    b_b = tl.where(m_r[None, :], b_b, 0.0)
    o_t = first + tl.arange(0, BLOCK_T)
    p_dy = dy_ptr + o_t.to(tl.int64)[:, None] * stride_dy + o_n[None, :]
    p_s = s_ptr + (o_t + shift).to(tl.int64)[:, None] * R + o_r[None, :]
    p_ds = ds_ptr + (i_n.to(tl.int64) * num_rows + o_t + shift)[:, None] * R + o_r[None, :]
    b_db = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for _ in range(first, end, BLOCK_T):
        m_t = o_t < end
        b_dy = tl.load(p_dy, mask=m_t[:, None] & m_n[None, :], other=0.0)  # [T, N]
        b_ds = tl.dot(b_dy, b_b, input_precision=PRECISION)  # [T, R]
        tl.store(p_ds, b_ds, mask=m_t[:, None] & m_16[None, :])
        if NEED_DB:
            b_s = tl.load(p_s, mask=m_t[:, None] & (o_r < R)[None, :], other=0.0)  # [T, R], zero beyond the rank
            b_db = tl.dot(tl.trans(b_s), b_dy, b_db, input_precision=PRECISION)  # [R, N]
            # A use here ends the product in this turn: were it still running when the next one's accumulator is
            # cleared,
            # ptxas would run all wgmma one by one (its warning C7515). 64 multiplications per thread cost less.
            b_db *= one
        o_t += BLOCK_T
        p_dy += BLOCK_T * stride_dy
        p_s += BLOCK_T * R
        p_ds += BLOCK_T * R
    if NEED_DB:
        p_db = db_ptr + (i_chunk.to(tl.int64) * R + o_r)[:, None] * N + o_n[None, :]
        tl.store(p_db, b_db, mask=m_r[:, None] & m_n[None, :])


def read_grad_output(
    dy: torch.Tensor,
    b: torch.Tensor,
    s: torch.Tensor,
    routes: RouteTables,
    chunks: ChunkTable,
    launch: GradOutputLaunch,
    *,
    need_db: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give ds_parts and db_parts (empty if not needed)."""
    N, (num_rows, R) = dy.shape[1], s.shape
    num_blocks = triton.cdiv(N, launch.block_n)
    ds_parts = torch.empty(num_blocks, num_rows, R, dtype=torch.float32, device=dy.device)
    db_parts = torch.empty(chunks.num_chunks if need_db else 0, R, N, dtype=torch.float32, device=dy.device)
    _grad_output_kernel[(num_blocks, chunks.num_chunks)](
        dy,
        b,
        s,
        ds_parts,
        db_parts,
        chunks.chunks,
        routes.segments,
        num_rows,
        N,
        R,
        dy.stride(0),
        b.stride(0),
        b.stride(1),
        1.0,
        NEED_DB=need_db,
        STACK_ALIGNED=stack_is_aligned(b),
        PRECISION=dot_precision(dy.dtype),
        CHUNK_WORDS=CHUNK_WORDS,
        SEGMENT_WORDS=SEGMENT_WORDS,
        BLOCK_T=launch.block_t,
        BLOCK_N=launch.block_n,
        BLOCK_R=rank_block(routes.max_rank, launch.min_block_r),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return ds_parts, db_parts
