"""The base GEMM with every adapter's part added before the output is written, for Hopper (Gluon: TMA, wgmma, mbarriers).

    forward   y = x W^T + bias + s B^T        backward   dx = dy W + keep (ds A)      s, ds hold the scaling already

Shapes   left [T, D] (x or dy), W [N, K], s [num_rows, R] by pairs, ready [G, outputs, R] or [G, R, outputs],
         out [T, outputs]; D the summed dimension: K forward, N backward; keep [T, keep_stride] bits
Dtypes   bf16 or fp16, all alike; accumulation fp32, one rounding at the store
Fused    one producer warp fills a ring of tiles by TMA, two warpgroups multiply them into a 128 x 256 accumulator. An
         adapter's part is one more step of the same ring per 64 ranks: tile of s times tile of `ready` instead of x times
         W. Where dropout masks it (dx), these steps come first and the mask is applied to the accumulator before the base
         product is added to it; so there is never a second accumulator and never a second pass over the output.
Roofline T=8192 K=N=4096 R=64, H200: 275 GFLOP base + 4.3 GFLOP = 1 step in 65 (1.6 %); 136 MB: compute-bound
Measured docs/benchmarks/fused_lora_h200_2026-11-30.md
Exact    rows without adapter get the bits that this kernel gives without any adapter, as their tiles of s are zero. Every
         row is summed in one order: the adapter's part, then ascending k (masked), or with it (not masked)
"""

from __future__ import annotations

from typing import Any

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from multigraft_kernels.fused_lora.ready_factor import FACTOR_COLUMNS, ReadyFactor
from multigraft_kernels.launch.choices import HopperGemmLaunch
from multigraft_kernels.multi_lora.fused.routes import SEGMENT_WORDS, TILE_ROWS, RouteTables

