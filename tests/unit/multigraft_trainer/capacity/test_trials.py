from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builders.backend import load_tiny_backend
from builders.bounded_backend import BoundedBackend
from builders.tiny_base import make_tiny_base
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.slot_pool import SlotPool
from multigraft_trainer.adapters.slots import AdapterOptions
from multigraft_trainer.backends.transformers_backend import TransformersBackend
from multigraft_trainer.capacity.device_memory import is_out_of_memory
from multigraft_trainer.capacity.measure import measure_capacity
from multigraft_trainer.capacity.trials import TrialPool, open_trials


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base"))


def open_base(base: Path, *, max_slots: int = 3) -> tuple[TransformersBackend, SlotPool, TrialPool]:
    backend, slots = load_tiny_backend(base, max_slots=max_slots, max_rank=8)
    pool = TrialPool(max_slots, 8, tuple(backend.linears), 16, backend.max_positions)
    return backend, slots, pool


def test_trials_fill_every_slot_at_full_rank_and_leave_nothing(base: Path) -> None:
    backend, slots, pool = open_base(base)
    state = torch.random.get_rng_state()
    with open_trials(backend, slots, pool) as trials:
        assert slots.occupied == (0, 1, 2)
        assert {slots.options(slot).rank for slot in slots.occupied} == {8}
        assert trials.fits(200)
        adapter = slots.adapter(0)
        assert adapter.grads.any()
        assert trials.time(((100,), (60,))).forward_ms > 0
    assert slots.occupied == ()
    assert not adapter.grads.any(), "wiped"
    assert not adapter.weights.any(), "wiped"
    with pytest.raises(KeyError):
        slots.stacked_a(next(iter(backend.linears)))
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_size_above_the_memory_does_not_fit_and_smaller_ones_still_do(base: Path) -> None:
    backend, slots, pool = open_base(base)
    bounded = BoundedBackend(backend, 300)
    with open_trials(bounded, slots, pool) as trials:
        assert [trials.fits(size) for size in (100, 301, 300)] == [True, False, True]
        assert trials.last_refusal == "CUDA out of memory. Tried to allocate 301 KiB."
    assert slots.occupied == ()


def raise_illegal_access(_: int) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    "error, want",
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory."), True, id="torch's own class"),
        pytest.param(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True, id="cuBLAS"),
        pytest.param(RuntimeError("CUDA error: out of memory\nCUDA kernel errors"), True, id="the driver"),
        pytest.param(RuntimeError("shape mismatch"), False, id="another error of torch"),
        pytest.param(ValueError("out of memory"), False, id="an error that no library raises"),
        pytest.param(KeyboardInterrupt(), False, id="a user who has had enough"),
    ],
)
def test_which_errors_say_that_memory_ran_out(error: BaseException, want: bool) -> None:
    assert is_out_of_memory(error) is want


def test_another_fault_ends_the_trials_and_frees_the_slots(base: Path) -> None:
    backend, slots, pool = open_base(base)
    broken = BoundedBackend(backend, 100, on_too_large=raise_illegal_access)
    with pytest.raises(RuntimeError, match="illegal memory access"), open_trials(broken, slots, pool) as trials:
        trials.fits(200)
    assert slots.occupied == ()


def test_no_trial_beside_a_job(base: Path) -> None:
    backend, slots, pool = open_base(base)
    slot = slots.acquire(AdapterOptions(4, 8.0, False, 0.0, 1, tuple(backend.linears)[:1]))
    weights = slots.adapter(slot).weights.clone()
    with (
        pytest.raises(RuntimeError, match="hold adapters; trials need an empty pool"),
        open_trials(backend, slots, pool),
    ):
        pass
    assert slots.occupied == (slot,)
    assert torch.equal(slots.adapter(slot).weights, weights)


def test_adapters_that_do_not_fit_are_refused_with_numbers(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, slots, pool = open_base(base)
    acquire = slots.acquire

    def acquire_two(options: AdapterOptions) -> int:
        if len(slots.occupied) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return acquire(options)

    monkeypatch.setattr(slots, "acquire", acquire_two)
    with pytest.raises(RefusalError) as caught, open_trials(backend, slots, pool):
        pass
    assert caught.value.reason is Reason.OUT_OF_MEMORY
    assert "spec.slots: 2 of 3 adapters of rank 8 fit beside the base model; lower slots.max" in caught.value.message
    assert slots.occupied == ()


def test_the_capacity_is_what_fits_less_the_margin_and_the_times_are_fitted(base: Path) -> None:
    backend, slots, pool = open_base(base)
    bounded = BoundedBackend(backend, 1700)
    with open_trials(bounded, slots, pool) as trials:
        got = measure_capacity(trials, max_slots=3, tile_tokens=16, longest_sample=backend.max_positions)
    assert got.largest_fit == 1664  # thirteen units of 128
    assert got.tokens == 1536  # less 5 %, whole units
    assert got.cost.forward_token_ms + got.cost.forward_fixed_ms > 0
    assert got.cost.backward_token_ms + got.cost.backward_fixed_ms > 0
    assert max(bounded.seen) == 2048, "no size above the first failure"


def test_memory_for_nothing_is_refused_with_numbers(base: Path) -> None:
    backend, slots, pool = open_base(base)
    bounded = BoundedBackend(backend, 100)
    with pytest.raises(RefusalError) as caught, open_trials(bounded, slots, pool) as trials:
        measure_capacity(trials, max_slots=3, tile_tokens=16, longest_sample=None)
    assert caught.value.reason is Reason.OUT_OF_MEMORY
    assert "not even 128 tokens fit beside the base model and 3 adapters" in caught.value.message
    assert "gradientCheckpointing (CUDA out of memory. Tried to allocate 128 KiB.)" in caught.value.message
    assert slots.occupied == ()
