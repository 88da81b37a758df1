"""The fused token loss against plain cross-entropy, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from multigraft_kernels.token_loss import compute_token_loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _draw(rows: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + vocab)
    logits = 6 * torch.randn(rows, vocab, generator=generator)
    return logits.to(DEVICE), torch.randint(vocab, (rows,), generator=generator).to(DEVICE)


@pytest.mark.parametrize("vocab", [1, 100, 4096, 4097, 9000])
def test_equals_cross_entropy(vocab: int) -> None:
    logits, targets = _draw(3, vocab)
    exact = logits.double().requires_grad_(True)
    want = F.cross_entropy(exact, targets, reduction="none")
    (want_grad,) = torch.autograd.grad(want.sum(), exact)
    losses, grad = compute_token_loss(logits, targets, torch.float32)
    torch.testing.assert_close(losses.double(), want.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.double(), want_grad, rtol=1e-5, atol=1e-6)


def test_large_logits_do_not_overflow() -> None:
    logits, targets = _draw(2, 300)
    shifted, _ = compute_token_loss(logits + 1e4, targets, None)
    torch.testing.assert_close(shifted, compute_token_loss(logits, targets, None)[0], rtol=0, atol=2e-3)


def test_the_gradient_is_rounded_once_and_left_out_where_not_wanted() -> None:
    logits, targets = _draw(2, 5000)
    exact, rounded = (compute_token_loss(logits, targets, dtype)[1] for dtype in (torch.float32, torch.bfloat16))
    # Triton's interpreter cuts bf16 off where a GPU rounds it.
    torch.testing.assert_close(exact, rounded.float(), rtol=2**-7, atol=1e-30)
    assert compute_token_loss(logits, targets, None)[1] is None


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's remark on inf - inf, in the interpreter
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(poison: float) -> None:
    logits, targets = _draw(3, 5000)
    want, want_grad = compute_token_loss(logits, targets, torch.float32)
    logits[1, 17] = poison
    losses, grad = compute_token_loss(logits, targets, torch.float32)
    assert not torch.isfinite(losses[1])
    for row in (0, 2):
        assert torch.equal(losses[row], want[row])
        assert torch.equal(grad[row], want_grad[row])


def test_no_rows_are_no_launch() -> None:
    losses, grad = compute_token_loss(torch.empty(0, 50, device=DEVICE), torch.empty(0).long(), torch.float32)
    assert (losses.shape, grad.shape) == ((0,), (0, 50))
