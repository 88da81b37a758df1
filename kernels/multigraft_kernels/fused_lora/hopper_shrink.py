"""The one read of x in forward for Hopper (Gluon): partial sums of s = drop(x) A^T over blocks of features.

Shapes   x [T, K], A [slots, maxRank, K]; s_parts [ceil(K / split), num_rows, R] fp32 by pairs; of each row its
         adapter's rank is written, in whole sixteens (`reduce_parts.reduce_rows` makes s of it)
Dtypes   x, A bf16 or fp16; accumulation fp32
Fused    TMA brings tiles of x and A; the mask is made in registers and applied to the tile where it lies in shared
         memory, by words of two features; then the tile is the right operand of wgmma. Three programs share a
         multiprocessor, so that one's mask, another's product and the loads of all overlap
Why TMA  portable_shrink.py reaches 1.4 TB/s: its cp.async loads probably do not stay under way, because what is written
         to shared memory for wgmma needs a proxy fence, which ptxas makes with a MEMBAR (docs/experiment-log.md)
Roofline T=8192 K=4096 R=64, H200 at 4.3 TB/s: 69 MB = 16 us; the mask 11 us of ALU pipe beside it
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    a row of s depends on that row and its adapter alone, bit by bit
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
)

from multigraft_kernels.fused_lora.hopper_mask import keep_pairs, philox_words, split_threshold
from multigraft_kernels.fused_lora.hopper_operands import describe, describe_words
from multigraft_kernels.fused_lora.operands import Dropout, dropout_arguments, rank_block, rank_columns
from multigraft_kernels.launch.choices import HopperShrinkLaunch
from multigraft_kernels.multi_lora.fused.routes import SEGMENT_WORDS, TILE_ROWS, RouteTables

_BLOCK_K = 64  # features of a tile: 128 bytes, the widest swizzle


@gluon.jit
def _fetch(x_desc, a_desc, x_ring, a_ring, full, row, slot, k, stage, wanted):  # type: ignore[no-untyped-def]
    num_bytes: gl.constexpr = x_desc.block_type.nbytes + a_desc.block_type.nbytes
    mbarrier.expect(full.index(stage), num_bytes, pred=wanted)
    tma.async_copy_global_to_shared(x_desc, [row, k // 2], full.index(stage), x_ring.index(stage), pred=wanted)
    a_tile = a_ring.index(stage).reshape([1, a_ring.shape[1], a_ring.shape[2]])
    tma.async_copy_global_to_shared(a_desc, [slot, 0, k], full.index(stage), a_tile, pred=wanted)


@gluon.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _shrink_parts_kernel(  # type: ignore[no-untyped-def]
    x_desc,
    a_desc,
    parts_ptr,
    pair_tile_ptr,
    pair_segment_ptr,
    segment_ptr,
    adapter_ptr,
    position_ptr,
    draw_ptr,
    step_ptr,
    key_ptr,
    threshold_ptr,
    num_rows,
    K,
    R,
    split,
    HAS_DROPOUT: gl.constexpr,
    SEGMENT_WORDS: gl.constexpr,
    TILE_ROWS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_K: gl.constexpr,
    BLOCK_R: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    word_layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [gl.num_warps(), 1], [1, 0])
    call_layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [gl.num_warps(), 1], [1, 0])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_T, 16])
    dtype: gl.constexpr = a_desc.dtype
    tile_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_T, BLOCK_K], dtype)

    PARTS: gl.constexpr = TILE_ROWS // BLOCK_T
    i_split, i_pair, i_part = gl.program_id(0), gl.program_id(1) // PARTS, gl.program_id(1) % PARTS
    p_segment = segment_ptr + gl.load(pair_segment_ptr + i_pair) * SEGMENT_WORDS
    start, end = gl.load(p_segment), gl.load(p_segment + 1)
    slot, rank = gl.load(p_segment + 2), gl.load(p_segment + 3)
    row = gl.load(pair_tile_ptr + i_pair) * TILE_ROWS + i_part * BLOCK_T
    first = i_split * split
    steps = (gl.minimum(split, K - first) + BLOCK_K - 1) // BLOCK_K

    x_ring = gl.allocate_shared_memory(gl.int32, [NUM_STAGES, BLOCK_T, BLOCK_K // 2], x_desc.layout)
    a_ring_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_R, BLOCK_K], dtype)
    a_ring = gl.allocate_shared_memory(dtype, [NUM_STAGES, BLOCK_R, BLOCK_K], a_ring_layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    gl.thread_barrier()
    for i in gl.static_range(NUM_STAGES):
        _fetch(x_desc, a_desc, x_ring, a_ring, full, row, slot, first + i * BLOCK_K, i, i < steps)

    if HAS_DROPOUT:
        o_t = row + gl.arange(0, BLOCK_T, gl.SliceLayout(1, call_layout))
        m_t = (o_t >= start) & (o_t < end)
        adapter = gl.load(adapter_ptr + start)
        # An adapter that drops nothing takes part with threshold 0, which keeps everything.
        low_bits, not_high = split_threshold(gl.maximum(gl.load(threshold_ptr + adapter), 0))
        key = gl.load(key_ptr + adapter)
        key_low, key_high = (key & 0xFFFFFFFF).to(gl.uint32), ((key >> 32) & 0xFFFFFFFF).to(gl.uint32)
        position = gl.expand_dims(gl.load(position_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True), 1)
        draw = gl.expand_dims(gl.load(draw_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True), 1)
        step = gl.expand_dims(gl.load(step_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True), 1)

    b_s = gl.zeros([BLOCK_R, BLOCK_T], gl.float32, sum_layout)
    for i in range(steps):
        stage = i % NUM_STAGES
        mbarrier.wait(full.index(stage), (i // NUM_STAGES) & 1)
        x_tile = x_ring.index(stage)
        if HAS_DROPOUT:
            o_c = (first + i * BLOCK_K) // 8 + gl.arange(0, BLOCK_K // 8, gl.SliceLayout(0, call_layout))
            call = gl.expand_dims(o_c.to(gl.uint32), 0)
            w0, w1, w2, w3 = philox_words(call, position, draw, step, key_low, key_high)
            keep = keep_pairs(w0, w1, w2, w3, low_bits, not_high, word_layout)
            x_tile.store(x_tile.load(word_layout) & keep.to(gl.int32, bitcast=True))
            # wgmma of any warp must come after the fences of all
            fence_async_shared()
            gl.thread_barrier()
        features = x_tile._reinterpret(dtype, [BLOCK_T, BLOCK_K], tile_layout)
        b_s = warpgroup_mma(a_ring.index(stage), features.permute([1, 0]), b_s)  # [R, T]
        # All warps are past this product, so that its tiles may be overwritten.
        gl.thread_barrier()
        ahead = first + (i + NUM_STAGES) * BLOCK_K
        _fetch(x_desc, a_desc, x_ring, a_ring, full, row, slot, ahead, stage, i + NUM_STAGES < steps)

    o_r = gl.arange(0, BLOCK_R, gl.SliceLayout(1, sum_layout))
    o_row = i_pair.to(gl.int64) * TILE_ROWS + i_part * BLOCK_T + gl.arange(0, BLOCK_T, gl.SliceLayout(0, sum_layout))
    p_parts = parts_ptr + gl.expand_dims((i_split.to(gl.int64) * num_rows + o_row) * R, 0) + gl.expand_dims(o_r, 1)
    gl.store(p_parts, b_s, mask=gl.expand_dims(o_r < (rank + 15) // 16 * 16, 1))


def read_shrink_parts(
    x: torch.Tensor, a: torch.Tensor, routes: RouteTables, dropout: Dropout | None, launch: HopperShrinkLaunch
) -> torch.Tensor:
    """Give s_parts, [ceil(K / launch.split), routes.num_rows, R]."""
    K, R = x.shape[1], rank_columns(routes.max_rank)
    num_splits = -(-K // launch.split)
    parts = torch.empty(num_splits, routes.num_rows, R, dtype=torch.float32, device=x.device)
    block_r = rank_block(routes.max_rank, 64)
    block_t = TILE_ROWS if block_r == 64 else TILE_ROWS // 2  # the accumulator stays within 128 registers
    _shrink_parts_kernel[(num_splits, routes.num_pairs * (TILE_ROWS // block_t))](
        describe_words(x, [block_t, _BLOCK_K // 2]),
        describe(a, [1, block_r, _BLOCK_K]),
        parts,
        routes.pair_tile,
        routes.pair_segment,
        routes.segments,
        *dropout_arguments(dropout, routes.segments)[:-1],
        routes.num_rows,
        K,
        R,
        launch.split,
        HAS_DROPOUT=dropout is not None,
        SEGMENT_WORDS=SEGMENT_WORDS,
        TILE_ROWS=TILE_ROWS,
        BLOCK_T=block_t,
        BLOCK_K=_BLOCK_K,
        BLOCK_R=block_r,
        NUM_STAGES=launch.num_stages,
        num_warps=4,
    )
    return parts
