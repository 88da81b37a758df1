"""The fused linear in Triton and cuBLAS: the adapters' part is written first, and the library accumulates onto it."""

from __future__ import annotations

import torch

from multigraft_kernels.fused_lora.portable_added_part import compute_added_part
from multigraft_kernels.fused_lora.portable_grad_output import read_grad_output
from multigraft_kernels.fused_lora.portable_input import read_input
from multigraft_kernels.fused_lora.portable_shrink import shrink
from multigraft_kernels.fused_lora.reduce_parts import add_to_sinks, reduce_rows
from multigraft_kernels.multi_lora.fused.call import FusedCall
from multigraft_kernels.multi_lora.fused.routes import build_chunks
from multigraft_kernels.multi_lora.fused.sinks import build_sinks


def forward(x: torch.Tensor, call: FusedCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Give y and s."""
    launch = call.launch.portable
    s = shrink(x, call.a, call.b, call.routes, call.dropout, launch.shrink)
    y = compute_added_part(s, call.b, x.shape[0], call.routes, launch.added, outputs_last=False, bias=call.bias)
    return y.addmm_(x, call.weight.t()), s


def backward(
    dy: torch.Tensor, x: torch.Tensor, s: torch.Tensor, call: FusedCall, *, need_dx: bool
) -> torch.Tensor | None:
    """Give dx where it is wanted, and add dA and dB to the sinks."""
    launch, routes = call.launch.portable, call.routes
    chunks_b = build_chunks(call.segments, launch.grad_output.chunk_rows, x.device)
    chunks_a = build_chunks(call.segments, launch.input.chunk_rows, x.device)
    need_grads = call.grads is not None
    ds_parts, db_parts = read_grad_output(dy, call.b, s, routes, chunks_b, launch.grad_output, need_db=need_grads)
    ds = reduce_rows(ds_parts, call.a, routes, call.dropout, outputs_last=True, ready=None)
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
    dx = compute_added_part(ds, call.a, x.shape[0], routes, launch.added, outputs_last=True, keep=keep)
    return dx.addmm_(dy, call.weight)
