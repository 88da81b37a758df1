from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import get_scheduler

from builders.small_adapter import add_gradients, find_targets, make_adapter, make_options, make_pool, train
from multigraft.api.adapter_job import LrSchedulerType, Training
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.adapter import Adapter
from multigraft_trainer.adapters.optimizer import AdapterOptimizer, OptimizerOptions, Outcome, Progress

OPTIONS = OptimizerOptions(1e-2, total_steps=20)
LOSS = {"loss_sum": 20.0, "num_supervised": 10}


def train_reference(adapter: Adapter, options: OptimizerOptions, steps: int) -> dict[str, torch.Tensor]:
    """Plain torch: one parameter per tensor, torch.optim.AdamW, clip_grad_norm_, a transformers schedule."""
    parameters = {key: tensor.clone().requires_grad_() for key, tensor in adapter.named_weights().items()}
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        eps=options.epsilon,
        weight_decay=options.weight_decay,
    )
    kind = {"ConstantWithWarmup": "constant_with_warmup"}.get(options.schedule.value, options.schedule.value.lower())
    scheduler = get_scheduler(
        kind, optimizer, num_warmup_steps=options.warmup_steps, num_training_steps=options.total_steps
    )
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if options.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(parameters.values(), options.max_grad_norm)
        optimizer.step()
        scheduler.step()
    return parameters


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"schedule": LrSchedulerType.COSINE, "warmup_steps": 5}, id="cosine with warm-up"),
        pytest.param({"schedule": LrSchedulerType.CONSTANT_WITH_WARMUP, "warmup_steps": 3}, id="constant with warm-up"),
        pytest.param({"weight_decay": 0.1, "max_grad_norm": 0.0}, id="weight decay, no clipping"),
        pytest.param({"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3, "max_grad_norm": 1e6}, id="other betas, clip idle"),
    ],
)
def test_twenty_steps_equal_plain_torch(changes: dict[str, float]) -> None:
    options = replace(OPTIONS, **changes)
    adapter = make_adapter()
    want = train_reference(adapter, options, 20)

    train(adapter, AdapterOptimizer(adapter, options), 20)

    for key, got in adapter.named_weights().items():
        torch.testing.assert_close(got, want[key].detach(), rtol=1e-5, atol=1e-7)


def test_a_step_reports_what_it_did() -> None:
    adapter = make_adapter()
    optimizer = AdapterOptimizer(adapter, OPTIONS)
    add_gradients(adapter, 0)
    want_norm = torch.linalg.vector_norm(torch.cat([t.flatten() for t in (adapter.grads,)])).item()

    got = optimizer.step(**LOSS)

    assert (got.step, got.outcome, got.loss, got.learning_rate) == (0, Outcome.APPLIED, 2.0, 1e-2)
    assert got.grad_norm == pytest.approx(want_norm)
    assert got.applied
    assert not adapter.grads.any()
    assert optimizer.progress == Progress(step=1, updates=1, supervised_tokens=10, peak_learning_rate=1e-2)


def test_the_norm_of_a_large_adapter_is_exact_to_fp32() -> None:
    adapter = make_adapter(rank=16, target_names=find_targets())
    adapter.grads.normal_(generator=torch.Generator().manual_seed(0)).exp_()  # of very different sizes
    want = adapter.grads.double().norm().item()

    got = AdapterOptimizer(adapter, OPTIONS).step(**LOSS).grad_norm

    assert got == pytest.approx(want, rel=1e-7)


def test_an_applied_step_is_published_to_the_compute_copy() -> None:
    pool = make_pool(compute_dtype=torch.bfloat16)
    slot = pool.acquire(make_options())
    adapter = pool.adapter(slot)
    train(adapter, AdapterOptimizer(adapter, OPTIONS), 1)

    name = adapter.options.target_names[0]
    want = adapter.named_weights()[f"base_model.model.{name}.lora_B.weight"].to(torch.bfloat16)
    assert torch.equal(pool.stacked_b(name)[slot][:, :4], want)
    assert want.any()


@pytest.mark.parametrize(
    "poison",
    [
        pytest.param(lambda a: (a.grads[:1].fill_(math.nan), 20.0)[1], id="one gradient is NaN"),
        pytest.param(lambda a: (a.grads[-1:].fill_(-math.inf), 20.0)[1], id="one gradient is infinite"),
        pytest.param(lambda _: math.nan, id="the loss is NaN"),
        pytest.param(lambda _: math.inf, id="the loss is infinite"),
        pytest.param(lambda a: (a.grads.fill_(1e30), 20.0)[1], id="the second moment would overflow"),
    ],
)
def test_E04_a_non_finite_step_changes_nothing_but_counters(poison) -> None:
    adapter = make_adapter()
    optimizer = AdapterOptimizer(adapter, replace(OPTIONS, max_grad_norm=0.0))
    train(adapter, optimizer, 2)
    weights, moments = adapter.weights.clone(), adapter.exp_avg_sq.clone()
    add_gradients(adapter, 9)
    loss_sum = poison(adapter)

    got = optimizer.step(loss_sum, 10)

    assert got.outcome is Outcome.SKIPPED_NON_FINITE
    assert torch.equal(adapter.weights, weights)
    assert torch.equal(adapter.exp_avg_sq, moments)
    assert not adapter.grads.any()
    progress = optimizer.progress
    assert (progress.step, progress.updates, progress.skipped_nonfinite, progress.nonfinite_in_row) == (3, 2, 1, 1)


