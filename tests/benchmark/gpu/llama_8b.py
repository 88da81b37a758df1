"""Llama-3.1-8B's shape with random weights, made on the device."""

from __future__ import annotations

from typing import Any

import torch
import transformers

CONFIG = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
    "use_cache": False,
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
}


def build_llama_8b(attention: str, *, layers: int = 32, device: str = "cuda") -> Any:
    """Build the model in bf16 with Transformers' own initialisation (normal, 0.02)."""
    config = transformers.LlamaConfig(**{**CONFIG, "num_hidden_layers": layers})
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention
        )
    return model.eval().requires_grad_(False)


def count_gemm_flops(layers: int = 32) -> int:
    """Count what one token needs: forward and input gradient of all linears and of the head, 2 FLOP per product."""
    hidden, wide, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 1024
    per_layer = hidden * (2 * hidden + 2 * kv) + 3 * hidden * wide
    return 2 * 2 * (layers * per_layer + hidden * CONFIG["vocab_size"])
