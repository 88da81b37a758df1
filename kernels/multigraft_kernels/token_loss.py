"""Cross-entropy of rows of logits and its gradient, with one program per row and no pass for any single operation.

    loss = logsumexp(z) - z[target]        grad = softmax(z) - onehot(target)

Shapes   z [M, V], target [M], loss [M], grad [M, V]
Dtypes   z fp32; loss fp32; grad any of bf16, fp16, fp32, rounded once at the store
Exact    rows do not mix: a NaN stays in its row; the same row gives the same bits wherever it stands
Roofline z is read twice, grad written once: M=8192 V=128256 with grad in bf16 moves 10.5 GB = 2.4 ms at 4.3 TB/s; the
         same in torch's single operations moves about ten times the size of z
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _token_loss_kernel(  # type: ignore[no-untyped-def]
    z_ptr,
    target_ptr,
    loss_ptr,
    grad_ptr,
    V,
    stride_z,
    stride_grad,
    NEED_GRAD: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p_z = z_ptr + row * stride_z
    o_v = tl.arange(0, BLOCK_V)
    # Each lane keeps a maximum and a sum of its own; they meet once, at the end. The maximum starts finite, so that a
    # lane without a value gives exp(-inf) = 0 and not exp(-inf + inf).
    b_max = tl.full((BLOCK_V,), -3.0e38, tl.float32)
    b_sum = tl.zeros((BLOCK_V,), tl.float32)
    for first in range(0, V, BLOCK_V):
        b_z = tl.load(p_z + first + o_v, mask=first + o_v < V, other=float("-inf"))
        b_new = tl.maximum(b_max, b_z)
        b_sum = b_sum * tl.exp(b_max - b_new) + tl.exp(b_z - b_new)
        b_max = b_new
    top = tl.max(b_max, axis=0)
    log_sum = top + tl.log(tl.sum(b_sum * tl.exp(b_max - top), axis=0))
    target = tl.load(target_ptr + row)
    tl.store(loss_ptr + row, log_sum - tl.load(p_z + target))
    if NEED_GRAD:
        p_grad = grad_ptr + row * stride_grad
        for first in range(0, V, BLOCK_V):
            m_v = first + o_v < V
            b_grad = tl.exp(tl.load(p_z + first + o_v, mask=m_v, other=0.0) - log_sum)
            b_grad = tl.where(first + o_v == target, b_grad - 1.0, b_grad)
            tl.store(p_grad + first + o_v, b_grad.to(grad_ptr.dtype.element_ty), mask=m_v)


def compute_token_loss(
    logits: torch.Tensor, targets: torch.Tensor, grad_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Give the loss of each row, [M], and the gradient with respect to the logits, [M, V].

    Args:
        logits: [M, V] fp32, rows contiguous.
        targets: [M] int64, each below V; not checked here, as that would wait for the device.
        grad_dtype: None: no gradient.
    """
    num_rows, vocab_size = logits.shape
    losses = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    grad = None if grad_dtype is None else torch.empty_like(logits, dtype=grad_dtype)
    if num_rows:
        _token_loss_kernel[(num_rows,)](
            logits,
            targets,
            losses,
            losses if grad is None else grad,
            vocab_size,
            logits.stride(0),
            0 if grad is None else grad.stride(0),
            NEED_GRAD=grad is not None,
            BLOCK_V=4096,
            num_warps=8,
        )
    return losses, grad
