"""The multi-adapter LoRA linear in fused kernels; same signature, mask and gradients as `segmented.multi_lora_linear`.

    forward   s = c drop(x) A^T      one read of x             y  = x W^T + bias + s B^T
    backward  ds = c dy B, dB        one read of dy            dx = dy W + keep (ds A)
              dA = ds^T drop(x)      one read of x             c = scaling / (1 - p); drop masks without scaling

Shapes   x [T, K], weight [N, K], bias [N], a [slots, maxRank, K], b [slots, N, maxRank], y [T, N]
Dtypes   x, weight, bias, a, b, y one of bf16, fp16, fp32; the gradients of A and B are made and summed in fp32
Kept     x (which the caller keeps anyway) and s; backward makes the mask once more, and its bits live until dx is done
Exact    the same input gives the same bits. Per adapter, given the same x and dy rows, s, ds, dA and dB have the same bits
         alone and among neighbours; y and dx too with the Hopper GEMM for the same place in a tile, else to the GEMM's
         rounding. Rows in no segment have the bits of this path without any segment
Launches 2 in forward, 5 in backward, none of which waits for the host
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from multigraft_kernels.fused_lora.added_part import compute_added_part
from multigraft_kernels.fused_lora.grad_output_pass import read_grad_output
from multigraft_kernels.fused_lora.input_pass import read_input
from multigraft_kernels.fused_lora.operands import Dropout, on_device_of, rank_columns
from multigraft_kernels.fused_lora.ready_factor import make_ready_a, make_ready_b
from multigraft_kernels.fused_lora.reduce_parts import add_to_sinks, reduce_ds
from multigraft_kernels.fused_lora.shrink import shrink
from multigraft_kernels.launch.choices import LaunchChoice
from multigraft_kernels.launch.table import choose_launch
from multigraft_kernels.multi_lora.fused.routes import RouteTables, build_chunks, build_routes
from multigraft_kernels.multi_lora.fused.sinks import build_sinks
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment, check_segments


def fused_multi_lora_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    segments: Sequence[LoraSegment],
    *,
    dropout: Dropout | None = None,
    grads: Sequence[LoraGrads] | None = None,
    launch: LaunchChoice | None = None,
) -> torch.Tensor:
    """Give y, [T, N]. In backward, add each segment's dA and dB to `grads` and give dX.

    Args:
        segments: Ascending, disjoint; segments without rows are allowed and do nothing.
        dropout: Counters of the T rows and the table of this layer; None: no adapter drops anything here.
        grads: One sink per segment (segments of one adapter may share one); None: A and B are frozen too.
        launch: What the tuner tries; None: the table of the device, or the rule for unknown ones.
    Raises:
        ValueError: If the segments do not fit x or the stacks, or a sink is missing.
    """
    check_segments(segments, x.shape[0], a.shape[0], a.shape[1])
    if grads is not None and len(grads) != len(segments):
        raise ValueError(f"grads: got {len(grads)} for {len(segments)} segments, want one for each")
    active = [index for index, segment in enumerate(segments) if segment.end > segment.start]
    if not active:
        return F.linear(x, weight, bias)
    rows = [segments[index] for index in active]
    call = _Call(
        weight=weight,
        bias=bias,
        a=_last_contiguous(a),
        b=_last_contiguous(b),
        segments=rows,
        routes=build_routes(rows, x.shape[0], x.device),
        dropout=dropout,
        grads=None if grads is None else [grads[index] for index in active],
        launch=launch or choose_launch(x, weight, max(segment.rank for segment in rows)),
    )
    # A and B get their gradients as a side effect, so autograd must see the layer even where x needs no gradient.
    anchor = torch.empty(0, device=x.device, requires_grad=grads is not None)
    y: torch.Tensor = _FusedMultiLoraLinear.apply(x, anchor, call)  # type: ignore[no-untyped-call]
    return y


@dataclass(frozen=True)
class _Call:
    weight: torch.Tensor
    bias: torch.Tensor | None
    a: torch.Tensor
    b: torch.Tensor
    segments: list[LoraSegment]
    routes: RouteTables
    dropout: Dropout | None
    grads: list[LoraGrads] | None
    launch: LaunchChoice


class _FusedMultiLoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _anchor: torch.Tensor, call: _Call) -> torch.Tensor:
        rows = _usable_rows(x)
        with on_device_of(x):
            y, s = _forward(rows, call)
        ctx.save_for_backward(rows, s)
        ctx.call = call
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        x, s = ctx.saved_tensors
        with on_device_of(x):
            dx = _backward(_usable_rows(dy), x, s, ctx.call, need_dx=ctx.needs_input_grad[0])
        return dx, None, None


def _forward(x: torch.Tensor, call: _Call) -> tuple[torch.Tensor, torch.Tensor]:
    launch, routes = call.launch, call.routes
    if launch.base_forward == "hopper":
        from multigraft_kernels.fused_lora.base_gemm_hopper import run_base_gemm

        ready = make_ready_b(len(routes.factors), rank_columns(routes.max_rank), call.b.shape[1], x)
        s = shrink(x, call.a, call.b, routes, call.dropout, launch.shrink, ready=ready)
        y = run_base_gemm(x, call.weight, s, ready, routes, launch.gemm_forward, outputs_last=False, bias=call.bias)
        return y, s
    s = shrink(x, call.a, call.b, routes, call.dropout, launch.shrink, ready=None)
    y = compute_added_part(s, call.b, x.shape[0], routes, launch.added, outputs_last=False, bias=call.bias)
    return y.addmm_(x, call.weight.t()), s


def _backward(dy: torch.Tensor, x: torch.Tensor, s: torch.Tensor, call: _Call, *, need_dx: bool) -> torch.Tensor | None:
    launch, routes = call.launch, call.routes
    need_grads = call.grads is not None
    chunks_b = build_chunks(call.segments, launch.grad_output.chunk_rows, x.device)
    chunks_a = build_chunks(call.segments, launch.input.chunk_rows, x.device)
    ds_parts, db_parts = read_grad_output(dy, call.b, s, routes, chunks_b, launch.grad_output, need_db=need_grads)
    inside = need_dx and launch.base_backward == "hopper"
    ready = make_ready_a(len(routes.factors), s.shape[1], x.shape[1], x) if inside else None
    ds = reduce_ds(ds_parts, call.a, routes, call.dropout, ready=ready)
    need_keep = need_dx and call.dropout is not None
    keep = None
    if need_grads or need_keep:
        da_parts, keep = read_input(
            x, ds, routes, chunks_a, call.dropout, launch.input, need_da=need_grads, need_keep=need_keep
        )
    if call.grads is not None:
        sinks = build_sinks(call.segments, call.grads, chunks_a, chunks_b)
        add_to_sinks(da_parts, db_parts, routes, chunks_a, chunks_b, sinks)
    if not need_dx:
        return None
    if ready is not None:
        from multigraft_kernels.fused_lora.base_gemm_hopper import run_base_gemm

        return run_base_gemm(dy, call.weight, ds, ready, routes, launch.gemm_backward, outputs_last=True, keep=keep)
    dx = compute_added_part(ds, call.a, x.shape[0], routes, launch.added, outputs_last=True, keep=keep)
    return dx.addmm_(dy, call.weight)


def _usable_rows(x: torch.Tensor) -> torch.Tensor:
    """Give x with contiguous features, rows that do not overlap and, in 16-bit dtypes, rows that TMA can reach.

    Gradients may come with stride 0 (an expanded sum) or transposed; those are copied.
    """
    unit = 8 if x.shape[1] % 8 == 0 else 1
    fits = x.stride(1) == 1 and x.stride(0) >= x.shape[1] and x.stride(0) % unit == 0 and x.data_ptr() % 16 == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _last_contiguous(stack: torch.Tensor) -> torch.Tensor:
    return stack if stack.stride(2) == 1 else stack.contiguous()
