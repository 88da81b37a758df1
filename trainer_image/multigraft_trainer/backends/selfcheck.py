"""Check at load that packed training on this model is exact; what fails is named, and the model is not used.

mask       each kind of mask the model asks for is causal, or causal within its sliding window
isolation  the loss of one sample has a gradient of exactly 0 at the embeddings of the other
packing    two samples packed give what each gives alone
attention  our attention and rotary embedding give what Transformers' own (eager) ones give
head       our path from hidden states to logits gives the model's own logits
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.attention import ATTENTION_NAME, PackedMask, SampleBounds, packed_samples
from multigraft_trainer.backends.fused_rotary import use_fused_rotary
from multigraft_trainer.backends.head_loss import build_head_path, compute_head_loss, compute_logits

_FIRST, _SECOND = 29, 23  # tokens of the two probe samples: odd, unequal, one shorter than a tile of 32

# max |difference| over max |value|. fp32: sums of a few thousand terms. 16-bit: eager attention rounds the scores and
# the softmax, ours does not, layer upon layer; faults that matter (a lost window, cap, scale or bound) are near 1.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}


def check_model(model: Any) -> None:
    """Run all checks; a fraction of a second for a small model.

    Raises:
        RefusalError: BaseModelInvalid, naming the check; NotSupported if an attention layer asks for what is not done.
    """
    device = model.get_input_embeddings().weight.device
    vocab_size = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (_FIRST + _SECOND,), generator=generator).to(device)
    first, second = ids[:_FIRST], ids[_FIRST:]
    try:
        _check_masks(_run(model, [first])[1])
        hidden, _ = _run(model, [first, second])
        _check_isolation(model, first, second)
        _check_packing(model, hidden, first, second)
        _check_attention(model, hidden[:_FIRST], first)
        _check_head(model, first)
    except torch.OutOfMemoryError as error:
        raise RefusalError(Reason.OUT_OF_MEMORY, f"base model, self-check: {error}") from error
    except (TypeError, AttributeError, IndexError, KeyError, RuntimeError) as error:
        # A model that cannot be run packed says so in words of its own; it is refused like one that runs wrong.
        raise _invalid("run", f"{type(model).__name__} fails on packed samples: {error}") from error


def _run(model: Any, samples: list[torch.Tensor]) -> tuple[torch.Tensor, list[PackedMask]]:
    """Give the last hidden states of packed samples, [T, H], and the masks that were asked for."""
    device = samples[0].device
    ends = torch.tensor([len(sample) for sample in samples]).cumsum(0).tolist()
    bounds = [(end - len(sample), end) for end, sample in zip(ends, samples, strict=True)]
    positions = torch.cat([torch.arange(len(sample), device=device) for sample in samples])
    with packed_samples(SampleBounds.build(bounds, device)) as masks:
        output = model.get_decoder()(input_ids=torch.cat(samples)[None], position_ids=positions[None], use_cache=False)
    return output.last_hidden_state[0], masks


def _check_masks(masks: list[PackedMask]) -> None:
    if not masks:
        raise _invalid("mask", "the model asks for no attention mask, so that its samples cannot be kept apart")
    for mask in masks:
        # The definition is a function of indices, so that a window of thousands is checked without as many tokens.
        window = mask.window or 64
        index = torch.tensor([0, 1, 2, window - 1, window, window + 1, 2 * window, 2 * window + 1, 3 * window])
        query, key = index[:, None], index[None, :]
        want = key <= query
        if mask.window is not None:
            want &= key > query - mask.window
        got = mask.mask_function(0, 0, query, key)
        if not torch.equal(torch.as_tensor(got).cpu().expand_as(want), want):
            kind = "causal" if mask.window is None else f"causal within {mask.window} tokens"
            raise _invalid("mask", f"the model asks for a mask that is not {kind}")


def _check_packing(model: Any, packed: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    alone = torch.cat([_run(model, [sample])[0] for sample in (first, second)])
    _compare("packing", packed, alone, "two packed samples differ from each alone")


def _check_isolation(model: Any, first: torch.Tensor, second: torch.Tensor) -> None:
    with torch.enable_grad(), _captured_embeddings(model) as captured:
        hidden, _ = _run(model, [first, second])
        picked = hidden[_FIRST:-1]
        _, grad = compute_head_loss(picked.detach(), second[1:], build_head_path(model), with_grad=True)
        (at_input,) = torch.autograd.grad(picked, captured[0], grad)
    at_input = at_input.reshape(-1, at_input.shape[-1])
    if bool((at_input[:_FIRST] != 0).any()):
        raise _invalid("isolation", "the loss of one sample has a gradient at the tokens of another")
    if not bool((at_input[_FIRST:] != 0).any()):
        raise _invalid("isolation", "the loss of a sample has no gradient at its own tokens")


@contextmanager
def _captured_embeddings(model: Any) -> Iterator[list[torch.Tensor]]:
    captured: list[torch.Tensor] = []

    def capture(_module: Any, _args: Any, output: torch.Tensor) -> None:
        captured.append(output.requires_grad_(True))

    handle = model.get_input_embeddings().register_forward_hook(capture)
    try:
        yield captured
    finally:
        handle.remove()


def _check_attention(model: Any, packed: torch.Tensor, first: torch.Tensor) -> None:
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad(), use_fused_rotary(False):
            own = model.get_decoder()(input_ids=first[None], use_cache=False).last_hidden_state[0]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    _compare("attention", packed, own, "attention differs from Transformers' own")


def _check_head(model: Any, first: torch.Tensor) -> None:
    with torch.no_grad(), packed_samples(SampleBounds.build([(0, _FIRST)], first.device)):
        output = model(input_ids=first[None], use_cache=False, output_hidden_states=False)
        hidden = model.get_decoder()(input_ids=first[None], use_cache=False).last_hidden_state[0]
    got = compute_logits(hidden, build_head_path(model))
    _compare("head", got, output.logits[0], "logits differ from the model's own")


def _compare(check: str, got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    tolerance = _TOLERANCE[want.dtype]
    error = float((got.float() - want.float()).abs().max() / want.float().abs().max())
    if not error <= tolerance:
        raise _invalid(check, f"{what}: {error:.2g} of the largest value, allowed is {tolerance:.2g}")


def _invalid(check: str, message: str) -> RefusalError:
    return RefusalError(Reason.BASE_MODEL_INVALID, f"base model, self-check {check}: {message}")
