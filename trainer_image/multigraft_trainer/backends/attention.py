"""Attention over packed samples: each sample sees itself alone, whatever lies beside it in the microbatch.

Plugs into Transformers' attention interface and its mask interface. The mask interface tells what kind of mask a layer
wants (causal, or causal within a sliding window); no [T, T] mask is ever made. On a GPU in bf16 or fp16 the samples go
to torch's variable-length flash attention in one call; elsewhere each sample is one call of its own, so that neither
its result nor a NaN in it can depend on the neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from multigraft.api.reasons import Reason, RefusalError

ATTENTION_NAME = "multigraft_packed"

# Arguments that models pass along and that say nothing new here.
_IGNORED = frozenset(
    {
        "position_ids",
        "position_embeddings",
        "past_key_values",
        "use_cache",
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "return_dict",
        "is_causal",
        "num_items_in_batch",
        "logits_to_keep",
    }
)
_QUERY_BLOCK = 1024  # query rows per call where scores are made by hand or windowed; bounds memory for long samples


@dataclass(frozen=True)
class SampleBounds:
    """Where the samples of a microbatch lie; built once, used by every layer."""

    bounds: tuple[tuple[int, int], ...]  # [start, end) of each sample that has tokens, covering all tokens in order
    offsets: torch.Tensor  # [samples + 1] int32 on the model's device
    longest: int  # tokens

    @classmethod
    def build(cls, bounds: Sequence[tuple[int, int]], device: torch.device) -> SampleBounds:
        """Build from [start, end) pairs; empty samples are left out."""
        full = tuple((start, end) for start, end in bounds if end > start)
        offsets = torch.tensor([0, *(end for _, end in full)], dtype=torch.int32).to(device, non_blocking=True)
        return cls(full, offsets, max((end - start for start, end in full), default=0))


@dataclass(frozen=True)
class PackedMask:
    """What a layer gets in place of a mask tensor. It travels with the layer's arguments, also into recomputation."""

    samples: SampleBounds
    window: int | None  # a token sees itself and the window - 1 tokens before it; None: all before it
    mask_function: Callable[..., Any]  # Transformers' definition of the mask, for the check at load


class _Current:
    """The samples of the forward that is running; one model runs one microbatch at a time."""

    samples: SampleBounds | None = None
    seen: list[PackedMask] | None = None


@contextmanager
def packed_samples(samples: SampleBounds) -> Iterator[list[PackedMask]]:
    """Run forwards inside with these samples; yields the masks that the model asked for."""
    seen: list[PackedMask] = []
    _Current.samples, _Current.seen = samples, seen
    try:
        yield seen
    finally:
        _Current.samples = _Current.seen = None


def build_packed_mask(*, mask_function: Callable[..., Any], local_size: int | None = None, **_: Any) -> PackedMask:
    """Stand in for Transformers' mask builder."""
    if _Current.samples is None or _Current.seen is None:
        raise RuntimeError("packed attention runs only inside packed_samples()")
    mask = PackedMask(_Current.samples, local_size, mask_function)
    _Current.seen.append(mask)
    return mask


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: PackedMask | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within samples.

    Args:
        query: [1, heads, T, D]; `key` and `value` [1, kv heads, T, D].
        attention_mask: From `build_packed_mask`.
        softcap: Scores become softcap * tanh(score / softcap).
    Returns:
        [1, T, heads, D] and None.
    Raises:
        RefusalError: NotSupported, if the layer asks for something that is not done here.
    """
    mask = _check_request(module, attention_mask, dropout, sliding_window, kwargs)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if _fits_varlen(query, key, value, softcap):
        return _attend_varlen(query, key, value, mask, scale), None
    if query.shape[1] != key.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    outputs = [
        _attend_sample(query[:, :, s:e], key[:, :, s:e], value[:, :, s:e], mask.window, scale, softcap)
        for s, e in mask.samples.bounds
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def _check_request(
    module: torch.nn.Module,
    mask: PackedMask | None,
    dropout: float,
    sliding_window: int | None,
    kwargs: dict[str, Any],
) -> PackedMask:
    def refuse(what: str) -> RefusalError:
        return RefusalError(Reason.NOT_SUPPORTED, f"base model: {type(module).__name__} {what}")

    if not isinstance(mask, PackedMask):
        raise refuse("makes its attention mask itself")
    if dropout:
        raise refuse(f"has attention dropout {dropout}")
    if not getattr(module, "is_causal", True):
        raise refuse("is not causal")
    if sliding_window is not None and sliding_window != mask.window:
        raise refuse(f"has sliding window {sliding_window} but asks for a mask with window {mask.window}")
    unknown = sorted(
        name for name, value in kwargs.items() if value is not None and value is not False and name not in _IGNORED
    )
    if unknown:
        raise refuse(f"passes {unknown[0]} to its attention, which is not supported")
    return mask


def _fits_varlen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, softcap: float | None) -> bool:
    size = query.shape[-1]
    return (
        query.is_cuda
        and softcap is None
        and query.dtype in (torch.bfloat16, torch.float16)
        and size == key.shape[-1] == value.shape[-1]
        and size % 8 == 0
        and size <= 256
    )


def _attend_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: PackedMask, scale: float
) -> torch.Tensor:
    # squeeze and unsqueeze: the backward of an index would fill and copy a whole tensor.
    q, k, v = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))  # [T, heads, D]
    samples = mask.samples
    window = (-1, 0) if mask.window is None else (mask.window - 1, 0)
    output: Any = varlen_attn(
        q, k, v, samples.offsets, samples.offsets, samples.longest, samples.longest, scale=scale, window_size=window
    )
    return output.unsqueeze(0)  # type: ignore[no-any-return]


def _attend_sample(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attend within one sample of L tokens, all [1, heads, L, D]."""
    length = query.shape[2]
    if softcap is None and (window is None or window >= length):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    blocks = []
    for start in range(0, length, _QUERY_BLOCK):
        end = min(start + _QUERY_BLOCK, length)
        first = 0 if window is None else max(0, start - window + 1)
        allowed = _build_block_mask(start, end, first, window, query.device)
        q, k, v = query[:, :, start:end], key[:, :, first:end], value[:, :, first:end]
        if softcap is None:
            blocks.append(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale))
        else:
            blocks.append(_attend_capped(q, k, v, allowed, scale, softcap))
    return torch.cat(blocks, dim=2)


def _build_block_mask(start: int, end: int, first: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Give which of the keys [first, end) each of the queries [start, end) sees, [queries, keys]."""
    q = torch.arange(start, end, device=device)[:, None]
    k = torch.arange(first, end, device=device)[None, :]
    allowed = k <= q
    return allowed if window is None else allowed & (k > q - window)


def _attend_capped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor, scale: float, softcap: float
) -> torch.Tensor:
    scores = torch.matmul(query, key.transpose(2, 3)) * scale
    scores = torch.tanh(scores / softcap) * softcap
    weights = torch.softmax(scores.masked_fill(~allowed, float("-inf")), dim=-1, dtype=torch.float32)
    return torch.matmul(weights.to(query.dtype), value)


AttentionInterface.register(ATTENTION_NAME, packed_attention)
AttentionMaskInterface.register(ATTENTION_NAME, build_packed_mask)