def test_J05_a_value_that_is_not_finite_is_none_and_never_zero() -> None:
    adapter = make_adapter()
    adapter.grads.fill_(math.nan)

    got = AdapterOptimizer(adapter, OPTIONS).step(math.nan, 10)

    assert got.loss is None
    assert got.grad_norm is None


def test_a_huge_but_finite_gradient_is_clipped_as_any_other() -> None:
    adapter = make_adapter()
    adapter.grads.fill_(3e37)  # its fp32 sum of squares is infinite, its norm is not

    got = AdapterOptimizer(adapter, OPTIONS).step(**LOSS)

    assert got.applied
    assert got.grad_norm == pytest.approx(3e37 * math.sqrt(adapter.grads.numel()))
    assert torch.isfinite(adapter.weights).all()


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_C21_a_job_fails_after_more_bad_steps_in_a_row_than_allowed(limit: int) -> None:
    adapter = make_adapter()
    optimizer = AdapterOptimizer(adapter, replace(OPTIONS, max_nonfinite_steps=limit))
    for _ in range(limit):
        assert optimizer.step(math.nan, 10).outcome is Outcome.SKIPPED_NON_FINITE

    with pytest.raises(RefusalError, match=f"{limit + 1} steps in a row.*maxNonfiniteSteps is {limit}") as caught:
        optimizer.step(math.nan, 10)

    assert caught.value.reason is Reason.NON_FINITE
    assert optimizer.progress.skipped_nonfinite == limit + 1


def test_a_good_step_ends_a_row_of_bad_ones() -> None:
    adapter = make_adapter()
    optimizer = AdapterOptimizer(adapter, replace(OPTIONS, max_nonfinite_steps=1))
    for step in range(6):
        add_gradients(adapter, step)
        optimizer.step(math.nan if step % 2 else 20.0, 10)

    assert optimizer.progress.skipped_nonfinite == 3
    assert optimizer.progress.updates == 3


def test_C04_a_global_batch_without_labels_is_skipped_and_counted() -> None:
    adapter = make_adapter()
    optimizer = AdapterOptimizer(adapter, OPTIONS)
    weights = adapter.weights.clone()

    got = optimizer.step(0.0, 0)

    assert (got.outcome, got.loss, got.grad_norm) == (Outcome.SKIPPED_NO_TOKENS, None, None)
    assert torch.equal(adapter.weights, weights)
    assert optimizer.progress == Progress(step=1, skipped_no_tokens=1)


def test_a_batch_without_labels_does_not_break_a_row_of_bad_steps() -> None:
    optimizer = AdapterOptimizer(make_adapter(), replace(OPTIONS, max_nonfinite_steps=1))
    optimizer.step(math.nan, 10)
    optimizer.step(0.0, 0)

    with pytest.raises(RefusalError, match="2 steps in a row"):
        optimizer.step(math.nan, 10)


def test_a_job_ends_after_its_total_steps_whatever_was_skipped() -> None:
    adapter = make_adapter()
    optimizer = AdapterOptimizer(adapter, replace(OPTIONS, total_steps=4, max_nonfinite_steps=4))
    for loss_sum, num_supervised in ((20.0, 10), (math.nan, 10), (0.0, 0), (20.0, 10)):
        assert not optimizer.finished
        optimizer.step(loss_sum, num_supervised)

    assert optimizer.finished
    with pytest.raises(ValueError, match="optimizer step 4: the job has 4 steps"):
        optimizer.step(20.0, 10)


def test_C10_each_adapter_has_its_own_clock() -> None:
    pool = make_pool()
    optimizers = [
        AdapterOptimizer(
            pool.adapter(pool.acquire(make_options(seed=total_steps))),
            replace(OPTIONS, total_steps=total_steps, warmup_steps=3),
        )
        for total_steps in (10, 25)
    ]
    rates: list[list[float]] = [[], []]
    for _ in range(25):
        for index, optimizer in enumerate(optimizers):
            if not optimizer.finished:
                rates[index].append(optimizer.step(20.0, 10).learning_rate)

    for got, total_steps in zip(rates, (10, 25), strict=True):
        want = [1e-2 * min(step / 3, (total_steps - step) / (total_steps - 3)) for step in range(total_steps)]
        assert got == pytest.approx(want)


