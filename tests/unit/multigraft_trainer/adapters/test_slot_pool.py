from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch

from builders.small_adapter import TINY_LINEARS, find_targets, make_adapter, make_options, make_pool, train
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.backends.adapter_table import AdapterTable


def list_stacks(pool: SlotPool) -> set[str]:
    found = set()
    for name in TINY_LINEARS:
        try:
            pool.stacked_a(name)
        except KeyError:
            continue
        found.add(name)
    return found


def test_a_pool_is_what_a_backend_reads() -> None:
    table: AdapterTable = make_pool()

    with pytest.raises(KeyError):
        table.options(0)


def test_no_slot_is_given_twice_and_a_full_pool_says_so_with_numbers() -> None:
    pool = make_pool(max_slots=3)

    assert [pool.acquire(make_options()) for _ in range(3)] == [0, 1, 2]
    assert pool.num_free == 0
    with pytest.raises(RefusalError, match="needed 1 slot, free 0 of 3") as caught:
        pool.acquire(make_options())
    assert caught.value.reason is Reason.NO_FREE_SLOT

    pool.release(1)
    assert (pool.num_free, pool.occupied) == (1, (0, 2))
    assert pool.acquire(make_options()) == 1


def test_a_free_slot_has_no_adapter() -> None:
    pool = make_pool()
    slot = pool.acquire(make_options())
    pool.release(slot)

    for call in (pool.release, pool.adapter, pool.options):
        with pytest.raises(KeyError):
            call(slot)
    with pytest.raises(KeyError):
        pool.grads(slot, find_targets("q_proj")[0])


def test_stacks_have_a_row_per_slot_and_the_pools_rank() -> None:
    pool = make_pool(max_slots=3, max_rank=16, compute_dtype=torch.bfloat16)
    pool.acquire(make_options(rank=4))

    name = "model.layers.0.self_attn.q_proj"
    assert tuple(pool.stacked_a(name).shape) == (3, 16, 64)
    assert tuple(pool.stacked_b(name).shape) == (3, 80, 16)
    assert pool.stacked_a(name).dtype is torch.bfloat16


def test_stacks_follow_the_union_of_the_targets() -> None:
    pool = make_pool()
    assert list_stacks(pool) == set()

    first = pool.acquire(make_options(target_names=find_targets("q_proj", "v_proj")))
    second = pool.acquire(make_options(target_names=find_targets("q_proj", "down_proj")))
    assert list_stacks(pool) == set(find_targets("q_proj", "v_proj", "down_proj"))

    pool.release(first)
    assert list_stacks(pool) == set(find_targets("q_proj", "down_proj"))
    pool.release(second)
    assert list_stacks(pool) == set()


def test_release_wipes_the_row_of_a_stack_that_others_use() -> None:
    pool = make_pool()
    first, second = pool.acquire(make_options(seed=1)), pool.acquire(make_options(seed=2))
    name = find_targets("q_proj")[0]
    neighbour = pool.stacked_a(name)[second].clone()

    pool.release(first)

    assert not pool.stacked_a(name)[first].any()
    assert torch.equal(pool.stacked_a(name)[second], neighbour)


def test_E02_a_job_that_joins_or_leaves_changes_nothing_of_a_resident_one() -> None:
    options = OptimizerOptions(1e-2, total_steps=10)
    alone = make_adapter(seed=1)
    train(alone, AdapterOptimizer(alone, options), 10)
    pool = make_pool()
    slot = pool.acquire(make_options(seed=1))
    resident = pool.adapter(slot)
    optimizer = AdapterOptimizer(resident, options)
    for step in range(10):
        if step == 3:
            other = pool.acquire(make_options(seed=2, rank=16, target_names=find_targets()))
        if step == 6:
            pool.adapter(other).weights.fill_(math.nan)
            pool.release(other)
        train(resident, optimizer, 1)

    assert torch.equal(resident.weights, alone.weights)
    for name in resident.options.target_names:
        assert torch.isfinite(pool.stacked_a(name)).all()


def test_E08_ranks_scalings_and_targets_may_all_differ() -> None:
    pool = make_pool()
    wanted = [
        make_options(rank=4, alpha=8.0),
        make_options(rank=16, alpha=16.0, use_rslora=True, target_names=find_targets()),
        make_options(rank=12, alpha=1.0, dropout=0.1, target_names=find_targets("down_proj")),
    ]

    slots = [pool.acquire(options) for options in wanted]

    assert [pool.options(slot) for slot in slots] == wanted
    assert [pool.options(slot).scaling for slot in slots] == [2.0, 4.0, pytest.approx(1 / 12)]


def test_E09_fifty_jobs_that_come_and_go_leave_no_memory_behind() -> None:
    pool = make_pool()
    buffers = []
    for index in range(50):
        slot = pool.acquire(make_options(rank=1 + index % 16, seed=index))
        buffers += [weakref.ref(pool.adapter(slot)), weakref.ref(pool.stacked_a(find_targets("q_proj")[0]))]
        pool.release(slot)
    gc.collect()

    assert [buffer for buffer in buffers if buffer() is not None] == []
    assert list_stacks(pool) == set()


@pytest.mark.parametrize(
    "changes, reason, want",
    [
        ({"rank": 17}, Reason.RANK_EXCEEDS_POOL, "got 17, the pool's slots.maxRank is 16"),
        ({"rank": 0}, Reason.INVALID_SPEC, "lora.r: got 0"),
        ({"alpha": 0.0}, Reason.INVALID_SPEC, "lora.loraAlpha: got 0.0"),
        ({"alpha": math.inf}, Reason.INVALID_SPEC, "lora.loraAlpha: got inf"),
        ({"alpha": math.nan}, Reason.INVALID_SPEC, "lora.loraAlpha: got nan"),
        ({"dropout": 1.0}, Reason.INVALID_SPEC, "lora.loraDropout: got 1.0"),
        ({"dropout": -0.1}, Reason.INVALID_SPEC, "lora.loraDropout: got -0.1"),
        ({"seed": 2**63}, Reason.INVALID_SPEC, "training.seed"),
        ({"target_names": ()}, Reason.TARGET_MODULES_NOT_FOUND, "matches no linear layer"),
        ({"target_names": ("v_porj",)}, Reason.TARGET_MODULES_NOT_FOUND, "no linear layer is named v_porj"),
        ({"target_names": find_targets("q_proj") * 2}, Reason.INVALID_SPEC, "named twice"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_and_take_no_slot(changes, reason: Reason, want: str) -> None:
    pool = make_pool()

    with pytest.raises(RefusalError, match=want) as caught:
        pool.acquire(make_options(**changes))

    assert caught.value.reason is reason
    assert pool.occupied == ()


@pytest.mark.parametrize("max_slots, max_rank", [(0, 8), (1, 0)])
def test_a_pool_without_room_is_refused(max_slots: int, max_rank: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        make_pool(max_slots=max_slots, max_rank=max_rank)
