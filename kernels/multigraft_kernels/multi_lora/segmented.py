"""The multi-adapter LoRA linear in plain torch: one frozen GEMM, small GEMMs per segment, gradients into a sink.

    forward   y = x W^T + bias;  s_i = drop(x_i) A_i^T;  y_i += scaling_i s_i B_i^T
    backward  dx = dy W;  ds_i = scaling_i dy_i B_i;  dx_i += drop(ds_i A_i)
              dA_i += w_i ds_i^T drop(x_i);  dB_i += w_i scaling_i dy_i^T s_i     fp32, w_i = grad_weight

Shapes   x [T, K], weight [N, K], bias [N], a [slots, maxRank, K], b [slots, N, maxRank], y [T, N], s [T, R]
Dtypes   x, weight, bias, a, b, s, y one of fp32, bf16, fp16; the gradients of A and B are made and summed in fp32
Kept     x (which the caller keeps anyway) and s; no mask and no dropped copy of x: the mask is generated again
Exact    rows in no segment have the bits of the frozen layer. A row, and an adapter's gradient, is computed from that
         adapter's own rows alone, so that a neighbour's NaN cannot reach it. Neighbours, slot and padding change an
         adapter only through the frozen GEMM's rounding, which may depend on T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from multigraft_kernels.counter_dropout import DropoutRows, DropoutTable, drop, drop_and_add
from multigraft_kernels.multi_lora.segments import LoraGrads, LoraSegment, check_segments


def multi_lora_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    a: torch.Tensor,
    b: torch.Tensor,
    segments: Sequence[LoraSegment],
    *,
    dropout: tuple[DropoutRows, DropoutTable] | None = None,
    grads: Sequence[LoraGrads] | None = None,
) -> torch.Tensor:
    """Give y, [T, N]. In backward, add each segment's dA and dB to `grads` and give dX.

    Args:
        segments: Ascending, disjoint; segments without rows are allowed and do nothing.
        dropout: Counters of the T rows and the table of this layer; None: no adapter drops anything here.
        grads: One sink per segment (segments of one adapter may share one); None: A and B are frozen too.
    Raises:
        ValueError: If the segments do not fit x or the stacks, or a sink is missing.
    """
    check_segments(segments, x.shape[0], a.shape[0], a.shape[1])
    if grads is not None and len(grads) != len(segments):
        raise ValueError(f"grads: got {len(grads)} for {len(segments)} segments, want one for each")
    active = [index for index, segment in enumerate(segments) if segment.end > segment.start]
    if not active:
        return F.linear(x, weight, bias)
    call = _Call(
        weight=weight,
        a=a,
        b=b,
        segments=[segments[index] for index in active],
        dropout=dropout,
        grads=None if grads is None else [grads[index] for index in active],
    )
    # A and B get their gradients as a side effect, so autograd must see the layer even where x needs no gradient.
    anchor = torch.empty(0, device=x.device, requires_grad=grads is not None)
    y: torch.Tensor = _MultiLoraLinear.apply(x, anchor, bias, call)  # type: ignore[no-untyped-call]
    return y


@dataclass(frozen=True)
class _Call:
    weight: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    segments: list[LoraSegment]
    dropout: tuple[DropoutRows, DropoutTable] | None
    grads: list[LoraGrads] | None

    def factors(self, segment: LoraSegment) -> tuple[torch.Tensor, torch.Tensor]:
        """Give A [rank, K] and B [N, rank] of a segment's adapter, without the padding."""
        return self.a[segment.slot, : segment.rank], self.b[segment.slot, :, : segment.rank]


class _MultiLoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, _anchor: torch.Tensor, bias: torch.Tensor | None, call: _Call
    ) -> torch.Tensor:
        y = F.linear(x, call.weight, bias)
        low = x if call.dropout is None else drop(x, *call.dropout)
        s = x.new_empty(x.shape[0], max(segment.rank for segment in call.segments))
        for segment in call.segments:
            rows = slice(segment.start, segment.end)
            a, b = call.factors(segment)
            s_i = s[rows, : segment.rank]
            torch.mm(low[rows], a.T, out=s_i)
            y[rows].addmm_(s_i, b.T, alpha=segment.scaling)
        ctx.save_for_backward(x, s)
        ctx.call = call
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        x, s = ctx.saved_tensors
        call: _Call = ctx.call
        need_dx = ctx.needs_input_grad[0]
        dx = dy @ call.weight if need_dx else None
        ds = [_grad_s(dy, segment, call) for segment in call.segments]
        low = _backward_to_x(x, dx, ds, call)
        if call.grads is not None:
            for segment, ds_i, sink in zip(call.segments, ds, call.grads, strict=True):
                rows = slice(segment.start, segment.end)
                weight = segment.grad_weight * segment.scaling
                _accumulate(sink.a, ds_i.T, low[rows], weight)
                _accumulate(sink.b, dy[rows].T, s[rows, : segment.rank], weight)
        return dx, None, None, None


def _grad_s(dy: torch.Tensor, segment: LoraSegment, call: _Call) -> torch.Tensor:
    """Give ds_i / scaling_i, [rows, rank]; the factor is applied where ds_i is used, without a pass of its own."""
    return torch.mm(dy[segment.start : segment.end], call.factors(segment)[1])


def _backward_to_x(x: torch.Tensor, dx: torch.Tensor | None, ds: list[torch.Tensor], call: _Call) -> torch.Tensor:
    """Add the low-rank part to dx where it is wanted, and give drop(x) for dA."""
    if dx is None:
        return x if call.dropout is None else drop(x, *call.dropout)
    low_dx = dx if call.dropout is None else torch.empty_like(dx)
    for segment, ds_i in zip(call.segments, ds, strict=True):
        rows = slice(segment.start, segment.end)
        a, _ = call.factors(segment)
        if call.dropout is None:
            dx[rows].addmm_(ds_i, a, alpha=segment.scaling)
        else:
            low_rows = low_dx[rows]
            torch.addmm(low_rows, ds_i, a, beta=0, alpha=segment.scaling, out=low_rows)
    return x if call.dropout is None else drop_and_add(x, low_dx, dx, *call.dropout)


def _accumulate(sink: torch.Tensor, left: torch.Tensor, right: torch.Tensor, weight: float) -> None:
    """Add weight (left right) to the fp32 sink; the product is accumulated and kept in fp32."""
    if left.dtype == torch.float32:
        sink.addmm_(left, right, alpha=weight)
    elif left.is_cuda:
        sink.add_(torch.mm(left, right, out_dtype=torch.float32), alpha=weight)
    else:
        sink.addmm_(left.float(), right.float(), alpha=weight)
