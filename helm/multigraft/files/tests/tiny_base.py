"""Make a tiny Llama with random weights as the files of a Hugging Face folder, with nothing but the standard library.

It knows nothing and learns next to nothing; it is there to be trained on in seconds, and small enough for a ConfigMap.
"""

from __future__ import annotations

import array
import json
import random
import struct

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, LAYERS = 64, 4, 2, 16, 144, 2
SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>")
VOCABULARY = 256 + len(SPECIAL_TOKENS)
BOS, EOS, PAD = range(256, VOCABULARY)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}


def build_files(seed: int = 0) -> dict[str, bytes]:
    """Build the folder: file name -> bytes."""
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONFIG["max_position_embeddings"],
        **dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL_TOKENS, strict=True)),
    }
    documents = {"config.json": CONFIG, "tokenizer.json": build_tokenizer(), "tokenizer_config.json": tokenizer_config}
    files = {name: json.dumps(document).encode() for name, document in documents.items()}
    return files | {"model.safetensors": build_weights(random.Random(seed))}


def build_tokenizer() -> dict[str, object]:
    """Build a byte-level tokenizer: one token for each byte, and the special ones."""
    names = [*list_byte_characters(), *SPECIAL_TOKENS]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 256 + index, "content": name, **flags} for index, name in enumerate(SPECIAL_TOKENS)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": {name: index for index, name in enumerate(names)}, "merges": []},
    }


def list_byte_characters() -> list[str]:
    """List the characters that stand for the bytes 0 to 255 in byte-level tokenizers: printable ones for themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def build_weights(source: random.Random) -> bytes:
    """Build the weights in the safetensors format: length of the header, header, fp32 numbers."""
    header: dict[str, object] = {}
    numbers = array.array("f")
    for name, shape in list_shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = numbers.itemsize * len(numbers)
        numbers.extend(1.0 if "norm" in name else source.gauss(0, 0.1) for _ in range(count))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, numbers.itemsize * len(numbers)]}
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    return struct.pack("<Q", len(text)) + text + numbers.tobytes()


def list_shapes() -> dict[str, list[int]]:
    """List the weights of the model: name -> shape [out, in], or [width]."""
    query, key = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    layer = {
        "self_attn.q_proj": [query, HIDDEN],
        "self_attn.k_proj": [key, HIDDEN],
        "self_attn.v_proj": [key, HIDDEN],
        "self_attn.o_proj": [HIDDEN, query],
        "mlp.gate_proj": [INTERMEDIATE, HIDDEN],
        "mlp.up_proj": [INTERMEDIATE, HIDDEN],
        "mlp.down_proj": [HIDDEN, INTERMEDIATE],
        "input_layernorm": [HIDDEN],
        "post_attention_layernorm": [HIDDEN],
    }
    layers = {f"model.layers.{index}.{name}.weight": shape for index in range(LAYERS) for name, shape in layer.items()}
    ends = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}
    return ends | layers | {"model.norm.weight": [HIDDEN]}
