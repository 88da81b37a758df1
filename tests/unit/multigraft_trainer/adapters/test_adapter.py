from __future__ import annotations

import math

import pytest
import torch

from builders.small_adapter import TINY_LINEARS, find_targets, make_adapter, make_options, make_pool, make_trained
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.adapter import ALIGN_ELEMENTS
from multigraft_trainer.adapters.slots import LinearShape

A_KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B_KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"


def test_B21_factors_have_the_shapes_of_a_layer_that_is_not_square() -> None:
    adapter = make_adapter(rank=8, target_names=("model.layers.0.self_attn.q_proj",))

    assert adapter.shapes == {A_KEY: (8, 64), B_KEY: (80, 8)}
    grads = adapter.module_grads("model.layers.0.self_attn.q_proj")
    assert (tuple(grads.a.shape), tuple(grads.b.shape)) == ((8, 64), (80, 8))
    assert adapter.num_parameters == 8 * 64 + 80 * 8


def test_a_fresh_adapter_follows_pefts_rule() -> None:
    adapter = make_adapter(rank=16, target_names=find_targets())

    for key, tensor in adapter.named_weights().items():
        if key.endswith("lora_B.weight"):
            assert not tensor.any()
        else:
            bound = 1 / math.sqrt(tensor.shape[1])
            assert tensor.abs().max() <= bound
            assert tensor.std() == pytest.approx(bound / math.sqrt(3), rel=0.1)  # of a uniform distribution


def test_C17_initial_weights_depend_on_seed_and_layer_alone() -> None:
    alone = make_adapter(seed=5)
    pool = make_pool(max_slots=3, max_rank=8, compute_dtype=torch.bfloat16)
    pool.acquire(make_options(seed=1, rank=8, target_names=find_targets()))
    torch.manual_seed(99)
    crowded = pool.adapter(pool.acquire(make_options(seed=5, target_names=find_targets()[::-1])))

    for key, tensor in alone.named_weights().items():
        assert torch.equal(crowded.named_weights()[key], tensor)


def test_no_two_layers_and_no_two_seeds_share_initial_weights() -> None:
    first, second = make_adapter(seed=1).named_weights(), make_adapter(seed=2).named_weights()
    fresh = [w for weights in (first, second) for key, w in weights.items() if key.endswith("lora_A.weight")]

    assert all(not torch.equal(a, b) for i, a in enumerate(fresh) for b in fresh[:i])


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_every_seed_that_the_api_takes_works(seed: int) -> None:
    assert make_adapter(seed=seed).weights.any()


def test_initial_weights_do_not_touch_the_global_generator() -> None:
    torch.manual_seed(3)
    want = torch.rand(1)
    torch.manual_seed(3)
    make_adapter()

    assert torch.equal(torch.rand(1), want)


@pytest.mark.parametrize("rank", [1, 3, 16])
def test_publish_casts_and_leaves_zeros_beyond_the_rank(rank: int) -> None:
    pool = make_pool(max_rank=16, compute_dtype=torch.bfloat16)
    slot = pool.acquire(make_options(rank=rank))
    adapter = pool.adapter(slot)
    adapter.weights.fill_(0.1)
    adapter.publish()

    for name in adapter.options.target_names:
        a, b = pool.stacked_a(name)[slot], pool.stacked_b(name)[slot]
        assert (a[:rank] == torch.tensor(0.1).bfloat16()).all()
        assert (b[:, :rank] == torch.tensor(0.1).bfloat16()).all()
        assert not a[rank:].any()
        assert not b[:, rank:].any()


def test_gradients_added_to_a_module_arrive_in_the_flat_tensor() -> None:
    adapter = make_adapter()
    for name in adapter.options.target_names:
        adapter.module_grads(name).a.add_(1)
        adapter.module_grads(name).b.add_(1)

    assert adapter.grads.sum() == adapter.num_parameters


def test_views_start_on_cache_lines_whatever_the_rank() -> None:
    adapter = make_adapter(rank=3)

    offsets = [tensor.storage_offset() for tensor in adapter.named_weights().values()]
    assert all(offset % ALIGN_ELEMENTS == 0 for offset in offsets)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_C14_loaded_weights_are_widened_to_fp32(dtype: torch.dtype) -> None:
    adapter = make_adapter()
    tensors = {key: torch.full(shape, 0.1).to(dtype) for key, shape in adapter.shapes.items()}

    adapter.load_weights(tensors, reason=Reason.INVALID_START_ADAPTER)

    want = torch.tensor(0.1).to(dtype).float()
    assert all((tensor == want).all() for tensor in adapter.named_weights().values())
    assert adapter.weights.dtype is torch.float32


@pytest.mark.parametrize(
    "damage, want",
    [
        pytest.param(lambda t: t.pop(A_KEY), f"missing {A_KEY}", id="a key is missing"),
        pytest.param(lambda t: t.update(extra=torch.zeros(1)), "not expected extra", id="a key is extra"),
        pytest.param(
            lambda t: t.update({A_KEY: torch.zeros(64, 4)}), r"\[64, 4\], want \[4, 64\]", id="A is transposed"
        ),
    ],
)
def test_D05_loading_is_strict_and_changes_nothing_if_refused(damage, want: str) -> None:
    adapter, _ = make_trained()
    before = adapter.weights.clone()
    tensors = {key: tensor.clone() for key, tensor in make_adapter().named_weights().items()}
    damage(tensors)

    with pytest.raises(RefusalError, match=want) as caught:
        adapter.load_weights(tensors, reason=Reason.INVALID_CHECKPOINT)

    assert caught.value.reason is Reason.INVALID_CHECKPOINT
    assert torch.equal(adapter.weights, before)


def test_a_message_names_a_few_keys_and_counts_the_rest() -> None:
    adapter = make_adapter(target_names=find_targets())

    with pytest.raises(RefusalError, match="and 23 more"):
        adapter.load_weights({}, reason=Reason.INVALID_CHECKPOINT)


def test_wipe_leaves_nothing_behind() -> None:
    pool = make_pool()
    slot = pool.acquire(make_options())
    adapter = pool.adapter(slot)
    adapter.weights.fill_(1)
    adapter.grads.fill_(1)
    adapter.exp_avg.fill_(1)
    adapter.exp_avg_sq.fill_(1)
    adapter.publish()

    adapter.wipe()

    tensors = [adapter.weights, adapter.grads, adapter.exp_avg, adapter.exp_avg_sq]
    tensors += [stack(name) for stack in (pool.stacked_a, pool.stacked_b) for name in adapter.options.target_names]
    assert not any(tensor.any() for tensor in tensors)


def test_the_tiny_base_has_no_square_layer() -> None:
    assert all(isinstance(s, LinearShape) and s.in_features != s.out_features for s in TINY_LINEARS.values())
