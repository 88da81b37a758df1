"""The base GEMM with every adapter's part added before the output is written, for Hopper, in Gluon.

    forward   y = x W^T + bias + s B^T        backward   dx = dy W + keep (ds A)      s, ds hold the scaling already

Shapes   left [T, D] (x or dy), W [N, K], s [num_rows, R] by pairs, ready [G, outputs, R] or [G, R, outputs],
         out [T, outputs]; D is what is summed over: K forward, N backward
Dtypes   bf16 or fp16, all alike; accumulation fp32, one rounding at the store
Fused    one producer warp fills a ring of tiles by TMA, two warpgroups multiply them into a 128 x 256 accumulator. An
         adapter's part is one more step of the ring per 64 ranks: tile of s times tile of `ready` in place of x times
         W. Where dropout masks it (dx), these steps come first, the mask is applied to the accumulator, and the base
         product is added to that; so there is never a second accumulator or a second pass over the output. The mask's
         bits are made by two more warps during the products of the tile before, on integer units that nobody uses then
Roofline T=8192 K=N=4096 R=64, H200: 275 GFLOP base + 4.3 GFLOP = 1 step in 65 (1.6 %); 136 MB: compute-bound
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
Exact    rows without adapter get the bits that this kernel gives without any adapter (on an H200 those of cuBLAS, as
         far as seen), for their tiles of s are zero. Every row is summed in one order: adapters' part, then ascending
         D
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

from multigraft_kernels.fused_lora.hopper_mask import pack_keep_bits, philox_words, split_threshold
from multigraft_kernels.fused_lora.hopper_operands import describe
from multigraft_kernels.fused_lora.operands import Dropout, dropout_arguments
from multigraft_kernels.fused_lora.ready_factor import FACTOR_COLUMNS, ReadyFactor
from multigraft_kernels.launch.choices import HopperGemmLaunch
from multigraft_kernels.multi_lora.fused.routes import SEGMENT_WORDS, TILE_ROWS, RouteTables

_BLOCK_D = 64  # summed elements per step: 128 bytes, the widest swizzle
_CONSUMER_WARPS = 8
_MASK_WARPS = 2
# 12 warps start with 168 registers; the warpgroup of the producer and the mask keeps 80 (24 without mask), so that the
# consumers go up to 208 (240)
_START_REGISTERS = 168
_WORKER_REGISTERS = 80


@gluon.jit  # type: ignore[untyped-decorator]
def _place(tile, T, outputs, group, BLOCK_T: gl.constexpr, BLOCK_O: gl.constexpr):  # type: ignore[no-untyped-def]
    """Give the tile's row and column: `group` rows are walked column by column, so that W and left stay in L2."""
    num_t = (T + BLOCK_T - 1) // BLOCK_T
    num_o = (outputs + BLOCK_O - 1) // BLOCK_O
    first = tile // (group * num_o) * group
    height = gl.maximum(gl.minimum(num_t - first, group), 1)  # asked for the tile after the last one too
    rest = tile - first * num_o
    return first + rest % height, rest // height


