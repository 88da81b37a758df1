"""The backend on a GPU: flash attention over samples, 16-bit compute, against fp32 on the CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from builders.fixed_table import FixedTable, make_options, make_weights
from builders.packed_case import Part, make_packed, make_sample, relative_error
from builders.tiny_base import FAMILIES, Family, make_tiny_base
from multigraft_trainer.backends import attention
from multigraft_trainer.backends.transformers_backend import TransformersBackend, open_transformers_backend

PARTS: list[Part] = [
    (0, [(make_sample(65, seed=1), 0), (make_sample(1, seed=2), 1)]),
    (1, [(make_sample(300, seed=3), 4)]),
    (0, [(make_sample(17, seed=4), 2)]),
]
# ||gradient - fp32 gradient|| / ||fp32 gradient|| of the worst tensor of a two-layer model
RELATIVE = {torch.float32: 1e-4, torch.bfloat16: 0.12, torch.float16: 0.03}


def _run(folder: Path, dtype: torch.dtype, device: str, parts: list[Part] = PARTS, **options: Any) -> Any:
    backend = open_transformers_backend(folder, dtype=dtype, device=device, **options)
    table = _attach(backend)
    return backend.forward_backward(make_packed(parts, weights={0: 0.01, 1: 0.003})), table


def _attach(backend: TransformersBackend) -> FixedTable:
    names = list(backend.linears)
    options = {0: make_options(names, rank=3, dropout=0.1, seed=1), 1: make_options(names, rank=20, seed=2)}
    adapters = {slot: (option, make_weights(option, backend.linears)) for slot, option in options.items()}
    table = FixedTable(backend.linears, adapters, dtype=backend.dtype, device=str(backend.device))
    backend.attach(table)
    return table


@pytest.mark.parametrize("head_dim", [20, 32])  # 20: no flash attention, one call per sample
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
def test_equals_fp32_on_the_cpu(tmp_path: Path, family: Family, dtype: torch.dtype, head_dim: int) -> None:
    folder = make_tiny_base(tmp_path, family, head_dim=head_dim)
    want_losses, want = _run(folder, torch.float32, "cpu")
    got_losses, got = _run(folder, dtype, "cuda", gradient_checkpointing=True)
    for one, other in zip(got_losses, want_losses, strict=True):
        assert one == pytest.approx(other, rel=RELATIVE[dtype])
    for slot, modules in want.accumulators.items():
        for name, grads in modules.items():
            one = got.accumulators[slot][name]
            assert relative_error(one.a.cpu(), grads.a) < RELATIVE[dtype], f"dA of {name}"
            assert relative_error(one.b.cpu(), grads.b) < RELATIVE[dtype], f"dB of {name}"


@pytest.mark.parametrize("head_dim", [20, 32])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_a_sample_of_nan_changes_no_bit_of_its_neighbours(tmp_path: Path, family: Family, head_dim: int) -> None:
    backend = open_transformers_backend(
        make_tiny_base(tmp_path, family, head_dim=head_dim), dtype=torch.bfloat16, device="cuda"
    )
    clean = _attach(backend)
    want = backend.forward_backward(make_packed(PARTS))
    broken = _attach(backend)
    for name in backend.linears:
        broken.stacked_a(name)[1] = float("inf")
    got = backend.forward_backward(make_packed(PARTS))
    assert math.isnan(got[1])
    assert (got[0], got[2]) == (want[0], want[2])
    for name, grads in clean.accumulators[0].items():
        one = broken.accumulators[0][name]
        assert torch.isfinite(one.a).all()
        assert torch.equal(one.a, grads.a)
        assert torch.equal(one.b, grads.b)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_D03_the_same_microbatch_gives_the_same_bits(tmp_path: Path, checkpointing: bool) -> None:
    folder = make_tiny_base(tmp_path, head_dim=32)
    backend = open_transformers_backend(
        folder, dtype=torch.bfloat16, device="cuda", gradient_checkpointing=checkpointing
    )
    parts: list[Part] = [(slot, [(make_sample(900, seed=slot), 0), (make_sample(700, seed=7), 1)]) for slot in (0, 1)]
    results = []
    for _ in range(3):
        table = _attach(backend)
        results.append((backend.forward_backward(make_packed(parts)), table.accumulators))
    for losses, grads in results[1:]:
        assert losses == results[0][0]
        for slot, modules in results[0][1].items():
            for name, want in modules.items():
                assert torch.equal(grads[slot][name].a, want.a)
                assert torch.equal(grads[slot][name].b, want.b)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_C07_no_gradient_reaches_another_sample(tmp_path: Path, family: Family) -> None:
    backend = open_transformers_backend(
        make_tiny_base(tmp_path, family, head_dim=32), dtype=torch.bfloat16, device="cuda"
    )
    model = backend._model
    captured: list[torch.Tensor] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda _module, _args, output: captured.append(output.requires_grad_(True))
    )
    ids = torch.randint(256, (300,), device="cuda")
    bounds = [(0, 100), (100, 163), (163, 300)]
    positions = torch.cat([torch.arange(end - start) for start, end in bounds]).cuda()
    with attention.packed_samples(attention.SampleBounds.build(bounds, torch.device("cuda"))):
        hidden = model.base_model(input_ids=ids[None], position_ids=positions[None], use_cache=False).last_hidden_state
    hook.remove()
    (grad,) = torch.autograd.grad(hidden[0, 100:163].float().square().sum(), captured[0])
    assert not grad[0, :100].any()
    assert not grad[0, 163:].any()
    assert grad[0, 100:163].any()


def test_uses_flash_attention_where_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_transformers_backend(make_tiny_base(tmp_path, head_dim=32), dtype=torch.bfloat16, device="cuda")
    _attach(backend)
    calls = []
    monkeypatch.setattr(attention, "_attend_sample", lambda *_: calls.append(1))
    backend.forward_loss(make_packed(PARTS))
    assert not calls
