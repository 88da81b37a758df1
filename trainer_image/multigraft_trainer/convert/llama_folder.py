"""Turn a Llama-type GGUF file into a Hugging Face folder: config, tokenizer, chat template, bf16 safetensors.

Why not `from_pretrained(gguf_file=...)`: transformers then counts the model as quantised and cannot save it, gives the
tokenizer the wrong end token and no pad token, and needs half a minute and the `gguf` package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from multigraft_trainer.convert.gguf import GgufFile

CONTROL_TOKEN = 3  # `tokenizer.ggml.token_type` of special tokens

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert_llama_gguf(source: Path, folder: Path) -> None:
    """Write the Hugging Face folder of a GGUF file into an existing, empty folder.

    Raises:
        ValueError: If the file is not a Llama-type model with a GPT-2-type tokenizer.
    """
    gguf = GgufFile(source)
    config = build_config(gguf)
    tokenizer = build_tokenizer(gguf.metadata)
    save_file(dict(convert_tensors(gguf)), folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json", {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", build_tokenizer_config(gguf.metadata))
    (folder / "chat_template.jinja").write_text(gguf.metadata["tokenizer.chat_template"], encoding="utf-8")


def build_config(gguf: GgufFile) -> dict[str, Any]:
    """Give config.json."""
    metadata = gguf.metadata
    if metadata.get("general.architecture") != "llama":
        raise ValueError(f"general.architecture: got {metadata.get('general.architecture')!r}, allowed: 'llama'")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.rope.dimension_count"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rope_theta": metadata["llama.rope.freq_base"],
        "rms_norm_eps": float(f"{metadata['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # the file has it in fp32
        "vocab_size": metadata["llama.vocab_size"],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "dtype": "bfloat16",
    }


def convert_tensors(gguf: GgufFile) -> Iterator[tuple[str, torch.Tensor]]:
    """Give every weight in bf16 under its Hugging Face name."""
    num_heads = {
        "attn_q": gguf.metadata["llama.attention.head_count"],
        "attn_k": gguf.metadata["llama.attention.head_count_kv"],
    }
    for name in gguf.tensors:
        weight = gguf.load_tensor(name)
        kind = name.split(".")[-2]
        if kind in num_heads:
            weight = undo_rope_permutation(weight, num_heads[kind])
        yield _hugging_face_name(name), torch.from_numpy(weight.copy()).to(torch.bfloat16)


def undo_rope_permutation(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's row order of q and k: pairs interleaved within a head -> the two halves of a head.

    Args:
        weight: [num_heads * head_dim, in].
        num_heads: Attention heads for q, key-value heads for k.
    Source: ggml-org/llama.cpp convert_hf_to_gguf.py, LlamaModel.permute.
    """
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Give the byte-level BPE tokenizer of the `smollm` kind: each digit is a token of its own.

    Raises:
        ValueError: If the file describes another kind of tokenizer.
    """
    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"tokenizer.ggml.model and .pre: got {kind}, allowed: ('gpt2', 'smollm')")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        t for t, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def build_tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """Give tokenizer_config.json; end and pad token are what the file says, not what a class would guess."""
    tokens = metadata["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        **{key: tokens[metadata[f"tokenizer.ggml.{name}_token_id"]] for key, name in names.items()},
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def _hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    head, _, tail = name.rpartition(".")
    if head in _TOP_NAMES:
        return f"{_TOP_NAMES[head]}.{tail}"
    block, layer, kind = head.split(".", 2)
    if block != "blk" or kind not in _BLOCK_NAMES:
        raise ValueError(f"tensor name: got {name!r}, allowed: those of a Llama-type model")
    return f"model.layers.{layer}.{_BLOCK_NAMES[kind]}.{tail}"


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
