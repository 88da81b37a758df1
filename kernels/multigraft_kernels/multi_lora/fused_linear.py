"""The multi-adapter LoRA linear in fused kernels; same signature, mask and gradients as `segmented.multi_lora_linear`.

    forward   s = c drop(x) A^T      one read of x             y  = x W^T + bias + s B^T
    backward  ds = c dy B, dB        one read of dy            dx = dy W + keep (ds A)
              dA = ds^T drop(x)      one read of x             c = scaling / (1 - p); drop masks without scaling

Shapes   x [T, K], weight [N, K], bias [N], a [slots, maxRank, K], b [slots, N, maxRank], y [T, N]
Dtypes   x, weight, bias, a, b, y one of bf16, fp16, fp32; the gradients of A and B are made and summed in fp32
Kept     x (which the caller keeps anyway) and s; backward makes the mask once more, and its bits live until dx is done
Exact    the same input gives the same bits. Given the same x and dy rows, an adapter's s, ds, dA and dB have the same
         bits alone and among neighbours, and nothing that is not finite crosses over; y and dx have them to the
         rounding of the base GEMM. Rows in no segment have the bits of this path without any segment
Paths    launch/choices.py; the device's table chooses (launch/table.py)
Launches 2 or 3 in forward, 5 in backward, none of which waits for the host
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from multigraft_kernels.fused_lora.operands import Dropout, on_device_of
from multigraft_kernels.launch.choices import LaunchChoice
from multigraft_kernels.launch.table import choose_launch
from multigraft_kernels.multi_lora.fused.call import FusedCall
from multigraft_kernels.multi_lora.fused.routes import build_routes
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
    call = FusedCall(
        weight=weight,
        bias=bias,
        a=_usable_stack(a),
        b=_usable_stack(b),
        segments=rows,
        routes=build_routes(rows, x.shape[0], x.device),
        dropout=dropout,
        grads=None if grads is None else [grads[index] for index in active],
        launch=launch or choose_launch(x, weight, b, max(segment.rank for segment in rows)),
    )
    # A and B get their gradients as a side effect, so autograd must see the layer even where x needs no gradient.
    anchor = torch.empty(0, device=x.device, requires_grad=grads is not None)
    y: torch.Tensor = _FusedMultiLoraLinear.apply(x, anchor, call)  # type: ignore[no-untyped-call]
    return y


class _FusedMultiLoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _anchor: torch.Tensor, call: FusedCall) -> torch.Tensor:
        rows = _usable_rows(x)
        with on_device_of(x):
            y, s = _path_of(call).forward(rows, call)
        ctx.save_for_backward(rows, s)
        ctx.call = call
        return y  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        x, s = ctx.saved_tensors
        with on_device_of(x):
            dx = _path_of(ctx.call).backward(_usable_rows(dy), x, s, ctx.call, need_dx=ctx.needs_input_grad[0])
        return dx, None, None


def _path_of(call: FusedCall) -> ModuleType:
    # Imported by name, since Gluon need not be there on machines that have no use for it.
    return importlib.import_module(f"multigraft_kernels.multi_lora.fused.{call.launch.path}_path")


def _usable_rows(x: torch.Tensor) -> torch.Tensor:
    """Give x with contiguous features, rows that do not overlap and, in 16-bit dtypes, rows that TMA can reach.

    Gradients may come with stride 0 (an expanded sum) or transposed; those are copied.
    """
    unit = 8 if x.shape[1] % 8 == 0 else 1
    fits = x.stride(1) == 1 and x.stride(0) >= x.shape[1] and x.stride(0) % unit == 0 and x.data_ptr() % 16 == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _usable_stack(stack: torch.Tensor) -> torch.Tensor:
    fits = stack.stride(2) == 1 and stack.data_ptr() % 16 == 0
    # Strides matter to TMA alone, which is used where the last side is a multiple of 8.
    unit = 8 if stack.shape[2] % 8 == 0 else 1
    return stack if fits and stack.stride(1) % unit == 0 and stack.stride(0) % unit == 0 else stack.contiguous()
