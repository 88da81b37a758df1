"""Run a case of `lora_case` through any form of the multi-adapter linear, with every fresh buffer full of NaN."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from builders.lora_case import LoraCase, Outcome
from multigraft_kernels.multi_lora.segments import LoraGrads

Linear = Callable[..., torch.Tensor]


@contextlib.contextmanager
def poisoned_buffers() -> Iterator[None]:
    """Fill what torch.empty gives with NaN (integers with their largest value)."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def run_linear(
    case: LoraCase, linear: Linear, *, grad_weights: Sequence[float] | None = None, dx: bool = True
) -> Outcome:
    """Run forward and backward; sinks start at zero, one per adapter."""
    K, N = case.in_features, case.out_features
    sinks = [
        LoraGrads(torch.zeros(adapter.rank, K, device=case.device), torch.zeros(N, adapter.rank, device=case.device))
        for adapter in case.adapters
    ]
    owners = [index for index, _ in case.order if index >= 0]
    segments = case.segments
    if grad_weights is not None:
        segments = [replace(s, grad_weight=weight) for s, weight in zip(segments, grad_weights, strict=True)]
    x = case.x.clone().requires_grad_(dx)
    with poisoned_buffers():
        y = linear(
            x,
            case.weight,
            case.bias_vector,
            case.a,
            case.b,
            segments,
            dropout=case.dropout,
            grads=[sinks[owner] for owner in owners],
        )
        if y.requires_grad:
            y.backward(case.dy)
    grad = x.grad if x.grad is not None else torch.zeros_like(x)
    return Outcome(y.detach(), grad, [sink.a for sink in sinks], [sink.b for sink in sinks])
