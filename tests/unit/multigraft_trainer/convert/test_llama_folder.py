import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from builders.gguf_file import write_gguf
from multigraft_trainer.convert.gguf import GgufFile
from multigraft_trainer.convert.llama_folder import build_config, build_tokenizer, convert_llama_gguf

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 4, 2, 8, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "12", "ab", "Ġ", "Ġa", ":"]
MERGES = ["a b", "1 2", "Ġ a"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def make_metadata(**changes):
    return {
        "general.architecture": "llama",
        "llama.embedding_length": 40,
        "llama.feed_forward_length": 72,
        "llama.block_count": LAYERS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 5000.0,
        "llama.context_length": 64,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    } | changes


def make_model(*, tied: bool) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=40, intermediate_size=72, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=len(TOKENS), max_position_embeddings=64,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so large that a wrong row order shows; exact in bf16
            parameter.copy_((torch.randn_like(parameter) * 0.5).to(torch.bfloat16))
    return model


def permute_as_llama_cpp(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The order in which llama.cpp stores q and k: the halves of a head interleaved."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def make_gguf_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    tensors = {}
    for name, parameter in model.named_parameters():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        weight = parameter.detach().numpy()
        if "attn_q" in name:
            weight = permute_as_llama_cpp(weight, HEADS)
        if "attn_k" in name:
            weight = permute_as_llama_cpp(weight, KV_HEADS)
        tensors[name.replace("model.layers.", "blk.")] = weight
    return tensors


@pytest.fixture
def gguf_path(tmp_path):
    return write_gguf(tmp_path / "m.gguf", make_metadata(), make_gguf_tensors(make_model(tied=True)))


@pytest.mark.parametrize("tied", [True, False], ids=["tied embeddings", "a head of its own"])
def test_the_converted_folder_gives_the_logits_of_the_model(tmp_path, tied):
    model = make_model(tied=tied)
    source = write_gguf(tmp_path / "m.gguf", make_metadata(), make_gguf_tensors(model))
    (tmp_path / "hf").mkdir()
    convert_llama_gguf(source, tmp_path / "hf")
    got = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    ids = torch.tensor([[1, 3, 8, 5, 11, 4, 2]])
    torch.testing.assert_close(got(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_the_tokenizer_has_the_end_token_of_the_file_and_splits_digits(tmp_path, gguf_path):
    (tmp_path / "hf").mkdir()
    convert_llama_gguf(gguf_path, tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
    assert special == ("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
    assert tokenizer.tokenize("ab 12") == ["ab", "Ġ", "1", "2"]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "ab:"}], return_dict=True)
    assert chat["input_ids"] == [1, 8, 11, 2]
    assert tokenizer.decode([8, 10, 11]) == "ab a:"


def test_the_config_holds_plain_numbers(tmp_path, gguf_path):
    (tmp_path / "hf").mkdir()
    convert_llama_gguf(gguf_path, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["rms_norm_eps"], config["rope_theta"], config["eos_token_id"]) == (1e-05, 5000.0, 2)


def test_another_architecture_is_refused(tmp_path):
    gguf = GgufFile(write_gguf(tmp_path / "m.gguf", make_metadata(**{"general.architecture": "gemma3"}), {}))
    with pytest.raises(ValueError, match=r"general\.architecture: got 'gemma3', allowed: 'llama'"):
        build_config(gguf)


def test_another_kind_of_tokenizer_is_refused():
    with pytest.raises(ValueError, match=r"got \('llama', 'smollm'\), allowed: \('gpt2', 'smollm'\)"):
        build_tokenizer(make_metadata(**{"tokenizer.ggml.model": "llama"}))


def test_an_unknown_tensor_is_refused_by_name(tmp_path):
    tensors = make_gguf_tensors(make_model(tied=True)) | {"blk.0.ssm_a.weight": np.zeros((2, 2), np.float32)}
    source = write_gguf(tmp_path / "m.gguf", make_metadata(), tensors)
    with pytest.raises(ValueError, match=r"tensor name: got 'blk\.0\.ssm_a\.weight'"):
        convert_llama_gguf(source, tmp_path)
