"""Which norms, MLPs and rotary embeddings of a base get a fused form, and that those compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builders.packed_case import make_packed, make_sample
from builders.tiny_base import FAMILIES, Family, make_tiny_base
from multigraft_trainer.backends.fused_modules import fuse_modules
from multigraft_trainer.backends.fused_rotary import fuse_rotary, use_fused_rotary
from multigraft_trainer.backends.load import load_base_model
from multigraft_trainer.backends.transformers_backend import TransformersBackend

CUDA = torch.device("cuda")


def _load(folder: Path, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    model: torch.nn.Module = load_base_model(folder, dtype, CUDA)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_F10_what_computes_the_same_is_fused_and_the_rest_keeps_its_own_code(tmp_path: Path, family: Family) -> None:
    model = _load(make_tiny_base(tmp_path, family))
    own = {name: module for name, module in model.named_modules() if type(module).__name__.endswith("MLP")}
    got = fuse_modules(model, torch.bfloat16, CUDA)
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    assert got["norm"] == len(norms) > 0
    has_silu = family not in ("gemma2", "gemma3")  # those have GELU, which is not what the fused form computes
    assert got["mlp"] == (len(own) if has_silu else 0)
    for name, module in own.items():
        assert ("forward" in vars(module)) == has_silu, name


def test_fp32_is_left_alone(tmp_path: Path) -> None:
    model = _load(make_tiny_base(tmp_path, "llama"), torch.float32)
    assert not fuse_modules(model, torch.float32, CUDA)
    assert fuse_rotary(model, torch.float32, CUDA) == []


def test_the_rotary_embedding_is_the_models_own_outside_of_the_backend(tmp_path: Path) -> None:
    from transformers.models.llama import modeling_llama

    model = _load(make_tiny_base(tmp_path, "llama"))
    assert fuse_rotary(model, torch.bfloat16, CUDA) == [modeling_llama.__name__]
    cos, sin = (torch.randn(1, 9, 16, device=CUDA, dtype=torch.bfloat16).repeat(1, 1, 2) for _ in range(2))
    q, k = (torch.randn(1, 9, heads, 32, device=CUDA, dtype=torch.bfloat16).transpose(1, 2) for heads in (4, 2))
    want = modeling_llama.apply_rotary_pos_emb(q.clone(), k.clone(), cos, sin)
    own = modeling_llama.apply_rotary_pos_emb.multigraft_own(q.clone(), k.clone(), cos, sin)
    with use_fused_rotary(True):
        got = modeling_llama.apply_rotary_pos_emb(q.clone(), k.clone(), cos, sin)
    for one, other, fused in zip(want, own, got, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(fused, one, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_losses_of_both_forms_agree(tmp_path: Path, family: Family) -> None:
    folder = make_tiny_base(tmp_path, family)
    parts = [(-1, [(make_sample(65, seed=1), 0), (make_sample(300, seed=2), 1)]), (-1, [(make_sample(17, seed=3), 0)])]
    plain, fused = (
        TransformersBackend(_load(folder), fused=fused).forward_loss(make_packed(parts)) for fused in (False, True)
    )
    assert fused == pytest.approx(plain, rel=5e-3)