@gluon.jit  # type: ignore[untyped-decorator]
def _advance(stage, phase, NUM_STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    stage += 1
    wrapped = stage == NUM_STAGES
    return gl.where(wrapped, 0, stage), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit  # type: ignore[untyped-decorator]
def _stage_before(stage, NUM_STAGES: gl.constexpr):  # type: ignore[no-untyped-def]
    # Computed anew: a name that a loop sets to `stage` is not carried when both start as one value (Triton 3.6),
    # and the
    # wrong barrier would be answered for ever.
    return gl.where(stage == 0, NUM_STAGES - 1, stage - 1)


@gluon.jit  # type: ignore[untyped-decorator]
def _produce(  # type: ignore[no-untyped-def]
    left_desc,
    w_desc,
    s_desc,
    ready_desc,
    tile_pairs_ptr,
    pair_factor_ptr,
    left_ring,
    right_ring,
    full,
    empty,
    T,
    D,
    outputs,
    rank_steps,
    group,
    OUTPUTS_LAST: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_O: gl.constexpr,
    BLOCK_D: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    num_tiles = ((T + BLOCK_T - 1) // BLOCK_T) * ((outputs + BLOCK_O - 1) // BLOCK_O)
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        i_t, i_o = _place(tile, T, outputs, group, BLOCK_T, BLOCK_O)
        for pair in range(gl.load(tile_pairs_ptr + 2 * i_t), gl.load(tile_pairs_ptr + 2 * i_t + 1)):
            factor = gl.load(pair_factor_ptr + pair)
            for r in range(rank_steps):
                mbarrier.wait(empty.index(stage), phase)
                mbarrier.expect(full.index(stage), s_desc.block_type.nbytes + ready_desc.block_type.nbytes)
                tma.async_copy_global_to_shared(
                    s_desc, [pair * BLOCK_T, r * BLOCK_D], full.index(stage), left_ring.index(stage)
                )
                if OUTPUTS_LAST:
                    ready_tile = right_ring.index(stage).reshape([1, BLOCK_D, BLOCK_O])
                    place = [factor, r * BLOCK_D, i_o * BLOCK_O]
                    tma.async_copy_global_to_shared(ready_desc, place, full.index(stage), ready_tile)
                else:
                    ready_tile = right_ring.index(stage).reshape([1, BLOCK_O, BLOCK_D])
                    place = [factor, i_o * BLOCK_O, r * BLOCK_D]
                    tma.async_copy_global_to_shared(ready_desc, place, full.index(stage), ready_tile)
                stage, phase = _advance(stage, phase, NUM_STAGES)
        for d in range(0, D, BLOCK_D):
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(full.index(stage), left_desc.block_type.nbytes + w_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(left_desc, [i_t * BLOCK_T, d], full.index(stage), left_ring.index(stage))
            w_place = [d, i_o * BLOCK_O] if OUTPUTS_LAST else [i_o * BLOCK_O, d]
            tma.async_copy_global_to_shared(w_desc, w_place, full.index(stage), right_ring.index(stage))
            stage, phase = _advance(stage, phase, NUM_STAGES)


@gluon.jit  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    acc, left_ring, right_ring, full, empty, stage, phase, steps, OUTPUTS_LAST: gl.constexpr, NUM_STAGES: gl.constexpr
):
    """Add `steps` tiles of the ring to acc; one product runs while the one before gives its tiles back."""
    for step in range(steps):
        mbarrier.wait(full.index(stage), phase)
        right = right_ring.index(stage) if OUTPUTS_LAST else right_ring.index(stage).permute([1, 0])
        acc = warpgroup_mma(left_ring.index(stage), right, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        mbarrier.arrive(empty.index(_stage_before(stage, NUM_STAGES)), pred=step > 0)
        stage, phase = _advance(stage, phase, NUM_STAGES)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index(_stage_before(stage, NUM_STAGES)), pred=steps > 0)
    return acc, stage, phase


@gluon.jit  # type: ignore[untyped-decorator]
def _make_keep(  # type: ignore[no-untyped-def]
    keep_buffer,
    keep_full,
    keep_empty,
    adapter_ptr,
    position_ptr,
    draw_ptr,
    step_ptr,
    key_ptr,
    threshold_ptr,
    T,
    outputs,
    group,
    BLOCK_T: gl.constexpr,
    BLOCK_O: gl.constexpr,
):
    """Generate the mask's bits of each tile, one tile ahead: 64 threads need 5 us where a tile's products take 47."""
    ROWS: gl.constexpr = keep_buffer.shape[1]
    CALLS: gl.constexpr = BLOCK_O // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [gl.num_warps(), 1], [1, 0])
    num_tiles = ((T + BLOCK_T - 1) // BLOCK_T) * ((outputs + BLOCK_O - 1) // BLOCK_O)
    phase = 1
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        i_t, i_o = _place(tile, T, outputs, group, BLOCK_T, BLOCK_O)
        o_c = i_o * CALLS + gl.arange(0, CALLS, gl.SliceLayout(0, layout))
        call = gl.expand_dims(o_c.to(gl.uint32), 0)
        mbarrier.wait(keep_empty, phase)
        for i in range(BLOCK_T // ROWS):
            o_t = i_t * BLOCK_T + i * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
            m_t = o_t < T
            position = gl.load(position_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True)
            draw = gl.load(draw_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True)
            step = gl.load(step_ptr + o_t, mask=m_t, other=0).to(gl.uint32, bitcast=True)
            adapter = gl.load(adapter_ptr + o_t, mask=m_t, other=-1)
            m_t = adapter >= 0
            threshold = gl.maximum(gl.load(threshold_ptr + adapter, mask=m_t, other=0), 0)
            key = gl.load(key_ptr + adapter, mask=m_t, other=0)
            key_low, key_high = (key & 0xFFFFFFFF).to(gl.uint32), ((key >> 32) & 0xFFFFFFFF).to(gl.uint32)
            low_bits, not_high = split_threshold(threshold)
            w0, w1, w2, w3 = philox_words(
                call,
                gl.expand_dims(position, 1),
                gl.expand_dims(draw, 1),
                gl.expand_dims(step, 1),
                gl.expand_dims(key_low, 1),
                gl.expand_dims(key_high, 1),
            )
            bits = pack_keep_bits(w0, w1, w2, w3, gl.expand_dims(low_bits, 1), gl.expand_dims(not_high, 1))
            keep_buffer.index(i).store(bits)
        gl.thread_barrier()
        mbarrier.arrive(keep_full)
        phase ^= 1


@gluon.jit  # type: ignore[untyped-decorator]
def _load_keep(keep_ptr, i_t, i_o, T, keep_words, LAYOUT: gl.constexpr, BLOCK_T: gl.constexpr, BLOCK_O: gl.constexpr):  # type: ignore[no-untyped-def]
    """Load the mask's bits of a tile, [BLOCK_T, BLOCK_O / 32] words, where the accumulator's owners need them."""
    o_t = i_t * BLOCK_T + gl.arange(0, BLOCK_T, gl.SliceLayout(1, LAYOUT))
    o_w = i_o * (BLOCK_O // 32) + gl.arange(0, BLOCK_O // 32, gl.SliceLayout(0, LAYOUT))
    place = gl.expand_dims(o_t.to(gl.int64) * keep_words, 1) + gl.expand_dims(o_w, 0)
    return gl.load(keep_ptr + place, mask=gl.expand_dims(o_t < T, 1), other=0)


@gluon.jit  # type: ignore[untyped-decorator]
def _apply_keep(acc, words, BLOCK_T: gl.constexpr, BLOCK_O: gl.constexpr):  # type: ignore[no-untyped-def]
    """Set what the mask drops to zero; each thread holds the words of its own rows."""
    L3: gl.constexpr = acc.reshape([BLOCK_T, BLOCK_O // 32, 32]).type.layout
    bit = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, L3)))
    bit = gl.expand_dims(gl.expand_dims(bit, 0), 1)
    # Bits 1 and 2 of the feature differ by thread, the others by register: one shift per word, then constant masks.
    keep = ((gl.expand_dims(words, 2) >> (bit & 6)) & (1 << (bit & 25))) != 0
    kept = gl.where(keep, acc.reshape([BLOCK_T, BLOCK_O // 32, 32]), 0.0).reshape([BLOCK_T, BLOCK_O])
    return gl.convert_layout(kept, acc.type.layout, assert_trivial=True)


@gluon.jit
def _any_flag(flag_ptr, num_flags):  # type: ignore[no-untyped-def]
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    found = gl.zeros([256], gl.int32, layout)
    for first in range(0, num_flags, 256):
        o_f = first + gl.arange(0, 256, layout)
        found |= gl.load(flag_ptr + o_f, mask=o_f < num_flags, other=0)
    return gl.max(found, 0)


@gluon.jit  # type: ignore[untyped-decorator]
def _spoil(  # type: ignore[no-untyped-def]
    acc,
    flag_ptr,
    tile_pairs_ptr,
    pair_factor_ptr,
    pair_segment_ptr,
    segment_ptr,
    i_t,
    i_o,
    outputs,
    SEGMENT_WORDS: gl.constexpr,
    FACTOR_COLUMNS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_O: gl.constexpr,
):
    """Make the rows NaN whose own adapter's factor was not finite in the tile's columns."""
    num_blocks = (outputs + FACTOR_COLUMNS - 1) // FACTOR_COLUMNS
    o_t = i_t * BLOCK_T + gl.arange(0, BLOCK_T, gl.SliceLayout(1, acc.type.layout))
    for pair in range(gl.load(tile_pairs_ptr + 2 * i_t), gl.load(tile_pairs_ptr + 2 * i_t + 1)):
        p_segment = segment_ptr + gl.load(pair_segment_ptr + pair) * SEGMENT_WORDS
        flag = gl.load(flag_ptr + gl.load(pair_factor_ptr + pair) * num_blocks + i_o * BLOCK_O // FACTOR_COLUMNS)
        bad = (o_t >= gl.load(p_segment)) & (o_t < gl.load(p_segment + 1)) & (flag != 0)
        acc = gl.where(gl.expand_dims(bad, 1), float("nan"), acc)
    return acc


@gluon.jit
def _store(out_desc, out_buffer, part, row, column):  # type: ignore[no-untyped-def]
    out_buffer.store(part)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [row, column], out_buffer)


@gluon.jit  # type: ignore[untyped-decorator]
def _consume(  # type: ignore[no-untyped-def]
    out_desc,
    bias_ptr,
    flag_ptr,
    tile_pairs_ptr,
    pair_factor_ptr,
    pair_segment_ptr,
    segment_ptr,
    left_ring,
    right_ring,
    out_buffers,
    full,
    empty,
    keep_buffer,
    keep_full,
    keep_empty,
    keep_ptr,
    T,
    D,
    outputs,
    rank_steps,
    num_flags,
    keep_words,
    group,
    OUTPUTS_LAST: gl.constexpr,
    MASK: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    SEGMENT_WORDS: gl.constexpr,
    FACTOR_COLUMNS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_O: gl.constexpr,
    BLOCK_D: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    OUT_BUFFERS: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_O, 16])
    num_t = (T + BLOCK_T - 1) // BLOCK_T
    num_tiles = num_t * ((outputs + BLOCK_O - 1) // BLOCK_O)
    base_steps = (D + BLOCK_D - 1) // BLOCK_D
    spoiled = _any_flag(flag_ptr, num_flags)
    stage = 0
    phase = 0
    keep_phase = 0
    i_t, i_o = _place(gl.program_id(0), T, outputs, group, BLOCK_T, BLOCK_O)
    pairs = gl.load(tile_pairs_ptr + 2 * i_t + 1) - gl.load(tile_pairs_ptr + 2 * i_t)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        steps = pairs * rank_steps
        # The next tile's number of pairs is asked for here, so that its latency hides behind this tile's products.
        next_t, next_o = _place(tile + gl.num_programs(0), T, outputs, group, BLOCK_T, BLOCK_O)
        p_next = tile_pairs_ptr + 2 * gl.minimum(next_t, num_t - 1)
        pairs = gl.load(p_next + 1) - gl.load(p_next)
        acc = gl.zeros([BLOCK_T, BLOCK_O], gl.float32, layout)
        if MASK != "none":
            L3: gl.constexpr = acc.reshape([BLOCK_T, BLOCK_O // 32, 32]).type.layout
            if MASK == "loaded":
                words = _load_keep(keep_ptr, i_t, i_o, T, keep_words, gl.SliceLayout(2, L3), BLOCK_T, BLOCK_O)
            acc, stage, phase = _multiply(
                acc, left_ring, right_ring, full, empty, stage, phase, steps, OUTPUTS_LAST, NUM_STAGES
            )
            if MASK == "made":
                mbarrier.wait(keep_full, keep_phase)
                plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
                made = keep_buffer._reinterpret(gl.int32, [BLOCK_T, BLOCK_O // 32], plain)
                words = made.load(gl.SliceLayout(2, L3))
                gl.thread_barrier()
                mbarrier.arrive(keep_empty)
                keep_phase ^= 1
            acc = _apply_keep(acc, words, BLOCK_T, BLOCK_O)
            steps = 0
        acc, stage, phase = _multiply(
            acc, left_ring, right_ring, full, empty, stage, phase, steps + base_steps, OUTPUTS_LAST, NUM_STAGES
        )
        if HAS_BIAS:
            o_o = i_o * BLOCK_O + gl.arange(0, BLOCK_O, gl.SliceLayout(0, layout))
            bias = gl.load(bias_ptr + o_o, mask=o_o < outputs, other=0.0).to(gl.float32)
            acc += gl.expand_dims(bias, 0)
        if spoiled != 0:
            acc = _spoil(
                acc, flag_ptr, tile_pairs_ptr, pair_factor_ptr, pair_segment_ptr, segment_ptr, i_t, i_o, outputs,
                SEGMENT_WORDS, FACTOR_COLUMNS, BLOCK_T, BLOCK_O,
            )  # fmt: skip
        # In halves: with one buffer there is room for a fourth stage; with two a tile waits only for the copies of the
        # tile before, which ended long ago.
        halves = acc.to(out_desc.dtype).reshape([BLOCK_T, 2, BLOCK_O // 2]).permute(0, 2, 1)
        left_half, right_half = halves.split()
        tma.store_wait(0)
        _store(out_desc, out_buffers.index(0), left_half, i_t * BLOCK_T, i_o * BLOCK_O)
        if OUT_BUFFERS == 1:
            tma.store_wait(0)
        _store(out_desc, out_buffers.index(OUT_BUFFERS - 1), right_half, i_t * BLOCK_T, i_o * BLOCK_O + BLOCK_O // 2)
        i_t = next_t
        i_o = next_o
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["T", "num_flags", "group"])  # type: ignore[untyped-decorator]
def _base_gemm_kernel(  # type: ignore[no-untyped-def]
    left_desc,
    w_desc,
    s_desc,
    ready_desc,
    out_desc,
    bias_ptr,
    flag_ptr,
    tile_pairs_ptr,
    pair_factor_ptr,
    pair_segment_ptr,
    segment_ptr,
    adapter_ptr,
    position_ptr,
    draw_ptr,
    step_ptr,
    key_ptr,
    threshold_ptr,
    keep_ptr,
    T,
    D,
    outputs,
    rank_steps,
    num_flags,
    keep_words,
    group,
    OUTPUTS_LAST: gl.constexpr,
    MASK: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    SEGMENT_WORDS: gl.constexpr,
    FACTOR_COLUMNS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_O: gl.constexpr,
    BLOCK_D: gl.constexpr,
    NUM_STAGES: gl.constexpr,
    OUT_BUFFERS: gl.constexpr,
    MASK_WARPS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    dtype: gl.constexpr = left_desc.dtype
    left_ring = gl.allocate_shared_memory(dtype, [NUM_STAGES, BLOCK_T, BLOCK_D], left_desc.layout)
    right_shape: gl.constexpr = [NUM_STAGES, BLOCK_D, BLOCK_O] if OUTPUTS_LAST else [NUM_STAGES, BLOCK_O, BLOCK_D]
    right_ring = gl.allocate_shared_memory(dtype, right_shape, w_desc.layout)
    out_buffers = gl.allocate_shared_memory(dtype, [OUT_BUFFERS, BLOCK_T, BLOCK_O // 2], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    # The arguments stand in the calls: tuples kept in names would lose their constexprs.
    if MASK == "made":
        # The mask's bits, by slices of as many rows as the mask's warps make at a time
        ROWS: gl.constexpr = 4 * MASK_WARPS
        keep_layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        keep_buffer = gl.allocate_shared_memory(gl.uint8, [BLOCK_T // ROWS, ROWS, BLOCK_O // 8], keep_layout)
        keep_barriers = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        keep_full = keep_barriers.index(0)
        keep_empty = keep_barriers.index(1)
        mbarrier.init(keep_full, count=1)
        mbarrier.init(keep_empty, count=1)
        gl.warp_specialize(
            [
                (
                    _consume,
                    (
                        out_desc, bias_ptr, flag_ptr, tile_pairs_ptr, pair_factor_ptr, pair_segment_ptr, segment_ptr,
                        left_ring, right_ring, out_buffers, full, empty, keep_buffer, keep_full, keep_empty, keep_ptr,
                        T, D, outputs, rank_steps, num_flags, keep_words, group, OUTPUTS_LAST, MASK, HAS_BIAS,
                        SEGMENT_WORDS, FACTOR_COLUMNS, BLOCK_T, BLOCK_O, BLOCK_D, NUM_STAGES, OUT_BUFFERS,
                    ),
                ),
                (
                    _produce,
                    (
                        left_desc, w_desc, s_desc, ready_desc, tile_pairs_ptr, pair_factor_ptr, left_ring, right_ring,
                        full, empty, T, D, outputs, rank_steps, group, OUTPUTS_LAST, BLOCK_T, BLOCK_O, BLOCK_D,
                        NUM_STAGES,
                    ),
                ),
                (
                    _make_keep,
                    (
                        keep_buffer, keep_full, keep_empty, adapter_ptr, position_ptr, draw_ptr, step_ptr, key_ptr,
                        threshold_ptr, T, outputs, group, BLOCK_T, BLOCK_O,
                    ),
                ),
            ],
            [1, MASK_WARPS],
            [REGISTERS, REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    _consume,
                    (
                        out_desc, bias_ptr, flag_ptr, tile_pairs_ptr, pair_factor_ptr, pair_segment_ptr, segment_ptr,
                        left_ring, right_ring, out_buffers, full, empty, None, None, None, keep_ptr,
                        T, D, outputs, rank_steps, num_flags, keep_words, group, OUTPUTS_LAST, MASK, HAS_BIAS,
                        SEGMENT_WORDS, FACTOR_COLUMNS, BLOCK_T, BLOCK_O, BLOCK_D, NUM_STAGES, OUT_BUFFERS,
                    ),
                ),
                (
                    _produce,
                    (
                        left_desc, w_desc, s_desc, ready_desc, tile_pairs_ptr, pair_factor_ptr, left_ring, right_ring,
                        full, empty, T, D, outputs, rank_steps, group, OUTPUTS_LAST, BLOCK_T, BLOCK_O, BLOCK_D,
                        NUM_STAGES,
                    ),
                ),
            ],
            [1],
            [24],
        )  # fmt: skip


def run_base_gemm(
    out: torch.Tensor,
    left: torch.Tensor,
    weight: torch.Tensor,
    s: torch.Tensor,
    ready: ReadyFactor,
    routes: RouteTables,
    launch: HopperGemmLaunch,
    *,
    outputs_last: bool,
    bias: torch.Tensor | None = None,
    dropout: Dropout | None = None,
    keep: torch.Tensor | None = None,
) -> None:
    """Write out = left W^T + bias + s B^T (weight [outputs, D]), or with `outputs_last` out = left W + keep (s A).

    Args:
        out: [T, outputs], contiguous; the caller's, who may run this on another stream.
        outputs_last: weight is [D, outputs] and `ready` holds A; otherwise [outputs, D] and B.
        dropout: Masks the adapters' part, by bits that the kernel makes itself.
        keep: Bits of that mask, ready made (portable_input.py). Neither: nothing is dropped.
    """
    T, D = left.shape
    outputs = out.shape[1]
    block_o = launch.block_o
    right_block = [_BLOCK_D, block_o] if outputs_last else [block_o, _BLOCK_D]
    num_tiles = -(-T // TILE_ROWS) * -(-outputs // block_o)
    # As few programs as do it in the same number of rounds: the multiprocessors left over serve another stream.
    num_rounds = -(-num_tiles // torch.cuda.get_device_properties(left.device).multi_processor_count)
    _base_gemm_kernel[(-(-num_tiles // num_rounds),)](
        describe(left, [TILE_ROWS, _BLOCK_D]),
        describe(weight, right_block),
        describe(s, [TILE_ROWS, _BLOCK_D]),
        describe(ready.factors, [1, *right_block]),
        describe(out, [TILE_ROWS, block_o // 2]),
        left if bias is None else bias,
        ready.flags,
        routes.tile_pairs,
        routes.pair_factor,
        routes.pair_segment,
        routes.segments,
        *dropout_arguments(dropout, routes.segments)[:-1],
        routes.segments if keep is None else keep.view(torch.int32),
        T,
        D,
        outputs,
        -(-routes.max_rank // _BLOCK_D),
        ready.flags.numel(),
        0 if keep is None else keep.shape[1] // 4,
        launch.group,
        OUTPUTS_LAST=outputs_last,
        MASK="made" if dropout is not None else "loaded" if keep is not None else "none",
        HAS_BIAS=bias is not None,
        SEGMENT_WORDS=SEGMENT_WORDS,
        FACTOR_COLUMNS=FACTOR_COLUMNS,
        BLOCK_T=TILE_ROWS,
        BLOCK_O=block_o,
        BLOCK_D=_BLOCK_D,
        NUM_STAGES=launch.num_stages,
        OUT_BUFFERS=launch.out_buffers,
        MASK_WARPS=_MASK_WARPS,
        REGISTERS=_WORKER_REGISTERS,
        num_warps=_CONSUMER_WARPS,
        maxnreg=_START_REGISTERS,
    )
