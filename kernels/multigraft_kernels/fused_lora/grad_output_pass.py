"""The one read of dy in backward: partial sums of ds = dy B over blocks of outputs, of dB = dy^T s over chunks of rows.

Shapes   dy [T, N], B [slots, N, maxRank], s [num_rows, R] by pairs; ds_parts [N / BLOCK_N, R, num_rows] fp32,
         db_parts [chunks, R, N] fp32; of each only what a chunk's rank and rows cover is written
Dtypes   dy, B, s all bf16, fp16 or fp32; accumulation fp32
Fused    a tile of dy lies in shared memory once and is the right operand of both products; no mask, no scaling here
Roofline T=8192 N=4096 R=64 bf16, H200 at 4.3 TB/s: 68 MB = 16 us; 8.6 GFLOP = 11 us beside it; partial sums of ranks
         8, 16, 16, 64 with BLOCK_N=256, chunks of 1024 rows: 24 MB written, mostly to L2 (4 us)
Measured docs/benchmarks/fused_lora_h200_2026-11-30.md
Exact    no atomics: `reduce_parts` adds the parts in their order; a row of ds depends on that row and its adapter alone,
         dB on the adapter's rows alone, whatever stands around them
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from multigraft_kernels.fused_lora.cost import Cost
from multigraft_kernels.fused_lora.operands import dot_precision, rank_block, triton_dtype
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
    DTYPE: tl.constexpr,
    NEED_DB: tl.constexpr,
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
    m_r, m_n = o_r < rank, o_n < N
    p_b = b_ptr + slot.to(tl.int64) * stride_b_slot + o_n.to(tl.int64)[:, None] * stride_b_out + o_r[None, :]
    b_b = tl.load(p_b, mask=m_n[:, None] & m_r[None, :], other=0.0)  # [N, R]
    p_ds = ds_ptr + (i_n.to(tl.int64) * R + o_r)[:, None] * num_rows + shift  # [R, 1]
    b_db = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for t in range(first, end, BLOCK_T):
        o_t = t + tl.arange(0, BLOCK_T)
        m_t = o_t < end
        p_dy = dy_ptr + o_t.to(tl.int64)[:, None] * stride_dy + o_n[None, :]
        b_dy = tl.load(p_dy, mask=m_t[:, None] & m_n[None, :], other=0.0)  # [T, N]
        b_ds = tl.dot(tl.trans(b_b), tl.trans(b_dy), input_precision=PRECISION)  # [R, T]
        tl.store(p_ds + o_t[None, :], b_ds, mask=m_r[:, None] & m_t[None, :])
        if NEED_DB:
            p_s = s_ptr + (o_t + shift).to(tl.int64)[:, None] * R + o_r[None, :]
            b_s = tl.load(p_s, mask=m_t[:, None] & m_r[None, :], other=0.0)  # [T, R]
            b_db = tl.dot(tl.trans(b_s), b_dy, b_db, input_precision=PRECISION)  # [R, N]
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
    ds_parts = torch.empty(num_blocks, R, num_rows, dtype=torch.float32, device=dy.device)
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
        DTYPE=triton_dtype(dy.dtype),
        NEED_DB=need_db,
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
