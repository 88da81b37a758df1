"""The fused linear in Gluon on a Hopper GPU: the adapters' part inside the base GEMM.

Streams  backward runs the GEMM of dx on a second stream, beside the gradients of A, which do not need it. The GEMM is
         persistent and takes as few multiprocessors as its number of rounds allows (128 of 132 where tokens / 128
         times outputs / 256 is a multiple of 128); the rest reads x meanwhile. The GEMM's stream has the higher
         priority, or the other kernel's many small programs would fill the device first. Both meet before backward
         returns
Measured docs/benchmarks/fused_lora_h200_2026-12-01.md
"""

from __future__ import annotations

import functools

import torch

from multigraft_kernels.fused_lora.hopper_gemm import run_base_gemm
from multigraft_kernels.fused_lora.hopper_grad_output import read_grad_output_parts
from multigraft_kernels.fused_lora.hopper_input import read_input_parts
from multigraft_kernels.fused_lora.hopper_shrink import read_shrink_parts
from multigraft_kernels.fused_lora.operands import rank_columns
from multigraft_kernels.fused_lora.ready_factor import make_ready_a, make_ready_b
from multigraft_kernels.fused_lora.reduce_parts import add_to_sinks, reduce_rows
from multigraft_kernels.multi_lora.fused.call import FusedCall
from multigraft_kernels.multi_lora.fused.routes import build_chunks
from multigraft_kernels.multi_lora.fused.sinks import build_sinks


def forward(x: torch.Tensor, call: FusedCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Give y and s."""
    launch, routes = call.launch.hopper, call.routes
    parts = read_shrink_parts(x, call.a, routes, call.dropout, launch.shrink)
    ready = make_ready_b(len(routes.factors), rank_columns(routes.max_rank), call.b.shape[1], x)
    s = reduce_rows(parts, call.b, routes, call.dropout, outputs_last=False, ready=ready)
    y = x.new_empty(x.shape[0], call.weight.shape[0])
    run_base_gemm(y, x, call.weight, s, ready, routes, launch.gemm_forward, outputs_last=False, bias=call.bias)
    return y, s


def backward(
    dy: torch.Tensor, x: torch.Tensor, s: torch.Tensor, call: FusedCall, *, need_dx: bool
) -> torch.Tensor | None:
    """Give dx where it is wanted, and add dA and dB to the sinks."""
    launch, routes = call.launch.hopper, call.routes
    chunks_b = build_chunks(call.segments, launch.grad_output.chunk_rows, x.device)
    need_grads = call.grads is not None
    ds_parts, db_parts = read_grad_output_parts(dy, call.b, s, routes, chunks_b, launch.grad_output, need_db=need_grads)
    ready = make_ready_a(len(routes.factors), s.shape[1], x.shape[1], x) if need_dx else None
    ds = reduce_rows(ds_parts, call.a, routes, call.dropout, outputs_last=True, ready=ready)
    # Allocated for this stream, which takes memory back only after the other one has been waited for.
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if need_dx else None
    beside = _gemm_stream(x.device) if need_grads and launch.beside else torch.cuda.current_stream()
    if dx is not None and ready is not None:
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            run_base_gemm(
                dx, dy, call.weight, ds, ready, routes, launch.gemm_backward, outputs_last=True, dropout=call.dropout
            )
    if call.grads is not None:
        chunks_a = build_chunks(call.segments, launch.input.chunk_rows, x.device)
        da_parts = read_input_parts(x, ds, routes, chunks_a, call.dropout, launch.input)
        sinks = build_sinks(call.segments, call.grads, chunks_a, chunks_b)
        add_to_sinks(da_parts, db_parts, routes, chunks_a, chunks_b, sinks)
    torch.cuda.current_stream().wait_stream(beside)
    return dx


@functools.cache
def _gemm_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
