"""The chunked head against plain cross-entropy, values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from multigraft_trainer.backends import head_loss
from multigraft_trainer.backends.head_loss import HeadPath, compute_head_loss

NUM_ROWS, HIDDEN, VOCAB = 37, 64, 512


def _head(*, bias: bool = False, scale: float = 1.0, softcap: float | None = None) -> HeadPath:
    torch.manual_seed(0)
    return HeadPath(torch.randn(VOCAB, HIDDEN) * 0.3, torch.randn(VOCAB) if bias else None, scale, softcap)


def _plain(hidden: torch.Tensor, targets: torch.Tensor, head: HeadPath) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the full logits and let autograd find the gradient, in float64."""
    hidden = hidden.double().requires_grad_(True)
    logits = F.linear(hidden, head.weight.double(), None if head.bias is None else head.bias.double()) * head.scale
    if head.softcap is not None:
        logits = torch.tanh(logits / head.softcap) * head.softcap
    losses = F.cross_entropy(logits, targets, reduction="none")
    (grad,) = torch.autograd.grad(losses.sum(), hidden)
    return losses.detach(), grad


@pytest.mark.parametrize("chunk_rows", [1, 5, 37, 1000])
@pytest.mark.parametrize(
    "head",
    [_head(), _head(bias=True), _head(scale=0.25), _head(softcap=3.0), _head(bias=True, scale=2.0, softcap=5.0)],
    ids=["plain", "bias", "scaled", "capped", "all"],
)
def test_equals_plain_cross_entropy(head: HeadPath, chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(head_loss._CHUNK_BYTES, "cpu", chunk_rows * VOCAB * 4)
    hidden, targets = torch.randn(NUM_ROWS, HIDDEN), torch.randint(VOCAB, (NUM_ROWS,))
    losses, grad = compute_head_loss(hidden, targets, head, with_grad=True)
    want_losses, want_grad = _plain(hidden, targets, head)
    torch.testing.assert_close(losses.double(), want_losses, rtol=1e-5, atol=1e-6)
    assert grad is not None
    torch.testing.assert_close(grad.double(), want_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype, relative", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_softmax_is_fp32_in_half_precision(dtype: torch.dtype, relative: float) -> None:
    head = _head()
    half = HeadPath(head.weight.to(dtype), None)
    hidden, targets = torch.randn(NUM_ROWS, HIDDEN).to(dtype), torch.randint(VOCAB, (NUM_ROWS,))
    losses, grad = compute_head_loss(hidden, targets, half, with_grad=True)
    want_losses, want_grad = _plain(hidden, targets, half)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses.double(), want_losses, rtol=relative, atol=relative)
    assert grad is not None
    assert (grad.double() - want_grad).norm() < relative * want_grad.norm()


def test_C20_a_single_target_has_its_gradient() -> None:
    hidden, targets = torch.randn(1, HIDDEN), torch.tensor([3])
    losses, grad = compute_head_loss(hidden, targets, _head(), with_grad=True)
    assert losses.item() > 0
    assert grad is not None
    assert grad.norm() > 0


def test_a_row_of_nan_stays_in_its_row() -> None:
    hidden, targets = torch.randn(NUM_ROWS, HIDDEN), torch.randint(VOCAB, (NUM_ROWS,))
    want_losses, want_grad = compute_head_loss(hidden, targets, _head(), with_grad=True)
    hidden[4] = math.nan
    losses, grad = compute_head_loss(hidden, targets, _head(), with_grad=True)
    others = [row for row in range(NUM_ROWS) if row != 4]
    assert math.isnan(losses[4])
    assert torch.equal(losses[others], want_losses[others])
    assert grad is not None
    assert want_grad is not None
    assert torch.equal(grad[others], want_grad[others])


def test_large_logits_stay_finite() -> None:
    head = HeadPath(torch.eye(8) * 1e4, None)
    losses, grad = compute_head_loss(torch.eye(8), torch.arange(8), head, with_grad=True)
    assert torch.equal(losses, torch.zeros(8))
    assert grad is not None
    assert torch.isfinite(grad).all()


def test_C04_nothing_in_nothing_out() -> None:
    losses, grad = compute_head_loss(torch.empty(0, HIDDEN), torch.empty(0).long(), _head(), with_grad=True)
    assert losses.shape == (0,)
    assert grad is not None
    assert grad.shape == (0, HIDDEN)
    assert compute_head_loss(torch.empty(0, HIDDEN), torch.empty(0).long(), _head(), with_grad=False)[1] is None
