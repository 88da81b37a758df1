"""Output head and cross-entropy where there is a target, in chunks: loss and hidden gradient in one pass.

    z = scale (h W^T + bias);  z = cap tanh(z / cap) if capped;  loss = logsumexp(z) - z[target]
    dh = scale (softmax(z) - onehot(target)) (1 - (z / cap)^2) W

Shapes   h [M, H], W [V, H], z [chunk, V], loss [M] in nats
Dtypes   h, W one of fp32, bf16, fp16; z and the softmax fp32
Memory   two fp32 buffers of `_CHUNK_BYTES` each; the full [M, V] logits never exist
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_CHUNK_BYTES = {"cuda": 512 * 1024**2, "cpu": 32 * 1024**2}


@dataclass(frozen=True)
class HeadPath:
    """How a model gets from the last hidden state to its logits."""

    weight: torch.Tensor  # [V, H]
    bias: torch.Tensor | None  # [V]
    scale: float = 1.0
    softcap: float | None = None


def build_head_path(model: Any) -> HeadPath:
    """Read the head of a causal language model and what its configuration does to the logits.

    The self-check at load compares the result with the model's own logits, so that an unknown step is refused.
    """
    head = model.get_output_embeddings()
    config = model.config
    scale = 1.0
    if getattr(config, "logits_scaling", None):  # Granite divides
        scale /= float(config.logits_scaling)
    if getattr(config, "logit_scale", None):  # Cohere multiplies
        scale *= float(config.logit_scale)
    return HeadPath(head.weight, getattr(head, "bias", None), scale, getattr(config, "final_logit_softcapping", None))


def compute_logits(hidden: torch.Tensor, head: HeadPath) -> torch.Tensor:
    """Give fp32 logits of a few hidden states, [M, V]."""
    if hidden.is_cuda and hidden.dtype != torch.float32:
        logits = torch.mm(hidden, head.weight.T, out_dtype=torch.float32)
    else:
        logits = torch.mm(hidden, head.weight.T).float()
    if head.bias is not None:
        logits += head.bias
    if head.scale != 1.0:
        logits *= head.scale
    if head.softcap is not None:
        logits = logits.div_(head.softcap).tanh_().mul_(head.softcap)
    return logits


@torch.no_grad()
def compute_head_loss(
    hidden: torch.Tensor, targets: torch.Tensor, head: HeadPath, *, with_grad: bool, fused: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give the loss of each row, [M] fp32, and the gradient of their sum with respect to `hidden`, [M, H].

    Rows do not mix: a NaN stays in its row. Empty `hidden` gives empty results. `fused` takes one kernel for loss and
    gradient of a chunk, on GPUs and for heads without a cap.
    """
    fused = fused and hidden.is_cuda and head.softcap is None
    losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
    grad = torch.empty_like(hidden) if with_grad else None
    chunk_rows = max(1, _CHUNK_BYTES[hidden.device.type] // (4 * head.weight.shape[0]))
    for start in range(0, len(hidden), chunk_rows):
        rows = slice(start, start + chunk_rows)
        logits = compute_logits(hidden[rows], head)
        if fused:
            losses[rows], chunk_grad = _run_fused(logits, targets[rows], head, hidden.dtype if with_grad else None)
            if grad is not None and chunk_grad is not None:
                torch.mm(chunk_grad, head.weight, out=grad[rows])
            continue
        at_target = targets[rows, None]
        log_sum = torch.logsumexp(logits, dim=1, keepdim=True)
        losses[rows] = (log_sum - logits.gather(1, at_target))[:, 0]
        if grad is not None:
            grad[rows] = _backward_chunk(logits, log_sum, at_target, head).to(hidden.dtype) @ head.weight
    return losses, grad


def _run_fused(
    logits: torch.Tensor, targets: torch.Tensor, head: HeadPath, grad_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    from multigraft_kernels.token_loss import compute_token_loss  # imports Triton

    losses, grad = compute_token_loss(logits, targets, grad_dtype)
    return losses, grad if grad is None or head.scale == 1.0 else grad.mul_(head.scale)


def _backward_chunk(
    logits: torch.Tensor, log_sum: torch.Tensor, at_target: torch.Tensor, head: HeadPath
) -> torch.Tensor:
    """Give the gradient with respect to h W^T + bias; overwrites `logits`."""
    slope = None if head.softcap is None else 1 - (logits / head.softcap).square_()
    grad = logits.sub_(log_sum).exp_()
    grad.scatter_add_(1, at_target, torch.full_like(log_sum, -1.0))
    if slope is not None:
        grad *= slope
    return grad if head.scale == 1.0 else grad.mul_(head.scale)
