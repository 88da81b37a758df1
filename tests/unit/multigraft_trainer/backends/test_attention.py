"""Packed attention against attention written out, sample by sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends import attention
from multigraft_trainer.backends.attention import PackedMask, SampleBounds, packed_attention

CPU = torch.device("cpu")
LENGTHS = [1, 7, 30, 2]


def _mask(lengths: list[int], window: int | None = None) -> PackedMask:
    ends = torch.tensor(lengths).cumsum(0).tolist()
    bounds = [(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    return PackedMask(SampleBounds.build(bounds, CPU), window, lambda *_: None)


def _inputs(num_tokens: int, *, heads: int = 4, kv_heads: int = 2, size: int = 20) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, count, num_tokens, size) for count in (heads, kv_heads, kv_heads)]


def _written_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attend with the full [T, T] mask, in float64."""
    q, k, v = (tensor.double() for tensor in (query, key, value))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    index = torch.arange(len(owner))
    allowed = (owner[:, None] == owner[None, :]) & (index[None, :] <= index[:, None])
    if window is not None:
        allowed &= index[None, :] > index[:, None] - window
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return (torch.softmax(scores.masked_fill(~allowed, -math.inf), dim=-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 5, 30, 100])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_attention_written_out(
    window: int | None, softcap: float | None, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_QUERY_BLOCK", 8)  # so that the longest sample is cut
    inputs = [tensor.requires_grad_(True) for tensor in _inputs(sum(LENGTHS), kv_heads=kv_heads)]
    got, _ = packed_attention(nn.Module(), *inputs, _mask(LENGTHS, window), sliding_window=window, softcap=softcap)
    want = _written_out(*inputs, LENGTHS, window, softcap)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(got)
    for one, other in zip(
        torch.autograd.grad(got, inputs, grad), torch.autograd.grad(want, inputs, grad.double()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_value_heads_may_have_another_size() -> None:
    query, key, _ = _inputs(sum(LENGTHS))
    value = torch.randn(1, 2, sum(LENGTHS), 12)
    got, _ = packed_attention(nn.Module(), query, key, value, _mask(LENGTHS))
    torch.testing.assert_close(got.double(), _written_out(query, key, value, LENGTHS, None, None), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 5])
def test_C07_C18_a_sample_of_nan_leaves_its_neighbours_bits(window: int | None, softcap: float | None) -> None:
    inputs = _inputs(sum(LENGTHS))
    want, _ = packed_attention(nn.Module(), *inputs, _mask(LENGTHS, window), softcap=softcap)
    for tensor in inputs:
        tensor[:, :, 8:38] = math.nan
    got, _ = packed_attention(nn.Module(), *inputs, _mask(LENGTHS, window), softcap=softcap)
    assert torch.isnan(got[:, 8:38]).all()
    for rows in (slice(0, 8), slice(38, None)):
        assert torch.equal(got[:, rows], want[:, rows])


def test_a_sample_alone_has_the_bits_it_has_in_company() -> None:
    inputs = _inputs(sum(LENGTHS))
    together, _ = packed_attention(nn.Module(), *inputs, _mask(LENGTHS))
    alone, _ = packed_attention(nn.Module(), *(tensor[:, :, 8:38] for tensor in inputs), _mask([30]))
    assert torch.equal(together[:, 8:38], alone)


def test_empty_samples_are_left_out() -> None:
    bounds = SampleBounds.build([(0, 3), (3, 3), (3, 5)], CPU)
    assert bounds.bounds == ((0, 3), (3, 5))
    assert bounds.offsets.tolist() == [0, 3, 5]
    assert bounds.longest == 3


@pytest.mark.parametrize(
    "change, message",
    [
        ({"attention_mask": torch.ones(1, 1, 5, 5)}, "makes its attention mask itself"),
        ({"attention_mask": None}, "makes its attention mask itself"),
        ({"dropout": 0.1}, "has attention dropout 0.1"),
        ({"sliding_window": 4}, "has sliding window 4 but asks for a mask with window None"),
        ({"s_aux": torch.ones(4)}, "passes s_aux to its attention"),
        ({"position_bias": torch.ones(4)}, "passes position_bias to its attention"),
        ({"module": type("Bidirectional", (nn.Module,), {"is_causal": False})()}, "Bidirectional is not causal"),
    ],
)
def test_refuses_what_it_does_not_do(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"module": nn.Module(), "attention_mask": _mask([5]), **change}
    query, key, value = _inputs(5)
    with pytest.raises(RefusalError, match=message) as caught:
        packed_attention(query=query, key=key, value=value, **arguments)
    assert caught.value.reason is Reason.NOT_SUPPORTED


def test_ignores_what_says_nothing_new() -> None:
    packed_attention(
        nn.Module(), *_inputs(5), _mask([5]), position_ids=torch.arange(5), s_aux=None, output_router_logits=False
    )


def test_runs_only_inside_packed_samples() -> None:
    with pytest.raises(RuntimeError, match="only inside packed_samples"):
        attention.build_packed_mask(mask_function=lambda *_: None)