_BLOCK_D = 64  # summed elements per step: 128 bytes, the widest swizzle
_CONSUMER_WARPS = 8
# 12 warps start with 168 registers; the producer's warpgroup gives all but 24 back and the consumers go up to 240
_START_REGISTERS = 168


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
    # Computed anew: a name that a loop sets to `stage` is not carried when both start as one value (Triton 3.6), and the
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
def _load_keep(keep_ptr, i_t, i_o, T, keep_words, L3: gl.constexpr, BLOCK_T: gl.constexpr, BLOCK_O: gl.constexpr):  # type: ignore[no-untyped-def]
    """Load the mask's bits of a tile, [BLOCK_T, BLOCK_O / 32] words, where the accumulator's owners need them."""
    LW: gl.constexpr = gl.SliceLayout(2, L3)
    o_t = i_t * BLOCK_T + gl.arange(0, BLOCK_T, gl.SliceLayout(1, LW))
    o_w = i_o * (BLOCK_O // 32) + gl.arange(0, BLOCK_O // 32, gl.SliceLayout(0, LW))
    place = gl.expand_dims(o_t.to(gl.int64) * keep_words, 1) + gl.expand_dims(o_w, 0)
    return gl.load(keep_ptr + place, mask=gl.expand_dims(o_t < T, 1), other=0)


@gluon.jit  # type: ignore[untyped-decorator]
def _apply_keep(acc, words, L3: gl.constexpr, BLOCK_T: gl.constexpr, BLOCK_O: gl.constexpr):  # type: ignore[no-untyped-def]
    bit = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, L3)))
    bit = gl.expand_dims(gl.expand_dims(bit, 0), 1)
    # Bits 1 and 2 of the feature differ by thread, the others by register: one shift per word, then constant masks.
    keep = ((gl.expand_dims(words, 2) >> (bit & 6)) & (1 << (bit & 25))) != 0
    kept = gl.where(keep, acc.reshape([BLOCK_T, BLOCK_O // 32, 32]), 0.0).reshape([BLOCK_T, BLOCK_O])
    return gl.convert_layout(kept, acc.type.layout, assert_trivial=True)


@gluon.jit  # type: ignore[untyped-decorator]
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


@gluon.jit  # type: ignore[untyped-decorator]
def _store(out_desc, out_buffer, part, row, column):  # type: ignore[no-untyped-def]
    tma.store_wait(0)
    out_buffer.store(part)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [row, column], out_buffer)


@gluon.jit  # type: ignore[untyped-decorator]
def _consume(  # type: ignore[no-untyped-def]
    out_desc,
    bias_ptr,
    flag_ptr,
    keep_ptr,
    tile_pairs_ptr,
    pair_factor_ptr,
    pair_segment_ptr,
    segment_ptr,
    left_ring,
    right_ring,
    out_buffer,
    full,
    empty,
    T,
    D,
    outputs,
    rank_steps,
    num_flags,
    keep_words,
    group,
    OUTPUTS_LAST: gl.constexpr,
    MASKED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    SEGMENT_WORDS: gl.constexpr,
    FACTOR_COLUMNS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_O: gl.constexpr,
    BLOCK_D: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_O, 16])
    num_t = (T + BLOCK_T - 1) // BLOCK_T
    num_tiles = num_t * ((outputs + BLOCK_O - 1) // BLOCK_O)
    base_steps = (D + BLOCK_D - 1) // BLOCK_D
    spoiled = _any_flag(flag_ptr, num_flags)
    stage = 0
    phase = 0
    i_t, i_o = _place(gl.program_id(0), T, outputs, group, BLOCK_T, BLOCK_O)
    pairs = gl.load(tile_pairs_ptr + 2 * i_t + 1) - gl.load(tile_pairs_ptr + 2 * i_t)
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        steps = pairs * rank_steps
        # The next tile's number of pairs is asked for here, so that its latency hides behind this tile's products.
        next_t, next_o = _place(tile + gl.num_programs(0), T, outputs, group, BLOCK_T, BLOCK_O)
        p_next = tile_pairs_ptr + 2 * gl.minimum(next_t, num_t - 1)
        pairs = gl.load(p_next + 1) - gl.load(p_next)
        acc = gl.zeros([BLOCK_T, BLOCK_O], gl.float32, layout)
        if MASKED:
            L3: gl.constexpr = acc.reshape([BLOCK_T, BLOCK_O // 32, 32]).type.layout
            words = _load_keep(keep_ptr, i_t, i_o, T, keep_words, L3, BLOCK_T, BLOCK_O)
            acc, stage, phase = _multiply(
                acc, left_ring, right_ring, full, empty, stage, phase, steps, OUTPUTS_LAST, NUM_STAGES
            )
            acc = _apply_keep(acc, words, L3, BLOCK_T, BLOCK_O)
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
        # In two halves: a buffer for the whole tile would take the place of a stage of the ring.
        halves = acc.to(out_desc.dtype).reshape([BLOCK_T, 2, BLOCK_O // 2]).permute(0, 2, 1)
        left_half, right_half = halves.split()
        _store(out_desc, out_buffer, left_half, i_t * BLOCK_T, i_o * BLOCK_O)
        _store(out_desc, out_buffer, right_half, i_t * BLOCK_T, i_o * BLOCK_O + BLOCK_O // 2)
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
    keep_ptr,
    tile_pairs_ptr,
    pair_factor_ptr,
    pair_segment_ptr,
    segment_ptr,
    T,
    D,
    outputs,
    rank_steps,
    num_flags,
    keep_words,
    group,
    OUTPUTS_LAST: gl.constexpr,
    MASKED: gl.constexpr,
    HAS_BIAS: gl.constexpr,
    SEGMENT_WORDS: gl.constexpr,
    FACTOR_COLUMNS: gl.constexpr,
    BLOCK_T: gl.constexpr,
    BLOCK_O: gl.constexpr,
    BLOCK_D: gl.constexpr,
    NUM_STAGES: gl.constexpr,
):
    dtype: gl.constexpr = left_desc.dtype
    left_ring = gl.allocate_shared_memory(dtype, [NUM_STAGES, BLOCK_T, BLOCK_D], left_desc.layout)
    right_shape: gl.constexpr = [NUM_STAGES, BLOCK_D, BLOCK_O] if OUTPUTS_LAST else [NUM_STAGES, BLOCK_O, BLOCK_D]
    right_ring = gl.allocate_shared_memory(dtype, right_shape, w_desc.layout)
    out_buffer = gl.allocate_shared_memory(dtype, [BLOCK_T, BLOCK_O // 2], out_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    # The arguments stand in the call: tuples kept in names would lose their constexprs.
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    out_desc, bias_ptr, flag_ptr, keep_ptr, tile_pairs_ptr, pair_factor_ptr, pair_segment_ptr, segment_ptr,
                    left_ring, right_ring, out_buffer, full, empty, T, D, outputs, rank_steps, num_flags, keep_words,
                    group, OUTPUTS_LAST, MASKED, HAS_BIAS, SEGMENT_WORDS, FACTOR_COLUMNS, BLOCK_T, BLOCK_O, BLOCK_D, NUM_STAGES,
                ),
            ),
            (
                _produce,
                (
                    left_desc, w_desc, s_desc, ready_desc, tile_pairs_ptr, pair_factor_ptr, left_ring, right_ring, full,
                    empty, T, D, outputs, rank_steps, group, OUTPUTS_LAST, BLOCK_T, BLOCK_O, BLOCK_D, NUM_STAGES,
                ),
            ),
        ],
        [1],
        [24],
    )  # fmt: skip


def run_base_gemm(
    left: torch.Tensor,
    weight: torch.Tensor,
    s: torch.Tensor,
    ready: ReadyFactor,
    routes: RouteTables,
    launch: HopperGemmLaunch,
    *,
    outputs_last: bool,
    bias: torch.Tensor | None = None,
    keep: torch.Tensor | None = None,
) -> torch.Tensor:
    """Give y = left W^T + bias + s B^T (weight [outputs, D]), or with `outputs_last` dx = left W + keep (s A).

    Args:
        outputs_last: weight is [D, outputs] and `ready` holds A; otherwise [outputs, D] and B.
        keep: Bits of the mask (input_pass.py) on the adapters' part; None: nothing is dropped.
    """
    T, D = left.shape
    outputs = weight.shape[1 if outputs_last else 0]
    out = left.new_empty(T, outputs)
    block_o = launch.block_o
    right_block = [_BLOCK_D, block_o] if outputs_last else [block_o, _BLOCK_D]
    filler = routes.segments
    num_tiles = -(-T // TILE_ROWS) * -(-outputs // block_o)
    num_programs = min(num_tiles, torch.cuda.get_device_properties(left.device).multi_processor_count)
    _base_gemm_kernel[(num_programs,)](
        _describe(left, [TILE_ROWS, _BLOCK_D]),
        _describe(weight, right_block),
        _describe(s, [TILE_ROWS, _BLOCK_D]),
        _describe(ready.factors, [1, *right_block]),
        _describe(out, [TILE_ROWS, block_o // 2]),
        left if bias is None else bias,
        ready.flags,
        filler if keep is None else keep.view(torch.int32),
        routes.tile_pairs,
        routes.pair_factor,
        routes.pair_segment,
        routes.segments,
        T,
        D,
        outputs,
        -(-routes.max_rank // _BLOCK_D),
        ready.flags.numel(),
        0 if keep is None else keep.shape[1] // 4,
        launch.group,
        OUTPUTS_LAST=outputs_last,
        MASKED=keep is not None,
        HAS_BIAS=bias is not None,
        SEGMENT_WORDS=SEGMENT_WORDS,
        FACTOR_COLUMNS=FACTOR_COLUMNS,
        BLOCK_T=TILE_ROWS,
        BLOCK_O=block_o,
        BLOCK_D=_BLOCK_D,
        NUM_STAGES=launch.num_stages,
        num_warps=_CONSUMER_WARPS,
        maxnreg=_START_REGISTERS,
    )
    return out


def _describe(tensor: torch.Tensor, block: list[int]) -> Any:
    dtype = gl.bfloat16 if tensor.dtype == torch.bfloat16 else gl.float16
    return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, dtype))
