"""The one read of dy in backward for Hopper (Gluon): partial sums of ds = dy B over outputs, of dB = dy^T s over rows.

Shapes   dy [T, N], B [slots, N, maxRank], s [num_rows, R] by pairs; ds_parts [ceil(N / BLOCK_N), num_rows, R] fp32,
         db_parts [chunks, R, N] fp32; of each only what a chunk's rank and rows cover is written
Dtypes   dy, B, s all bf16 or fp16; accumulation fp32
Fused    TMA brings a tile of dy once, both products take it from shared memory; registers see only the sums. A chunk's
         last tile is cleared in shared memory beyond the chunk's rows, since 0 x NaN of a neighbour would be NaN
Roofline T=8192 N=4096 R=64, H200 at 4.3 TB/s: 68 MB = 16 us; 8.6 GFLOP = 11 us beside it; partial sums of ranks
         8, 16, 16, 64 with BLOCK_N=256, chunks of 1024 rows: 24 MB written, mostly to L2 (4 us)
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    no atomics: `reduce_parts` adds the parts in their order; a row of ds depends on that row and its adapter
         alone, dB on the adapter's rows alone
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from multigraft_kernels.fused_lora.hopper_operands import clear_rows, describe
from multigraft_kernels.fused_lora.operands import rank_block
from multigraft_kernels.launch.choices import HopperGradOutputLaunch
from multigraft_kernels.multi_lora.fused.routes import CHUNK_WORDS, SEGMENT_WORDS, ChunkTable, RouteTables

_BLOCK_T = 64


@gluon.jit  # type: ignore[untyped-decorator]
def _fetch(dy_desc, s_desc, dy_ring, s_ring, full, row, shift, column, stage, wanted, NEED_DB: gl.constexpr):  # type: ignore[no-untyped-def]
    num_bytes: gl.constexpr = dy_desc.block_type.nbytes + (s_desc.block_type.nbytes if NEED_DB else 0)
    mbarrier.expect(full.index(stage), num_bytes, pred=wanted)
    tma.async_copy_global_to_shared(dy_desc, [row, column], full.index(stage), dy_ring.index(stage), pred=wanted)
    if NEED_DB:
        tma.async_copy_global_to_shared(s_desc, [row + shift, 0], full.index(stage), s_ring.index(stage), pred=wanted)


@gluon.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _grad_output_kernel(  # type: ignore[no-untyped-def]
    dy_desc,
    b_desc,
    s_desc,
    ds_ptr,
    db_ptr,
    chunk_ptr,
    segment_ptr,
    num_rows,
    N,
    R,
    NEED_DB: gl.constexpr,
    CHUNK_WORDS: gl.constexpr,
    SEGMENT_WORDS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_R: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    HALVES: gl.constexpr = gl.num_warps() // 4  # warpgroups share the ranks of ds, whose rows are 64
    ds_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, HALVES], [16, BLOCK_R // HALVES, 16])
    db_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    dtype: gl.constexpr = dy_desc.dtype
    i_n, i_chunk = gl.program_id(0), gl.program_id(1)
    p_chunk = chunk_ptr + i_chunk * CHUNK_WORDS
    first, end = gl.load(p_chunk + 1), gl.load(p_chunk + 2)
    p_segment = segment_ptr + gl.load(p_chunk) * SEGMENT_WORDS
    slot, rank, shift = gl.load(p_segment + 2), gl.load(p_segment + 3), gl.load(p_segment + 5)
    column = i_n * BLOCK_N
    steps = (end - first + BLOCK_T - 1) // BLOCK_T

    dy_ring = gl.allocate_shared_memory(dtype, [NUM_STAGES, BLOCK_T, BLOCK_N], dy_desc.layout)
    s_ring = gl.allocate_shared_memory(dtype, [NUM_STAGES, BLOCK_T, BLOCK_R], s_desc.layout)
    b_tile_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_R], dtype)
    b_tile = gl.allocate_shared_memory(dtype, [BLOCK_N, BLOCK_R], b_tile_layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES + 1, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES + 1):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    gl.thread_barrier()
    for i in gl.static_range(NUM_STAGES):
        _fetch(dy_desc, s_desc, dy_ring, s_ring, full, first + i * BLOCK_T, shift, column, i, i < steps, NEED_DB)
    b_full = full.index(NUM_STAGES)
    mbarrier.expect(b_full, b_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(b_desc, [slot, column, 0], b_full, b_tile.reshape([1, BLOCK_N, BLOCK_R]))
    mbarrier.wait(b_full, 0)

    o_r = gl.arange(0, BLOCK_R, gl.SliceLayout(0, ds_layout))
    o_t = gl.arange(0, BLOCK_T, gl.SliceLayout(1, ds_layout))
    # Ranks are written in whole sixteens: a mask by rank would split the stores.
    m_r = gl.expand_dims(o_r < (rank + 15) // 16 * 16, 0)
    p_ds = ds_ptr + gl.expand_dims((i_n.to(gl.int64) * num_rows + first + shift + o_t) * R, 1) + gl.expand_dims(o_r, 0)
    b_db = gl.zeros([BLOCK_R, BLOCK_N], gl.float32, db_layout)
    for i in range(steps):
        stage = i % NUM_STAGES
        mbarrier.wait(full.index(stage), (i // NUM_STAGES) & 1)
        dy_tile = dy_ring.index(stage)
        rows = end - first - i * BLOCK_T
        if rows < BLOCK_T:
            clear_rows(dy_tile, rows, BLOCK_T, BLOCK_N)
            if NEED_DB:
                clear_rows(s_ring.index(stage), rows, BLOCK_T, BLOCK_R)
            # wgmma of any warp must come after the fences of all
            fence_async_shared()
            gl.thread_barrier()
        b_ds = gl.zeros([BLOCK_T, BLOCK_R], gl.float32, ds_layout)
        b_ds = warpgroup_mma(dy_tile, b_tile, b_ds, is_async=True)  # [T, R]
        if NEED_DB:
            b_db = warpgroup_mma(s_ring.index(stage).permute([1, 0]), dy_tile, b_db, is_async=True)  # [R, N]
            b_ds, b_db = warpgroup_mma_wait(0, deps=(b_ds, b_db))
        else:
            b_ds = warpgroup_mma_wait(0, deps=(b_ds,))
        # All warps are past these products, so that their tiles may be overwritten.
        gl.thread_barrier()
        ahead = first + (i + NUM_STAGES) * BLOCK_T
        _fetch(dy_desc, s_desc, dy_ring, s_ring, full, ahead, shift, column, stage, i + NUM_STAGES < steps, NEED_DB)
        gl.store(p_ds, b_ds, mask=m_r & gl.expand_dims(o_t < rows, 1))
        p_ds += BLOCK_T * R
    if NEED_DB:
        o_n = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, db_layout))
        o_r2 = gl.arange(0, BLOCK_R, gl.SliceLayout(1, db_layout))
        p_db = db_ptr + gl.expand_dims((i_chunk.to(gl.int64) * R + o_r2) * N, 1) + gl.expand_dims(o_n, 0)
        gl.store(p_db, b_db, mask=gl.expand_dims(o_r2 < rank, 1) & gl.expand_dims(o_n < N, 0))


def read_grad_output_parts(
    dy: torch.Tensor,
    b: torch.Tensor,
    s: torch.Tensor,
    routes: RouteTables,
    chunks: ChunkTable,
    launch: HopperGradOutputLaunch,
    *,
    need_db: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Give ds_parts and db_parts (empty if not needed)."""
    N, (num_rows, R) = dy.shape[1], s.shape
    block_r = rank_block(routes.max_rank, 64)
    block_n = launch.block_n * 64 // block_r  # larger ranks take the shared memory and the registers of outputs
    num_blocks = -(-N // block_n)
    ds_parts = torch.empty(num_blocks, num_rows, R, dtype=torch.float32, device=dy.device)
    db_parts = torch.empty(chunks.num_chunks if need_db else 0, R, N, dtype=torch.float32, device=dy.device)
    _grad_output_kernel[(num_blocks, chunks.num_chunks)](
        describe(dy, [_BLOCK_T, block_n]),
        describe(b, [1, block_n, block_r]),
        describe(s, [_BLOCK_T, block_r]),
        ds_parts,
        db_parts,
        chunks.chunks,
        routes.segments,
        num_rows,
        N,
        R,
        NEED_DB=need_db,
        CHUNK_WORDS=CHUNK_WORDS,
        SEGMENT_WORDS=SEGMENT_WORDS,
        BLOCK_T=_BLOCK_T,
        BLOCK_N=block_n,
        BLOCK_R=block_r,
        NUM_STAGES=launch.num_stages,
        num_warps=4 if block_r == 64 else 8,
    )
    return ds_parts, db_parts
