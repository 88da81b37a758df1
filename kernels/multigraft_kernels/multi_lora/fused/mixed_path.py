"""The fused linear on Hopper with Triton's reading passes: the adapters' part inside the base GEMM, in Gluon."""

from __future__ import annotations

import torch

from multigraft_kernels.fused_lora.hopper_gemm import run_base_gemm
from multigraft_kernels.fused_lora.operands import rank_columns
from multigraft_kernels.fused_lora.portable_grad_output import read_grad_output
from multigraft_kernels.fused_lora.portable_input import read_input
from multigraft_kernels.fused_lora.portable_shrink import shrink
from multigraft_kernels.fused_lora.ready_factor import make_ready_a, make_ready_b
from multigraft_kernels.fused_lora.reduce_parts import add_to_sinks, reduce_rows
from multigraft_kernels.multi_lora.fused.call import FusedCall
from multigraft_kernels.multi_lora.fused.routes import build_chunks
from multigraft_kernels.multi_lora.fused.sinks import build_sinks


def forward(x: torch.Tensor, call: FusedCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Give y and s."""
    launch, routes = call.launch, call.routes
    ready = make_ready_b(len(routes.factors), rank_columns(routes.max_rank), call.b.shape[1], x)
    s = shrink(x, call.a, call.b, routes, call.dropout, launch.portable.shrink, ready=ready)
    y = x.new_empty(x.shape[0], call.weight.shape[0])
    run_base_gemm(y, x, call.weight, s, ready, routes, launch.hopper.gemm_forward, outputs_last=False, bias=call.bias)
    return y, s


def backward(
    dy: torch.Tensor, x: torch.Tensor, s: torch.Tensor, call: FusedCall, *, need_dx: bool
) -> torch.Tensor | None:
    """Give dx where it is wanted, and add dA and dB to the sinks."""
    launch, routes = call.launch.portable, call.routes
    need_grads = call.grads is not None
    chunks_b = build_chunks(call.segments, launch.grad_output.chunk_rows, x.device)
    chunks_a = build_chunks(call.segments, launch.input.chunk_rows, x.device)
    ds_parts, db_parts = read_grad_output(dy, call.b, s, routes, chunks_b, launch.grad_output, need_db=need_grads)
    ready = make_ready_a(len(routes.factors), s.shape[1], x.shape[1], x) if need_dx else None
    ds = reduce_rows(ds_parts, call.a, routes, call.dropout, outputs_last=True, ready=ready)
    need_keep = need_dx and call.dropout is not None
    keep = None
    if need_grads or need_keep:
        da_parts, keep = read_input(
            x, ds, routes, chunks_a, call.dropout, launch.input, need_da=need_grads, need_keep=need_keep
        )
    if call.grads is not None:
        sinks = build_sinks(call.segments, call.grads, chunks_a, chunks_b)
        add_to_sinks(da_parts, db_parts, routes, chunks_a, chunks_b, sinks)
    if ready is None:
        return None
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    gemm = call.launch.hopper.gemm_backward
    run_base_gemm(dx, dy, call.weight, ds, ready, routes, gemm, outputs_last=True, keep=keep)
    return dx
