"""The tiny base: a real Hugging Face folder of about 0.1M random weights, made in a fraction of a second.

Hidden 64, head size 20 (q is 64 to 80, k and v 64 to 40), intermediate 144, 4 heads, 2 kv heads, vocabulary 512: no
linear layer is square, so that a transposed shape shows. The tokenizer is byte-level: one token per byte, and ids up to
511 are taken, so that the next added token lies outside the embedding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Family = Literal["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"]
FAMILIES: tuple[Family, ...] = get_args(Family)

VOCAB_SIZE = 512
SPECIAL_TOKENS = ("<bos>", "<|im_end|>", "<pad>", "<|im_start|>")
BOS_ID, EOS_ID, PAD_ID, IM_START_ID = range(256, 260)

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}
{%- elif message.content %}{% for part in message.content %}{{ part.text }}{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}<tool_call>{{ (call.function or call) | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_CONFIGS: dict[Family, tuple[type[transformers.PreTrainedConfig], dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3Config, {}),
    "mistral": (transformers.MistralConfig, {"sliding_window": 12}),
    "gemma2": (
        transformers.Gemma2Config,
        {
            "sliding_window": 12,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
            "hidden_activation": "gelu_pytorch_tanh",
        },
    ),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {"sliding_window": 12, "query_pre_attn_scalar": 20, "layer_types": ["sliding_attention", "full_attention"]},
    ),
}


def build_tiny_config(family: Family = "llama", *, layers: int = 2, tied: bool = False, **overrides: Any) -> Any:
    """Build the configuration of a tiny base; `overrides` are configuration fields of the family."""
    config_class, extra = _CONFIGS[family]
    extra = dict(extra)
    if "layer_types" in extra:
        extra["layer_types"] = [extra["layer_types"][layer % 2] for layer in range(layers)]
    fields: dict[str, Any] = {
        "hidden_size": 64,
        "head_dim": 20,
        "intermediate_size": 144,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 2048,
        "initializer_range": 0.1,
        "tie_word_embeddings": tied,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "use_cache": False,
    }
    return config_class(**{**fields, **extra, **overrides})


def build_tiny_model(config: Any, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Build the model with random weights; biases and norms are random too, so that leaving one out shows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.to(dtype).eval()


def build_tiny_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE, pad_is_eos: bool = False) -> Any:
    """Build the byte-level tokenizer: one token per byte, then own bos, eos, pad, im_start."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*alphabet, *SPECIAL_TOKENS, "<|endoftext|>"]  # transformers' Qwen2 class would add the last one itself
    names += [f"<reserved_{index}>" for index in range(VOCAB_SIZE - len(names))]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>" if pad_is_eos else "<pad>",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat_template
    return fast


def make_tiny_base(
    folder: Path | str,
    family: Family = "llama",
    *,
    layers: int = 2,
    seed: int = 0,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    chat_template: str | None = CHAT_TEMPLATE,
    pad_is_eos: bool = False,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Path:
    """Write a tiny base as a Hugging Face folder (config.json, safetensors, fast tokenizer) and return its path.

    Args:
        tied: Whether the output head shares the embedding's weights.
        max_shard_size: `"100KB"` gives several shards and an index.
        overrides: Configuration fields of the family.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = build_tiny_model(build_tiny_config(family, layers=layers, tied=tied, **overrides), seed=seed, dtype=dtype)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    build_tiny_tokenizer(chat_template=chat_template, pad_is_eos=pad_is_eos).save_pretrained(folder)
    return folder


def add_auto_map(folder: Path, file: str = "config.json") -> None:
    """Add an `auto_map` entry, as a model folder with its own code has, to one JSON file of the folder."""
    path = folder / file
    data = json.loads(path.read_text())
    data["auto_map"] = {"AutoConfig": "modeling_canary.CanaryConfig"}
    path.write_text(json.dumps(data))
