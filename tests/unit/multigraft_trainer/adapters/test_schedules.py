from __future__ import annotations

import pytest
import torch
from transformers import get_scheduler

from multigraft.api.adapter_job import LrSchedulerType
from multigraft.api.reasons import Reason, RefusalError
from multigraft_trainer.adapters.schedules import check_schedule, compute_factor, compute_peak_factor

KINDS = {
    LrSchedulerType.LINEAR: "linear",
    LrSchedulerType.COSINE: "cosine",
    LrSchedulerType.CONSTANT: "constant",
    LrSchedulerType.CONSTANT_WITH_WARMUP: "constant_with_warmup",
}


def list_reference(kind: LrSchedulerType, warmup_steps: int, total_steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = get_scheduler(KINDS[kind], optimizer, num_warmup_steps=warmup_steps, num_training_steps=total_steps)
    factors = []
    for _ in range(total_steps + 1):
        factors.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return factors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup_steps, total_steps", [(0, 1), (0, 10), (1, 1), (3, 10), (3, 25), (10, 10), (7, 100)])
def test_every_step_equals_transformers(kind: LrSchedulerType, warmup_steps: int, total_steps: int) -> None:
    want = list_reference(kind, warmup_steps, total_steps)

    got = [
        compute_factor(kind, step, warmup_steps=warmup_steps, total_steps=total_steps)
        for step in range(total_steps + 1)
    ]

    assert got == want


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_the_api_is_a_schedule(kind: LrSchedulerType) -> None:
    assert set(KINDS) == set(LrSchedulerType)


@pytest.mark.parametrize("kind", [LrSchedulerType.LINEAR, LrSchedulerType.COSINE])
def test_C10_decay_ends_at_zero_after_the_last_step_of_each_adapter(kind: LrSchedulerType) -> None:
    for total_steps in (10, 25):
        assert compute_factor(kind, total_steps, warmup_steps=3, total_steps=total_steps) == 0
        assert compute_factor(kind, 3, warmup_steps=3, total_steps=total_steps) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup_steps, total_steps", [(0, 1), (0, 5), (1, 1), (2, 5), (5, 5), (4, 5)])
def test_C11_peak_is_the_highest_factor_of_all_steps(
    kind: LrSchedulerType, warmup_steps: int, total_steps: int
) -> None:
    want = max(
        compute_factor(kind, step, warmup_steps=warmup_steps, total_steps=total_steps) for step in range(total_steps)
    )

    assert compute_peak_factor(kind, warmup_steps=warmup_steps, total_steps=total_steps) == want


@pytest.mark.parametrize(
    "kind, warmup_steps, total_steps, want",
    [
        pytest.param("Linear", 2000, 12, "got 2000, the job has 12 optimizer steps", id="C11 warm-up outlasts the run"),
        pytest.param("Linear", 1, 1, "the learning rate is 0 in every step", id="the only step has a rate of 0"),
        pytest.param("Constant", 3, 10, "use ConstantWithWarmup", id="Constant would ignore its warm-up"),
    ],
)
def test_C11_a_schedule_that_cannot_do_what_it_says_is_refused(
    kind: str, warmup_steps: int, total_steps: int, want: str
) -> None:
    with pytest.raises(RefusalError, match=want) as caught:
        check_schedule(LrSchedulerType(kind), warmup_steps=warmup_steps, total_steps=total_steps)

    assert caught.value.reason is Reason.INVALID_SPEC


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_without_warmup_is_accepted(kind: LrSchedulerType) -> None:
    check_schedule(kind, warmup_steps=0, total_steps=1)