def test_E01_a_step_of_one_adapter_leaves_its_neighbour_bit_for_bit() -> None:
    pool = make_pool()
    a, b = (pool.adapter(pool.acquire(make_options(seed=seed))) for seed in (1, 2))
    alone = make_adapter(seed=1)
    b_state = [tensor.clone() for tensor in (b.weights, b.exp_avg, b.exp_avg_sq)]
    for adapter in (a, alone):
        add_gradients(adapter, 7)
    add_gradients(b, 8, scale=1e6)
    b_grads = b.grads.clone()

    got, want = (AdapterOptimizer(adapter, OPTIONS).step(**LOSS) for adapter in (a, alone))

    assert got == want
    assert torch.equal(a.weights, alone.weights)
    assert all(
        torch.equal(now, before) for now, before in zip((b.weights, b.exp_avg, b.exp_avg_sq), b_state, strict=True)
    )
    assert torch.equal(b.grads, b_grads)


def test_E04_a_neighbour_full_of_nan_has_no_part_in_the_clip_factor() -> None:
    pool = make_pool()
    bad, good = (pool.adapter(pool.acquire(make_options(seed=seed))) for seed in (1, 2))
    alone = make_adapter(seed=2)
    optimizers = {adapter: AdapterOptimizer(adapter, OPTIONS) for adapter in (bad, good, alone)}
    for step in range(3):
        bad.grads.fill_(math.nan)
        for adapter in (good, alone):
            add_gradients(adapter, step)
        for optimizer in optimizers.values():
            optimizer.step(**LOSS)

    assert torch.equal(good.weights, alone.weights)
    assert optimizers[bad].progress.skipped_nonfinite == 3


@pytest.mark.parametrize("compute_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_C14_master_and_moments_are_fp32_whatever_the_base(compute_dtype: torch.dtype) -> None:
    pool = make_pool(compute_dtype=compute_dtype)
    adapter = pool.adapter(pool.acquire(make_options()))
    train(adapter, AdapterOptimizer(adapter, OPTIONS), 1)

    tensors = (adapter.weights, adapter.grads, adapter.exp_avg, adapter.exp_avg_sq)
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert pool.stacked_a(adapter.options.target_names[0]).dtype is compute_dtype


def test_C15_two_hundred_small_updates_all_count_on_a_bf16_base() -> None:
    options = OptimizerOptions(1e-6, total_steps=200, schedule=LrSchedulerType.CONSTANT)
    pool = make_pool(compute_dtype=torch.bfloat16)
    adapter = pool.adapter(pool.acquire(make_options()))
    want = train_reference(adapter, options, 200)
    optimizer = AdapterOptimizer(adapter, options)
    for _ in range(200):
        before = adapter.weights.clone()
        train(adapter, optimizer, 1)
        assert not torch.equal(adapter.weights, before)

    for key, got in adapter.named_weights().items():
        torch.testing.assert_close(got, want[key].detach(), rtol=1e-5, atol=1e-9)


def test_options_are_read_from_the_spec_as_numbers() -> None:
    training = Training(
        max_steps=7,
        learning_rate="2e-4",
        lr_scheduler_type=LrSchedulerType.COSINE,
        warmup_steps=2,
        weight_decay="0.01",
        adam_beta1="0.8",
        adam_beta2="0.95",
        adam_epsilon="1e-6",
        max_grad_norm="0",
        max_nonfinite_steps=5,
    )

    got = OptimizerOptions.from_spec(training, total_steps=7)

    assert got == OptimizerOptions(2e-4, 7, LrSchedulerType.COSINE, 2, 0.8, 0.95, 1e-6, 0.01, 0.0, 5)


@pytest.mark.parametrize(
    "changes, want",
    [
        ({"learning_rate": "0"}, "training.learningRate"),
        ({"adam_beta1": "1"}, "training.adamBeta1"),
        ({"adam_beta2": "1.5"}, "training.adamBeta2"),
        ({"adam_epsilon": "0"}, "training.adamEpsilon"),
        ({"weight_decay": "2"}, "training.weightDecay"),
        ({"learning_rate": "1e99"}, "training.learningRate: got 1e.99, want a normal fp32 number"),
        ({"adam_epsilon": "1e-99"}, "training.adamEpsilon"),
        ({"max_grad_norm": "1e99"}, "training.maxGradNorm"),
        ({"warmup_steps": 11}, "training.warmupSteps"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(changes: dict[str, str], want: str) -> None:
    training = Training(max_steps=10).model_copy(update=changes)

    with pytest.raises(RefusalError, match=want) as caught:
        OptimizerOptions.from_spec(training, total_steps=10)

    assert caught.value.reason is Reason.INVALID_SPEC
