"""The self-check: real architectures that cannot be packed are refused, and so is each kind of broken packing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from builders.tiny_base import FAMILIES, Family, build_tiny_config, build_tiny_model
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends import attention
from multigraft_trainer.backends.attention import ATTENTION_NAME
from multigraft_trainer.backends.selfcheck import check_model

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 144,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def _build(config: Any) -> Any:
    model = build_tiny_model(config).requires_grad_(False)
    model.set_attn_implementation(ATTENTION_NAME)
    return model


def _refuse(model: Any) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        check_model(model)
    return caught.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_C09_sound_models_pass(family: Family, dtype: torch.dtype) -> None:
    check_model(_build(build_tiny_config(family)).to(dtype))


@pytest.mark.parametrize(
    "config",
    [
        transformers.GraniteConfig(**COMMON, logits_scaling=4.0, attention_multiplier=0.2, residual_multiplier=0.5),
        transformers.Cohere2Config(**COMMON, logit_scale=0.25, sliding_window=12),
        transformers.Phi3Config(**COMMON, sliding_window=12),
        transformers.GPTNeoXConfig(**COMMON),
        transformers.OPTConfig(**COMMON, ffn_dim=144, word_embed_proj_dim=64),
        transformers.MixtralConfig(**COMMON, num_local_experts=4),
        transformers.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=12, max_window_layers=1),
    ],
    ids=lambda config: config.model_type,
)
def test_other_sound_architectures_pass(config: Any) -> None:
    check_model(_build(config))


def test_attention_sinks_are_refused() -> None:
    config = transformers.GptOssConfig(**COMMON, head_dim=16, num_local_experts=4, num_experts_per_tok=2)
    error = _refuse(_build(config))
    assert error.reason is Reason.NOT_SUPPORTED
    assert "s_aux" in error.message


@pytest.mark.parametrize(
    "config, message",
    [
        (transformers.MambaConfig(**COMMON), "asks for no attention mask"),
        (
            transformers.Lfm2Config(**COMMON, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False),
            "a gradient at the tokens of another",
        ),
        (transformers.BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=512), "asks for no attention mask"),
    ],
    ids=["mamba", "lfm2", "bloom"],
)
def test_architectures_that_leak_or_cannot_be_packed_are_refused(config: Any, message: str) -> None:
    error = _refuse(_build(config))
    assert error.reason is Reason.BASE_MODEL_INVALID
    assert message in error.message


def _attend_across(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, scale: float
) -> torch.Tensor:
    key, value = (tensor.repeat_interleave(2, dim=1) for tensor in (key, value))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
    return output.transpose(1, 2)


def _forget_window(build: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **arguments: build(**{**arguments, "local_size": None})


def test_C07_C09_attention_across_samples_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_fits_varlen", lambda *_: True)
    monkeypatch.setattr(attention, "_attend_varlen", _attend_across)
    assert "self-check isolation" in _refuse(_build(build_tiny_config())).message


def test_a_lost_sliding_window_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _build(build_tiny_config("mistral"))
    functions = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    monkeypatch.setitem(functions, ATTENTION_NAME, _forget_window(attention.build_packed_mask))
    assert "self-check mask" in _refuse(model).message or "sliding window" in _refuse(model).message


def test_a_lost_softcap_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _build(build_tiny_config("gemma2"))
    attend = attention._attend_sample
    monkeypatch.setattr(attention, "_attend_sample", lambda *given: attend(*given[:5], None))
    assert "self-check attention" in _refuse(model).message


def test_a_step_between_hidden_states_and_logits_that_we_do_not_know_is_caught() -> None:
    model = _build(build_tiny_config("gemma2"))
    model.config.final_logit_softcapping = None
    forward = type(model).forward

    class Doubled(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = forward(self, *args, **kwargs)
            output.logits = output.logits * 2
            return output

    model.__class__ = Doubled
    assert "self-check head" in _refuse(model).message


def test_the_attention_is_set_back_after_the_check() -> None:
    model = _build(build_tiny_config())
    check_model(model)
    assert model.config._attn_implementation == ATTENTION_NAME
