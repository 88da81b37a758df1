"""Target modules: the same layers as PEFT, and a clear no to everything that would be passed over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
import yaml
from torch import nn

from builders.tiny_base import FAMILIES, Family, build_tiny_config, build_tiny_model
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.backends.lora_layer import CurrentRoutes, wrap_linears
from multigraft_trainer.backends.module_catalogue import ModuleCatalogue, build_catalogue
from multigraft_trainer.backends.targets import resolve_targets

CASES = Path(__file__).parents[3] / "cases"


@pytest.fixture(scope="module")
def llama() -> ModuleCatalogue:
    return build_catalogue(build_tiny_model(build_tiny_config()))


def _find_with_peft(model: Any, target_modules: list[str] | str) -> list[str]:
    """Give the names of the layers that PEFT puts LoRA on."""
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=target_modules))
    return [
        name.removeprefix("base_model.model.")
        for name, module in wrapped.named_modules()
        if isinstance(module, peft.tuners.lora.LoraLayer)
    ]


@pytest.mark.parametrize(
    "entries",
    [
        ["q_proj"],
        ["q_proj", "v_proj", "down_proj"],
        ["mlp.up_proj"],
        ["model.layers.1.self_attn.o_proj"],
        ["layers.0.mlp.gate_proj", "k_proj"],
        [r".*\.layers\.1\..*_proj"],
        [r"model\.layers\.\d+\.(self_attn|mlp)\.(q|up)_proj"],
        ["all-linear"],
    ],
    ids=str,
)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_peft(family: Family, entries: list[str]) -> None:
    config = build_tiny_config(family)
    got = resolve_targets(entries, build_catalogue(build_tiny_model(config)))
    regular = len(entries) == 1 and ("*" in entries[0] or "+" in entries[0] or entries[0] == "all-linear")
    want = _find_with_peft(build_tiny_model(config), entries[0] if regular else entries)
    assert list(got.names) == want


def test_all_linear_leaves_out_the_head(llama: ModuleCatalogue) -> None:
    assert len(resolve_targets(["all-linear"], llama).names) == 2 * 7
    assert len(resolve_targets(["all-linear", "q_proj"], llama).names) == 2 * 7


@pytest.mark.parametrize(
    "job", list(yaml.safe_load_all((CASES / "B15" / "job.yaml").read_text())), ids=lambda j: j["metadata"]["name"]
)
def test_B15_an_entry_that_matches_nothing_is_named(llama: ModuleCatalogue, job: dict[str, Any]) -> None:
    entries = job["spec"]["lora"]["targetModules"]
    with pytest.raises(RefusalError) as caught:
        resolve_targets(entries, llama)
    assert caught.value.reason is Reason.TARGET_MODULES_NOT_FOUND
    assert "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in caught.value.message
    if entries:
        assert f"'{entries[-1]}' matches 0 modules" in caught.value.message


@pytest.mark.parametrize(
    "entry, suggestion",
    [("v_porj", "v_proj"), ("self_attn.qproj", "q_proj"), ("Q_PROJ", None), ("zzz", None), (r".*\.qq_proj", "q_proj")],
)
def test_B15_the_closest_candidates_are_shown(llama: ModuleCatalogue, entry: str, suggestion: str | None) -> None:
    with pytest.raises(RefusalError, match="matches 0 modules") as caught:
        resolve_targets([entry], llama)
    if suggestion:
        assert re.search(rf"did you mean .*{suggestion}", caught.value.message)


@pytest.mark.parametrize(
    "entry, reason, message",
    [
        ("proj", Reason.TARGET_MODULES_NOT_FOUND, "'proj' matches 0 modules"),  # not at a dot
        ("lm_head", Reason.NOT_SUPPORTED, "matches lm_head: the output head"),
        (".*", Reason.NOT_SUPPORTED, "matches "),
        ("embed_tokens", Reason.NOT_SUPPORTED, "matches model.embed_tokens: an embedding"),
        ("self_attn", Reason.NOT_SUPPORTED, "a LlamaAttention, not an nn.Linear"),
        ("norm", Reason.NOT_SUPPORTED, "a LlamaRMSNorm, not an nn.Linear"),
        (r".*(lm_head|q_proj)", Reason.NOT_SUPPORTED, "matches lm_head: the output head"),
        (r".*[q_proj", Reason.TARGET_MODULES_NOT_FOUND, "is no regular expression"),
        ("", Reason.TARGET_MODULES_NOT_FOUND, "matches 0 modules"),
        ("q_proj ", Reason.TARGET_MODULES_NOT_FOUND, "matches 0 modules"),
        (r"(.|..|...)*[^\w.]", Reason.NOT_SUPPORTED, "nested repeats"),
    ],
)
def test_refuses_with_a_reason(llama: ModuleCatalogue, entry: str, reason: Reason, message: str) -> None:
    with pytest.raises(RefusalError) as caught:
        resolve_targets([entry], llama)
    assert caught.value.reason is reason
    assert message in caught.value.message


def test_a_regular_expression_must_stand_alone(llama: ModuleCatalogue) -> None:
    with pytest.raises(RefusalError, match="must be the only entry"):
        resolve_targets(["q_proj", r".*v_proj"], llama)


class _TwoParts(transformers.PreTrainedModel):  # a model with a vision and a text part
    config_class = transformers.LlamaConfig

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        for part in ("vision", "text"):
            layer = nn.ModuleDict({"q_proj": nn.Linear(48, 80), "v_proj": nn.Linear(48, 40)})
            self.add_module(part, nn.ModuleDict({"layers": nn.ModuleList([layer])}))

    def get_output_embeddings(self) -> None:
        return None


def test_B16_a_suffix_matches_in_every_part_and_a_longer_name_narrows_it() -> None:
    modules = build_catalogue(_TwoParts(build_tiny_config()))
    both = resolve_targets(["q_proj"], modules)
    assert both.count_by_part() == {"vision.layers": 1, "text.layers": 1}
    assert resolve_targets([r"text\..*q_proj"], modules).names == ("text.layers.0.q_proj",)
    assert resolve_targets(["text.layers.0.q_proj"], modules).count_by_part() == {"text.layers": 1}


def test_B17_the_catalogue_is_of_the_clean_base_whatever_was_wrapped_since() -> None:
    model = build_tiny_model(build_tiny_config())
    modules = build_catalogue(model)
    pattern = [r".*self_attn\.(q|v)_proj"]
    first = resolve_targets(pattern, modules)
    wrap_linears(model, list(modules.linears), CurrentRoutes())
    assert resolve_targets(pattern, modules) == first
    assert len(first.names) == 4


@pytest.mark.parametrize("entry", ["gate_up_proj", "experts", "all-linear"])
def test_B22_experts_are_refused(entry: str) -> None:
    config = transformers.Qwen3MoeConfig(
        hidden_size=64,
        head_dim=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
    )
    model = build_tiny_model(config)
    if entry == "all-linear":  # experts that are linear layers one by one, as other models have them
        model.model.layers[0].mlp.experts = nn.ModuleList([nn.Linear(64, 48)])
    with pytest.raises(RefusalError, match=r"experts cannot be adapted yet") as caught:
        resolve_targets([entry], build_catalogue(model))
    assert caught.value.reason is Reason.NOT_SUPPORTED
    assert "experts" in caught.value.message


def test_B22_the_other_layers_of_a_mixture_of_experts_may_be_adapted() -> None:
    config = transformers.MixtralConfig(
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    got = resolve_targets(["all-linear"], build_catalogue(build_tiny_model(config)))
    assert {name.rsplit(".", 1)[-1] for name in got.names} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_B21_shapes_are_in_and_out(llama: ModuleCatalogue) -> None:
    shape = llama.linears["model.layers.0.self_attn.q_proj"]
    assert (shape.in_features, shape.out_features) == (64, 80)


def test_a_base_without_linear_layers() -> None:
    config = transformers.GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=512)
    with torch.random.fork_rng():
        modules = build_catalogue(transformers.AutoModelForCausalLM.from_config(config))
    with pytest.raises(RefusalError, match=r"no nn.Linear layer"):
        resolve_targets(["all-linear"], modules)
