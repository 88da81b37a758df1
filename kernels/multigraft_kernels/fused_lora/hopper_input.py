"""The one read of x in backward for Hopper (Gluon): partial sums of dA = ds^T drop(x) over chunks of rows.

Shapes   x [T, K], ds [num_rows, R] by pairs, holding c ds; da_parts [chunks, R, K] fp32 (an adapter's rank rows of it)
Dtypes   x, ds bf16 or fp16; accumulation fp32
Fused    as hopper_shrink.py: the mask is generated again and applied to the tile of x where it lies in shared memory.
         Rows beyond the chunk are cleared by the same AND; those of ds in a chunk's last tile are cleared beside it
Roofline T=8192 K=4096 R=64, H200 at 4.3 TB/s: 68 MB = 16 us; 4.3 GFLOP = 6 us; the mask 11 us of ALU pipe
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    no atomics: `reduce_parts` adds the parts in their order; dA depends on the adapter's rows alone
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma

from multigraft_kernels.fused_lora.hopper_mask import keep_pairs, philox_words, split_threshold
from multigraft_kernels.fused_lora.hopper_operands import clear_rows, describe, describe_words
from multigraft_kernels.fused_lora.operands import Dropout, dropout_arguments, rank_block
from multigraft_kernels.launch.choices import HopperInputLaunch
from multigraft_kernels.multi_lora.fused.routes import CHUNK_WORDS, SEGMENT_WORDS, ChunkTable, RouteTables

_BLOCK_T = 64


@gluon.jit
def _fetch(x_desc, ds_desc, x_ring, ds_ring, full, row, shift, k, stage, wanted):  # type: ignore[no-untyped-def]
    num_bytes: gl.constexpr = x_desc.block_type.nbytes + ds_desc.block_type.nbytes
    mbarrier.expect(full.index(stage), num_bytes, pred=wanted)
    tma.async_copy_global_to_shared(x_desc, [row, k // 2], full.index(stage), x_ring.index(stage), pred=wanted)
    tma.async_copy_global_to_shared(ds_desc, [row + shift, 0], full.index(stage), ds_ring.index(stage), pred=wanted)


@gluon.jit
def _load_counters(position_ptr, draw_ptr, step_ptr, o_t, end):  # type: ignore[no-untyped-def]
    m_t = o_t < end
    position = gl.load(position_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True)
    draw = gl.load(draw_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True)
    step = gl.load(step_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True)
    return position, draw, step


@gluon.jit  # type: ignore[untyped-decorator]
def _input_kernel(  # type: ignore[no-untyped-def]
    x_desc,
    ds_desc,
    da_ptr,
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
    HAS_DROPOUT: gl.constexpr,
    CHUNK_WORDS: gl.constexpr,
    SEGMENT_WORDS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_K: gl.constexpr,
    BLOCK_R: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    word_layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [gl.num_warps(), 1], [1, 0])
    call_layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [gl.num_warps(), 1], [1, 0])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_K, 16])
    dtype: gl.constexpr = ds_desc.dtype
    tile_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_T, BLOCK_K], dtype)

    i_k, i_chunk = gl.program_id(0), gl.program_id(1)
    p_chunk = chunk_ptr + i_chunk * CHUNK_WORDS
    first, end = gl.load(p_chunk + 1), gl.load(p_chunk + 2)
    p_segment = segment_ptr + gl.load(p_chunk) * SEGMENT_WORDS
    rank, shift = gl.load(p_segment + 3), gl.load(p_segment + 5)
    k = i_k * BLOCK_K
    steps = (end - first + BLOCK_T - 1) // BLOCK_T

    x_ring = gl.allocate_shared_memory(gl.int32, [NUM_STAGES, BLOCK_T, BLOCK_K // 2], x_desc.layout)
    ds_ring = gl.allocate_shared_memory(dtype, [NUM_STAGES, BLOCK_T, BLOCK_R], ds_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    gl.thread_barrier()
    for i in gl.static_range(NUM_STAGES):
        _fetch(x_desc, ds_desc, x_ring, ds_ring, full, first + i * BLOCK_T, shift, k, i, i < steps)

    o_t = first + gl.arange(0, BLOCK_T, gl.SliceLayout(1, call_layout))
    o_word_t = gl.arange(0, BLOCK_T, gl.SliceLayout(1, word_layout))
    if HAS_DROPOUT:
        adapter = gl.load(adapter_ptr + first)
        low_bits, not_high = split_threshold(gl.maximum(gl.load(threshold_ptr + adapter), 0))
        key = gl.load(key_ptr + adapter)
        key_low, key_high = (key & 0xFFFFFFFF).to(gl.uint32), ((key >> 32) & 0xFFFFFFFF).to(gl.uint32)
        o_c = k // 8 + gl.arange(0, BLOCK_K // 8, gl.SliceLayout(0, call_layout))
        call = gl.expand_dims(o_c.to(gl.uint32), 0)
        position, draw, step = _load_counters(position_ptr, draw_ptr, step_ptr, o_t, end)

    b_da = gl.zeros([BLOCK_R, BLOCK_K], gl.float32, sum_layout)
    for i in range(steps):
        stage = i % NUM_STAGES
        x_tile = x_ring.index(stage)
        rows = end - first - i * BLOCK_T
        if HAS_DROPOUT:
            # Made before the tile is waited for: the mask needs no data.
            w0, w1, w2, w3 = philox_words(
                call, gl.expand_dims(position, 1), gl.expand_dims(draw, 1), gl.expand_dims(step, 1), key_low, key_high
            )
            keep = keep_pairs(w0, w1, w2, w3, low_bits, not_high, word_layout).to(gl.int32, bitcast=True)
            mbarrier.wait(full.index(stage), (i // NUM_STAGES) & 1)
            inside = gl.expand_dims(gl.where(o_word_t < rows, -1, 0), 1)
            x_tile.store(x_tile.load(word_layout) & keep & inside)
            if rows < BLOCK_T:
                clear_rows(ds_ring.index(stage), rows, BLOCK_T, BLOCK_R)
            # wgmma of any warp must come after the fences of all
            fence_async_shared()
            gl.thread_barrier()
        else:
            mbarrier.wait(full.index(stage), (i // NUM_STAGES) & 1)
            if rows < BLOCK_T:
                clear_rows(x_tile, rows, BLOCK_T, BLOCK_K // 2)
                clear_rows(ds_ring.index(stage), rows, BLOCK_T, BLOCK_R)
                fence_async_shared()
                gl.thread_barrier()
        features = x_tile._reinterpret(dtype, [BLOCK_T, BLOCK_K], tile_layout)
        b_da = warpgroup_mma(ds_ring.index(stage).permute([1, 0]), features, b_da)  # [R, K]
        # All warps are past this product, so that its tiles may be overwritten.
        gl.thread_barrier()
        ahead = first + (i + NUM_STAGES) * BLOCK_T
        _fetch(x_desc, ds_desc, x_ring, ds_ring, full, ahead, shift, k, stage, i + NUM_STAGES < steps)
        if HAS_DROPOUT:
            o_t += BLOCK_T
            position, draw, step = _load_counters(position_ptr, draw_ptr, step_ptr, o_t, end)

    o_r = gl.arange(0, BLOCK_R, gl.SliceLayout(1, sum_layout))
    o_k = k + gl.arange(0, BLOCK_K, gl.SliceLayout(0, sum_layout))
    p_da = da_ptr + gl.expand_dims((i_chunk.to(gl.int64) * R + o_r) * K, 1) + gl.expand_dims(o_k, 0)
    gl.store(p_da, b_da, mask=gl.expand_dims(o_r < rank, 1) & gl.expand_dims(o_k < K, 0))


def read_input_parts(
    x: torch.Tensor,
    ds: torch.Tensor,
    routes: RouteTables,
    chunks: ChunkTable,
    dropout: Dropout | None,
    launch: HopperInputLaunch,
) -> torch.Tensor:
    """Give da_parts, [chunks.num_chunks, R, K]."""
    K, R = x.shape[1], ds.shape[1]
    da_parts = torch.empty(chunks.num_chunks, R, K, dtype=torch.float32, device=x.device)
    block_r = rank_block(routes.max_rank, 64)
    block_k = launch.block_k if block_r == 64 else 64
    _input_kernel[(-(-K // block_k), chunks.num_chunks)](
        describe_words(x, [_BLOCK_T, block_k // 2]),
        describe(ds, [_BLOCK_T, block_r]),
        da_parts,
        chunks.chunks,
        routes.segments,
        *dropout_arguments(dropout, routes.segments)[:-1],
        K,
        R,
        HAS_DROPOUT=dropout is not None,
        CHUNK_WORDS=CHUNK_WORDS,
        SEGMENT_WORDS=SEGMENT_WORDS,
        BLOCK_T=_BLOCK_T,
        BLOCK_K=block_k,
        BLOCK_R=block_r,
        NUM_STAGES=launch.num_stages,
        num_warps=4,
    )
    return da_parts
